"""Sessions and their logs in the data directory's database."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic_core import from_json

from miniclaw.db import Database
from miniclaw.errors import StaleFence, StorageError
from miniclaw.gateway.protocol import encode_json
from miniclaw.session.models import Entry, Session
from miniclaw.session.storage import Forget, Holds, SessionStorage, encode_entry

__all__ = ["SQLiteStorage", "append_entries", "check_fence", "insert_session", "read_metadata"]

logger = logging.getLogger(__name__)

SMALL_READ: Final = 200
"""Rows up to which a read runs on the loop."""

PURGED: Final = 500
"""Rows of a deleted session that are removed in one commit."""

_DELETED: Final = "deleted "
"""Before the id of a session whose log is not yet removed."""

KINDS: Final[dict[str, type]] = {"title": str, "model": str, "skills": list, "summary": dict, "cleared": int}
"""What the metadata that the program reads must be."""
_COLUMNS: Final = "session_id, user_id, channel, key, thread, created_at, updated_at, metadata"


def check_fence(connection: sqlite3.Connection, fence: int | None) -> None:
    """Refuse a writer whose epoch is over.

    Raises:
        StaleFence: another process opened the database since.
    """
    if fence is None:
        return
    epoch = connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    if epoch is not None and int(epoch[0]) > fence:
        raise StaleFence("Another process has taken over this data directory; this one must stop.")


def insert_session(connection: sqlite3.Connection, session: Session) -> None:
    """Store everything but the log, over what is there."""
    connection.execute(
        f"INSERT INTO sessions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (session_id) DO UPDATE SET user_id = excluded.user_id, channel = excluded.channel, "
        "key = excluded.key, thread = excluded.thread, created_at = excluded.created_at, "
        "updated_at = excluded.updated_at, metadata = excluded.metadata",
        (
            session.session_id,
            session.user_id,
            session.channel,
            session.key,
            session.thread,
            session.created_at,
            session.updated_at,
            encode_json(session.metadata).decode(),
        ),
    )


def append_entries(connection: sqlite3.Connection, session_id: str, entries: Sequence[Entry]) -> None:
    """Add entries to a log inside the caller's transaction; a repeat of a `(turn_id, step)` is left out."""
    if not entries:
        return
    row = connection.execute(
        "SELECT MAX(position) FROM entries WHERE session_id = ?", (session_id,)
    ).fetchone()
    position = 0 if row[0] is None else row[0] + 1
    for entry in entries:
        body = encode_entry(entry).decode()
        cursor = connection.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (session_id, position, entry.turn_id, entry.step, body),
        )
        if cursor.rowcount:
            entry.position = position
            position += 1


class SQLiteStorage(SessionStorage):
    """The default back end; many writes share one commit, large reads run in a thread."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        rows = self._db.read(f"SELECT {_COLUMNS} FROM sessions WHERE session_id = ?", (session_id,))
        if not rows:
            return None
        session = _session(rows[0])
        end = self._next_position(session_id)
        if before is not None:
            end = min(end, before)
        query = (
            "SELECT position, turn_id, step, body FROM entries "
            "WHERE session_id = ? AND position < ? ORDER BY position"
        )
        parameters: tuple[Any, ...] = (session_id, end)
        if last is not None:  # of those that are there: damage may have left a gap
            query, parameters = (
                f"SELECT * FROM ({query} DESC LIMIT ?) ORDER BY position",
                (*parameters, min(last, end)),
            )
        few = min(end, end if last is None else last) <= SMALL_READ
        parse = partial(_entries, session_id)
        if few:
            session.messages = parse(self._db.read(query, parameters))
        else:
            session.messages = await self._db.read_many(query, parameters, each=parse)
        return session

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            check_fence(connection, fence)
            insert_session(connection, session)

        await self._db.write(operation)

    async def merge(self, session: Session, changes: Mapping[str, Any], *, fence: int | None = None) -> None:
        """See `SessionStorage.merge`; its place is left alone: a conversation may have gone on elsewhere."""
        row = (encode_json(session.metadata).decode(), session.updated_at, session.session_id)

        def operation(connection: sqlite3.Connection) -> None:
            check_fence(connection, fence)
            connection.execute("UPDATE sessions SET metadata = ?, updated_at = ? WHERE session_id = ?", row)

        await self._db.write(operation)

    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            check_fence(connection, fence)
            known = connection.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,))
            if known.fetchone() is None:
                raise StorageError(f"There is no session `{session_id}`.")
            append_entries(connection, session_id, entries)

        await self._db.write(operation)

    async def delete(
        self,
        session_id: str,
        *,
        unless: Holds | None = None,
        unused_since: float | None = None,
        forget: Forget | None = None,
    ) -> bool:
        def operation(connection: sqlite3.Connection) -> str | None:
            if unless is not None and _is_held(connection, session_id, unless):
                return None
            query = "DELETE FROM sessions WHERE session_id = ? AND updated_at < COALESCE(?, 9e999) RETURNING user_id"
            if (row := connection.execute(query, (session_id, unused_since)).fetchone()) is None:
                return None
            # What is on its way must not be sent by the next start, should a crash come here.
            connection.execute(
                "DELETE FROM deliveries WHERE state IN ('pending', 'sending') "
                "AND turn_id IN (SELECT turn_id FROM turns WHERE session_id = ?)",
                (session_id,),
            )
            shows = "DELETE FROM deliveries WHERE n = 0 AND state != 'sent' AND instr(turn_id, ?)"
            connection.execute(shows, (session_id,))
            for table in ("approvals", "approval_rules"):
                connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
            # De-duplication keys stay, without text: a retry of a deleted message must not start a turn.
            connection.execute(
                "UPDATE dedupe SET result = CASE WHEN session_id = ?1 THEN NULL ELSE '{}' END "
                "WHERE session_id = ?1 OR instr(result, ?1)",
                (session_id,),
            )
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_DELETED + session_id, row[0]))
            return str(row[0])

        scope = await self._db.write(operation)
        if scope is None:
            return False
        if forget is not None:
            await forget(scope)
        await self.finish_delete(session_id)
        return True

    async def unfinished_deletes(self) -> dict[str, str]:
        """See `FinishesDeletes`."""
        rows = self._db.read("SELECT key, value FROM meta WHERE key GLOB ? LIMIT 200", (f"{_DELETED}*",))
        return {key.removeprefix(_DELETED): scope for key, scope in rows}

    async def finish_delete(self, session_id: str) -> None:
        """Remove turns and log in pieces, so that a long session does not hold up everybody else."""
        turns = f"(SELECT turn_id FROM turns WHERE session_id = ?1 ORDER BY n LIMIT {PURGED})"

        def some_turns(connection: sqlite3.Connection) -> int:
            for table in ("started_calls", "deliveries"):
                connection.execute(f"DELETE FROM {table} WHERE turn_id IN {turns}", (session_id,))
            return connection.execute(f"DELETE FROM turns WHERE turn_id IN {turns}", (session_id,)).rowcount

        def some_entries(connection: sqlite3.Connection) -> int:
            positions = (
                f"(SELECT position FROM entries WHERE session_id = ?1 ORDER BY position LIMIT {PURGED})"
            )
            statement = f"DELETE FROM entries WHERE session_id = ?1 AND position IN {positions}"
            return connection.execute(statement, (session_id,)).rowcount

        for some in (some_turns, some_entries):
            while await self._db.write(some) >= PURGED:
                pass
        mark = (_DELETED + session_id,)
        await self._db.write(lambda c: c.execute("DELETE FROM meta WHERE key = ?", mark).rowcount)

    async def list(self, user_id: str | None = None) -> list[Session]:
        where, parameters = ("WHERE user_id = ?", (user_id,)) if user_id is not None else ("", ())
        rows = await self._db.read_many(
            f"SELECT {_COLUMNS} FROM sessions {where} ORDER BY updated_at DESC, session_id DESC", parameters
        )
        return [_session(row) for row in rows]

    def _next_position(self, session_id: str) -> int:
        rows = self._db.read("SELECT MAX(position) FROM entries WHERE session_id = ?", (session_id,))
        return 0 if rows[0][0] is None else int(rows[0][0]) + 1


def _is_held(connection: sqlite3.Connection, session_id: str, unless: Holds) -> bool:
    open_turns = "SELECT 1 FROM turns WHERE session_id = ? AND state IN ('waiting', 'running')"
    on_their_way = (
        "SELECT 1 FROM deliveries d JOIN turns t USING (turn_id) "
        "WHERE t.session_id = ? AND d.state IN ('streaming', 'pending', 'sending')"
    )
    queries = (open_turns, on_their_way) if unless == "undelivered" else (open_turns,)
    return any(connection.execute(query, (session_id,)).fetchone() for query in queries)


def _session(row: tuple[Any, ...]) -> Session:
    return Session(
        session_id=row[0],
        user_id=row[1],
        channel=row[2],
        key=row[3],
        thread=row[4],
        created_at=_moment(row[5]),
        updated_at=_moment(row[6]),
        metadata=read_metadata(row[0], row[7]),
    )


def _moment(value: object) -> float:
    """A damaged time is as old as can be: the session is still there."""
    return float(value) if isinstance(value, int | float) else 0.0


def read_metadata(session_id: str, text: str) -> dict[str, Any]:
    """The metadata of a row; without one that can be read the session still has its log."""
    try:
        value = from_json(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        sound = {key: item for key, item in value.items() if isinstance(item, KINDS.get(key, object))}
        if len(sound) < len(value):
            logger.error(
                "metadata of session %s is of a wrong kind: %s",
                session_id,
                sorted(value.keys() - sound.keys()),
            )
        return sound
    logger.error("the metadata of session %s cannot be read and is passed over", session_id)
    return {}


def _entries(session_id: str, rows: Sequence[tuple[int, str, int, str]]) -> list[Entry]:
    """Parse all bodies in one pass; where one is corrupt, each by itself, and the bad ones are left out."""
    try:
        bodies = from_json("[" + ",".join(row[3] for row in rows) + "]", cache_strings="keys")
        return [Entry.from_body(row[1], row[2], row[0], body) for row, body in zip(rows, bodies, strict=True)]
    except (ValueError, KeyError, TypeError):
        entries = []
        for row in rows:
            try:
                entries.append(Entry.from_body(row[1], row[2], row[0], from_json(row[3])))
            except (ValueError, KeyError, TypeError):
                logger.error("entry %d of session %s cannot be read and is passed over", row[0], session_id)
        return entries
