"""Sessions and their logs in Redis: a hash, a list and a set each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from miniclaw.gateway.protocol import encode_json
from miniclaw.redis.link import RedisLink
from miniclaw.session.models import Entry, Session
from miniclaw.session.search import Fresh, Hit, Said, excerpt
from miniclaw.session.sqlite import read_metadata
from miniclaw.session.storage import Forget, Holds, SessionStorage, encode_entry

__all__ = ["RedisSearch", "RedisStorage", "pairs", "text_of"]

PIECE: Final = 500
"""Entries, sessions or turns of one call."""


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """The fields of a hash as functions return them."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def text_of(value: Any) -> str:
    """A value as JSON."""
    return encode_json(value).decode()


class RedisStorage(SessionStorage):
    """`fence` is the number of the session's lease; each write checks it."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        stop = -1 if before is None else before
        if last == 0:
            stop = 0
        start = 0 if not last else -last
        found = await self._link.call("load", session_id, start, stop)
        if not found:
            return None
        session = _session(session_id, pairs(found[0]))
        session.messages = _entries(found[1], found[2])
        return session

    async def catch_up(self, session: Session) -> bool:
        """See `IsShared`."""
        found = await self._link.call("load", session.session_id, session.next_position, -1)
        if not found:
            return False
        now = _session(session.session_id, pairs(found[0]))
        session.metadata, session.updated_at = now.metadata, now.updated_at
        session.extend([e for e in _entries(found[1], found[2]) if e.position >= session.next_position])
        return True

    async def since(self, session_id: str, position: int) -> list[Entry]:
        """The entries from a position on."""
        found = await self._link.call("load", session_id, position, -1)
        return _entries(found[1], found[2]) if found else []

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        await self._save(session, session.metadata, "whole", fence)

    async def merge(self, session: Session, changes: Mapping[str, Any], *, fence: int | None = None) -> None:
        await self._save(session, changes, "", fence)

    async def _save(self, session: Session, metadata: Mapping[str, Any], how: str, fence: int | None) -> None:
        names = ("user_id", "channel", "key", "thread", "created_at", "updated_at")
        values = {name: getattr(session, name) for name in names}
        given = {name: str(value) for name, value in values.items() if value is not None}
        meta = {name: "" if value is None else text_of(value) for name, value in metadata.items()}
        await self._link.call(
            "save", session.session_id, _fence(fence), text_of(given), json.dumps(meta), how
        )

    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        if not entries:
            return
        rows = json.dumps(rows_of(entries))
        positions = await self._link.call("append", session_id, _fence(fence), rows)
        for entry, position in zip(entries, positions, strict=True):
            if position >= 0:
                entry.position = position

    async def delete(
        self,
        session_id: str,
        *,
        unless: Holds | None = None,
        unused_since: float | None = None,
        forget: Forget | None = None,
    ) -> bool:
        since = "" if unused_since is None else repr(unused_since)
        scope = await self._link.call("delete", session_id, unless or "", since)
        if scope is None:
            return False
        if forget is not None:
            await forget(scope)
        await self.finish_delete(session_id)
        return True

    async def unfinished_deletes(self) -> dict[str, str]:
        """See `FinishesDeletes`."""
        return pairs(await self._link.run("HGETALL", f"{self._link.prefix}deleted"))

    async def finish_delete(self, session_id: str) -> None:
        """Remove the turns in pieces, so that a long session does not hold up everybody else."""
        while await self._link.call("purge", session_id, PIECE):
            pass

    async def list(self, user_id: str | None = None) -> list[Session]:
        name = "sessions" if user_id is None else f"su:{user_id}"
        ids = await self._link.run("ZREVRANGE", self._link.prefix + name, 0, -1)
        found: list[Session] = []
        for start in range(0, len(ids), PIECE):
            some = ids[start : start + PIECE]
            rows = [self._link.run("HGETALL", f"{self._link.prefix}s:{one}") for one in some]
            hashes = [pairs(await row) for row in rows]
            found += [_session(one, row) for one, row in zip(some, hashes, strict=True) if "user_id" in row]
        return sorted(found, key=lambda s: (s.updated_at, s.session_id), reverse=True)


class RedisSearch:
    """Reads the logs themselves: there is no index that could be out of date or keep a deleted text."""

    def __init__(self, storage: RedisStorage) -> None:
        self._storage = storage

    async def search(self, user_id: str, text: str, *, limit: int = 20) -> list[Hit]:
        """See `SearchesText.search`."""
        hits: list[Hit] = []
        for listed in await self._storage.list(user_id):
            session = await self._storage.load(listed.session_id)
            for entry in reversed(session.messages if session is not None else ()):
                content = entry.message.get("content")
                if isinstance(content, str) and text.lower() in content.lower():
                    what = excerpt(content, text)
                    name, place = listed.session_id, entry.position
                    hits.append(Hit(session_id=name, title=listed.title, position=place, excerpt=what))
                    if len(hits) >= limit:
                        return hits
        return hits

    async def said(self, scope: str, marks: Mapping[str, int]) -> Fresh:
        """The sessions that belong to `scope`, and what was said in each from its position in `marks` on."""
        ends: dict[str, int] = {}
        said: list[Said] = []
        for listed in await self._storage.list(scope):
            start = marks.get(listed.session_id, 0)
            found = await self._storage.since(listed.session_id, start)
            ends[listed.session_id] = found[-1].position + 1 if found else start
            for entry in found:
                role, content = entry.message["role"], entry.message.get("content")
                if role in ("user", "assistant") and isinstance(content, str) and content:
                    said.append(
                        Said(
                            session_id=listed.session_id,
                            position=entry.position,
                            role=role,
                            text=content,
                            at=entry.at,
                        )
                    )
        return Fresh(sessions=ends, said=said)


def rows_of(entries: Sequence[Entry]) -> list[tuple[str, int, str]]:
    """Entries as they are stored."""
    return [(entry.turn_id, entry.step, encode_entry(entry).decode()) for entry in entries]


def _entries(start: int, rows: Sequence[str]) -> list[Entry]:
    found = []
    for position, row in enumerate(rows, start):
        turn_id, step, body = from_json(row)
        found.append(Entry.from_body(turn_id, step, position, from_json(body)))
    return found


def _fence(fence: int | None) -> str | int:
    return "" if fence is None else fence


def _session(session_id: str, row: Mapping[str, str]) -> Session:
    metadata = {name[2:]: value for name, value in row.items() if name.startswith("m:")}
    body = "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in metadata.items()) + "}"
    return Session(
        session_id=session_id,
        user_id=row["user_id"],
        channel=row["channel"],
        key=row.get("key"),
        thread=row.get("thread"),
        created_at=float(row["created_at"]),
        updated_at=float(row["updated_at"]),
        metadata=read_metadata(session_id, body),
    )
