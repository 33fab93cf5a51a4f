"""Where sessions are kept: the contract, one in memory, and one of plain files.

All back ends pass the same contract test. `append` costs the same on 10 and on 100,000 entries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic_core import from_json

from miniclaw.errors import StaleFence, StorageError, StorageUnavailable
from miniclaw.session.models import Entry, Session

__all__ = ["FileStorage", "InMemoryStorage", "SessionStorage"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAME_LENGTH: Final = 120
"""A longer file name goes on in a subdirectory, since most file systems end at 255 bytes."""
PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
"""What stands for itself in a file name. Capitals do not: some file systems take them for small letters."""


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
    async def delete(self, session_id: str, *, idle_only: bool = False) -> bool:
        """Remove the session with its log; whether it did.

        With `idle_only` a session with a turn waiting or running stays, where the back end keeps turns.
        """

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


def _without_log(session: Session) -> Session:
    """A copy that shares nothing with its original."""
    return Session.model_validate(session.model_dump())


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
        copy = _without_log(session)
        copy.messages = _page(self._logs[session_id], last, before).copy()
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
        for entry in entries:
            key = (entry.turn_id, entry.step)
            if key not in self._keys[session_id]:
                self._keys[session_id].add(key)
                entry.position = len(log)
                log.append(entry)

    async def delete(self, session_id: str, *, idle_only: bool = False) -> bool:
        self._logs.pop(session_id, None)
        self._keys.pop(session_id, None)
        return self._sessions.pop(session_id, None) is not None

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = [_without_log(s) for s in self._sessions.values() if user_id in (None, s.user_id)]
        return sorted(found, key=lambda s: (s.updated_at, s.session_id), reverse=True)


class FileStorage(SessionStorage):
    """Two files a session: `<id>.json` (written whole, atomically) and `<id>.jsonl` (the log, appended).

    A line that cannot be read is set aside in `<id>.jsonl.corrupt` and the sound ones are kept; a half
    line at the end is what a crash left. For one process; files are named so that any id is reversible,
    also where names differ in more than their case. Files are used in a thread, one call at a time.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys: dict[str, set[tuple[str, int]]] = {}
        """The steps in each log that was read."""
        self._next: dict[str, int] = {}
        """The next position in each log that was read."""
        self._fence = _Fence()
        self._lock = threading.Lock()

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        return await self._run(lambda: self._load(session_id, last, before))

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        self._fence.check(fence)
        path, content = self._path(session.session_id, ".json"), session.model_dump_json()
        await self._run(lambda: _replace(path, content.encode()))

    async def append(self, session_id: str, entries: Sequence[Entry], *, fence: int | None = None) -> None:
        self._fence.check(fence)
        await self._run(lambda: self._append(session_id, entries))

    async def delete(self, session_id: str, *, idle_only: bool = False) -> bool:
        return await self._run(lambda: self._delete(session_id))

    async def _run(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        try:
            return await asyncio.to_thread(locked)
        except OSError as error:
            raise StorageUnavailable(f"`{self._directory}` cannot be used: {error}.") from error

    def _path(self, session_id: str, suffix: str) -> Path:
        name = "s-" + "".join(
            character if character in PLAIN else "".join(f"%{byte:02x}" for byte in character.encode())
            for character in session_id
        )
        *parents, last = [name[i : i + NAME_LENGTH] for i in range(0, len(name), NAME_LENGTH)]
        return self._directory.joinpath(*parents, last + suffix)

    def _load(self, session_id: str, last: int | None, before: int | None) -> Session | None:
        session = self._read_meta(self._path(session_id, ".json"))
        if session is None:
            return None
        session.messages = _page(self._read_log(session_id), last, before)
        return session

    def _append(self, session_id: str, entries: Sequence[Entry]) -> None:
        if session_id not in self._keys and self._load(session_id, 0, None) is None:
            raise StorageError(f"There is no session `{session_id}`.")
        keys, position = self._keys[session_id], self._next[session_id]
        fresh: dict[tuple[str, int], Entry] = {}
        for entry in entries:
            if (entry.turn_id, entry.step) not in keys:
                fresh.setdefault((entry.turn_id, entry.step), entry)
        lines: list[str] = []
        for place, entry in enumerate(fresh.values(), position):
            body = {"turn_id": entry.turn_id, "step": entry.step, "position": place, **entry.body()}
            lines.append(json.dumps(body, ensure_ascii=False) + "\n")
        try:
            with self._path(session_id, ".jsonl").open("ab") as log:
                log.write("".join(lines).encode())
        except OSError:
            del self._keys[session_id]  # a part may be written: the next one reads the log again
            raise
        for place, entry in enumerate(fresh.values(), position):
            entry.position = place
        keys.update(fresh)
        self._next[session_id] = position + len(fresh)

    def _delete(self, session_id: str) -> bool:
        self._keys.pop(session_id, None)
        existed = self._path(session_id, ".json").exists()
        for suffix in (".json", ".jsonl", ".json.corrupt", ".jsonl.corrupt"):
            self._path(session_id, suffix).unlink(missing_ok=True)
        return existed

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
        sound: list[bytes] = []
        bad: list[bytes] = []
        for line in filter(None, raw.split(b"\n")):
            try:
                entries.append(_read_line(line, entries[-1].position + 1 if entries else 0))
                sound.append(line)
            except (ValueError, KeyError, TypeError):
                bad.append(line)
        if bad or (raw and not raw.endswith(b"\n")):
            self._set_aside(path, bad, sound)
        self._keys[session_id] = {(entry.turn_id, entry.step) for entry in entries}
        self._next[session_id] = entries[-1].position + 1 if entries else 0
        return entries

    @staticmethod
    def _set_aside(path: Path, bad: list[bytes], sound: list[bytes]) -> None:
        if bad:
            corrupt = path.with_name(path.name + ".corrupt")
            with corrupt.open("ab") as file:
                file.write(b"".join(line + b"\n" for line in bad))
            logger.error("%d lines of %s cannot be read; they were set aside in %s", len(bad), path, corrupt)
        _replace(path, b"".join(line + b"\n" for line in sound))

    def _list(self) -> list[Session]:
        paths = sorted(self._directory.rglob("*.json")) if self._directory.exists() else []
        return [session for path in paths if (session := self._read_meta(path)) is not None]

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = await self._run(self._list)
        chosen = [session for session in found if user_id in (None, session.user_id)]
        return sorted(chosen, key=lambda s: (s.updated_at, s.session_id), reverse=True)


def _read_line(line: bytes, position: int) -> Entry:
    body = from_json(line)
    turn_id, step, position = body["turn_id"], body["step"], body.get("position", position)
    if not (isinstance(turn_id, str) and isinstance(step, int) and isinstance(position, int)):
        raise TypeError("a line whose fields are of other types")
    return Entry.from_body(turn_id, step, position, body)


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole: a crash leaves the former or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
