"""Makes the result of a tool fit for the model: sound text of a bounded length, the whole kept in a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from miniclaw.errors import ToolError
from miniclaw.gateway.protocol import plain_text
from miniclaw.tools.base import ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.workspace import RESULTS, Workspace

__all__ = ["readable"]

logger = logging.getLogger(__name__)

_KEPT: Final = 200
"""Whole texts kept in a workspace; the oldest go first."""


async def readable(
    result: ToolResult,
    limit: int,
    context: ToolContext | None,
    *,
    hide: Callable[[str], str] = str,
    new_id: Callable[[str], str],
) -> ToolResult:
    """The result with at most `limit` characters of its text, and a note of what was left out."""
    content = hide(plain_text(result.content))
    error = None if result.error is None else hide(plain_text(result.error))[:limit]
    if len(content) > limit:
        kept = ""
        if context is not None and result.kept is None:  # by session, whose deletion takes it along
            name = f"{context.session_id}-{new_id('res')}.txt"
            kept = await _keep(content, context.workspace, name)
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
        await asyncio.to_thread(_store, Workspace(workspace), name, content)
    except ToolError as error:
        logger.warning("a long result could not be kept in %s: %s", workspace, error)
        return " They could not be kept and are lost."
    return f" The whole text is in the file `{RESULTS}/{name}`; `read_file` shows it page by page."


def _store(workspace: Workspace, name: str, content: str) -> None:
    workspace.write(f"{RESULTS}/{name}", content.encode())
    workspace.keep_newest(RESULTS, _KEPT)
