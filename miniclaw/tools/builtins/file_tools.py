"""The file tools: read, write, edit, list and search text files in the user's workspace."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from miniclaw.errors import ToolError
from miniclaw.gateway.protocol import plain_text
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.function import tool
from miniclaw.tools.paths import read_path
from miniclaw.tools.workspace import RESULTS, Found, Workspace

__all__ = ["file_tools"]

FilePath = Annotated[str, Field(description="relative to the workspace, such as `notes/today.md`")]
_Of = Callable[[ToolContext], Workspace]
Where = Annotated[str, Field(description="a directory of the workspace")]

MAX_LISTED: Final = 500
MAX_HITS: Final = 100
MAX_HIT_CHARS: Final = 240
MAX_SEARCHED: Final = 100_000_000
"""Bytes that one search reads."""
MAX_PATTERN: Final = 200
ROW: Final = 2_000
"""Characters after which a line counts as more than one, so that any file can be paged."""


def file_tools(open_workspace: Callable[[Path], Workspace] = Workspace, *, page: int = 19_000) -> list[Tool]:
    """The tools.

    Args:
        open_workspace: makes the workspace of a directory, with its limits.
        page: characters that `read_file` gives at a time.
    """

    def of(context: ToolContext) -> Workspace:
        return open_workspace(context.workspace)

    return [_reading(of, page), *_writing(of), _listing(of), _searching(of)]


def _reading(of: _Of, page: int) -> Tool:
    @tool(risk="read", compactable=True, idempotent=True, aliases=("readFile",))
    def read_file(
        context: ToolContext,
        path: FilePath,
        offset: Annotated[int, Field(ge=0, description="the first line to read, counted from 1")] = 1,
        limit: Annotated[int, Field(ge=1, description="how many lines to read at most")] = 2_000,
    ) -> ToolResult:
        """Read a text file of the workspace, a page at a time."""
        return _page(_text(path, of(context).read(path)), path, max(offset, 1), limit, page)

    return read_file


def _writing(of: _Of) -> list[Tool]:
    @tool(aliases=("writeFile",))
    def write_file(context: ToolContext, path: FilePath, content: str) -> ToolResult:
        """Write a text file in the workspace; directories are made, an existing file is replaced as a whole."""
        data = plain_text(content).encode()
        is_new = of(context).write(path, data)
        done = "Wrote the new file" if is_new else "Replaced"
        return ToolResult(content=f"{done} `{path}`: {len(data):,} bytes.", data={"bytes": len(data)})

    @tool
    def edit_file(
        context: ToolContext,
        path: FilePath,
        old_text: Annotated[str, Field(description="what the file says now, to the letter; found only once")],
        new_text: Annotated[str, Field(description="what it is to say instead")],
        replace_all: Annotated[bool, Field(description="replace every place, not just the only one")] = False,
    ) -> ToolResult:
        """Replace an exact piece of a text file in the workspace."""
        workspace = of(context)
        with workspace.changing():
            data = workspace.read(path)
            mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
            text, lines = _edited(
                _text(path, data), path, old_text, plain_text(new_text), replace_all, workspace.file_bytes
            )
            workspace.write(path, mark + text.encode())
        where = ", ".join(map(str, lines[:10])) + ("…" if len(lines) > 10 else "")
        return ToolResult(
            content=f"Edited `{path}` at line {where}.", data={"replaced": len(lines), "lines": lines[:10]}
        )

    return [write_file, edit_file]


def _listing(of: _Of) -> Tool:
    @tool(risk="read", compactable=True, idempotent=True, aliases=("listFiles",))
    def list_files(
        context: ToolContext,
        path: Where = ".",
        pattern: Annotated[
            str, Field(description="names such as `*.md`; `**/*.md` also looks into directories")
        ] = "*",
    ) -> ToolResult:
        """List a directory of the workspace; directories end in `/`."""
        wanted = _pattern(pattern)
        found = of(context).walk(path, deep=len(wanted) > 1 or "**" in wanted)
        fit = (_name(path, f) + "/" * f.is_dir for f in found if _shown(f.path, path, wanted))
        return _listed(fit, MAX_LISTED, "Nothing here fits.")

    return list_files


def _searching(of: _Of) -> Tool:
    @tool(risk="read", compactable=True, idempotent=True)
    def search_files(
        context: ToolContext,
        text: Annotated[str, Field(min_length=1, description="what lines hold; capitals do not matter")],
        pattern: Annotated[str, Field(description="which files, such as `**/*.md`")] = "**/*",
        path: Where = ".",
    ) -> ToolResult:
        """Find the lines that hold a text in the files of the workspace."""
        wanted, plain = _pattern(pattern), text.casefold()
        left, skipped = MAX_SEARCHED, 0

        def hits() -> Iterable[str]:
            nonlocal left, skipped
            for found, data in of(context).read_each(path, lambda f: _shown(f.path, path, wanted)):
                if data is None or b"\0" in data:
                    skipped += 1
                    continue
                if (left := left - len(data)) < 0:
                    yield f"[Stopped after {MAX_SEARCHED:,} bytes; search fewer files.]"
                    return
                content = data.decode("utf-8-sig", "replace")
                if plain not in content.casefold():
                    continue
                for number, line in enumerate(content.split("\n"), 1):
                    if plain in line.casefold():
                        yield f"{_name(path, found)}:{number}: {line.strip()[:MAX_HIT_CHARS]}"

        result = _listed(hits(), MAX_HITS, "No line holds this text.")
        note = f"\n[Files that were not searched, being no text, too large or unreadable: {skipped}]"
        return replace(result, content=result.content + note) if skipped else result

    return search_files


def _text(path: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolError(f"`{path}` is not a UTF-8 text ({len(data):,} bytes); file tools handle text only.")
    return text


def _page(text: str, path: str, first: int, limit: int, chars: int) -> ToolResult:
    width = min(ROW, chars)
    rows = [line[i : i + width] for line in _lines(text) for i in range(0, len(line), width)]
    if first > max(len(rows), 1):
        raise ToolError(f"`{path}` has {len(rows):,} lines; begin with one of them.")
    shown: list[str] = []
    for row in rows[first - 1 : first - 1 + limit]:
        chars -= len(row)
        if chars < 0 and shown:
            break
        shown.append(row)
    last = first - 1 + len(shown)
    content = "".join(shown)
    if last < len(rows):
        content += (
            f"\n[Lines {first:,} to {last:,} of {len(rows):,}; go on with offset={last + 1}."
            f" A line of more than {width:,} characters counts as several.]"
        )
    data = {"first": first, "last": last, "lines": len(rows)}
    return ToolResult(content=content or "(the file is empty)", data=data)


def _lines(text: str) -> list[str]:
    """The lines with their ends; only a line feed ends one, as in editors and `edit_file`."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _edited(text: str, path: str, old: str, new: str, every: bool, most: int) -> tuple[str, list[int]]:
    """The changed text, and the lines where it changed; line ends stay as the file has them."""
    if text.count("\r\n") * 2 > text.count("\n"):
        new = re.sub("\r?\n", "\r\n", new)
        if old not in text:
            old = re.sub("\r?\n", "\r\n", old)
    if not old or old == new:
        raise ToolError("`old_text` must say something, and something else than `new_text`.")
    first = text.find(old)
    if first < 0:
        raise ToolError(
            f"`{path}` does not hold this `old_text`. Read the file and copy the piece to the letter, blanks too."
        )
    if not every:
        if text.find(old, first + 1) >= 0:
            raise ToolError(
                f"`{path}` holds this `old_text` in more than one place. Give more of the text around it, or set"
                " `replace_all`."
            )
        return text[:first] + new + text[first + len(old) :], [text.count("\n", 0, first) + 1]
    size = len(text) + text.count(old) * (len(new) - len(old))
    if size > most:
        raise ToolError(f"`{path}` would have {size:,} characters; {most:,} are allowed.")
    lines, line, before = [], 1, 0
    for match in re.finditer(re.escape(old), text):
        line += text.count("\n", before, match.start())
        before = match.start()
        lines.append(line)
    return text.replace(old, new), lines


def _pattern(pattern: str) -> tuple[str, ...]:
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern is longer than {MAX_PATTERN} characters.")
    return tuple(part for part in pattern.replace("\\", "/").split("/") if part not in ("", "."))


def _shown(path: Sequence[str], base: str, pattern: Sequence[str]) -> bool:
    """Whether a path below `base` fits; kept results show only to those who ask for their directory."""
    return (path[0] != RESULTS or bool(read_path(base, is_new=False))) and _fits(path, pattern)


def _name(base: str, found: Found) -> str:
    """The path as the other tools take it."""
    return "/".join((*read_path(base, is_new=False), *found.path))


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether names fit a pattern whose `**` stands for any directories."""
    return len(pattern) in _places(tuple(path), tuple(pattern))


@lru_cache(maxsize=512)
def _places(path: tuple[str, ...], pattern: tuple[str, ...]) -> frozenset[int]:
    """How much of the pattern the path can have used up; the answer for a directory is kept for what is in it."""
    reached = {0}
    if path:
        before, name = _places(path[:-1], pattern), path[-1]
        left = [(place, pattern[place]) for place in before if place < len(pattern)]
        reached = {place + (part != "**") for place, part in left if part == "**" or fnmatchcase(name, part)}
    for place, part in enumerate(pattern):
        if part == "**" and place in reached:
            reached.add(place + 1)
    return frozenset(reached)


def _listed(found: Iterable[str], most: int, nothing: str) -> ToolResult:
    lines: list[str] = []
    for line in found:
        if len(lines) == most:
            note = f"\n[These are the first {most}; there are more. Narrow the pattern or the path.]"
            return ToolResult(content="\n".join(lines) + note, data=lines)
        lines.append(line)
    return ToolResult(content="\n".join(lines) or nothing, data=lines)
