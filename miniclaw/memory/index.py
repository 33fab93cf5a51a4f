"""One scope's memory: its directory of Markdown files, which are the truth, and what is kept of them for search.

Everything here is synchronous and for one thread at a time; `LongTermMemory` sees to both.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from miniclaw.errors import MemoryStoreError
from miniclaw.memory.models import MemoryRecord, check_memory_id, parse_record, render_record
from miniclaw.text import tokenize

__all__ = ["LexicalIndex", "ScopeStore"]

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 256 * 1024
"""A larger file is no memory record and is not read."""

_NAME = re.compile(r"mem_[a-z0-9]{1,64}")
_LEFTOVER = re.compile(r"\.mem_[a-z0-9]{1,64}\.md\.tmp")


class LexicalIndex:
    """Okapi BM25 over the terms of short texts; a score is above 0 where a term is shared."""

    SATURATION: Final = 1.2
    """How soon more of the same term stops to count (k1)."""
    LENGTH: Final = 0.75
    """How much a long text must share more than a short one (b)."""

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, int]] = {}
        self._terms: dict[str, Counter[str]] = {}
        self._length: dict[str, int] = {}
        self._total = 0

    def put(self, name: str, text: str) -> None:
        """Add a text, or replace the one of that name."""
        self.remove(name)
        terms = Counter(tokenize(text))
        self._terms[name] = terms
        self._length[name] = terms.total()
        self._total += terms.total()
        for term, times in terms.items():
            self._postings.setdefault(term, {})[name] = times

    def remove(self, name: str) -> None:
        """Forget a text; an unknown name is fine."""
        for term in self._terms.pop(name, ()):
            postings = self._postings[term]
            del postings[name]
            if not postings:
                del self._postings[term]
        self._total -= self._length.pop(name, 0)

    def scores(self, terms: Iterable[str]) -> dict[str, float]:
        """The score of every text that shares a term."""
        scores: dict[str, float] = {}
        count = len(self._length)
        for term in dict.fromkeys(terms):
            postings = self._postings.get(term, {})
            weight = math.log(1 + (count - len(postings) + 0.5) / (len(postings) + 0.5))
            for name, times in postings.items():
                length = self._length[name] * count / self._total
                damping = self.SATURATION * (1 - self.LENGTH + self.LENGTH * length)
                part = weight * times * (self.SATURATION + 1) / (times + damping)
                scores[name] = scores.get(name, 0.0) + part
        return scores


_Signature = tuple[int, int, int]
"""Time of change, size and inode: what tells a changed file from an unchanged one without reading it."""


def _signature(status: os.stat_result) -> _Signature:
    return status.st_mtime_ns, status.st_size, status.st_ino


class ScopeStore:
    """The records of one scope, as the files were at the last `refresh()`."""

    def __init__(self, root: Path, parts: tuple[str, ...]) -> None:
        self._root = root
        self._parts = parts
        self._directory = root.joinpath(*parts)
        self._seen: dict[str, _Signature] = {}
        self._swept = False
        self.records: dict[str, MemoryRecord] = {}
        self.index = LexicalIndex()

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
        with _explained("delete", self._directory):
            self._sweep()

    def clear(self) -> int:
        """Remove every file in the directory, broken ones and an editor's copies too; returns how many records."""
        count = len(self._seen)
        with _explained("clear", self._directory):
            for entry in self._entries():
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
        for memory_id in tuple(self._seen):
            self._forget(memory_id)
        return count

    def _path(self, memory_id: str) -> Path:
        return self._directory / f"{check_memory_id(memory_id)}.md"

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._directory) as entries:
                return list(entries)
        except FileNotFoundError:
            return []

    def _scan(self) -> dict[str, _Signature]:
        found: dict[str, _Signature] = {}
        with _explained("read", self._directory):
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
            text = path.read_bytes().decode("utf-8")
            record = parse_record(text, memory_id=memory_id, modified=signature[0] / 1e9)
        except (MemoryStoreError, OSError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            logger.warning("memory file %s is skipped: %s", path, reason)
        else:
            self._keep(record, signature)

    def _keep(self, record: MemoryRecord, signature: _Signature) -> None:
        self._seen[record.memory_id] = signature
        self.records[record.memory_id] = record
        self.index.put(record.memory_id, f"{record.content}\n{record.context}")

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


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one of ours."""
    try:
        yield
    except OSError as error:
        raise MemoryStoreError(f"cannot {action} {path}: {error.strerror or error}") from error
