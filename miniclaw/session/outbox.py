"""Answers that a push channel still has to send: rows that survive a crash."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.gateway.protocol import ReplyTarget

__all__ = ["DELIVERY_BY_KEY", "Delivery", "DeliveryState", "Outbox", "insert_deliveries"]

DELIVERY_BY_KEY: Final = "SELECT 1 FROM deliveries WHERE key = ?"
DeliveryState = Literal["streaming", "pending", "sending", "sent", "dead"]

_COLUMNS: Final = (
    "key, n, part, turn_id, user_id, channel, account, conversation, target, text, state, attempts, "
    "uncertain, next_at, handle, error, created_at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One part of an answer on its way."""

    key: str
    """`<turn_id>.<part>`: the idempotency key of every try."""
    n: int
    """The turn's number; with `part` the order in the conversation."""
    part: int
    turn_id: str
    """Of a notice (`n` is 0), which belongs to no turn: the ids of the sessions that it shows."""
    user_id: str
    channel: str
    account: str
    conversation: str
    target: ReplyTarget
    text: str
    state: DeliveryState = "pending"
    attempts: int = 0
    uncertain: int = 0
    """1: a try began whose outcome is not known, so a platform that cannot know it again gets the next one marked.
    2: none can any more, as once it was sent marked, or had been given up."""
    next_at: float = 0.0
    handle: str | None = None
    error: str | None = None
    created_at: float = 0.0
    is_damaged: bool = False
    """The row cannot be read, so nobody knows where it belongs."""


def insert_deliveries(connection: sqlite3.Connection, deliveries: Sequence[Delivery]) -> None:
    """Store rows inside the caller's transaction.

    One that was opened for a streamed reply gets its final text and becomes `pending`; any other that is
    there stays as it is.
    """
    marks = ", ".join("?" * 17)
    connection.executemany(
        f"INSERT INTO deliveries ({_COLUMNS}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE "
        "SET text = excluded.text, state = 'pending' WHERE state = 'streaming'",
        [
            (
                *(d.key, d.n, d.part, d.turn_id, d.user_id, d.channel, d.account, d.conversation),
                *(d.target.model_dump_json(), d.text, d.state, d.attempts, d.uncertain),
                *(d.next_at, d.handle, d.error, d.created_at),
            )
            for d in deliveries
        ],
    )


class Outbox:
    """The delivery rows: what is open, and what became of each try."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    async def conversations(self, channels: Collection[str]) -> list[tuple[str, str, str]]:
        """Channel, account and conversation of everything that is still to be sent."""
        marks = ", ".join("?" * len(channels))
        rows = await self._db.read_many(
            "SELECT DISTINCT channel, account, conversation FROM deliveries "
            f"WHERE state IN ('pending', 'sending') AND channel IN ({marks})",
            tuple(channels),
        )
        return [(row[0], row[1], row[2]) for row in rows]

    async def next_of(self, channel: str, account: str, conversation: str) -> Delivery | None:
        """The oldest row of a conversation still to be sent; one left `sending` has an unknown outcome."""
        rows = self._db.read(
            f"SELECT {_COLUMNS} FROM deliveries WHERE state IN ('pending', 'sending') "
            "AND channel = ? AND account = ? AND conversation = ? ORDER BY n, created_at, part LIMIT 1",
            (channel, account, conversation),
        )
        return _delivery(rows[0]) if rows else None

    async def has(self, key: str) -> bool:
        """Whether there is such a row, sent or not."""
        return bool(self._db.read(DELIVERY_BY_KEY, (key,)))

    async def of_user(self, user_id: str | None) -> list[Delivery]:
        """The latest rows that are not sent, of one user or of all; dead letters among them."""
        where = "user_id = ? AND" if user_id is not None else ""
        rows = self._db.read(
            f"SELECT {_COLUMNS} FROM deliveries WHERE {where} state != 'sent' ORDER BY n DESC, part LIMIT 100",
            (user_id,) if user_id is not None else (),
        )
        return [_delivery(row) for row in rows]

    async def waiting(self) -> int:
        """How many rows are still to be sent."""
        query = "SELECT count(*) FROM deliveries WHERE state IN ('pending', 'sending')"
        return int(self._db.read(query)[0][0])

    async def open_stream(self, row: Delivery) -> Delivery | None:
        """Open the row of an answer before its first byte is shown.

        Returns:
            `row`, or the row that an earlier attempt opened; `None` when an earlier answer of the
            conversation is still to be sent, which is not overtaken.
        """

        def operation(connection: sqlite3.Connection) -> Delivery | None:
            query = (
                "SELECT 1 FROM deliveries WHERE state IN ('pending', 'sending') "
                "AND channel = ? AND account = ? AND conversation = ? AND n < ?"
            )
            place = (row.channel, row.account, row.conversation, row.n)
            if connection.execute(query, place).fetchone() is not None:
                return None
            query = f"SELECT {_COLUMNS} FROM deliveries WHERE key = ?"
            if (found := connection.execute(query, (row.key,)).fetchone()) is not None:
                return _delivery(found)
            insert_deliveries(connection, [row])
            return row

        return await self._db.write(operation)

    async def expect_stream(self, key: str, handle: str) -> None:
        """The platform is about to show the answer under this handle."""
        await self._update(key, "handle = ?", handle)

    async def keep_stream(self, key: str, handle: str | None) -> None:
        """The platform shows the answer under this handle; with `None` it surely shows nothing."""
        await self._update(key, "handle = ?, uncertain = 0", handle)

    async def notice(self, rows: Sequence[Delivery], *, unless: Collection[str] = ()) -> bool:
        """Store the parts of a text that belongs to no turn, such as "busy"; one with the same key once.

        `False`, and nothing is stored, where a copy of the message has become a turn: `unless` are its
        de-duplication keys. From then on no copy does.
        """
        query = "SELECT 1 FROM dedupe WHERE key = ? AND turn_id IS NOT NULL"

        def operation(connection: sqlite3.Connection) -> bool:
            if any(connection.execute(query, (key,)).fetchone() for key in unless):
                return False
            insert_deliveries(connection, rows)
            return True

        return await self._db.write(operation)

    async def begin(self, delivery: Delivery) -> bool:
        """Commit `sending` before the platform is called; `False` when it is not to be sent any more."""
        changes = "state = 'sending', attempts = attempts + 1, uncertain = ?"
        where = "AND state IN ('pending', 'sending')"
        return await self._update(delivery.key, changes, max(1, delivery.uncertain), where=where)

    async def sent(self, delivery: Delivery, handle: str | None) -> None:
        """The platform took it; of a notice the text goes at once, as no deleted session would take it along."""
        changes = "state = 'sent', handle = ?, error = NULL, text = CASE n WHEN 0 THEN '' ELSE text END"
        await self._update(delivery.key, changes, handle)

    async def retry(self, delivery: Delivery, error: str, *, at: float, uncertain: int) -> None:
        """It is tried again at `at`; `uncertain` as in `Delivery`."""
        changes = "state = 'pending', error = ?, next_at = ?, uncertain = ?"
        await self._update(delivery.key, changes, error, at, uncertain)

    async def dead(self, delivery: Delivery, error: str) -> None:
        """Nobody tries it again by itself."""
        await self._update(delivery.key, "state = 'dead', error = ?", error)

    async def revive(self, key: str, user_id: str | None) -> Delivery | None:
        """Let a dead letter, of this user or any, be tried again, marked as possibly repeated; `None` if none."""
        moment = self._clock()
        statement = (
            "UPDATE deliveries SET state = 'pending', next_at = ?, created_at = ?, attempts = 0, "
            "uncertain = MIN(2, 2 * uncertain) "
            "WHERE key = ? AND user_id = COALESCE(?, user_id) AND state = 'dead'"
        )
        row = (moment, moment, key, user_id)
        if not await self._db.write(lambda c: c.execute(statement, row).rowcount):
            return None
        rows = self._db.read(f"SELECT {_COLUMNS} FROM deliveries WHERE key = ?", (key,))
        return _delivery(rows[0])

    async def forget_sent(self, *, before: float) -> int:
        """Drop sent rows older than `before`; returns how many."""
        statement = "DELETE FROM deliveries WHERE state = 'sent' AND created_at < ?"
        return await self._db.write(lambda c: c.execute(statement, (before,)).rowcount)

    async def _update(self, key: str, changes: str, *values: Any, where: str = "") -> bool:
        statement = f"UPDATE deliveries SET {changes} WHERE key = ? {where}"
        return await self._db.write(lambda c: c.execute(statement, (*values, key)).rowcount > 0)


def _delivery(row: tuple[Any, ...]) -> Delivery:
    try:
        target, is_damaged = ReplyTarget.model_validate_json(row[8]), False
    except ValueError:
        target, is_damaged = ReplyTarget(), True
    return Delivery(
        key=row[0],
        n=row[1],
        part=row[2],
        turn_id=row[3],
        user_id=row[4],
        channel=row[5],
        account=row[6],
        conversation=row[7],
        target=target,
        text=row[9],
        state=row[10],
        attempts=row[11],
        uncertain=row[12],
        next_at=row[13],
        handle=row[14],
        error=row[15],
        created_at=row[16],
        is_damaged=is_damaged,
    )
