"""Keeps writers of one scope's memory apart when they are several processes, such as two gateways, or one and the CLI."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from miniclaw.errors import MemoryStoreError

__all__ = ["Held", "ScopeLock"]

logger = logging.getLogger(__name__)

SECONDS: Final = 10.0
"""How long a writer waits for another one."""
STEP: Final = 0.003


class Held:
    """What a writer knows while it works.

    Attributes:
        is_alone: nobody else can write now; not so on a file system without locks.
        is_known: nobody else wrote since this process last looked.
    """

    def __init__(self, lock: ScopeLock, file: IO[bytes] | None, mark: bytes) -> None:
        self._lock = lock
        self._file = file
        self.is_alone = file is not None
        self.is_known = file is not None and mark != b"" and mark == lock.mark

    def sign(self) -> None:
        """Let the others see that something was written."""
        if self._file is None:
            return
        self._lock.mark = secrets.token_bytes(8)
        try:
            self._file.seek(0)
            self._file.write(self._lock.mark)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._lock.path, error)


class ScopeLock:
    """A lock file beside the scope's directory; it holds a mark of the last writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = b""

    @contextmanager
    def held(self) -> Iterator[Held]:
        """For a thread: wait for the lock and hold it.

        Raises:
            MemoryStoreError: another writer did not come to its end.
        """
        try:
            file = open(self.path, "r+b", buffering=0, opener=_open)
        except OSError:  # the directory is not there, or cannot be written: the work itself finds out
            yield Held(self, None, b"")
            return
        with file:
            if not _wait(file):
                yield Held(self, None, b"")
                return
            mark = file.read(8) or b""
            held = Held(self, file, mark)
            self.mark = mark
            yield held


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_CREAT, 0o600)


def _wait(file: IO[bytes]) -> bool:
    """Whether the lock is held; `False` where the file system has none."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            _lock(file)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK, errno.EINTR):
                return False
        if time.monotonic() > end:
            raise MemoryStoreError("another program is changing this memory; try again in a moment")
        time.sleep(STEP)


if sys.platform == "win32":

    def _lock(file: IO[bytes]) -> None:
        import msvcrt

        file.seek(64)  # beyond what is read and written
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        finally:
            file.seek(0)

else:

    def _lock(file: IO[bytes]) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
