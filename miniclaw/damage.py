"""Whether a database that reads as damaged is damaged, and the mark that says so to the next start.

SQLite says the same of a disk that fails for a moment: a read that gets EIO ends as SQLITE_CORRUPT (`unixRead` in
https://www.sqlite.org/src/file/src/os_unix.c makes it SQLITE_IOERR_CORRUPTFS). So damage is believed only by a
`SecondLook`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from miniclaw.errors import BAD_DISK, way_out

__all__ = ["SecondLook", "forget_damage", "is_damaged", "is_suspect", "report_damage"]

T = TypeVar("T")
PAUSES: Final = (0.02, 0.1, 0.3)
"""Seconds before each further look, which is made only when the whole file can be read."""
SECTOR: Final = 512
READS: Final = 4096
"""Into how many pieces a file is read, each at least a sector: a disk that fails now and then is found out."""


class SecondLook:
    """Looks at one database; one at a time, in a thread where others must not wait."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        """Kept: to close any of a file lets go of all of this process's locks on it, SQLite's too."""

    def surely(self, work: Callable[[bool], T]) -> T:
        """What `work` comes to; one that fails by the disk, or as if the file were damaged, is done again.

        `work` is told whether it is the last time: what then looks damaged is.

        Raises:
            OSError: the disk does not give the file.
            sqlite3.Error: what `work` raised the last time.
        """
        for pause in PAUSES:
            try:
                return work(False)
            except (sqlite3.Error, OSError) as error:
                if not is_suspect(error) and way_out(error) != BAD_DISK:
                    raise
            time.sleep(pause)
            self.read_through()
        return work(True)

    def close(self) -> None:
        """Let go of the file; only when no connection to it is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read_through(self) -> None:
        """Raises `OSError` where the disk does not give the file or its log."""
        if self._descriptor is None and self._path.exists():
            self._descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        if self._descriptor is not None:
            _read_all(self._descriptor)
        with contextlib.suppress(FileNotFoundError), Path(f"{self._path}-wal").open("rb") as log:
            _read_all(log.fileno())


def is_suspect(error: Exception) -> bool:
    """Whether an error is that of a damaged file, or of a disk that fails."""
    return type(error) is sqlite3.DatabaseError


def _read_all(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    piece = max(SECTOR, size // READS)
    for start in range(0, size, piece):
        if hasattr(os, "pread"):
            os.pread(descriptor, piece, start)
        else:
            os.lseek(descriptor, start, os.SEEK_SET)
            os.read(descriptor, piece)


def report_damage(path: Path) -> None:
    """Something could not be read or written, so the next start reads the whole database through."""
    _mark(path).touch()


def is_damaged(path: Path) -> bool:
    """Whether damage was reported since the last start."""
    return _mark(path).exists()


def forget_damage(path: Path) -> None:
    """The database is sound, or what was sound of it is in its place."""
    _mark(path).unlink(missing_ok=True)


def _mark(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")
