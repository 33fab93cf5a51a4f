"""`POST /api/uploads`: a file into the user's workspace, checked by what it holds and not by its name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from miniclaw.agent.incoming import safe_name
from miniclaw.errors import ProtocolError, ToolError
from miniclaw.file_kinds import MAX_CHARS, TEXT, ZIP, decode_text, kind_of
from miniclaw.gateway.http import UPLOADS, Route, json_response, user_of
from miniclaw.gateway.protocol import FileRef, new_id, plain_text
from miniclaw.settings import Settings
from miniclaw.tools.process import clean_environment, run_program
from miniclaw.tools.workspace import Workspace
from miniclaw.upload_store import UploadStore

__all__ = ["Uploads"]

logger = logging.getLogger(__name__)

DIRECTORY: Final = "uploads"
AT_ONCE: Final = 16
AT_ONCE_OF_USER: Final = 4
RECEIVE_SECONDS: Final = 600.0
READ_SECONDS: Final = 20.0
"""How long the text of a document may take."""
PIECE: Final = 65_536
TURNING: Final = dict.fromkeys(
    (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"
)
"""What turns the direction of text, so that `gpj.exe` reads `exe.jpg` (Unicode, UAX 9)."""
FORM_BYTES: Final = 4_096
"""What the form adds to the file, at most about."""


class Uploads:
    """Takes files and forgets those that no message carries."""

    def __init__(self, store: UploadStore, settings: Settings, data_dir: Path) -> None:
        self._store = store
        self._settings = settings
        self._data_dir = data_dir
        self._open: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        """The one route."""
        return [Route(method="POST", path=UPLOADS, handler=self.upload)]

    async def upload(self, request: web.Request) -> web.Response:
        """Keep the file of the field `file`; 201 with `{id, name, type, bytes}`."""
        user_id = user_of(request)
        with self._slot(user_id), tempfile.TemporaryDirectory(prefix="miniclaw-upload-") as directory:
            path = Path(directory) / "file"
            try:
                async with asyncio.timeout(RECEIVE_SECONDS):
                    name = await self._receive(request, path)
            except TimeoutError as error:
                raise ProtocolError(
                    "bad_message", f"The file took more than {RECEIVE_SECONDS:g} s."
                ) from error
            except (ValueError, HttpProcessingError) as error:
                raise ProtocolError("bad_message", "The body is no multipart form.") from error
            file = await self._keep(user_id, name, path)
        told = {"id": file.id, "name": file.name, "type": file.mime, "bytes": file.size}
        return json_response(told, status=201)

    async def forget_unsent(self) -> None:
        """Delete what waited a day for its message."""
        for user_id, file in await self._store.unsent():
            workspace = self._workspace(user_id)
            for path in filter(None, (file.path, file.text_path)):
                try:
                    await asyncio.to_thread(workspace.remove, path)
                except ToolError as error:
                    logger.info("upload %s: %s", file.id, error)  # its directory is gone as well
            await self._store.remove(file.id)

    @contextlib.contextmanager
    def _slot(self, user_id: str) -> Iterator[None]:
        if self._open[user_id] >= AT_ONCE_OF_USER or self._open.total() >= AT_ONCE:
            raise ProtocolError("overloaded", "Too many files are coming in; send this one in a moment.")
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1

    async def _receive(self, request: web.Request, path: Path) -> str:
        """Write the file as it comes; returns what it is called."""
        most = self._settings.limits.upload_bytes
        if request.content_type != "multipart/form-data":
            raise ValueError("another type")
        if (request.content_length or 0) > most + FORM_BYTES:
            raise _too_large(most)
        part = await (await request.multipart()).next()
        if not isinstance(part, BodyPartReader) or part.name != "file" or not part.filename:
            raise ProtocolError("bad_message", "The form must have one field, `file`, with a file in it.")
        size = 0
        with path.open("wb") as file:
            while piece := await part.read_chunk(PIECE):
                size += len(piece)
                if size > most:
                    raise _too_large(most)
                file.write(piece)
        if not size:
            raise ProtocolError("bad_message", "The file is empty.")
        name = PurePosixPath(part.filename.replace("\\", "/")).name.translate(TURNING)
        return " ".join(plain_text(name).split())[:200]

    async def _keep(self, user_id: str, name: str, temporary: Path) -> FileRef:
        data = await asyncio.to_thread(temporary.read_bytes)
        kind, text, note = kind_of(data), "", ""
        if kind and not kind.startswith("image/"):
            kind, text, note = await _document(kind, temporary)
        elif not kind:
            if len(data) > self._settings.tools.file_bytes:
                raise _too_large(self._settings.tools.file_bytes)
            decoded = await asyncio.to_thread(decode_text, data)
            if decoded is None:
                raise ProtocolError(
                    "unsupported",
                    "Text, PNG, JPEG, GIF, WebP, PDF, docx, xlsx and pptx are taken; this is none.",
                )
            kind, text = TEXT, "" if _is_utf8(data) else decoded
        file = FileRef(
            kind="image" if kind.startswith("image/") else "file",
            id=new_id("upl"),
            name=name,
            mime=kind,
            size=len(data),
            note=note,
        )
        try:
            file = await asyncio.to_thread(_write, self._workspace(user_id), file, data, text)
        except ToolError as error:
            raise ProtocolError("too_large", str(error)) from error
        await self._store.add(user_id, file)
        return file

    def _workspace(self, user_id: str) -> Workspace:
        return Workspace(
            self._data_dir / "users" / user_id / "workspace",
            file_bytes=max(self._settings.limits.upload_bytes, 5 * MAX_CHARS),
            total_bytes=self._settings.tools.workspace_bytes,
        )


def _too_large(most: int) -> ProtocolError:
    return ProtocolError("too_large", f"The file is larger than {most:,} bytes; send a smaller one.")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    return True


def _write(workspace: Workspace, file: FileRef, data: bytes, text: str) -> FileRef:
    """Put it, and its text beside it, under names that nothing else has."""
    name = safe_name(file)
    with workspace.changing():
        taken: set[str] = set()
        with contextlib.suppress(ToolError):  # the first upload makes the directory
            taken = {found.path[0].casefold() for found in workspace.walk(DIRECTORY, deep=False)}
        if {name.casefold(), f"{name}.txt".casefold()} & taken:
            parts = PurePosixPath(name)
            name = f"{parts.stem}-{file.id[-6:]}{parts.suffix}"
        path = f"{DIRECTORY}/{name}"
        workspace.write(path, data)
        if text:
            workspace.write(f"{path}.txt", text.encode("utf-8", "replace"))
    return file.model_copy(update={"path": path, "text_path": f"{path}.txt" if text else ""})


async def _document(kind: str, path: Path) -> tuple[str, str, str]:
    """Type, text, and what is wrong with the text, from a process that is given little time and memory.

    Raises:
        ProtocolError: it is no document, or unpacks to too much.
    """
    environment = clean_environment(path.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = (sys.executable, "-P", "-m", "miniclaw.file_text", str(path))
    try:
        done = await run_program(
            command, cwd=path.parent, env=environment, seconds=READ_SECONDS, max_bytes=5 * MAX_CHARS
        )
    except ToolError as error:
        return kind, "", f"its text cannot be read here: {error}"
    told, _, rest = done.output.partition("\0")
    text, _, verdict = rest.partition("\0")
    found = json.loads(verdict) if verdict else {"code": "", "note": done.reason or "reading it broke off"}
    if found["code"] or (kind == ZIP and not told):
        raise ProtocolError(found["code"] or "unsupported", found["note"])
    return told or kind, text if not text.isspace() else "", found["note"]
