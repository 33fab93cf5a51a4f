"""Cuts a Markdown reply into parts that a platform takes, each of which reads well by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from markdown_it import MarkdownIt

from miniclaw.channel.bounded import bounded, parsed
from miniclaw.text import split_text

__all__ = ["parts_of", "split_markdown"]

LONGEST_INFO: Final = 40
"""Characters of a fence's language that are repeated in the next part."""
LONGEST_PREFIX: Final = 40
"""Characters before a fence's marks; a block that is in more lists and quotations is cut as it is."""

_BLOCKS = bounded(MarkdownIt("commonmark", {"html": False}).disable(["inline", "reference"]))
_LINE_END = re.compile(r"\r\n?|\n")
_MARKER = re.compile(r"[^>\t]")


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fenced block; what is cut at a place in `(start, end)` has to be closed and opened again."""

    start: int
    end: int
    behind: int
    """Where the line that closes it ends."""
    marks: str
    info: str
    prefix: str
    """Before each of its lines: `> ` of quotations, blanks of list items."""

    def head(self, *, in_line: bool) -> str:
        """What opens it again, for a part that goes on with a line of it or in the middle of one."""
        return f"{_resumed(self.prefix)}{self.marks}{self.info}\n" + (self.prefix if in_line else "")

    @property
    def tail(self) -> str:
        """What closes it."""
        return self.prefix + self.marks


def split_markdown(text: str, limit: int, *, measure: Callable[[str], int] = len) -> list[str]:
    """Parts of at most `limit`; a code block that is cut is closed, and opened again with its language.

    Without these added lines the parts join to exactly the text.

    Args:
        text: what to split.
        limit: what `measure` may give at most for a part; at least 400.
        measure: the size of a text in the platform's unit, such as its UTF-8 bytes.
    """
    return ["".join(part) for part in parts_of(text, limit, measure=measure)]


def parts_of(text: str, limit: int, *, measure: Callable[[str], int] = len) -> list[tuple[str, str, str]]:
    """As `split_markdown`, each part as what is added before, the stretch of the text, and what is added behind."""
    if measure(text) <= limit:
        return [("", text, "")]
    fences = _fences(text)
    added = max((measure(f"{fence.head(in_line=True)}\n{fence.tail}") for fence in fences), default=0)
    parts: list[tuple[str, str, str]] = []
    position = 0
    for end in accumulate(map(len, split_text(text, limit - added, measure=measure))):
        ending = next((fence for fence in fences if fence.end == end + 1), None)
        if ending is not None and measure(text[end : ending.behind]) <= measure(f"\n{ending.tail}"):
            # The line that closes a block goes along, in the place of what would be added.
            end = ending.behind
        if end <= position:
            continue
        part = text[position:end]
        opened = next((fence for fence in fences if fence.start < position < fence.end), None)
        closed = next((fence for fence in fences if fence.start < end < fence.end), None)
        if opened is not None:
            head = opened.head(in_line=text[position - 1] not in "\r\n")
        else:
            head = _list_before(text, position, end, fences)
        line = "" if closed is None or part.endswith(("\r", "\n")) else "\n"
        parts.append((head, part, line + closed.tail if closed else ""))
        position = end
    return parts


def _fences(text: str) -> list[_Fence]:
    """The fenced blocks, also those in lists and quotations, as CommonMark has them; none of a hostile text."""
    lines = [0, *(match.end() for match in _LINE_END.finditer(text)), len(text)]
    found: list[_Fence] = []
    for token in parsed(_BLOCKS, text) or ():
        if token.type != "fence" or token.map is None:
            continue
        first, end = token.map
        opening = text[lines[first] : lines[first + 1]]
        prefix = _MARKER.sub(" ", opening[: opening.index(token.markup)])
        if len(prefix) > LONGEST_PREFIX:
            continue
        last = text[lines[end - 1] : lines[end]].strip("> \t\r\n")
        is_closed = end - 1 > first and last.startswith(token.markup) and not last.strip(token.markup[0])
        until = lines[end - 1] + 1 if is_closed else lines[end]  # a cut just before its last line is in it
        info = token.info.strip()[:LONGEST_INFO]
        marks = token.markup[:LONGEST_INFO]
        found.append(_Fence(lines[first + 1] - 1, until, lines[end], marks, info, prefix))
    return found


def _list_before(text: str, position: int, end: int, fences: list[_Fence]) -> str:
    """A list item that goes on, where the next fence would be indented code without the list that it is in."""
    fence = next((fence for fence in fences if fence.start >= position), None)
    if fence is None or fence.start >= end or position == 0:
        return ""
    quoted, width = _indented(fence.prefix)
    depth = (width - 2) // 2
    shown = parsed(_BLOCKS, text[position : fence.start + 1]) if depth > 0 else None
    if shown is None or any(token.type == "fence" for token in shown):
        return ""
    return f"{quoted}{'- ' * depth}…\n"


def _indented(prefix: str) -> tuple[str, int]:
    """The quotation marks before the first blanks that could make code of what is behind them, and how many these are.

    Blanks behind quotation marks count without the one that belongs to these.
    """
    lead = len(prefix) - len(prefix.lstrip(" "))
    if lead >= 4 or ">" not in prefix:
        return "", lead
    quoted = prefix.rfind(">") + 1
    return f"{prefix[:quoted]} ", len(prefix[quoted:].expandtabs(4)) - 1


def _resumed(prefix: str) -> str:
    """The prefix at the beginning of a part, where no list item is open.

    From four blanks on the marks would be code themselves, so list items as deep take their place.
    """
    quoted, width = _indented(prefix)
    if width < 4:
        return prefix
    behind = "" if quoted else _resumed(prefix[width:])
    items = ""
    while width:
        step = width if width <= 5 else min(5, width - 2)
        items, width = items + "-".ljust(step), width - step
    return quoted + items + behind
