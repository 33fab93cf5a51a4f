"""Cuts a Markdown reply into parts that a platform takes, each of which reads well by itself."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from markdown_it import MarkdownIt

from miniclaw.channel.bounded import bounded, parsed
from miniclaw.text import split_text

__all__ = ["parts_of", "split_markdown"]

LONGEST_INFO: Final = 40
"""Characters of a fence's language that are repeated in the next part."""
LONGEST_PREFIX: Final = 40
"""Characters before a fence's marks; a block that is in more lists and quotations is cut as it is."""
LONGEST_LEAD: Final = 200
"""Characters of lists and quotations before a fence's marks that are read where a text is read line by line."""

_BLOCKS = bounded(MarkdownIt("commonmark", {"html": False}).disable(["inline", "reference"]))
_LINE_END = re.compile(r"\r\n?|\n")
_MARKER = re.compile(r"[^>\t]")
_LEAD = re.compile(r"(?:[ \t>]|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t]))*")
_INSIDE = re.compile(r"[ \t>]*")
_MARKS = re.compile(r"(`{3,}|~{3,})([^\r\n]*)")


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
    lines = {f"{fence.head(in_line=True)}\n{fence.tail}" for fence in fences}
    added = max(map(measure, lines), default=0)
    starts = [fence.start for fence in fences]

    def around(place: int) -> _Fence | None:
        number = bisect_left(starts, place) - 1
        return fences[number] if number >= 0 and place < fences[number].end else None

    parts: list[tuple[str, str, str]] = []
    position = 0
    for end in accumulate(map(len, split_text(text, limit - added, measure=measure))):
        ending = around(end)
        if (
            ending is not None
            and ending.end == end + 1
            and measure(text[end : ending.behind]) <= measure(f"\n{ending.tail}")
        ):
            # The line that closes a block goes along, in the place of what would be added.
            end = ending.behind
        if end <= position:
            continue
        opened, closed = around(position), around(end)
        head = opened.head(in_line=text[position - 1] not in "\r\n") if opened is not None else ""
        if opened is not None and opened.end == opened.behind < end:
            # Its list or quotation ended before it was closed; here nothing but this would end it.
            parts.append((head, text[position : opened.end], opened.tail))
            position, opened = opened.end, None
        part = text[position:end]
        if opened is None:
            head = _list_before(text, position, end, fences[bisect_left(starts, position) :][:1])
        line = "" if closed is None or part.endswith(("\r", "\n")) else "\n"
        parts.append((head, part, line + closed.tail if closed else ""))
        position = end
    return parts


def _fences(text: str) -> list[_Fence]:
    """The fenced blocks, also those in lists and quotations, as CommonMark has them.

    A text that would take too long is read line by line, which for usual Markdown finds the same.
    """
    lines = [0, *(match.end() for match in _LINE_END.finditer(text)), len(text)]
    tokens = parsed(_BLOCKS, text)
    if tokens is None:
        blocks = list(scanned([text[start:end] for start, end in pairwise(lines)]))
    else:
        fenced = [token for token in tokens if token.type == "fence"]
        blocks = [(one.map[0], one.map[1], one.markup, one.info) for one in fenced if one.map]
    found: list[_Fence] = []
    for first, end, markup, info in blocks:
        opening = text[lines[first] : lines[first + 1]]
        prefix = _MARKER.sub(" ", opening[: opening.index(markup)])
        if len(prefix) > LONGEST_PREFIX:
            continue
        last = text[lines[end - 1] : lines[end]].strip("> \t\r\n")
        is_closed = end - 1 > first and last.startswith(markup) and not last.strip(markup[0])
        until = lines[end - 1] + 1 if is_closed else lines[end]  # a cut just before its last line is in it
        marks, info = markup[:LONGEST_INFO], info.strip()[:LONGEST_INFO]
        found.append(_Fence(lines[first + 1] - 1, until, lines[end], marks, info, prefix))
    return found


def scanned(lines: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    """First line, line behind the last, marks and language of each fenced block, in linear time.

    What a block is in is known by how far its lines are indented and by how many `>` they begin with.
    """
    marks, info, first, quotes, room, base = "", "", 0, 0, 0, 0
    for number, line in enumerate(lines):
        if marks:
            lead, said = _split(_INSIDE, line)
            if lead.count(">") >= quotes and (not said or len(lead) >= room):
                is_last = said.startswith(marks) and not said.strip(marks[0])
                if is_last and lead.count(">") == quotes and len(lead) - base <= 3:
                    yield first, number + 1, marks, info
                    marks = ""
                continue
            yield first, number, marks, info  # its quotation or list ends before it is closed
            marks = ""
        lead, said = _split(_LEAD, line)
        if not said:
            continue
        room = len(lead) if lead.strip("> ") else min(room, len(lead))
        base = max(room, lead.rfind(">") + 2 if ">" in lead else 0)
        opening = _MARKS.fullmatch(said)
        if opening is not None and len(lead) - base <= 3 and not (said[0] == "`" and "`" in opening[2]):
            marks, info = opening.groups()
            first, quotes = number, lead.count(">")
    if marks:
        yield first, len(lines), marks, info


def _split(pattern: re.Pattern[str], line: str) -> tuple[str, str]:
    """What a line is in, in columns, and what it says."""
    found = pattern.match(line, 0, LONGEST_LEAD)
    end = found.end() if found is not None else 0
    return line[:end].expandtabs(4), line[end:].strip()


def _list_before(text: str, position: int, end: int, following: Sequence[_Fence]) -> str:
    """A list item that goes on, where the next fence would be indented code without the list that it is in."""
    fence = following[0] if following else None
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
