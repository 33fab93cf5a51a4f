"""Cuts a Markdown reply into parts that a platform takes, each of which reads well by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from miniclaw.text import split_text

__all__ = ["parts_of", "split_markdown"]

LONGEST_INFO: Final = 40
"""Characters of a fence's language that are repeated in the next part."""

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fenced block: its content lies in `[start, end)`."""

    start: int
    end: int
    marks: str
    info: str


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
    added = max((measure(f"{fence.marks}{fence.info}\n\n{fence.marks}") for fence in fences), default=0)
    parts: list[tuple[str, str, str]] = []
    position = 0
    for part in split_text(text, limit - added, measure=measure):
        end = position + len(part)
        head = next((f"{f.marks}{f.info}\n" for f in fences if f.start < position < f.end), "")
        tail = next((f.marks for f in fences if f.start < end < f.end), "")
        line = "" if not tail or part.endswith("\n") else "\n"
        parts.append((head, part, line + tail))
        position = end
    return parts


def _fences(text: str) -> list[_Fence]:
    """The fenced blocks by the rules of CommonMark 0.31, section 4.5; one that stays open ends with the text."""
    found: list[_Fence] = []
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        marks, info = match.groups()
        if opened is None:
            if not (marks[0] == "`" and "`" in info):
                opened = match
        elif marks.startswith(opened[1]) and not info.strip():
            found.append(_fence(opened, match.start()))
            opened = None
    if opened is not None:
        found.append(_fence(opened, len(text)))
    return found


def _fence(opened: re.Match[str], end: int) -> _Fence:
    marks = opened[1] if len(opened[1]) <= LONGEST_INFO else opened[1][:LONGEST_INFO]
    return _Fence(opened.end(), end, marks, opened[2].strip()[:LONGEST_INFO])
