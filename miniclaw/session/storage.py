"""Where sessions are kept: the contract, one in memory, and one of plain files.

All back ends pass the same contract test. `append` costs the same on 10 and on 100,000 entries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pydantic_core import from_json

from miniclaw.errors import StaleFence, StorageError
from miniclaw.session.models import Entry, Session

__all__ = ["FileStorage", "InMemoryStorage", "SessionStorage"]

logger = logging.getLogger(__name__)

NAME_LENGTH = 120
"""A longer file name goes on in a subdirectory, since most file systems end at 255 bytes."""


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

    @abstractmethod
    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        """Add entries to the log and set their positions; one whose `(turn_id, step)` is there is left out.

        Raises:
            StorageError: there is no such session.
        """

    @abstractmethod
    async def delete(self, session_id: str) -> bool:
        """Remove the session with its log; whether there was one."""

    @abstractmethod
    async def list(self, user_id: str | None = None) -> list[Session]:
        """Sessions without their logs, the latest first; of one user or of all."""


class _Fence:
    """The highest epoch seen."""

    def __init__(self) -> None:
        self._highest = 0

    def check(self, fence: int | None) -> None:
        if fence is not None:
            if fence < self._highest:
                raise StaleFence("Another process owns the sessions now; this one must stop.")
            self._highest = fence


def _page(entries: list[Entry], last: int | None, before: int | None) -> list[Entry]:
    if before is not None:
        entries = [entry for entry in entries if entry.position < before]
    return entries if last is None else entries[max(0, len(entries) - last) :]


class InMemoryStorage(SessionStorage):
    """Sessions that live as long as the process; for tests and embedding."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._logs: dict[str, list[Entry]] = {}
        self._keys: dict[str, set[tuple[str, int]]] = {}
        self._fence = _Fence()

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        copy = session.model_copy(deep=True)
        copy.messages = _page(self._logs[session_id], last, before).copy()
        return copy

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        self._fence.check(fence)
        self._sessions[session.session_id] = session.model_copy(update={"messages": []}, deep=True)
        self._logs.setdefault(session.session_id, [])
        self._keys.setdefault(session.session_id, set())

    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        self._fence.check(fence)
        log = self._logs.get(session_id)
        if log is None:
            raise StorageError(f"There is no session `{session_id}`.")
        for entry in entries:
            key = (entry.turn_id, entry.step)
            if key not in self._keys[session_id]:
                self._keys[session_id].add(key)
                entry.position = len(log)
                log.append(entry)

    async def delete(self, session_id: str) -> bool:
        self._logs.pop(session_id, None)
        self._keys.pop(session_id, None)
        return self._sessions.pop(session_id, None) is not None

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = [s.model_copy(deep=True) for s in self._sessions.values() if user_id in (None, s.user_id)]
        return sorted(found, key=lambda s: (s.updated_at, s.session_id), reverse=True)


class FileStorage(SessionStorage):
    """Two files a session: `<id>.json` (written whole, atomically) and `<id>.jsonl` (the log, appended).

    A line that cannot be read is set aside in `<id>.jsonl.corrupt` and the sound ones are kept; a half
    line at the end is what a crash left. For one process; files are named so that any id is reversible.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys: dict[str, set[tuple[str, int]]] = {}
        self._lengths: dict[str, int] = {}
        self._fence = _Fence()

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        return await asyncio.to_thread(self._load, session_id, last, before)

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        self._fence.check(fence)
        path = self._path(session.session_id, ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(session.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        self._fence.check(fence)
        if session_id not in self._keys:
            await asyncio.to_thread(self._load, session_id, None, None)
        keys = self._keys.get(session_id)
        if keys is None:
            raise StorageError(f"There is no session `{session_id}`.")
        lines: list[str] = []
        for entry in entries:
            if (entry.turn_id, entry.step) not in keys:
                keys.add((entry.turn_id, entry.step))
                entry.position = self._lengths[session_id]
                self._lengths[session_id] += 1
                body = {"turn_id": entry.turn_id, "step": entry.step, **entry.body()}
                lines.append(json.dumps(body, ensure_ascii=False) + "\n")
        with self._path(session_id, ".jsonl").open("ab") as log:
            log.write("".join(lines).encode())

    async def delete(self, session_id: str) -> bool:
        existed = self._path(session_id, ".json").exists()
        for suffix in (".json", ".jsonl", ".jsonl.corrupt"):
            self._path(session_id, suffix).unlink(missing_ok=True)
        self._keys.pop(session_id, None)
        self._lengths.pop(session_id, None)
        return existed

    def _path(self, session_id: str, suffix: str) -> Path:
        # Quoting is reversible; "." and "~" are quoted too so that no name is special or hidden.
        name = "s-" + quote(session_id, safe="").replace(".", "%2E").replace("~", "%7E")
        *parents, last = [name[i : i + NAME_LENGTH] for i in range(0, len(name), NAME_LENGTH)]
        return self._directory.joinpath(*parents, last + suffix)

    def _load(self, session_id: str, last: int | None, before: int | None) -> Session | None:
        session = self._read_meta(self._path(session_id, ".json"))
        if session is None:
            return None
        entries = self._read_log(session_id)
        session.messages = _page(entries, last, before)
        return session

    @staticmethod
    def _read_meta(path: Path) -> Session | None:
        try:
            return Session.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            aside = path.with_name(path.name + ".corrupt")
            path.replace(aside)
            logger.error("%s cannot be read; it was set aside as %s", path, aside)
            return None

    def _read_log(self, session_id: str) -> list[Entry]:
        path = self._path(session_id, ".jsonl")
        raw = path.read_bytes() if path.exists() else b""
        entries: list[Entry] = []
        bad: list[bytes] = []
        for line in raw.split(b"\n"):
            if not line.strip():
                continue
            try:
                body = from_json(line)
                entries.append(Entry.from_body(body["turn_id"], body["step"], len(entries), body))
            except (ValueError, KeyError, TypeError):
                bad.append(line)
        if bad:
            self._set_aside(
                path, bad, [line for line in raw.split(b"\n") if line.strip() and line not in bad]
            )
        self._keys[session_id] = {(entry.turn_id, entry.step) for entry in entries}
        self._lengths[session_id] = len(entries)
        return entries

    @staticmethod
    def _set_aside(path: Path, bad: list[bytes], sound: list[bytes]) -> None:
        corrupt = path.with_name(path.name + ".corrupt")
        with corrupt.open("ab") as file:
            file.write(b"\n".join(bad) + b"\n")
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(b"".join(line + b"\n" for line in sound))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        logger.error("%d lines of %s cannot be read; they were set aside in %s", len(bad), path, corrupt)

    def _list(self) -> list[Session]:
        paths = sorted(self._directory.rglob("*.json")) if self._directory.exists() else []
        return [session for path in paths if (session := self._read_meta(path)) is not None]

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = await asyncio.to_thread(self._list)
        chosen = [session for session in found if user_id in (None, session.user_id)]
        return sorted(chosen, key=lambda s: (s.updated_at, s.session_id), reverse=True)
