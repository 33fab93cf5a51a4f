"""The files of a message, in the workspace before the model reads of them: fetched, or uploaded before."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from miniclaw.channel.base import Delivers, FetchesFiles
from miniclaw.errors import DeliveryError, ToolError
from miniclaw.file_kinds import TEXT, kind_of
from miniclaw.gateway.protocol import FileRef, ReplyTarget
from miniclaw.session.export import fenced
from miniclaw.session.models import Entry, Turn
from miniclaw.tools.paths import read_path
from miniclaw.tools.workspace import Workspace

__all__ = ["TakenIn", "load_images", "safe_name", "take_in"]

logger = logging.getLogger(__name__)

FETCH_SECONDS: Final = 60.0
"""How long one file may take."""
MOST_FILES: Final = 10
"""Files of one message that are fetched."""
INLINE_CHARS: Final = 16_000
"""Of the texts of files that stand in the message itself, together."""
IMAGE_BYTES: Final = 3_500_000
"""Of the largest image that a model is shown: Anthropic takes 5 MB in base64, which is the least."""
MOST_IMAGES: Final = 8
REQUEST_BYTES: Final = 8_000_000
"""Of all images of a request."""

_ODD = re.compile(r"[^\w.-]+")


@dataclass(slots=True)
class TakenIn:
    """What became of the files of a message."""

    lines: list[str] = field(default_factory=list)
    """What the model is told; small texts among it."""
    shown: list[dict[str, Any]] = field(default_factory=list)
    """What a person sees of each: `name`, `type`, `bytes`, `path`, and `id` of an upload."""
    images: list[dict[str, str]] = field(default_factory=list)
    """`path` and `type` of those that a model may look at."""
    left: int = INLINE_CHARS


async def take_in(turn: Turn, channel: Delivers | None, workspace: Workspace) -> TakenIn:
    """Fetch the files of a turn's message that are not in the workspace yet, and tell of all."""
    taken = TakenIn()
    files = turn.message.get("files", ())
    for number, raw in enumerate(files[:MOST_FILES]):
        file = FileRef.model_validate(raw)
        shown = f"{file.kind} {file.name or file.id}"
        try:
            if not file.path:
                file = await _fetch(turn, number, file, channel, workspace)
        except (DeliveryError, ToolError, TimeoutError) as error:
            logger.warning("turn %s: %s could not be fetched: %s", turn.turn_id, shown, error or "time-out")
            taken.lines.append(f"[{shown}: could not be fetched ({error or 'it took too long'})]")
        else:
            await _tell(file, shown, workspace, taken)
    if (left := len(files) - MOST_FILES) > 0:
        taken.lines.append(f"[{left} more files were not fetched: {MOST_FILES} of a message are]")
    return taken


async def _tell(file: FileRef, shown: str, workspace: Workspace, taken: TakenIn) -> None:
    about = f"{shown}: in the workspace as `{file.path}`, {file.size} bytes{_kind(file)}"
    row = {"name": file.name, "type": file.mime, "bytes": file.size, "path": file.path}
    taken.shown.append(row | ({"id": file.id} if file.id.startswith("upl_") else {}))
    if file.mime.startswith("image/") and (file.size or 0) <= IMAGE_BYTES:
        taken.images.append({"path": file.path, "type": file.mime})
    source = file.text_path or (file.path if file.mime == TEXT and file.id.startswith("upl_") else "")
    note = f"; {file.note}" if file.note else ""
    if not source:
        taken.lines.append(f"[{about}{note}]")
        return
    try:
        text = (await asyncio.to_thread(workspace.read, source)).decode("utf-8-sig", "replace")
    except ToolError as error:
        taken.lines.append(f"[{shown}: cannot be read any more ({error})]")
        return
    if len(text) <= taken.left:
        taken.left -= len(text)
        taken.lines.append(f"[{about}{note}; this is its text:]\n{fenced(text)}")
    else:
        taken.lines.append(f"[{about}{note}; `read_file` reads its text from `{source}`]")


def load_images(entries: Sequence[Entry], workspace: Workspace) -> dict[str, str]:
    """The latest images of a log as data URLs by their paths, so many as a request can carry. Blocks."""
    found: dict[str, str] = {}
    room = REQUEST_BYTES
    for image in [one for entry in entries for one in entry.message.get("images") or ()][
        : -MOST_IMAGES - 1 : -1
    ]:
        with suppress(ToolError):  # gone since: the model is told of a file and sees none
            data = workspace.read(image["path"])
            if (room := room - len(data)) < 0:
                break
            found[image["path"]] = f"data:{image['type']};base64,{base64.b64encode(data).decode()}"
    return found


async def _fetch(turn: Turn, number: int, file: FileRef, channel: object, workspace: Workspace) -> FileRef:
    if not isinstance(channel, FetchesFiles):
        raise ToolError("this channel gives no files")
    target = ReplyTarget.model_validate(turn.message.get("reply_to") or {})
    async with asyncio.timeout(FETCH_SECONDS):
        data = await channel.fetch_file(target, file, max_bytes=workspace.file_bytes)
    path = f"inbox/{turn.turn_id[-6:]}{f'-{number + 1}' if number else ''}-{safe_name(file)}"
    await asyncio.to_thread(workspace.write, path, data)
    is_image = (kind := kind_of(data)).startswith("image/")
    return file.model_copy(update={"path": path, "size": len(data), **({"mime": kind} if is_image else {})})


def safe_name(file: FileRef) -> str:
    """A plain name with the file's own ending; what a platform calls it may be anything."""
    name = PurePosixPath(file.name.replace("\\", "/")).name or f"{file.kind}-{file.id}"
    plain = _ODD.sub("_", name).encode("utf-8", "replace")[-160:].decode(errors="ignore").strip("._")
    try:
        read_path(plain)
    except ToolError:  # what Windows takes for a device
        plain = f"{file.kind}-{plain}"
    return plain or file.kind


def _kind(file: FileRef) -> str:
    return f", {file.mime}" if file.mime else ""
