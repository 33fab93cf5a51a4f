"""One scope's memory: its directory of Markdown files, which are the truth, and what is kept of them for search.

A `ScopeStore` is synchronous and for one thread at a time, which its `LoadedScope` sees to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from miniclaw.errors import MemoryStoreError, unavailable
from miniclaw.memory.models import MemoryRecord, check_memory_id, parse_record, render_record
from miniclaw.memory.ranking import Ranking

__all__ = ["LoadedScope", "ScopeStore"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_FILE_BYTES: Final = 256 * 1024
"""A larger file is no memory record and is not read."""

FEW: Final = 200
"""Records that are looked through in less time than another thread needs to begin."""

_NAME = re.compile(r"mem_[a-z0-9]{1,64}")
_LEFTOVER = re.compile(r"\.mem_[a-z0-9]{1,64}\.md\.tmp")


_Signature = tuple[int, int, int]
"""Time of change, size and inode: what tells a changed file from an unchanged one without reading it."""


def _signature(status: os.stat_result) -> _Signature:
    return status.st_mtime_ns, status.st_size, status.st_ino


class ScopeStore:
    """The records of one scope, as the files were at the last `refresh()`."""

    def __init__(self, root: Path, parts: tuple[str, ...]) -> None:
        self._root = root
        self._parts = parts
        self.directory = root.joinpath(*parts)
        self._seen: dict[str, _Signature] = {}
        self._is_read = False
        self._swept = False
        self.records: dict[str, MemoryRecord] = {}
        self.index = Ranking()

    def __contains__(self, memory_id: str) -> bool:
        """Whether there is a file of that id, sound or broken."""
        return memory_id in self._seen

    def refresh(self) -> None:
        """Read the files that changed since the last time; a broken one is logged and left alone."""
        found = self._scan()
        for memory_id in self._seen.keys() - found.keys():
            self._forget(memory_id)
        for memory_id, signature in found.items():
            if self._seen.get(memory_id) != signature:
                self._read(memory_id, signature)
        self._is_read = True

    def is_quick(self) -> bool:
        """Whether there are few records, and no file changed since the last `refresh()`."""
        return self._is_read and len(self._seen) <= FEW and self._scan() == self._seen

    def write(self, record: MemoryRecord) -> None:
        """Store a record: the file has the old text or the new one, whatever happens meanwhile.

        Raises:
            MemoryStoreError: the file of that id is broken, or it cannot be written.
        """
        name = check_memory_id(record.memory_id)
        if name in self._seen and name not in self.records:
            raise MemoryStoreError(
                f"the file of {name} cannot be read; mend or delete {self._path(name)} first"
            )
        with _explained("write", self._path(name)):
            self._make_directory()
            signature = self._replace(name, render_record(record).encode("utf-8"))
        self._keep(record, signature)

    def delete(self, memory_ids: Iterable[str]) -> None:
        """Remove the files of these records."""
        for memory_id in memory_ids:
            with _explained("delete", self._path(memory_id)):
                self._path(memory_id).unlink(missing_ok=True)
            self._forget(memory_id)
        with _explained("delete", self.directory):
            self._sweep()

    def clear(self) -> int:
        """Remove every file in the directory, broken ones and an editor's copies too; returns how many records."""
        count = len(self._seen)
        with _explained("clear", self.directory):
            for entry in self._entries():
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
        for memory_id in tuple(self._seen):
            self._forget(memory_id)
        return count

    def _path(self, memory_id: str) -> Path:
        return self.directory / f"{check_memory_id(memory_id)}.md"

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.directory) as entries:
                return list(entries)
        except FileNotFoundError:
            return []

    def _scan(self) -> dict[str, _Signature]:
        found: dict[str, _Signature] = {}
        with _explained("read", self.directory):
            for entry in self._entries():
                memory_id, _, extension = entry.name.partition(".")
                is_record = extension == "md" and (memory_id in self._seen or _NAME.fullmatch(memory_id))
                # A link could show a file that belongs to somebody else.
                if is_record and entry.is_file(follow_symlinks=False):
                    found[memory_id] = _signature(entry.stat(follow_symlinks=False))
        return found

    def _read(self, memory_id: str, signature: _Signature) -> None:
        self._forget(memory_id)
        self._seen[memory_id] = signature
        path = self._path(memory_id)
        try:
            if signature[1] > MAX_FILE_BYTES:
                raise MemoryStoreError(f"it is larger than {MAX_FILE_BYTES} bytes")
            text = self._bytes(path, memory_id).decode("utf-8")
            record = parse_record(text, memory_id=memory_id, modified=signature[0] / 1e9)
        except (MemoryStoreError, OSError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            logger.warning("memory file %s is skipped: %s", path, reason)
        else:
            self._keep(record, signature)

    def _bytes(self, path: Path, memory_id: str) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            if passing := unavailable(error):
                self._forget(memory_id)  # to be read the next time
                raise passing from error
            raise

    def _keep(self, record: MemoryRecord, signature: _Signature) -> None:
        self._seen[record.memory_id] = signature
        self.records[record.memory_id] = record
        text = f"{record.content}\n{record.context}"
        self.index.put(record.memory_id, text, date=record.created_at[:10])

    def _forget(self, memory_id: str) -> None:
        self._seen.pop(memory_id, None)
        self.records.pop(memory_id, None)
        self.index.remove(memory_id)

    def _make_directory(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = self._root
        for part in self._parts:
            directory /= part
            directory.mkdir(mode=0o700, exist_ok=True)
        if not self._swept:
            self._sweep()
            self._swept = True

    def _sweep(self) -> None:
        """Remove what a write left that was cut off; only a writer may, for another may be in one."""
        for entry in self._entries():
            if _LEFTOVER.fullmatch(entry.name):
                os.unlink(entry.path)

    def _replace(self, memory_id: str, data: bytes) -> _Signature:
        path = self._path(memory_id)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                signature = _signature(os.fstat(file.fileno()))
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return signature


class LoadedScope:
    """A loaded scope and what keeps it to one user at a time."""

    def __init__(self, store: ScopeStore) -> None:
        self.store = store
        self._turn = asyncio.Lock()
        self.users = 0
        self._working = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return self.users == 0 and not self._working.locked()

    async def do(self, work: Callable[[ScopeStore], T], *, reads: bool) -> T:
        """What `work` comes to; in a thread, unless it only reads and that takes next to no time."""
        async with self._turn:
            if reads and self._working.acquire(blocking=False):
                try:
                    if self.store.is_quick():
                        return work(self.store)
                finally:
                    self._working.release()
            return await asyncio.to_thread(self._run, work)

    def _run(self, work: Callable[[ScopeStore], T]) -> T:
        # A cancelled caller gives up its turn while its thread is still at work; the next one waits here.
        with self._working:
            self.store.refresh()
            return work(self.store)


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one of ours."""
    try:
        yield
    except OSError as error:
        logger.warning("cannot %s %s: %s", action, path, error)
        what = f"cannot {action} `{path.name}`: {error.strerror or error}"
        raise unavailable(error) or MemoryStoreError(what) from error
