"""The inbox: every accepted message is a turn row, from the moment it is acknowledged to its end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import Inbound, new_id
from miniclaw.identity import Identities
from miniclaw.session.models import Entry, Session, Turn, TurnState, Usage
from miniclaw.session.outbox import Delivery, insert_deliveries
from miniclaw.session.sqlite import append_entries, check_fence, insert_session

__all__ = ["Accepted", "TurnStore"]

DEDUPE_LIFETIME: Final = 48 * 3600.0
"""Seconds for which a message is known again; the promise is 24 hours."""

_COLUMNS: Final = (
    "t.n, t.turn_id, t.session_id, t.user_id, t.channel, t.message, t.state, t.attempt, "
    "t.cancel_requested, t.outcome, s.user_id"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What storing a message came to; a duplicate carries the ids of the first one and no turn."""

    session_id: str
    turn_id: str
    turn: Turn | None


class TurnStore:
    """Turns and de-duplication keys in the database.

    Everything that belongs together is one transaction: claiming the ids of a message, finding or making
    its session and storing the turn; the last entry of a turn, its end and its deliveries.
    """

    def __init__(self, database: Database, identities: Identities, *, clock: Clock) -> None:
        self._db = database
        self._identities = identities
        self._clock = clock

    async def accept(self, inbound: Inbound, reserve: Callable[[str], None]) -> Accepted:
        """Store a message as a waiting turn, once.

        Args:
            inbound: the message with its envelope.
            reserve: called with the session's id inside the transaction; raises to refuse, in which case
                nothing is stored and no id is claimed.

        Raises:
            ProtocolError: the session is unknown or another's, or `reserve` refused.
        """
        return await self._db.write(lambda connection: self._accept(connection, inbound, reserve))

    async def begin(self, turn: Turn, *, fence: int) -> int | None:
        """Count a new attempt and return its number; `None` when the turn was cancelled or has ended."""

        def operation(connection: sqlite3.Connection) -> int | None:
            check_fence(connection, fence)
            changed = connection.execute(
                "UPDATE turns SET state = 'running', attempt = attempt + 1 "
                "WHERE turn_id = ? AND state IN ('waiting', 'running') AND cancel_requested = 0",
                (turn.turn_id,),
            ).rowcount
            if not changed:
                return None
            query = "SELECT attempt FROM turns WHERE turn_id = ?"
            return int(connection.execute(query, (turn.turn_id,)).fetchone()[0])

        return await self._db.write(operation)

    async def mark_started(self, turn_id: str, call_id: str, *, fence: int) -> None:
        """Commit that a call is about to run."""

        def operation(connection: sqlite3.Connection) -> None:
            check_fence(connection, fence)
            statement = "INSERT INTO started_calls VALUES (?, ?) ON CONFLICT DO NOTHING"
            connection.execute(statement, (turn_id, call_id))

        await self._db.write(operation)

    def was_started(self, turn_id: str, call_id: str) -> bool:
        """Whether a call that has no result was begun, in this life of the process or a former one."""
        query = "SELECT 1 FROM started_calls WHERE turn_id = ? AND call_id = ?"
        return bool(self._db.read(query, (turn_id, call_id)))

    async def end(
        self,
        turn: Turn,
        state: TurnState,
        outcome: dict[str, Any],
        *,
        fence: int,
        entries: Sequence[Entry] = (),
        deliveries: Sequence[Delivery] = (),
        usage: Usage | None = None,
    ) -> bool:
        """Commit the last entries, the end and the deliveries together.

        Returns:
            `False` when the turn has ended already, or a cancel was committed before this `finished`;
            nothing is stored then.
        """

        def operation(connection: sqlite3.Connection) -> bool:
            check_fence(connection, fence)
            query = "SELECT state, cancel_requested FROM turns WHERE turn_id = ?"
            row = connection.execute(query, (turn.turn_id,)).fetchone()
            if row is None or row[0] not in ("waiting", "running") or (row[1] and state != "cancelled"):
                return False
            moment = self._clock()
            append_entries(connection, turn.session_id, entries)
            connection.execute(
                "UPDATE turns SET state = ?, outcome = ?, ended_at = ? WHERE turn_id = ?",
                (state, json.dumps(outcome, ensure_ascii=False), moment, turn.turn_id),
            )
            statement = "UPDATE sessions SET updated_at = ? WHERE session_id = ?"
            connection.execute(statement, (moment, turn.session_id))
            connection.execute("DELETE FROM started_calls WHERE turn_id = ?", (turn.turn_id,))
            insert_deliveries(connection, deliveries)
            if usage is not None and usage.calls:
                self._count(connection, turn.user_id, usage)
            return True

        return await self._db.write(operation)

    async def request_cancel(self, turn_id: str) -> bool:
        """Commit that the turn is to end; `False` when it has ended already."""

        def operation(connection: sqlite3.Connection) -> bool:
            statement = (
                "UPDATE turns SET cancel_requested = 1 WHERE turn_id = ? AND state IN ('waiting', 'running')"
            )
            return connection.execute(statement, (turn_id,)).rowcount > 0

        return await self._db.write(operation)

    async def once(
        self, key: tuple[str, str, str], operation: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Carry out a command that changes something once for each `(channel, user, msg_id)`.

        A repeat gets the stored result. The key is claimed with the result, after the command is done, so
        a crash between the two lets the repeat do it again.
        """
        joined = _key(*key)
        rows = self._db.read("SELECT result FROM dedupe WHERE key = ? AND result IS NOT NULL", (joined,))
        if rows:
            stored: dict[str, Any] = json.loads(rows[0][0])
            return stored
        result = await operation()
        text = json.dumps(result, ensure_ascii=False)
        statement = "INSERT INTO dedupe VALUES (?, NULL, NULL, ?, ?) ON CONFLICT DO NOTHING"
        await self._db.write(lambda c: c.execute(statement, (joined, text, self._clock())).rowcount)
        return result

    async def open_turns(self, channels: Collection[str]) -> list[Turn]:
        """Turns of these channels that a former process left waiting or running, in order of arrival."""
        marks = ", ".join("?" * len(channels))
        rows = await self._db.read_many(
            f"SELECT {_COLUMNS} FROM turns t JOIN sessions s USING (session_id) "
            f"WHERE t.state IN ('waiting', 'running') AND t.channel IN ({marks}) ORDER BY t.n",
            tuple(channels),
        )
        return [_turn(row) for row in rows]

    def get(self, turn_id: str) -> Turn | None:
        """A turn as it stands."""
        return self._one("t.turn_id = ?", turn_id)

    def last_of(self, session_id: str) -> Turn | None:
        """The latest turn of a session."""
        return self._one("t.session_id = ? ORDER BY t.n DESC LIMIT 1", session_id)

    async def forget_old(self) -> int:
        """Drop de-duplication keys past their lifetime; returns how many."""
        oldest = self._clock() - DEDUPE_LIFETIME
        return await self._db.write(
            lambda c: c.execute("DELETE FROM dedupe WHERE created_at < ?", (oldest,)).rowcount
        )

    def usage_of(self, user_id: str) -> list[dict[str, Any]]:
        """Tokens and calls by day and model, the latest day first."""
        rows = self._db.read(
            "SELECT day, model, input_tokens, output_tokens, calls FROM usage WHERE user_id = ? "
            "ORDER BY day DESC, model LIMIT 200",
            (user_id,),
        )
        names = ("day", "model", "input_tokens", "output_tokens", "calls")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _one(self, where: str, value: str) -> Turn | None:
        query = f"SELECT {_COLUMNS} FROM turns t JOIN sessions s USING (session_id) WHERE {where}"
        rows = self._db.read(query, (value,))
        return _turn(rows[0]) if rows else None

    def _accept(
        self, connection: sqlite3.Connection, inbound: Inbound, reserve: Callable[[str], None]
    ) -> Accepted:
        user_id = inbound.user_id or self._identities.user_for(
            connection, inbound.channel, inbound.account, inbound.sender
        )
        owner = inbound.account or user_id
        keys = [_key(inbound.channel, owner, part) for part in inbound.dedupe or (inbound.msg_id,)]
        for key in keys:
            query = "SELECT session_id, turn_id FROM dedupe WHERE key = ? AND turn_id IS NOT NULL"
            if first := connection.execute(query, (key,)).fetchone():
                return Accepted(session_id=first[0], turn_id=first[1], turn=None)
        session_id, scope = self._find_session(connection, inbound, user_id)
        reserve(session_id)
        turn_id, moment = new_id("turn"), self._clock()
        message = inbound.model_dump(mode="json", exclude_none=True)
        cursor = connection.execute(
            "INSERT INTO turns (turn_id, session_id, user_id, channel, message, state, created_at) "
            "VALUES (?, ?, ?, ?, ?, 'waiting', ?)",
            (turn_id, session_id, user_id, inbound.channel, json.dumps(message, ensure_ascii=False), moment),
        )
        connection.executemany(
            "INSERT INTO dedupe VALUES (?, ?, ?, NULL, ?) ON CONFLICT DO NOTHING",
            [(key, turn_id, session_id, moment) for key in keys],
        )
        turn = Turn(
            n=int(cursor.lastrowid or 0),
            turn_id=turn_id,
            session_id=session_id,
            user_id=user_id,
            scope=scope,
            channel=inbound.channel,
            message=message,
        )
        return Accepted(session_id=session_id, turn_id=turn_id, turn=turn)

    def _find_session(
        self, connection: sqlite3.Connection, inbound: Inbound, user_id: str
    ) -> tuple[str, str]:
        """The session's id and scope; made when a platform's conversation or a nameless text is new."""
        scope = user_id
        if not inbound.direct:
            scope = self._identities.group_for(
                connection, inbound.channel, inbound.account, inbound.conversation or ""
            )
        if inbound.session_id is not None:
            query = "SELECT user_id FROM sessions WHERE session_id = ?"
            row = connection.execute(query, (inbound.session_id,)).fetchone()
            if row is None or row[0] != scope:
                raise ProtocolError("session_not_found", "There is no such session.", reply_to=inbound.msg_id)
            return inbound.session_id, scope
        key = None
        if inbound.conversation is not None:
            key = "\x1f".join(
                (inbound.channel, inbound.account, inbound.conversation, inbound.thread or "", scope)
            )
            query = "SELECT session_id FROM sessions WHERE key = ?"
            if row := connection.execute(query, (key,)).fetchone():
                return str(row[0]), scope
        session = Session(
            session_id=new_id("ses"),
            user_id=scope,
            channel=inbound.channel,
            key=key,
            thread=inbound.thread,
            created_at=self._clock(),
            updated_at=self._clock(),
        )
        insert_session(connection, session)
        return session.session_id, scope

    def _count(self, connection: sqlite3.Connection, user_id: str, usage: Usage) -> None:
        connection.execute(
            "INSERT INTO usage VALUES (?, date(?, 'unixepoch'), ?, ?, ?, ?) "
            "ON CONFLICT (user_id, day, model) DO UPDATE SET "
            "input_tokens = input_tokens + excluded.input_tokens, "
            "output_tokens = output_tokens + excluded.output_tokens, calls = calls + excluded.calls",
            (user_id, self._clock(), usage.model, usage.input_tokens, usage.output_tokens, usage.calls),
        )


def _key(channel: str, owner: str, message_id: str) -> str:
    return "\x1f".join((channel, owner, message_id))


def _turn(row: tuple[Any, ...]) -> Turn:
    return Turn(
        n=row[0],
        turn_id=row[1],
        session_id=row[2],
        user_id=row[3],
        channel=row[4],
        message=json.loads(row[5]),
        state=row[6],
        attempt=row[7],
        cancel_requested=bool(row[8]),
        outcome=json.loads(row[9]) if row[9] else None,
        scope=row[10],
    )
