"""The inbox: every accepted message is a turn row, from the moment it is acknowledged to its end."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import Inbound, encode_json, new_id
from miniclaw.identity import Identities
from miniclaw.session.models import Entry, Session, Turn, TurnState, Usage, is_let_in
from miniclaw.session.once import dedupe_key
from miniclaw.session.outbox import DELIVERY_BY_KEY, Delivery, insert_deliveries
from miniclaw.session.ports import Accepted
from miniclaw.session.rows import TURN_COLUMNS, UNREADABLE, note_key, readable_turn, session_key, turn_of
from miniclaw.session.sqlite import append_entries, check_fence, insert_session
from miniclaw.session.usage import count_usage
from miniclaw.upload_store import claim_uploads

__all__ = ["Accepted", "TurnStore"]

DEDUPE_LIFETIME: Final = 48 * 3600.0
"""Seconds for which a message is known again; the promise is 24 hours."""
TOLD: Final = "its sender was told of it, such as to send it again"


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
            ProtocolError: the session or an upload is unknown or another's, or `reserve` refused; `ignored`
                where its sender was told of it: see `Outbox.notice`.
        """
        return await self._db.write(lambda connection: self._accept(connection, inbound, reserve))

    async def begin(self, turn: Turn, *, fence: int | None) -> Turn | None:
        """Count a new attempt and return the turn as it is now; `None` when it was cancelled or has ended."""

        def operation(connection: sqlite3.Connection) -> tuple[int, int] | None:
            check_fence(connection, fence)
            row = connection.execute(
                "UPDATE turns SET state = 'running', attempt = attempt + 1, tries = tries + 1 "
                "WHERE turn_id = ? AND state IN ('waiting', 'running') AND cancel_requested = 0 "
                "RETURNING attempt, tries",
                (turn.turn_id,),
            ).fetchone()
            return (int(row[0]), int(row[1])) if row else None

        counts = await self._db.write(operation)
        return None if counts is None else replace(turn, attempt=counts[0], tries=counts[1], state="running")

    async def put_back(self, turn: Turn, *, fence: int | None = None) -> None:
        """The process is stopping: the attempt that it interrupts was no fault of the turn's."""
        statement = "UPDATE turns SET tries = tries - 1 WHERE turn_id = ? AND state = 'running' AND tries > 0"
        await self._db.write(lambda c: c.execute(statement, (turn.turn_id,)).rowcount)

    async def mark_started(self, turn_id: str, call_id: str, *, fence: int | None) -> None:
        """Commit that a call is about to run."""

        def operation(connection: sqlite3.Connection) -> None:
            check_fence(connection, fence)
            statement = "INSERT INTO started_calls VALUES (?, ?) ON CONFLICT DO NOTHING"
            connection.execute(statement, (turn_id, call_id))

        await self._db.write(operation)

    async def was_started(self, turn_id: str, call_id: str) -> bool:
        """Whether a call that has no result was begun, in this life of the process or a former one."""
        query = "SELECT 1 FROM started_calls WHERE turn_id = ? AND call_id = ?"
        return bool(self._db.read(query, (turn_id, call_id)))

    async def was_only_asked(self, turn_id: str, call_id: str) -> bool:
        """Whether somebody was to approve a call that then never began."""
        query = "SELECT 1 FROM approvals WHERE turn_id = ? AND call_id = ?"
        asked = bool(self._db.read(query, (turn_id, call_id)))
        return asked and not await self.was_started(turn_id, call_id)

    async def end(
        self,
        turn: Turn,
        state: TurnState,
        outcome: dict[str, Any],
        *,
        fence: int | None,
        entries: Sequence[Entry] = (),
        deliveries: Sequence[Delivery] = (),
        usage: Iterable[Usage] = (),
    ) -> bool:
        """Commit the last entries, the end and the deliveries together.

        Returns:
            `False`, and nothing is stored, when the turn has ended or a cancel was committed before.
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
                (state, encode_json(outcome).decode(), moment, turn.turn_id),
            )
            touched = (moment, turn.session_id)
            connection.execute("UPDATE sessions SET updated_at = ? WHERE session_id = ?", touched)
            connection.execute("DELETE FROM started_calls WHERE turn_id = ?", (turn.turn_id,))
            denied = "UPDATE approvals SET state = 'denied' WHERE turn_id = ? AND state = 'asked'"
            connection.execute(denied, (turn.turn_id,))
            insert_deliveries(connection, deliveries)
            for used in usage:
                count_usage(connection, turn.user_id, used, at=moment)
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

    async def identify(self, inbound: Inbound) -> Inbound:
        """The message with its user, scope and session filled in, where only the platform's ids are known.

        A session that a conversation does not have yet is not made.
        """
        if inbound.user_id is not None and inbound.conversation is None:
            return inbound

        def operation(connection: sqlite3.Connection) -> dict[str, str | None]:
            user_id, scope, session_id = self._find(connection, inbound)
            return {"user_id": user_id, "scope": scope, "session_id": session_id}

        return inbound.model_copy(update=await self._db.write(operation))

    async def enter(self, inbound: Inbound, session_id: str | None) -> str:
        """Let the conversation of an identified message go on in that session, or in a new one; returns which.

        The one in which it went on so far stays, with what runs and waits in it, and can be entered again.

        Raises:
            ProtocolError: `session_not_found`: there is none, or it is not of the message's scope.
        """
        scope = inbound.scope or inbound.user_id or ""

        def operation(connection: sqlite3.Connection) -> str:
            place = (session_key(inbound, scope), inbound.thread, self._clock(), session_id, scope)
            connection.execute("UPDATE sessions SET key = NULL WHERE key = ?", place[:1])
            if session_id is None:
                return self._make_session(connection, inbound, scope)
            statement = (
                "UPDATE sessions SET key = ?, thread = ?, updated_at = ? WHERE session_id = ? AND user_id = ?"
            )
            if not connection.execute(statement, place).rowcount:
                raise ProtocolError("session_not_found", "There is no such session.")
            return session_id

        return await self._db.write(operation)

    async def open_turns(self, channels: Collection[str]) -> list[Turn]:
        """Turns of these channels that a former process left waiting or running, in order of arrival."""
        marks = ", ".join("?" * len(channels))
        rows = await self._db.read_many(
            f"SELECT {TURN_COLUMNS} FROM turns t JOIN sessions s USING (session_id) "
            f"WHERE t.state IN ('waiting', 'running') AND t.channel IN ({marks}) ORDER BY t.n",
            tuple(channels),
        )
        turns = [turn for row in rows if (turn := readable_turn(row)) is not None]
        damaged = {row[1] for row in rows} - {turn.turn_id for turn in turns}
        if damaged:
            statement = "UPDATE turns SET state = 'failed', outcome = ?, ended_at = ? WHERE turn_id = ?"
            outcome = encode_json(UNREADABLE).decode()
            gone = [(outcome, self._clock(), turn_id) for turn_id in damaged]
            await self._db.write(lambda connection: connection.executemany(statement, gone).rowcount)
        return turns

    async def has_session(self, session_id: str) -> bool:
        """Whether there is such a session, whosever it is."""
        return bool(self._db.read("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)))

    async def started_calls(self, turn_id: str) -> set[str]:
        """The ids of all calls that were begun in a turn, those of sub-tasks among them."""
        rows = self._db.read("SELECT call_id FROM started_calls WHERE turn_id = ? LIMIT 200", (turn_id,))
        return {str(row[0]) for row in rows}

    async def ids_of(self, session_id: str) -> set[str]:
        """The ids of all turns of a session."""
        query = "SELECT turn_id FROM turns WHERE session_id = ?"
        return {str(row[0]) for row in await self._db.read_many(query, (session_id,))}

    def get(self, turn_id: str) -> Turn | None:
        """A turn as it stands."""
        return self._one("t.turn_id = ?", turn_id)

    async def find(self, turn_id: str) -> Turn | None:
        """The same."""
        return self.get(turn_id)

    async def forget_old(self) -> int:
        """Drop de-duplication keys past their lifetime; returns how many."""
        oldest = self._clock() - DEDUPE_LIFETIME
        return await self._db.write(
            lambda c: c.execute("DELETE FROM dedupe WHERE created_at < ?", (oldest,)).rowcount
        )

    def _one(self, where: str, value: str) -> Turn | None:
        query = f"SELECT {TURN_COLUMNS} FROM turns t JOIN sessions s USING (session_id) WHERE {where}"
        rows = self._db.read(query, (value,))
        return turn_of(rows[0]) if rows else None

    def _accept(
        self, connection: sqlite3.Connection, inbound: Inbound, reserve: Callable[[str], None]
    ) -> Accepted:
        user_id, scope, session_id = self._find(connection, inbound)
        owner = inbound.account or user_id
        keys = [dedupe_key(inbound.channel, owner, part) for part in inbound.dedupe or (inbound.msg_id,)]
        for key in keys:
            query = "SELECT session_id, turn_id FROM dedupe WHERE key = ? AND turn_id IS NOT NULL"
            if first := connection.execute(query, (key,)).fetchone():
                return Accepted(session_id=first[0], turn_id=first[1], turn=None)
        if inbound.typed and connection.execute(DELIVERY_BY_KEY, (note_key(inbound),)).fetchone():
            raise ProtocolError("ignored", TOLD)
        if session_id is None:
            session_id = self._make_session(connection, inbound, scope)
        reserve(session_id)
        turn_id, moment = new_id("turn"), self._clock()
        message = claim_uploads(connection, inbound, user_id, moment).model_dump(
            mode="json", exclude_none=True
        )
        cursor = connection.execute(
            "INSERT INTO turns (turn_id, session_id, user_id, channel, message, state, created_at) "
            "VALUES (?, ?, ?, ?, ?, 'waiting', ?)",
            (turn_id, session_id, user_id, inbound.channel, encode_json(message).decode(), moment),
        )
        connection.executemany(
            # A key that is there is that of a command with the same id, which has a result and no turn.
            "INSERT INTO dedupe VALUES (?, ?, ?, NULL, ?) ON CONFLICT (key) DO UPDATE "
            "SET turn_id = excluded.turn_id, session_id = excluded.session_id",
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

    def _find(self, connection: sqlite3.Connection, inbound: Inbound) -> tuple[str, str, str | None]:
        """User, scope and session of a message; the session is `None` when it is to be made."""
        scope = inbound.scope
        if scope is None and not inbound.direct:
            group = inbound.conversation or ""
            scope = self._identities.group_for(connection, inbound.channel, inbound.account, group)
        session_id = inbound.session_id or (self._known(connection, inbound, scope) if scope else None)
        if session_id is None and inbound.only_known:  # whoever sent it: people talk among themselves
            raise ProtocolError("ignored", "it does not name the agent, nor is its conversation known")
        user_id = inbound.user_id or self._user_of(connection, inbound)
        scope = scope or user_id
        if inbound.session_id is not None:
            query = "SELECT CAST(metadata AS BLOB) FROM sessions WHERE session_id = ? AND user_id = ?"
            row = connection.execute(query, (inbound.session_id, scope)).fetchone()
            if row is None or not is_let_in(row[0].decode("utf-8", "replace"), inbound.msg_id):
                raise ProtocolError("session_not_found", "There is no such session.", reply_to=inbound.msg_id)
        return user_id, scope, session_id or self._known(connection, inbound, scope)

    @staticmethod
    def _known(connection: sqlite3.Connection, inbound: Inbound, scope: str) -> str | None:
        """The session of a platform's conversation, where there is one."""
        key = session_key(inbound, scope)
        row = connection.execute("SELECT session_id FROM sessions WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else None

    def _user_of(self, connection: sqlite3.Connection, inbound: Inbound) -> str:
        person = (inbound.channel, inbound.account, inbound.sender)
        if inbound.strangers == "serve":
            return self._identities.user_for(connection, *person)
        known = self._identities.known(connection, *person)
        if known is None:
            is_asked = inbound.strangers == "pair" and not inbound.only_known  # people talk among themselves
            code = "pairing" if is_asked else "ignored"
            raise ProtocolError(code, "the sender is not known here")
        return known

    def _make_session(self, connection: sqlite3.Connection, inbound: Inbound, scope: str) -> str:
        moment = self._clock()
        session = Session(
            session_id=new_id("ses"),
            user_id=scope,
            channel=inbound.channel,
            key=session_key(inbound, scope),
            thread=inbound.thread,
            created_at=moment,
            updated_at=moment,
        )
        insert_session(connection, session)
        return session.session_id
