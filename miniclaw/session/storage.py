"""Where sessions are kept: the contract, and a storage in memory.

All back ends pass the same contract test. `append` costs the same on 10 and on 100,000 entries.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic_core import from_json

from miniclaw.errors import StaleFence, StorageError
from miniclaw.gateway.protocol import encode_json
from miniclaw.session.models import Entry, Session

__all__ = [
    "Fence",
    "FinishesDeletes",
    "Forget",
    "Holds",
    "InMemoryStorage",
    "IsShared",
    "SessionStorage",
    "page_of",
]

Holds = Literal["open", "undelivered"]
Forget = Callable[[str], Awaitable[None]]


class SessionStorage(ABC):
    """Loads and keeps sessions.

    `fence` is the epoch of the writer: a write with one older than the newest that the storage has seen
    raises `StaleFence`. `None` means that there can be only one writer.
    """

    @abstractmethod
    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        """The session with its log, or `None`.

        With `last` only that many of the last entries, with `before` only those at positions below it.
        """

    @abstractmethod
    async def save(self, session: Session, *, fence: int | None = None) -> None:
        """Store everything but the log; makes the session if it is new."""

    async def merge(self, session: Session, changes: Mapping[str, Any], *, fence: int | None = None) -> None:
        """Store a session of which only these metadata and its time have changed; `None` = the key is gone."""
        await self.save(session, fence=fence)

    @abstractmethod
    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        """Add entries to the log and set their positions; one whose `(turn_id, step)` is there is left out.

        Raises:
            StorageError: there is no such session.
        """

    @abstractmethod
    async def delete(
        self,
        session_id: str,
        *,
        unless: Holds | None = None,
        unused_since: float | None = None,
        forget: Forget | None = None,
    ) -> bool:
        """Remove the session with its log; whether it did.

        Args:
            session_id: which one.
            forget: removes what is kept elsewhere; called with the user or group that the session belonged
                to, when nobody can reach it any more and its turns are still known.
            unless: keeps it, where the back end has turns and answers: `open` while a turn waits or runs,
                `undelivered` also while an answer is on its way.
            unused_since: keeps it when it was used at that moment or later.
        """

    @abstractmethod
    async def list(self, user_id: str | None = None) -> list[Session]:
        """Sessions without their logs, the latest first; of one user or of all."""


@runtime_checkable
class IsShared(Protocol):
    """A back end that other processes write too."""

    async def catch_up(self, session: Session) -> bool:
        """Bring a loaded session up to date; `False`: it is gone."""
        ...


@runtime_checkable
class FinishesDeletes(Protocol):
    """A back end whose deletes take several steps, between which a crash can come."""

    async def unfinished_deletes(self) -> dict[str, str]:
        """Sessions that are half deleted, with the user or group that each belonged to."""
        ...

    async def finish_delete(self, session_id: str) -> None:
        """Remove what is left of one."""
        ...


class Fence:
    """The highest epoch seen."""

    def __init__(self) -> None:
        self._highest = 0

    def check(self, fence: int | None) -> None:
        if fence is not None:
            if fence < self._highest:
                raise StaleFence("Another process owns the sessions now; this one must stop.")
            self._highest = fence


def is_used(session: Session, since: float | None) -> bool:
    """Whether it was used at that moment or later."""
    return since is not None and session.updated_at >= since


def encode_entry(entry: Entry) -> bytes:
    """The body of an entry as JSON.

    Raises:
        StorageError: it cannot be stored, or not be read again.
    """
    try:
        if not (isinstance(entry.turn_id, str) and type(entry.step) is int):
            raise TypeError("its turn is no text, or its step no integer")
        if not -(2**63) <= entry.step < 2**63:
            raise ValueError("its step is beyond 64 bits")
        body = entry.body()
        Entry.from_body(entry.turn_id, entry.step, 0, body)  # what a reader would throw away is not stored
        return encode_json(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise StorageError(f"An entry of turn `{entry.turn_id}` cannot be stored: {error}.") from error


def page_of(entries: list[Entry], last: int | None, before: int | None) -> list[Entry]:
    """The last `last` of the entries at positions below `before`."""
    if before is not None:
        entries = [entry for entry in entries if entry.position < before]
    return entries if last is None else entries[max(0, len(entries) - last) :]


def _without_log(session: Session) -> Session:
    """A copy that shares nothing with its original."""
    return Session.model_validate(session.model_dump())


def _entries(rows: Sequence[tuple[str, int, bytes]], start: int) -> list[Entry]:
    return [
        Entry.from_body(turn_id, step, place, from_json(body))
        for place, (turn_id, step, body) in enumerate(rows, start)
    ]


class InMemoryStorage(SessionStorage):
    """Sessions that live as long as the process; for tests and embedding."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._logs: dict[str, list[tuple[str, int, bytes]]] = {}
        self._keys: dict[str, set[tuple[str, int]]] = {}
        self._fence = Fence()

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        copy = _without_log(session)
        log = self._logs[session_id]
        end = len(log) if before is None else max(0, min(before, len(log)))
        start = 0 if last is None else max(0, end - last)
        rows = log[start:end]
        # A long log must not keep everybody else waiting.
        copy.messages = (
            await asyncio.to_thread(_entries, rows, start) if len(rows) > 200 else _entries(rows, start)
        )
        return copy

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        self._fence.check(fence)
        self._sessions[session.session_id] = _without_log(session)
        self._logs.setdefault(session.session_id, [])
        self._keys.setdefault(session.session_id, set())

    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        self._fence.check(fence)
        log = self._logs.get(session_id)
        if log is None:
            raise StorageError(f"There is no session `{session_id}`.")
        for entry, body in zip(entries, [encode_entry(entry) for entry in entries], strict=True):
            key = (entry.turn_id, entry.step)
            if key not in self._keys[session_id]:
                self._keys[session_id].add(key)
                entry.position = len(log)
                log.append((*key, body))

    async def delete(
        self,
        session_id: str,
        *,
        unless: Holds | None = None,
        unused_since: float | None = None,
        forget: Forget | None = None,
    ) -> bool:
        session = self._sessions.get(session_id)
        if session is None or is_used(session, unused_since):
            return False
        for kept in (self._sessions, self._logs, self._keys):
            del kept[session_id]
        if forget is not None:
            await forget(session.user_id)
        return True

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = [_without_log(s) for s in self._sessions.values() if user_id in (None, s.user_id)]
        return sorted(found, key=lambda s: (s.updated_at, s.session_id), reverse=True)
