"""A model's Markdown as each of those platforms shows it that know only some of it.

Made of the tokens of a CommonMark parser. What a platform does not know becomes readable text, images become
links everywhere (nothing is fetched that nobody clicked on), and HTML stays the text that it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from miniclaw.channel.bounded import bounded, parsed

__all__ = ["to_dingtalk", "to_wecom_app", "to_wecom_bot"]

DEEP: Final = 20
"""Levels at which the parser stops."""

# Without `text_join` it stays known what stood behind a backslash.
_PARSER: Final = bounded(MarkdownIt("commonmark", {"html": False, "maxNesting": DEEP}).enable("table"))
_PARSER.disable(["entity", "reference", "text_join"])
_TAG = re.compile(r"<(?=[A-Za-z/!?@])")
_IMAGE_OR_PING = re.compile(r"<(?=img|@)", re.IGNORECASE)
_PARAGRAPHS = re.compile(r"(\n[ \t]*\n)")
_IMAGE = re.compile(r"!(?=\[)")
_BREAK: Final = "\u200b"
_SPECIAL = re.compile(r"[\\`*_\[\]<>#~|-]|(?<=[0-9])[.)](?= )|\+(?= )|^=+(?= *$)")
"""What begins markup in a line of code; DingTalk knows the backslash."""
_BLANKS = re.compile(r"^ +")
_TICKS = re.compile(r"`+")


def to_wecom_bot(text: str) -> str:
    """For an AI bot of WeCom: https://developer.work.weixin.qq.com/document/path/99110, `markdown_v2`.

    It has all that models write. WeCom asks for a growing answer each second, so one without images is not
    taken apart.
    """
    return _Dialect().shown(text) if "![" in text else _Dialect().inert(text)


def to_wecom_app(text: str) -> str:
    """For an app of WeCom: https://developer.work.weixin.qq.com/document/path/90236, supported Markdown.

    It has headings, bold, links, code within a line and quotations; each line of a code block is such code.
    """
    return _WeComApp().shown(text)


def to_dingtalk(text: str) -> str:
    """For DingTalk: https://open.dingtalk.com/document/orgapp/robot-message-type, Markdown.

    It has headings, quotations, bold, italics, links and lists; a line ends where two blanks stand before its
    end. Its clients take HTML for markup, also in code, and leave out indentation.
    """
    return _DingTalk().shown(text)


class _Dialect:
    """Writes what the tokens say; all of CommonMark and tables."""

    emphasis = "*"
    line_end = "\n"
    tag = _IMAGE_OR_PING

    def shown(self, text: str) -> str:
        """The whole text, without blank lines around it; as it is where it is too much or too deep to be parsed.

        So is one of which nothing would be shown, such as a fence's line that nothing follows.
        """
        tokens = parsed(_PARSER, text)
        if tokens is not None and all(token.level < DEEP - 1 for token in tokens):
            shown = "\n".join(self._blocks(iter(tokens), in_item=False))
            if shown.strip():
                return self.inert(shown)
        return self.inert(self.line_end.join(text.strip("\r\n").splitlines()))

    def inert(self, text: str) -> str:
        """What is about to be sent, in which nothing is an image or calls people, whatever stood before it.

        Code such as `vec![1]` stays as it is, unless something in its paragraph could be a link.
        """
        paragraphs = _PARAGRAPHS.split(self.tag.sub(f"<{_BREAK}", text))
        can_refer = "]:" in text
        for number, paragraph in enumerate(paragraphs):
            if can_refer or "](" in paragraph or "][" in paragraph:
                paragraphs[number] = _IMAGE.sub(f"!{_BREAK}", paragraph)
        return "".join(paragraphs)

    def code(self, lines: list[str], info: str) -> list[str]:
        longest = max(map(len, _TICKS.findall("\n".join(lines))), default=0)
        marks = "`" * max(3, longest + 1)
        return [marks + info, *lines, marks]

    def table(self, rows: list[list[str]]) -> list[str]:
        shown = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
        return [shown[0], "|" + " --- |" * len(rows[0]), *shown[1:]]

    def text(self, text: str) -> str:
        return text

    def special(self, token: Token) -> str:
        """A character that was written behind a backslash."""
        return token.markup

    def _blocks(self, tokens: Iterator[Token], *, in_item: bool) -> list[str]:
        """The lines of all blocks up to the end of what they stand in."""
        lines: list[str] = []
        for token in tokens:
            if token.nesting < 0:
                break
            is_close = token.hidden or (in_item and token.type.endswith("list_open"))
            block = self._block(token, tokens)
            lines += block if is_close or not lines else ["", *block]
        return lines

    def _block(self, token: Token, tokens: Iterator[Token]) -> list[str]:
        match token.type:
            case "heading_open":
                return [f"{'#' * int(token.tag[1])} {' '.join(self._inline(tokens))}"]
            case "paragraph_open":
                return self._inline(tokens)
            case "blockquote_open":
                return [f"> {line}" if line else ">" for line in self._blocks(tokens, in_item=False)]
            case "bullet_list_open" | "ordered_list_open":
                return self._list(tokens)
            case "table_open":
                return self.table(list(self._rows(tokens)))
            case "fence" | "code_block":
                return self.code(token.content.removesuffix("\n").split("\n"), token.info.strip())
        return ["---"]

    def _list(self, tokens: Iterator[Token]) -> list[str]:
        lines: list[str] = []
        rest: list[str] = []
        for token in tokens:
            if token.nesting < 0:
                break
            lines += [""] if "" in rest else []  # an item of several paragraphs stands apart from the next
            marker = f"{token.info}. " if token.info else "- "
            first, *rest = self._blocks(tokens, in_item=True) or [""]
            lines.append(marker + first if first else marker.rstrip())
            lines += [" " * len(marker) + line if line else "" for line in rest]
        return lines

    def _rows(self, tokens: Iterator[Token]) -> Iterator[list[str]]:
        row: list[str] = []
        for token in tokens:
            if token.type == "table_close":
                return
            if token.type == "inline":
                row.append(" ".join(self._written(token)))
            elif token.type == "tr_close":
                yield row
                row = []

    def _inline(self, tokens: Iterator[Token]) -> list[str]:
        """The lines of a paragraph or heading, which is read to its end."""
        lines = self._written(next(tokens))
        next(tokens)
        return lines

    def _written(self, inline: Token) -> list[str]:
        out, addresses = "", [""]
        for token in inline.children or ():
            match token.type:
                case "text":
                    out += self.text(token.content)
                case "text_special":
                    out += self.special(token)
                case "softbreak" | "hardbreak":
                    out += self.line_end
                case "code_inline":
                    marks = "`" * (1 + max(map(len, _TICKS.findall(token.content)), default=0))
                    blank = " " if token.content[0] == "`" or token.content[-1] == "`" else ""
                    out += marks + blank + token.content.replace("\n", " ") + blank + marks
                case "strong_open" | "strong_close":
                    out += "**"
                case "em_open" | "em_close":
                    out += self.emphasis
                case "link_open":
                    addresses.append(_address(token, "href"))
                    out += "["
                case "link_close":
                    out += f"]({addresses.pop()})"
                case "image":
                    name = self.text(token.content or "image")
                    out += name if len(addresses) > 1 else f"[{name}]({_address(token, 'src')})"
        return out.split("\n")


class _WeComApp(_Dialect):
    emphasis = ""

    def code(self, lines: list[str], info: str) -> list[str]:
        return [line if "`" in line or not line.strip() else f"`{line}`" for line in lines]

    def table(self, rows: list[list[str]]) -> list[str]:
        return [" | ".join(row) for row in rows]

    def special(self, token: Token) -> str:
        return token.content


class _DingTalk(_Dialect):
    line_end = "  \n"
    tag = _TAG

    def code(self, lines: list[str], info: str) -> list[str]:
        def shown(line: str) -> str:
            line = _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), line.expandtabs(4))
            return _BLANKS.sub(lambda found: "&nbsp;" * len(found[0]), line)

        return [f"{shown(line)}  " for line in lines[:-1]] + [shown(lines[-1])]

    def table(self, rows: list[list[str]]) -> list[str]:
        lines = [" | ".join(row) for row in rows]
        return [f"{line}  " for line in lines[:-1]] + lines[-1:]

    def text(self, text: str) -> str:
        return _TAG.sub("&lt;", text)


_ENTITIES: Final = {"<": "&lt;", ">": "&gt;"}


def _address(token: Token, name: str) -> str:
    """The address of a link, in which a bracket would end it early."""
    return str(token.attrs[name]).replace("(", "%28").replace(")", "%29")
