"""A disk that fails for a while under a database: what SQLite makes of EIO, and what the system says of it."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import Any

import pytest

CORRUPT = 11
"""https://www.sqlite.org/rescode.html#corrupt: also what a read ends with that got EIO."""


class Disk:
    """While it `fails`, every statement does, and every read of a file by position.

    Attributes:
        code: what SQLite says.
        passes: how many statements do not fail before.
        left: how many statements fail, and then no other; all for `None`.
        failed: those that did.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self.code = CORRUPT
        self.passes = 0
        self.left: int | None = None
        self.failed: list[str] = []
        disk, pread = self, os.pread

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *more: Any) -> sqlite3.Cursor:
                disk.touch(statement)
                return super().execute(statement, *more)

        def read(*place: int) -> bytes:
            if self.fails and self.left is None:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(*place)

        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Connection))
        monkeypatch.setattr(os, "pread", read)

    def touch(self, statement: str) -> None:
        if not self.fails or self.left == 0 or statement.startswith("PRAGMA busy_timeout"):
            return
        if self.passes:
            self.passes -= 1
            return
        if self.left is not None:
            self.left -= 1
        self.failed.append(statement)
        kind = sqlite3.DatabaseError if self.code == CORRUPT else sqlite3.OperationalError
        error = kind("database disk image is malformed" if self.code == CORRUPT else "disk I/O error")
        error.sqlite_errorcode = self.code
        raise error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of every database that is opened from here on."""
    return Disk(monkeypatch)
