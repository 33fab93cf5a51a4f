"""Makes the result of a tool fit for the model: sound text of a bounded length, the whole kept in a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from miniclaw.gateway.protocol import plain_text
from miniclaw.tools.base import ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["readable"]

logger = logging.getLogger(__name__)

_DIRECTORY: Final = ".results"
_KEPT: Final = 200
"""Whole texts kept in a workspace; the oldest go first."""


async def readable(
    result: ToolResult, limit: int, context: ToolContext | None, *, new_id: Callable[[str], str]
) -> ToolResult:
    """The result with at most `limit` characters of its text, and a note of what was left out."""
    content = plain_text(result.content)
    error = None if result.error is None else plain_text(result.error)[:limit]
    if len(content) > limit:
        kept = "" if context is None else await _keep(content, context.workspace, f"{new_id('res')}.txt")
        content = (
            f"{content[:limit]}\n\n[These are the first {limit:,} of {len(content):,} characters;"
            f" {len(content) - limit:,} are left out.{kept}]"
        )
    if content is result.content and error == result.error:
        return result
    return replace(result, content=content, error=error)


async def _keep(content: str, workspace: Path, name: str) -> str:
    """Store the whole text in the workspace; the part of the note that says where."""
    try:
        stored = await asyncio.to_thread(_store, workspace / _DIRECTORY, name, content)
    except OSError:
        logger.exception("a long result could not be kept in %s", workspace)
        return ""
    return f" The whole text is in the file `{_DIRECTORY}/{name}`." if stored else ""


def _store(directory: Path, name: str, content: str) -> bool:
    if directory.is_symlink():  # it would lead out of the workspace
        return False
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("x", encoding="utf-8") as file:
        file.write(content)
    kept = sorted(directory.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    for old in kept[:-_KEPT]:
        old.unlink(missing_ok=True)
    return True
