"""Markdown of a model as safe HTML: whole texts, and the blocks of streamed ones.

Owns what HTML a reply may become. Raw HTML in the source stays text, only `http`, `https` and `mailto`
addresses become links, images become links to the image, and everything passes an allow-list at the end.
Does not know sessions, sockets or the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

from miniclaw.gateway import formulas

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token
    from nh3 import Cleaner

__all__ = ["judged", "split_lines", "plain", "render", "render_markdown", "top_level"]

HIGHLIGHT_LIMIT: Final = 40_000
"""Characters of one code block above which it stays plain: highlighting costs most of the rendering."""

BLOCK_COST: Final = 1_000
"""What a block may cost (see `_cost`), about 20 ms; one above is shown as plain text."""

TEXT_COST: Final = 10_000
"""What the blocks of a text may cost together; those behind are shown as plain text."""


_MARKUP = re.compile(r"[^\w\s.,;:?()-]|[_\n]|://")
_CODE: Final = frozenset({"fence", "code_block", "math_block"})
_GAP = re.compile(r"\n(?:[ \t]*\n)+")
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
    env: dict[str, Any] = {}
    lines = split_lines(text)
    if _cost("".join(lines)) <= BLOCK_COST:
        return render(text, env)
    blocks = judged(lines, top_level(text, env), env)
    html = ""
    for is_dear, group in groupby(blocks, lambda each: each[0]):
        sources = [source for _, source in group]
        html += "".join(map(plain, sources)) if is_dear else render("".join(sources), env)
    return html


def split_lines(text: str) -> list[str]:
    """The lines with their ends, as CommonMark counts them."""
    return _LINE.findall(text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text)


def render(source: str, env: dict[str, Any]) -> str:
    """A text as HTML; `env` holds the addresses that references in it may name."""
    return _cleaner().clean(_parser().render(source, env))


def _cost(source: str) -> int:
    """A measure of the work: marks and line ends, or the cells where all lines are a table's rows."""
    lines = source.split("\n")
    return max(len(_MARKUP.findall(source)), len(lines) * max(line.count("|") for line in lines))


def judged(
    lines: list[str], blocks: list[tuple[Token, int]], env: dict[str, Any]
) -> Iterator[tuple[bool, str]]:
    """The source of each block, and whether it costs too much: the same however the text came."""
    start = 0
    for token, end in blocks:
        source, start = "".join(lines[start:end]), end
        cost = 0 if token.type in _CODE else _cost(source)
        env["cost"] = env.get("cost", 0) + cost
        yield cost > BLOCK_COST or (cost > 0 and env["cost"] > TEXT_COST), source


def plain(source: str) -> str:
    """A text as paragraphs without any markup."""
    paragraphs = _GAP.split(escape(source.strip("\n"), quote=False))
    shown = (text.replace("\n", "<br>\n") for text in paragraphs)
    return _cleaner().clean("".join(f"<p>{text}</p>\n" for text in shown))


def top_level(source: str, env: dict[str, Any] | None = None) -> list[tuple[Token, int]]:
    """The top-level blocks of the source, each with the line behind its last one."""
    tokens = _scanner().parse(source, {} if env is None else env)
    return [
        (token, token.map[1]) for token in tokens if token.level == 0 and token.map and token.nesting >= 0
    ]


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlight})
    parser.enable(["table", "strikethrough"])
    formulas.enable(parser)
    parser.validateLink = lambda url: _ADDRESS.match(url) is not None  # type: ignore[method-assign]  # the documented way
    parser.core.ruler.after("text_join", "miniclaw", _polish)
    return parser


@lru_cache(maxsize=1)
def _scanner() -> MarkdownIt:
    """The same grammar, blocks only."""
    from markdown_it import MarkdownIt

    scanner = MarkdownIt("commonmark", {"html": False}).enable("table")
    formulas.enable(scanner)
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
        allowed_classes={"pre": {"math"}, "span": {"math", "task", *filter(None, STANDARD_TYPES.values())}},
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
