"""What a call of a file tool would change, as lines that a person can judge."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from os.path import commonprefix
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import ToolError
from miniclaw.tools.workspace import Workspace

__all__ = ["changes_of"]

DIFF_LINES: Final = 40
LINE_CHARS: Final = 300
COMPARED: Final = 1_000
"""Lines that are compared one with another; of more it is only said what goes and what comes."""
AROUND: Final = 2
"""Lines shown before and behind a change."""


def changes_of(tool: str, arguments: Mapping[str, Any], workspace: Path) -> list[str]:
    """The difference that a call would make, at most 40 lines of 300 characters and how many more there are.

    Empty for other tools than `write_file` and `edit_file`. Blocks; belongs into a thread.
    """
    if tool == "edit_file":
        old, new = arguments.get("old_text"), arguments.get("new_text")
    elif tool == "write_file":
        old, new = _now(workspace, arguments.get("path")), arguments.get("content")
    else:
        return []
    if not isinstance(old, str) or not isinstance(new, str):
        return []
    lines = list(_difference(old.splitlines(), new.splitlines()))
    more = len(lines) - DIFF_LINES
    shown = [line if len(line) <= LINE_CHARS else line[:LINE_CHARS] + "…" for line in lines[:DIFF_LINES]]
    return [*shown, *([f"… {more}"] if more > 0 else [])]


def _difference(old: list[str], new: list[str]) -> Iterator[str]:
    same = max(0, len(commonprefix([old, new])) - AROUND)
    old, new = old[same:], new[same:]
    behind = len(commonprefix([old[::-1], new[::-1]])) - AROUND
    if behind > 0:
        old, new = old[:-behind], new[:-behind]
    if max(len(old), len(new)) > COMPARED:
        yield f"@@ {same + 1} @@"
        yield from (f"-{line}" for line in islice(old, DIFF_LINES // 2))
        yield f"… {len(old)} → {len(new)}"
        yield from (f"+{line}" for line in new)
        return
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(AROUND):
        yield f"@@ {same + group[0][1] + 1} @@"
        for kind, a, b, c, d in group:
            yield from (f"{' ' if kind == 'equal' else '-'}{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d] if kind != "equal")


def _now(workspace: Path, path: object) -> str:
    """What stands in the file now, as far as it can be read; nothing for a new one."""
    try:
        return Workspace(workspace).read(path).decode("utf-8", "replace") if isinstance(path, str) else ""
    except ToolError:
        return ""
