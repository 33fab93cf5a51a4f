"""Uploads as rows: whose they are, where they lie, and whether a message has carried them."""

from __future__ import annotations

import sqlite3
from typing import Final

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, TextPayload

__all__ = ["KEEP_UNSENT", "UploadStore", "claim_uploads", "named_uploads", "no_upload"]

KEEP_UNSENT: Final = 24 * 3600.0
"""Seconds for which an upload can wait for its message."""


class UploadStore:
    """The rows of the table `uploads`."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    async def add(self, user_id: str, file: FileRef) -> None:
        """Keep a file that lies in the user's workspace."""
        row = (file.id, user_id, file.model_dump_json(exclude_defaults=True), self._clock())
        await self._db.write(lambda c: c.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, 0)", row).rowcount)

    async def unsent(self) -> list[tuple[str, FileRef]]:
        """Users and files that no message carried in time and none can any more, some hundred at once."""
        query = "SELECT user_id, ref FROM uploads WHERE NOT sent AND created_at <= ? LIMIT 500"
        rows = self._db.read(query, (self._clock() - KEEP_UNSENT,))
        return [(str(user_id), FileRef.model_validate_json(ref)) for user_id, ref in rows]

    async def remove(self, upload_id: str) -> None:
        """Forget an upload; its file is the caller's."""
        statement = "DELETE FROM uploads WHERE upload_id = ?"
        await self._db.write(lambda c: c.execute(statement, (upload_id,)).rowcount)


def claim_uploads(connection: sqlite3.Connection, inbound: Inbound, user_id: str, now: float) -> Inbound:
    """The message with the files that it names, inside the transaction that stores it.

    Raises:
        ProtocolError: `not_found`: there is no such upload, it is another user's, or it waited too long.
    """
    files: list[FileRef] = []
    for upload_id in named_uploads(inbound):
        rows = connection.execute(
            "UPDATE uploads SET sent = 1 WHERE upload_id = ? AND user_id = ? AND (sent OR created_at > ?) "
            "RETURNING ref",
            (upload_id, user_id, now - KEEP_UNSENT),
        ).fetchall()
        if not rows:
            raise no_upload(upload_id, inbound)
        files.append(FileRef.model_validate_json(rows[0][0]))
    return inbound.model_copy(update={"files": tuple(files)}) if files else inbound


def named_uploads(inbound: Inbound) -> list[str]:
    """The uploads that a message names, each once."""
    named = inbound.payload.attachments if isinstance(inbound.payload, TextPayload) else ()
    return list(dict.fromkeys(attachment.id for attachment in named))


def no_upload(upload_id: str, inbound: Inbound) -> ProtocolError:
    """The refusal of a message that names what is not there for it."""
    text = f"There is no upload `{upload_id}`; upload the file again."
    return ProtocolError("not_found", text, reply_to=inbound.msg_id)
