"""Files that come with a platform's message: fetched into the workspace before the model reads of them."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import PurePosixPath
from typing import Final

from miniclaw.channel.base import Delivers, FetchesFiles
from miniclaw.errors import DeliveryError, ToolError
from miniclaw.gateway.protocol import FileRef, ReplyTarget
from miniclaw.session.models import Turn
from miniclaw.tools.workspace import Workspace

__all__ = ["take_in"]

logger = logging.getLogger(__name__)

FETCH_SECONDS: Final = 60.0
"""How long one file may take."""
MOST_FILES: Final = 10
"""Files of one message that are fetched."""

_ODD = re.compile(r"[^\w.-]+")


async def take_in(turn: Turn, channel: Delivers | None, workspace: Workspace) -> str:
    """Fetch the files of a turn's message; what the model is told of each, a line a file."""
    lines: list[str] = []
    for raw in turn.message.get("files", ())[:MOST_FILES]:
        file = FileRef.model_validate(raw)
        shown = f"{file.kind} {file.name or file.id}"
        try:
            path, size = await _fetch(turn, file, channel, workspace)
        except (DeliveryError, ToolError, TimeoutError) as error:
            logger.warning("turn %s: %s could not be fetched: %s", turn.turn_id, shown, error or "time-out")
            lines.append(f"[{shown}: could not be fetched ({error or 'it took too long'})]")
        else:
            lines.append(f"[{shown}: in the workspace as `{path}`, {size} bytes{_kind(file)}]")
    return "\n".join(lines)


async def _fetch(turn: Turn, file: FileRef, channel: object, workspace: Workspace) -> tuple[str, int]:
    if not isinstance(channel, FetchesFiles):
        raise ToolError("this channel gives no files")
    target = ReplyTarget.model_validate(turn.message.get("reply_to") or {})
    async with asyncio.timeout(FETCH_SECONDS):
        data = await channel.fetch_file(target, file, max_bytes=workspace.file_bytes)
    path = f"inbox/{turn.turn_id[-6:]}-{_safe_name(file)}"
    await asyncio.to_thread(workspace.write, path, data)
    return path, len(data)


def _safe_name(file: FileRef) -> str:
    """A plain name with the file's own ending; what a platform calls it may be anything."""
    name = PurePosixPath(file.name.replace("\\", "/")).name or f"{file.kind}-{file.id}"
    return _ODD.sub("_", name).strip("._")[-80:] or file.kind


def _kind(file: FileRef) -> str:
    return f", {file.mime}" if file.mime else ""
