"""HTML as text that a model can read: headings, lists and links in Markdown, scripts and styles left out.

A scanner of its own, since `html.parser` takes quadratic time on hostile pages and raises on some: this one
moves forward only, so its time grows with the size of the page and with nothing else.
"""

from __future__ import annotations

import html
import re
from typing import Final
from urllib.parse import urljoin

__all__ = ["html_to_text"]

MAX_TEXT: Final = 500_000
"""Characters of text after which the rest of a page is left out."""

_MAX_URL: Final = 500
_MAX_QUOTED: Final = 20
"""How many `>` may stand inside one quoted attribute before the quote counts as a stray one."""

_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]*")
_HREF = re.compile(r"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_RAW: Final = {
    name: re.compile(f"</{name}", re.IGNORECASE)
    for name in ("script", "style", "template", "svg", "iframe", "noscript", "object", "textarea", "select")
}
"""Elements left out with all they hold."""

_BLOCKS: Final = frozenset(
    "address article aside blockquote body center dd details dialog div dl dt fieldset figcaption figure footer"
    " form header hr main nav ol p pre section summary table tbody tfoot thead title tr ul".split()
)
_HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)}


def html_to_text(page: str, base_url: str = "") -> str:
    """The readable text of a page; links are made absolute with `base_url`."""
    text = _Text(base_url)
    position = 0
    while position < len(page) and text.length < MAX_TEXT:
        start = page.find("<", position)
        if start < 0:
            start = len(page)
        text.add(html.unescape(page[position:start]))
        position = _markup(page, start, text)
    return text.finished()


def _markup(page: str, start: int, text: _Text) -> int:
    """Read what begins at `start`, a `<` or the end of the page; where to go on."""
    if page.startswith("<!--", start):
        return _after(page, "-->", start + 4)
    if page.startswith(("<!", "<?"), start):
        return _after(page, ">", start)
    name_match = _NAME.match(page, start + 1)
    if name_match is None:
        text.add(page[start : start + 1])
        return start + 1
    name = name_match[0].lower()
    end = _tag_end(page, name_match.end())
    empty = name not in ("script", "style") and page.startswith("/>", end - 2)
    if name in _RAW and not empty:
        closing = _RAW[name].search(page, end)
        return len(page) if closing is None else _after(page, ">", closing.end())
    text.tag(name, page[name_match.end() : end])
    return end


def _after(page: str, mark: str, position: int) -> int:
    found = page.find(mark, position)
    return len(page) if found < 0 else found + len(mark)


def _tag_end(page: str, start: int) -> int:
    """Behind the `>` that ends a tag, which is one that stands in no quotes."""
    first = end = page.find(">", start)
    begin, quotes = start, 0
    for _ in range(_MAX_QUOTED):
        if end < 0:
            break
        quotes += page.count('"', begin, end)
        if quotes % 2 == 0:
            return end + 1
        begin, end = end, page.find(">", end + 1)
    return len(page) if first < 0 else first + 1


class _Text:
    """Collects text; white space is one space, except in `<pre>`."""

    def __init__(self, base_url: str) -> None:
        self.length = 0
        self._base_url = base_url
        self._parts: list[str] = []
        self._preformatted = 0
        self._link: tuple[int, str] | None = None
        """Where the open link's text begins, and where it leads."""

    def add(self, text: str) -> None:
        if not self._preformatted:
            text = _SPACE.sub(" ", text)
            if not self._parts or self._parts[-1][-1].isspace():
                text = text.lstrip(" ")
        if text:
            self._parts.append(text)
            self.length += len(text)

    def tag(self, name: str, attributes: str) -> None:
        if name == "a" or name == "/a":
            self._close_link()
            if name == "a":
                self._open_link(attributes)
        elif name == "br":
            self._line()
        elif name == "li":
            self._line("- ")
        elif name in _HEADINGS:
            self._line(f"\n{_HEADINGS[name]} ")
        elif name in ("td", "th"):
            self.add(" ")
        elif name.lstrip("/") in _BLOCKS or name.lstrip("/") in _HEADINGS:
            self._line("\n" if name in ("p", "/p", "/ul", "/ol", "/table") or name[1:] in _HEADINGS else "")
            if name == "pre":
                self._preformatted += 1
            elif name == "/pre":
                self._preformatted = max(0, self._preformatted - 1)

    def finished(self) -> str:
        self._close_link()
        lines = [line.rstrip() for line in "".join(self._parts).splitlines()]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()[:MAX_TEXT]

    def _line(self, then: str = "") -> None:
        at_start = not self._parts or self._parts[-1].endswith("\n")
        if text := then if at_start else f"\n{then}":
            self._mark(text)

    def _mark(self, text: str) -> None:
        self._parts.append(text)
        self.length += len(text)

    def _open_link(self, attributes: str) -> None:
        found = _HREF.search(attributes)
        target = next(filter(None, found.groups()), "") if found else ""
        if target and not target.startswith("#"):
            self._link = (len(self._parts), target)

    def _close_link(self) -> None:
        if self._link is None:
            return
        begin, target = self._link
        self._link = None
        label = " ".join("".join(self._parts[begin:]).split()).lstrip("#- ")
        url = self._absolute(target) if label else None
        if url is not None:
            del self._parts[begin:]
            self._mark(f"[{label}]({url})")

    def _absolute(self, target: str) -> str | None:
        """Where a link leads, if a model can do something with it."""
        try:
            url = urljoin(self._base_url, html.unescape(target).strip())
        except ValueError:  # such as half an IPv6 address
            return None
        usable = url.startswith(("http://", "https://")) and len(url) <= _MAX_URL and not _SPACE.search(url)
        return url if usable else None
