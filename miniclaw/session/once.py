"""Commands that change something are carried out once, however often they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from miniclaw.config import Clock
from miniclaw.db import Database

__all__ = ["OnceOnly", "dedupe_key"]


def dedupe_key(channel: str, owner: str, message_id: str) -> str:
    """How a message is known again: by channel, account or user, and its own id."""
    return "\x1f".join((channel, owner, message_id))


class OnceOnly:
    """Remembers results by de-duplication key, in the database and while they are at work."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._db = database
        self._clock = clock
        self._at_work: dict[str, asyncio.Future[None]] = {}

    async def run(
        self, key: tuple[str, str, str], operation: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Carry out a command that changes something once for each `(channel, user, msg_id)`.

        A repeat gets the first one's result, also while that is still at work. The key is claimed with
        the result, after the command is done, so a crash between the two lets the repeat do it again.
        """
        joined = dedupe_key(*key)
        while (first := self._at_work.get(joined)) is not None:
            await asyncio.wait([first])
        done = self._at_work[joined] = asyncio.get_running_loop().create_future()
        try:
            if (known := await self._find(joined)) is not None:
                stored: dict[str, Any] = json.loads(known)
                return stored
            result = await operation()
            # Texts of memories are not kept here: their owner may delete them.
            kept = {**result, "similar": []} if "similar" in result else result
            await self._store(joined, kept)
        finally:
            del self._at_work[joined]
            done.set_result(None)
        return result

    async def _find(self, key: str) -> str | None:
        rows = self._db.read("SELECT result FROM dedupe WHERE key = ? AND result IS NOT NULL", (key,))
        return str(rows[0][0]) if rows else None

    async def _store(self, key: str, result: dict[str, Any]) -> None:
        statement = (
            "INSERT INTO dedupe VALUES (?, NULL, NULL, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET result = excluded.result"
        )
        row = (key, json.dumps(result, ensure_ascii=False), self._clock())
        await self._db.write(lambda c: c.execute(statement, row).rowcount)
