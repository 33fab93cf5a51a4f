"""One scope's memory: its directory of Markdown files, which are the truth, and what is kept of them for search.

A `ScopeStore` is synchronous and for one thread at a time, which its `LoadedScope` sees to.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from miniclaw.errors import MemoryStoreError, unavailable
from miniclaw.memory.models import MemoryRecord, check_memory_id, local_day, parse_record, render_record
from miniclaw.memory.ranking import Ranking
from miniclaw.memory.scope_lock import ScopeLock

__all__ = ["ScopeStore"]

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 256 * 1024
"""A larger file is no memory record and is not read."""

FEW: Final = 200
"""Records that are looked through in less time than another thread needs to begin."""
SCAN_SECONDS: Final = 2.0
"""Of more records: how long an edit of a file in place may stay unseen; what adds or replaces a file is seen at once."""
OLD_SECONDS: Final = 3600.0
"""After which what a write left is not another's that goes on, where no lock tells."""

_NAME = re.compile(r"mem_[a-z0-9]{1,64}")
_LEFTOVER = re.compile(r"\.mem_[a-z0-9]{1,64}\.md(\.\d+)?\.tmp|\.vectors\.npz\.\d+\.tmp")


_Signature = tuple[int, int, int]
"""Time of change, size and inode: what tells a changed file from an unchanged one without reading it."""


def _signature(status: os.stat_result) -> _Signature:
    return status.st_mtime_ns, status.st_size, status.st_ino


class ScopeStore:
    """The records of one scope, as the files were at the last `refresh()`.

    Attributes:
        records: by id, whatever their status.
        problems: files that cannot be used, by id, and why.
        index: for search by words.
        writes: counts what this store changed.
    """

    def __init__(self, root: Path, parts: tuple[str, ...]) -> None:
        self._root = root
        self._parts = parts
        self.directory = root.joinpath(*parts)
        self._lock = ScopeLock(self.directory.with_name(".memory.lock"))
        self._is_alone = False
        self._seen: dict[str, _Signature] = {}
        self._is_read = False
        self._swept = False
        self._scanned_at = 0.0
        self._changed_at: int | None = None
        """When the directory changed last, as far as this store knows."""
        self.writes = 0
        self.records: dict[str, MemoryRecord] = {}
        self.problems: dict[str, str] = {}
        self.index = Ranking()
        self._same_words: dict[str, set[str]] = {}
        self._same_key: dict[str, set[str]] = {}
        self._expiring: dict[str, str] = {}

    def __contains__(self, memory_id: str) -> bool:
        """Whether there is a file of that id, sound or broken."""
        return memory_id in self._seen

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing, and see what they wrote before; for one that means to write."""
        if self._root.is_dir():
            with suppress(OSError):  # the work itself says what is wrong with the directories
                self._make_directories(self._parts[:-1])
        with self._lock.held() as held:
            self.refresh(exact=not held.is_known)
            self._is_alone, before = held.is_alone, self.writes
            try:
                yield
            finally:
                self._is_alone = False
                if self.writes != before:
                    held.sign()

    def refresh(self, *, exact: bool = False) -> None:
        """Read the files that changed since the last time; a broken one is logged and left alone.

        Of many files each is looked at every two seconds only, unless the directory changed or it must be `exact`.
        """
        if not exact and len(self._seen) > FEW and self._seems_unchanged():
            return
        self._changed_at, self._scanned_at = self._time_of_change(), time.monotonic()
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

    def is_latest(self, record: MemoryRecord) -> bool:
        """Whether no later record took its place; a crash may have left two preferences of one key active."""
        if record.key not in self._same_key or not _is_preference(record):
            return True
        return all(_age(self.records[name]) <= _age(record) for name in self._same_key[record.key])

    def preferences(self, key: str) -> list[MemoryRecord]:
        """The active ones of that key."""
        return [self.records[name] for name in self._same_key.get(key, ())]

    def saying(self, content: str) -> list[MemoryRecord]:
        """The records of that content, to the letter."""
        return [self.records[name] for name in self._same_words.get(content, ())]

    def expired(self, now: str) -> list[str]:
        """Ids of those whose time is over."""
        return [name for name, moment in self._expiring.items() if moment <= now]

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
        with self._changing("write", self._path(name)):
            self._make_directory()
            signature = self._replace(name, render_record(record).encode("utf-8"))
        self._keep(record, signature)

    def delete(self, memory_ids: Iterable[str]) -> None:
        """Remove the files of these records."""
        for memory_id in memory_ids:
            with self._changing("delete", self._path(memory_id)):
                self._path(memory_id).unlink(missing_ok=True)
            self._forget(memory_id)
        with self._changing("delete", self.directory):
            self._sweep()

    def clear(self) -> int:
        """Remove everything in the directory, broken files and an editor's copies too; returns how many records."""
        count = len(self._seen)
        with self._changing("clear", self.directory):
            for entry in self._entries():
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        for memory_id in tuple(self._seen):
            self._forget(memory_id)
        return count

    def _path(self, memory_id: str) -> Path:
        return self.directory / f"{check_memory_id(memory_id)}.md"

    @contextmanager
    def _changing(self, action: str, path: Path) -> Iterator[None]:
        """A change of this store's own, after which the directory's time is not a sign of another's."""
        self.writes += 1
        with _explained(action, path):
            yield
        self._changed_at = self._time_of_change()

    def _time_of_change(self) -> int | None:
        try:
            return os.stat(self.directory).st_mtime_ns
        except OSError:
            return None

    def _seems_unchanged(self) -> bool:
        is_due = time.monotonic() - self._scanned_at > SCAN_SECONDS
        return self._is_read and not is_due and self._time_of_change() == self._changed_at is not None

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
                with suppress(FileNotFoundError):  # it went meanwhile
                    # A link could show a file that belongs to somebody else.
                    if is_record and entry.is_file(follow_symlinks=False):
                        found[memory_id] = _signature(entry.stat(follow_symlinks=False))
        return found

    def _read(self, memory_id: str, signature: _Signature) -> None:
        self._forget(memory_id)
        path = self._path(memory_id)
        try:
            if signature[1] > MAX_FILE_BYTES:
                raise MemoryStoreError(f"it is larger than {MAX_FILE_BYTES} bytes")
            data = self._bytes(path)
            text = data.decode("utf-16" if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8")
            record = parse_record(text, memory_id=memory_id, modified=signature[0] / 1e9)
        except FileNotFoundError:
            return
        except (MemoryStoreError, OSError, UnicodeDecodeError) as error:
            reason = (
                "it is not UTF-8; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            )
            logger.warning("memory file %s is skipped: %s", path, reason)
            self._seen[memory_id], self.problems[memory_id] = signature, reason
        else:
            self._keep(record, signature)

    def _bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            if passing := unavailable(error):
                raise passing from error  # to be read the next time
            raise

    def _keep(self, record: MemoryRecord, signature: _Signature) -> None:
        name = record.memory_id
        self._unlist(name)
        self._seen[name] = signature
        self.records[name] = record
        self._same_words.setdefault(record.content, set()).add(name)
        if record.expires_at is not None:
            self._expiring[name] = record.expires_at
        if record.key is not None and _is_preference(record):
            self._same_key.setdefault(record.key, set()).add(name)
        self.index.put(name, f"{record.content}\n{record.context}", date=local_day(record.created_at))

    def _forget(self, memory_id: str) -> None:
        self._seen.pop(memory_id, None)
        self._unlist(memory_id)
        self.index.remove(memory_id)

    def _unlist(self, memory_id: str) -> None:
        self.problems.pop(memory_id, None)
        self._expiring.pop(memory_id, None)
        if (record := self.records.pop(memory_id, None)) is None:
            return
        for table, word in ((self._same_words, record.content), (self._same_key, record.key or "")):
            if names := table.get(word):
                names.discard(memory_id)
                if not names:
                    del table[word]

    def _make_directory(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_directories(self._parts)
        if not self._swept:
            self._sweep()
            self._swept = True

    def _make_directories(self, parts: tuple[str, ...]) -> None:
        directory = self._root
        for part in parts:
            directory /= part
            directory.mkdir(mode=0o700, exist_ok=True)

    def _sweep(self) -> None:
        """Remove what a write left that was cut off, not what another process is writing."""
        for entry in self._entries():
            if _LEFTOVER.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    if self._is_alone or time.time() - entry.stat().st_mtime > OLD_SECONDS:
                        os.unlink(entry.path)

    def _replace(self, memory_id: str, data: bytes) -> _Signature:
        path = self._path(memory_id)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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


def _is_preference(record: MemoryRecord) -> bool:
    return record.category == "preference" and record.status == "active"


def _age(record: MemoryRecord) -> tuple[str, str]:
    return record.updated_at, record.memory_id


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one of ours."""
    try:
        yield
    except OSError as error:
        logger.warning("cannot %s %s: %s", action, path, error)
        what = f"cannot {action} `{path.name}`: {error.strerror or error}"
        raise unavailable(error) or MemoryStoreError(what) from error
