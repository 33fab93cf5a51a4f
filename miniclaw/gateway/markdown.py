"""Markdown of a model as safe HTML: whole texts, and streamed texts block by block.

Owns what HTML a reply may become. Raw HTML in the source stays text, only `http`, `https` and `mailto`
addresses become links, images become links to the image, and everything passes an allow-list at the end.
Does not know sessions, sockets or the page.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token
    from nh3 import Cleaner

__all__ = ["BlockRenderer", "render_markdown"]

HIGHLIGHT_LIMIT: Final = 40_000
"""Characters of one code block above which it stays plain: highlighting costs most of the rendering."""

SCAN_FACTOR: Final = 8
"""How often, on average, a character of a stream may be scanned for block ends; makes the cost linear."""

_CLOSED_BY_BLANK: Final = frozenset({"paragraph_open", "heading_open", "table_open", "blockquote_open"})

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ADDRESS = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_BARE_URL = re.compile(r"(?<![A-Za-z0-9])https?://[A-Za-z0-9][A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.\-]{1,24}")
_TASK = re.compile(r"\[([ xX])\](?=\s)")
_ALIGNMENT = re.compile(r"text-align:(left|center|right)")

_TAGS: Final = frozenset(
    "p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a table thead tbody tr th td span".split()
)
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}, "pre": {"data-lang"}}
_ALIGN: Final = {"align": {"left", "center", "right"}}


def render_markdown(text: str) -> str:
    """The text as HTML that may be put into a page as it is."""
    return _render(text, {})


class BlockRenderer:
    """Renders a growing text so that a finished block is rendered once and never changes again.

    A top-level block is finished when the next one has begun; paragraphs, tables and quotes already with the
    blank line behind them; rules, headings and closed code fences at once. However the text is cut into deltas, the blocks are the same, and joined they equal
    `render_markdown` of the whole text, with one exception that CommonMark forces: a link reference
    definition does not reach back to blocks that were finished before it. A list stays open as long as it
    goes on, since a late blank line makes all of its items loose.

    The cost is linear in the text: only the open block is scanned, only when a line has ended, and not
    while an open code fence goes on.
    """

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._lines: list[str] = []
        self._tail: list[str] = []
        self._size = 0
        self._credit = 0
        self._fence_end: re.Pattern[str] | None = None
        self._env: dict[str, Any] = {}

    def feed(self, delta: str) -> list[tuple[int, str, str]]:
        """Take more text; returns the newly finished blocks as `(index, html, rest)`.

        `rest` is the open text behind the block. Where several blocks finish together only the last one
        carries it and the others have `""`: each `rest` replaces the one before.
        """
        self._tail.append(delta)
        if "\n" not in delta:
            return []
        text = "".join(self._tail)
        cut = text.rindex("\n") + 1
        self._tail = [text[cut:]]
        lines = _lines(text[:cut])
        self._lines += lines
        self._size += cut
        self._credit += SCAN_FACTOR * cut
        return self._advance() if self._worth_a_scan(lines) else []

    def finish(self) -> list[tuple[int, str, str]]:
        """Render what is open; the text is at its end."""
        self._lines += _lines("".join(self._tail))
        self._tail = []
        finished = self._close([end for _, end in _top_level("".join(self._lines))])
        self._lines, self._size, self._fence_end = [], 0, None
        return [(index, html, "") for index, html in finished]

    def blocks(self) -> list[str]:
        """The HTML of all finished blocks."""
        return list(self._blocks)

    @property
    def rest(self) -> str:
        """The open text behind the last finished block."""
        return "".join(self._lines) + "".join(self._tail)

    def _worth_a_scan(self, lines: list[str]) -> bool:
        if self._fence_end is not None:
            return any(map(self._fence_end.fullmatch, lines))
        return self._size <= self._credit

    def _advance(self) -> list[tuple[int, str, str]]:
        self._credit -= self._size
        found = _top_level("".join(self._lines))
        ends = [end for _, end in found]
        self._fence_end = None
        if found and not self._is_complete(found[-1][0]):
            ends.pop()
            self._fence_end = _fence_end(found[-1][0]) if found[-1][0].type == "fence" else None
        finished = self._close(ends)
        last = len(finished) - 1
        return [(index, html, self.rest if i == last else "") for i, (index, html) in enumerate(finished)]

    def _close(self, ends: list[int]) -> list[tuple[int, str]]:
        """Render the blocks that end before these lines and forget their source."""
        finished = []
        for start, end in zip([0, *ends], ends, strict=False):
            html = _render("".join(self._lines[start:end]), self._env)
            finished.append((len(self._blocks), html))
            self._blocks.append(html)
        if ends:
            del self._lines[: ends[-1]]
            self._size = sum(map(len, self._lines))
        return finished

    def _is_complete(self, token: Token) -> bool:
        """Whether no further line can change this last block."""
        start, end = token.map or (0, 0)
        if token.type in _CLOSED_BY_BLANK and end < len(self._lines):
            return True
        if token.type == "fence":
            return end - start > 1 and _fence_end(token).fullmatch(self._lines[end - 1]) is not None
        if token.type == "heading_open" and token.markup.startswith("#"):
            return "|" not in self._lines[start]  # else the next line may make it a table's head
        return token.type == "hr"


def _fence_end(token: Token) -> re.Pattern[str]:
    return re.compile(rf" {{0,3}}{re.escape(token.markup[0])}{{{len(token.markup)},}}[ \t]*\n?")


def _lines(text: str) -> list[str]:
    """The lines with their ends, as CommonMark counts them."""
    return _LINE.findall(text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text)


def _render(source: str, env: dict[str, Any]) -> str:
    return _cleaner().clean(_parser().render(source, env))


def _top_level(source: str) -> list[tuple[Token, int]]:
    """The top-level blocks of the source, each with the line behind its last one."""
    tokens = _scanner().parse(source, {})
    return [
        (token, token.map[1]) for token in tokens if token.level == 0 and token.map and token.nesting >= 0
    ]


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlight})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _ADDRESS.match(url) is not None  # type: ignore[method-assign]  # the documented way
    parser.core.ruler.after("text_join", "miniclaw", _polish)
    return parser


@lru_cache(maxsize=1)
def _scanner() -> MarkdownIt:
    """The same grammar, blocks only."""
    from markdown_it import MarkdownIt

    scanner = MarkdownIt("commonmark", {"html": False}).enable("table")
    scanner.core.ruler.enableOnly(["normalize", "block"])
    return scanner


@lru_cache(maxsize=1)
def _cleaner() -> Cleaner:
    from nh3 import Cleaner
    from pygments.token import STANDARD_TYPES

    return Cleaner(
        tags=_TAGS,
        clean_content_tags={"script", "style"},
        attributes=_ATTRIBUTES,
        tag_attribute_values={"th": _ALIGN, "td": _ALIGN},
        allowed_classes={"span": {"task", *filter(None, STANDARD_TYPES.values())}},
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",
        link_rel="noopener noreferrer",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )


def _highlight(code: str, language: str, _attributes: str) -> str:
    """A code block as HTML with Pygments' class names; an unknown language stays plain."""
    name = language if _LANGUAGE.fullmatch(language) else ""
    label = f' data-lang="{escape(name)}"' if name else ""
    return f"<pre{label}><code>{_coloured(code, name) or escape(code, quote=False)}</code></pre>"


def _coloured(code: str, language: str) -> str:
    if not language or len(code) > HIGHLIGHT_LIMIT:
        return ""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


def _polish(state: StateCore) -> None:
    """What the grammar leaves to us: task boxes, images as links, bare URLs, alignment without styles."""
    before: list[str] = ["", ""]
    for token in state.tokens:
        if token.type in ("th_open", "td_open") and "style" in token.attrs:
            found = _ALIGNMENT.search(str(token.attrs.pop("style")))
            if found:
                token.attrs["align"] = found[1]
        elif token.type == "inline" and token.children:
            if before == ["list_item_open", "paragraph_open"]:
                _mark_task(token.children)
            token.children = _with_links(state.md, token.children)
        before = [before[1], token.type]


def _mark_task(children: list[Token]) -> None:
    found = _TASK.match(children[0].content) if children[0].type == "text" else None
    if found:
        box = "☐" if found[1] == " " else "☑"
        children[0].content = children[0].content[found.end() :]
        children.insert(0, _token("html_inline", content=f'<span class="task">{box}</span>'))


def _with_links(md: MarkdownIt, children: list[Token]) -> list[Token]:
    result: list[Token] = []
    depth = 0
    for child in children:
        depth += child.nesting if child.tag == "a" else 0
        if child.type == "image":
            address = str(child.attrs["src"])
            result += _link(address, child.content or address) if not depth else [_text(child.content)]
        elif child.type == "text" and not depth and "://" in child.content:
            result += _linkified(md, child.content)
        else:
            result.append(child)
    return result


def _linkified(md: MarkdownIt, text: str) -> list[Token]:
    result: list[Token] = []
    start = 0
    for found in _BARE_URL.finditer(text):
        url = _without_punctuation(found[0])
        result += [_text(text[start : found.start()]), *_link(md.normalizeLink(url), url)]
        start = found.start() + len(url)
    return [*result, _text(text[start:])]


def _without_punctuation(url: str) -> str:
    """A URL without what ends the sentence around it, such as a full stop or the bracket before it."""
    surplus = sum(map(url.count, ")]")) - sum(map(url.count, "(["))
    end = len(url)
    while url[end - 1] in ".,;:!?'*_~" or (url[end - 1] in ")]" and surplus > 0):
        end -= 1
        surplus -= url[end] in ")]"
    return url[:end]


def _link(address: str, content: str) -> list[Token]:
    opening = _token("link_open", "a", 1, attrs={"href": address})
    return [opening, _text(content), _token("link_close", "a", -1)]


def _text(content: str) -> Token:
    return _token("text", content=content)


def _token(kind: str, tag: str = "", nesting: Literal[-1, 0, 1] = 0, **fields: Any) -> Token:
    from markdown_it.token import Token

    return Token(kind, tag, nesting, **fields)
