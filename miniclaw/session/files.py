"""Sessions in plain files: for the course, for embedding, and for whoever wants to read them with `less`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic_core import from_json

from miniclaw.errors import StorageError, StorageUnavailable
from miniclaw.gateway.protocol import encode_json
from miniclaw.session.models import Entry, Session
from miniclaw.session.storage import Fence, Forget, Holds, SessionStorage, encode_entry, is_used, page_of

__all__ = ["FileStorage"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAME_LENGTH: Final = 120
"""A longer file name goes on in a subdirectory, since most file systems end at 255 bytes."""
PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
"""What stands for itself in a file name. Capitals do not: some file systems take them for small letters."""
BLOCK_BYTES: Final = 64 * 1024
"""How much of a log is read at once from its end."""


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
        self._fence = Fence()
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

    async def delete(
        self,
        session_id: str,
        *,
        unless: Holds | None = None,
        unused_since: float | None = None,
        forget: Forget | None = None,
    ) -> bool:
        session = await self.load(session_id, last=0)
        if session is not None and is_used(session, unused_since):
            return False
        existed = await self._run(lambda: self._delete(session_id))
        if session is not None and forget is not None:
            await forget(session.user_id)
        return existed

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
            character
            if character in PLAIN
            else "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
            for character in session_id
        )
        *parents, last = [name[i : i + NAME_LENGTH] for i in range(0, len(name), NAME_LENGTH)]
        return self._directory.joinpath(*parents, last + suffix)

    def _load(self, session_id: str, last: int | None, before: int | None) -> Session | None:
        session = self._read_meta(self._path(session_id, ".json"))
        if session is None:
            return None
        tail = None if last is None else _read_tail(self._path(session_id, ".jsonl"), last, before)
        session.messages = page_of(self._read_log(session_id), last, before) if tail is None else tail
        return session

    def _append(self, session_id: str, entries: Sequence[Entry]) -> None:
        if session_id not in self._keys and self._load(session_id, None, None) is None:
            raise StorageError(f"There is no session `{session_id}`.")
        keys, position = self._keys[session_id], self._next[session_id]
        fresh: dict[tuple[str, int], tuple[Entry, bytes]] = {}
        for entry, body in [(entry, encode_entry(entry)) for entry in entries]:
            if (entry.turn_id, entry.step) not in keys:
                fresh.setdefault((entry.turn_id, entry.step), (entry, body))
        lines: list[bytes] = []
        for place, (entry, body) in enumerate(fresh.values(), position):
            head = {"turn_id": entry.turn_id, "step": entry.step, "position": place}
            lines.append(encode_json(head)[:-1] + b"," + body[1:] + b"\n")
        try:
            with self._path(session_id, ".jsonl").open("ab") as log:
                log.write(b"".join(lines))
        except OSError:
            del self._keys[session_id]  # a part may be written: the next one reads the log again
            raise
        for place, (entry, _) in enumerate(fresh.values(), position):
            entry.position = place
        keys.update(fresh)
        self._next[session_id] = position + len(fresh)

    def _delete(self, session_id: str) -> bool:
        self._keys.pop(session_id, None)
        path = self._path(session_id, ".json")
        existed = path.exists()
        # The session itself last: what a crash leaves is still listed, and can be deleted again.
        for file in sorted(path.parent.glob(f"{path.name}*"), reverse=True):
            file.unlink()
        return existed

    def _read_meta(self, path: Path) -> Session | None:
        try:
            session = Session.model_validate_json(path.read_bytes())
            if self._path(session.session_id, ".json") != path:
                raise ValueError("it is another session's")
            return session
        except FileNotFoundError:
            return None
        except ValueError:
            log = path.with_suffix(".jsonl")  # whose it is stood in the damaged file, so nobody gets it
            endings = (f".corrupt{f'.{n}' if n else ''}" for n in itertools.count())
            ending = next(end for end in endings if not any(Path(f"{p}{end}").exists() for p in (path, log)))
            for old in (log, path):
                if old.exists():
                    old.replace(f"{old}{ending}")
            self._keys.clear()
            self._next.clear()
            logger.error("%s cannot be read; it was set aside with its log as `%s`", path, ending)
            return None

    def _read_log(self, session_id: str) -> list[Entry]:
        path = self._path(session_id, ".jsonl")
        raw = path.read_bytes() if path.exists() else b""
        entries: list[Entry] = []
        sound: list[bytes] = []
        bad: list[bytes] = []
        keys: set[tuple[str, int]] = set()
        for line in filter(None, raw.split(b"\n")):
            try:
                position = entries[-1].position + 1 if entries else 0
                entry = _read_line(line, position)
                if entry.position < position or (entry.turn_id, entry.step) in keys:
                    raise ValueError("a line that repeats another")
                keys.add((entry.turn_id, entry.step))
                entries.append(entry)
                sound.append(line)
            except (ValueError, KeyError, TypeError):
                bad.append(line)
        if bad or (raw and not raw.endswith(b"\n")):
            self._set_aside(path, bad, sound)
        self._keys[session_id] = keys
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


def _read_tail(path: Path, last: int, before: int | None) -> list[Entry] | None:
    """A page read from the end of the log; `None` where a line is bad, which the whole log shows."""
    found: list[Entry] = []
    try:
        for line in _lines_from_end(path):
            entry = _read_line(line, None)
            if found and entry.position >= found[-1].position:
                return None  # a line that repeats another
            if before is None or entry.position < before:
                found.append(entry)
            if len(found) >= last:
                break
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        return None
    return found[:last][::-1]


def _lines_from_end(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first; raises `ValueError` when the last one is not whole."""
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END)
        rest = b""
        is_end = True
        while left:
            size = min(BLOCK_BYTES, left)
            left = file.seek(left - size)
            block = file.read(size)
            if is_end and not block.endswith(b"\n"):
                raise ValueError("a half line at the end")
            is_end = False
            rest, *lines = (block + rest).split(b"\n")
            yield from filter(None, reversed(lines))
        if rest:
            yield rest


def _read_line(line: bytes, position: int | None) -> Entry:
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
