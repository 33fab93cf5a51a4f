"""Sessions as the rest of the program uses them: found or made, loaded once, expired when idle."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from miniclaw.config import Clock
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import new_id
from miniclaw.session.models import PASSING, Entry, Session
from miniclaw.session.ports import FenceOf
from miniclaw.session.storage import FinishesDeletes, Holds, IsShared, SessionStorage

__all__ = ["KeptOutside", "SessionManager"]

LONG: Final = 1000
"""Entries from which on the legal view of a loaded log is built in a thread."""
PIECE: Final = 200
"""Entries that are copied at a time."""
COPYING: Final = "copying"
"""In the metadata of a fork until it is whole."""
COPYING_SECONDS: Final = 3600.0
"""After which another node's copy counts as left behind."""
REFRESH: Final = 100
"""Entries that are looked at again after an interruption."""


class KeptOutside(Protocol):
    """What is kept of sessions outside of their storage: traces, plans, long results."""

    async def forget(self, session_id: str, scope: str) -> None:
        """Remove what there is of a session of that user or group; its turns are still known."""
        ...

    async def scrub(self) -> bool:
        """Let deleted sessions be gone from the files of the storage too; `False`: it must be tried again."""
        ...


class SessionManager:
    """Keeps the most recently used sessions loaded and every change stored first.

    Args:
        storage: the back end.
        clock: seconds since the epoch.
        loaded: sessions kept in memory at most, beside those in use.
        ttl: seconds of idleness by channel after which `cleanup_expired` deletes a session.
        fence: the epoch of this process, or a session's fencing number, where the back end has one.
        outside: what else is kept of a session, which goes when it is deleted.
    """

    def __init__(
        self,
        storage: SessionStorage,
        *,
        clock: Clock,
        loaded: int = 512,
        ttl: Mapping[str, float] | None = None,
        fence: int | FenceOf | None = None,
        outside: KeptOutside | None = None,
    ) -> None:
        self.storage = storage
        self._outside = outside
        self._clock = clock
        self._limit = loaded
        self._ttl = ttl or {}
        self._fence: FenceOf = fence if callable(fence) else lambda session_id: fence
        self._loaded: OrderedDict[str, Session] = OrderedDict()
        # A session that somebody still holds is found here after it left the list above: there is never
        # a second object of one session, whose log would go its own way.
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._owes_scrub = True
        """Whether deleted text may still stand in files; a former process may have left some."""

    async def get(self, session_id: str) -> Session | None:
        """The session with its whole log, or `None`."""
        session = self._alive.get(session_id)
        if session is not None and isinstance(self.storage, IsShared):
            if not await self.storage.catch_up(session):
                self._forget(session_id)
                return None
        elif session is None:
            session = await self.storage.load(session_id)
            if session is None:
                return None
            if len(session.messages) > LONG:
                await asyncio.to_thread(session.history)
            # Two callers may have loaded it at once; the first one's object is the one everybody uses.
            session = self._alive.setdefault(session_id, session)
        self._loaded[session_id] = session
        self._loaded.move_to_end(session_id)
        while len(self._loaded) > self._limit:
            self._loaded.popitem(last=False)
        return session

    async def get_or_create(
        self,
        user_id: str,
        channel: str,
        *,
        conversation: str | None = None,
        thread: str | None = None,
        **metadata: Any,
    ) -> Session:
        """The user's session of a conversation, or a new one with `metadata`; without one always a new one."""
        key = "\x1f".join((channel, "", conversation, thread or "", user_id)) if conversation else None
        if key is None:
            return await self._create(user_id, channel, key, thread, **metadata)
        async with self._one_at_a_time(key):
            for known in await self.storage.list(user_id):
                if known.key == key:
                    return await self.get(known.session_id) or known
            return await self._create(user_id, channel, key, thread, **metadata)

    async def _create(
        self, user_id: str, channel: str, key: str | None = None, thread: str | None = None, **metadata: Any
    ) -> Session:
        moment = self._clock()
        session = Session(
            session_id=new_id("ses"),
            user_id=user_id,
            channel=channel,
            key=key,
            thread=thread,
            created_at=moment,
            updated_at=moment,
            metadata=metadata,
        )
        await self.storage.save(session, fence=self._fence(session.session_id))
        return await self.get(session.session_id) or session

    async def owned(self, session_id: str, user_id: str) -> Session | None:
        """The session if it belongs to the user; another's is the same as none, and so is one for one answer."""
        session = None if isinstance(self.storage, IsShared) else self._alive.get(session_id)
        session = session or await self.storage.load(session_id, last=0)
        if session is None or session.user_id != user_id or PASSING in session.metadata:
            return None
        return session

    async def append(self, session: Session, entries: Sequence[Entry]) -> None:
        """Store entries, then show them in the loaded log."""
        await self.storage.append(session.session_id, entries, fence=self._fence(session.session_id))
        session.extend(list(entries))

    async def refresh(self, session: Session) -> None:
        """Take in entries that were stored while the caller was interrupted and could not see it."""
        stored = await self.storage.load(session.session_id, last=REFRESH)
        if stored is not None:
            session.extend([e for e in stored.messages if e.position >= session.next_position])

    async def update(self, session: Session, *, is_use: bool = True, **metadata: Any) -> None:
        """Store changed metadata, then show it; a value of `None` removes the key.

        Where it `is_use` the session counts as used now, which keeps it from expiring.

        Raises:
            ProtocolError: the session was deleted meanwhile; it does not come back by this.
        """
        async with self._one_at_a_time(session.session_id):
            if self._alive.get(session.session_id) is not session:
                raise ProtocolError("session_not_found", "There is no such session.")
            merged = {**session.metadata, **metadata}
            kept = {key: value for key, value in merged.items() if value is not None}
            moment = self._clock() if is_use else session.updated_at
            changed = session.model_copy(update={"metadata": kept, "updated_at": moment})
            await self.storage.merge(changed, metadata, fence=self._fence(session.session_id))
            session.metadata, session.updated_at = kept, changed.updated_at

    async def fork(self, session: Session, position: int) -> Session:
        """A new session of the same user with the log up to and with `position`, with its skills."""
        copy = await self._create(session.user_id, session.channel, copying=True)
        kept = [entry for entry in session.messages if entry.position <= position]
        for start in range(0, len(kept), PIECE):  # a long log must not keep everybody else waiting
            piece = kept[start : start + PIECE]
            await self.append(copy, [Entry(e.turn_id, e.step, e.message, e.at, e.meta) for e in piece])
        metadata: dict[str, Any] = {"title": session.title or None, "forked_from": session.session_id}
        metadata |= {key: session.metadata.get(key) for key in ("skills", "narrowed")}
        is_whole = session.start == position + 1 == session.next_position  # cleared, and nothing said since
        if 0 < session.start <= position or (is_whole and position >= 0):
            # What the model does not see any more it does not see in the copy either.
            hidden = sum(entry.position < session.start for entry in kept)
            summary = session.metadata.get("summary")
            metadata |= {"cleared": hidden, "summary": summary and {**summary, "position": hidden}}
        await self.update(copy, **metadata, copying=None)
        return copy

    async def delete(
        self, session_id: str, *, unless: Holds | None = None, unused_since: float | None = None
    ) -> bool:
        """Remove a session with everything in it, unless it is held or used as `SessionStorage.delete` says.

        Raises:
            StorageError: where it is gone by then, `finish_deletes` goes on.
        """

        async def forget(scope: str) -> None:
            self._forget(session_id)  # here: nobody can reach it any more, whatever fails from now on
            if self._outside is not None:
                await self._outside.forget(session_id, scope)

        async with self._one_at_a_time(session_id):
            deleted = await self.storage.delete(
                session_id, unless=unless, unused_since=unused_since, forget=forget
            )
        if deleted:
            await self.scrub()
        return deleted

    async def scrub(self) -> None:
        """Let what was deleted be gone from the files of the storage too; what cannot be now is owed."""
        if self._outside is not None:
            self._owes_scrub = not await self._outside.scrub()

    async def remove_left(self) -> None:
        """Delete what a former process left: copies that it did not finish, and sessions for one answer."""
        is_shared = isinstance(self.storage, IsShared)
        for session in await self.storage.list():
            is_old = session.created_at < self._clock() - COPYING_SECONDS
            if _is_hidden(session) and (is_old or not is_shared):
                await self.delete(session.session_id, unless="open" if is_shared else None)
        await self.finish_deletes()

    async def finish_deletes(self, session_id: str | None = None, scope: str = "") -> bool:
        """Go on with deletes that broke off, of all or of one session of a scope; whether there were any."""
        if not isinstance(self.storage, FinishesDeletes):
            return False
        left = await self.storage.unfinished_deletes()
        if session_id is not None:
            left = {session_id: scope} if left.get(session_id) == scope else {}
        for one, owner in left.items():
            async with self._one_at_a_time(one):
                if self._outside is not None:
                    await self._outside.forget(one, owner)
                await self.storage.finish_delete(one)
        if left or self._owes_scrub:
            await self.scrub()
        return bool(left)

    async def list(self, user_id: str | None = None) -> list[Session]:
        """Sessions without their logs, the latest first; not those being copied, nor those for one answer."""
        return [one for one in await self.storage.list(user_id) if not _is_hidden(one)]

    async def cleanup_expired(self, is_busy: Callable[[str], bool | Awaitable[bool]]) -> int:
        """Delete sessions idle beyond their channel's TTL, never one that `is_busy`; returns how many."""
        if not self._ttl:
            return 0
        deleted = 0
        for session in await self.storage.list():
            limit = self._clock() - self._ttl.get(session.channel, math.inf)
            busy = session.updated_at >= limit or is_busy(session.session_id)
            if not (busy if isinstance(busy, bool) else await busy):
                # It may be used by now: the time is looked at again where it is deleted.
                deleted += await self.delete(session.session_id, unless="undelivered", unused_since=limit)
        return deleted

    def _forget(self, session_id: str) -> None:
        self._loaded.pop(session_id, None)
        self._alive.pop(session_id, None)

    def _one_at_a_time(self, key: str) -> asyncio.Lock:
        """A lock that lives as long as somebody holds or awaits it."""
        return self._locks.setdefault(key, asyncio.Lock())


def _is_hidden(session: Session) -> bool:
    return COPYING in session.metadata or PASSING in session.metadata
