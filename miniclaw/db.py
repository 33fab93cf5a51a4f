"""The one SQLite writer of a data directory, used on the event loop.

Writes that are asked for in one iteration of the loop share a transaction; `await write(…)` returns after
its commit. A commit in WAL mode costs tens of microseconds, less than a hop to a thread; what can take
long (checkpoints, reads of many rows) does run in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from miniclaw.damage import SecondLook, is_damaged, is_suspect, report_damage
from miniclaw.errors import BAD_DISK, StorageError, StorageUnavailable, unavailable, way_out
from miniclaw.salvage import mend
from miniclaw.schema import MIGRATIONS, NEWER, SCHEMA, SCHEMA_VERSION

__all__ = ["Database", "SCHEMA_VERSION"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
CHECKPOINT_PAGES: Final = 1000
"""Pages (4 KiB) in the write-ahead log after which it is copied into the database, in a thread."""
PIECE: Final = 200
"""Rows that are turned into objects at a time."""
FULL_DISK_BYTES: Final = 16 * 1024 * 1024
"""Free room below which the disk counts as full: the write-ahead log needs some before it can be copied."""
SCRUB_TRIES: Final = 20
SCRUB_SECONDS: Final = 0.05  # between two tries to empty the write-ahead log
CHECK: Final = "PRAGMA integrity_check(1)"
MOST_DAMAGED: Final = 1000
"""Damaged reads that are remembered."""
BUSY_TIMEOUT_MS: Final = 250
"""How long a write waits for another writer, which is none of ours; the loop stands still for it."""


class Database:
    """One write connection, a reader in a thread, and group commit; with `read_only` the reads alone.

    Attributes:
        epoch: rises at each start; the fence that storage methods check.
    """

    def __init__(
        self, path: Path | str, *, sync: Literal["normal", "full"] = "normal", read_only: bool = False
    ) -> None:
        self._path = str(path)
        self._sync = sync
        self._read_only = read_only
        self._pending: list[tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]] = []
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="miniclaw-db")
        self._second = SecondLook(Path(path))
        self._look: asyncio.Future[list[Any]] | None = None
        self._damaged: set[tuple[str, tuple[Any, ...]]] = set()
        """Reads that a second look found to fail by damage."""
        self._checkpoint: asyncio.Future[bool] | None = None
        self._is_held = False
        """Whether writes wait for the end of a checkpoint."""
        self._commits = 0
        self.epoch = 0

    async def open(self) -> None:
        """Open or create the database and begin a new epoch; of a damaged one what is sound is kept.

        Raises:
            StorageError: the file is no database of ours, or was written by a newer version.
        """
        try:
            self._second.surely(self._begin)
        except (sqlite3.Error, OSError, StorageError) as error:
            await self.close()
            if isinstance(error, StorageError):
                raise
            way = way_out(error) or "put a backup in its place, or move it away to begin anew"
            parent = Path(self._path).parent
            if type(error) is not sqlite3.DatabaseError and parent.exists():
                if shutil.disk_usage(parent).free < FULL_DISK_BYTES:
                    way = "its disk is full: make room"
            raise StorageError(f"`{self._path}` cannot be opened: {error}; {way}.") from error

    def _begin(self, is_sure: bool) -> None:
        if self._connection is not None:
            self._connection.close()
        self._second.close()  # a salvage puts another file in the place of the one it has
        if not self._read_only:
            mend(Path(self._path), is_sure=is_sure)
        self._connection = self._connect()
        self._prepare(self._connection)

    async def close(self) -> None:
        """Commit what is pending and close; may be called again."""
        while self._pending or self._checkpoint is not None:
            self._flush()
            if self._checkpoint is not None:
                await asyncio.wait([self._checkpoint])
        self._thread.shutdown(wait=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._second.close()

    def write(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run `operation` in the transaction of this loop iteration; the result comes after the commit.

        Operations run in the order of these calls. One that raises is rolled back by itself and its
        exception is the caller's; the others are committed.

        Raises:
            StorageUnavailable: (from the future) the commit failed; nothing was changed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._connection is None:
            future.set_exception(StorageUnavailable("The database is closed."))
            return future
        if not self._pending:
            loop.call_soon(self._flush)
        self._pending.append((operation, future))
        return future

    async def check(self) -> None:
        """Write something, as the next message would have to be.

        Raises:
            StorageUnavailable: it could not be, and why, in one sentence.
        """
        if is_damaged(Path(self._path)):
            raise StorageUnavailable(
                "The database is damaged; start miniclaw anew, which keeps what is sound."
            )
        free = shutil.disk_usage(Path(self._path).parent).free
        if free < FULL_DISK_BYTES:
            raise StorageUnavailable(
                f"The disk of the data directory is full ({free >> 20} MB free); make room."
            )
        # SQLite writes nothing for a value that is the same.
        await self.write(lambda c: c.execute("REPLACE INTO meta VALUES ('probe', hex(randomblob(8)))"))

    def read(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """Rows of a small query (200 at most), at once; sees everything that was committed.

        Raises:
            StorageError: the file is damaged, or closed; `StorageUnavailable` when that may pass.
        """
        connection = self._open_connection()
        if self._read_only:
            return self._fetch_surely(query, parameters)
        try:
            return _fetch(connection, query, parameters)
        except sqlite3.Error:
            pass  # once may be chance
        try:
            return _fetch(connection, query, parameters)
        except sqlite3.Error as error:
            if not is_suspect(error) or (query, parameters) in self._damaged:
                raise unavailable(error) or StorageError(f"The database cannot be read: {error}.") from error
            self._look_again(query, parameters)
            raise StorageUnavailable(f"The database is looked at again, which says: {error}.") from error

    async def read_many(
        self,
        query: str,
        parameters: tuple[Any, ...] = (),
        *,
        each: Callable[[list[Any]], list[Any]] | None = None,
    ) -> list[Any]:
        """Rows of a query that may be large, read in a thread; raises as `read` does.

        Args:
            query: one statement that reads.
            parameters: for its marks.
            each: turns some hundred rows at a time into what is wanted, in the thread too.
        """
        self._open_connection()

        def fetch() -> list[Any]:
            rows = self._fetch_surely(query, parameters)
            if each is None:
                return rows
            # In pieces, since one long call into C would keep the loop's thread waiting all the same.
            pieces = (each(rows[start : start + PIECE]) for start in range(0, len(rows), PIECE))
            return [item for piece in pieces for item in piece]

        return await asyncio.get_running_loop().run_in_executor(self._thread, fetch)

    def _fetch_surely(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """Rows of a new connection; damage is reported, but not before a second look. May be called in a thread."""

        def fetch(is_sure: bool) -> list[Any]:
            with contextlib.closing(self._connect()) as connection:
                rows = _fetch(connection, query, parameters)
            if query == CHECK and rows != [("ok",)]:
                raise sqlite3.DatabaseError(rows[0][0])
            return rows

        try:
            return self._second.surely(fetch)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, OSError) or not is_suspect(error):
                kind = StorageUnavailable if way_out(error) == BAD_DISK else StorageError
                raise unavailable(error) or kind(f"The database cannot be read: {error}.") from error
            if len(self._damaged) >= MOST_DAMAGED:
                self._damaged.clear()
            self._damaged.add((query, parameters))
            if not self._read_only and not is_damaged(path := Path(self._path)):
                logger.critical(
                    "the database is damaged; start miniclaw anew, which keeps what is sound: %s", error
                )
                report_damage(path)
            raise StorageError(f"The database cannot be read: {error}.") from error

    def _look_again(self, query: str, parameters: tuple[Any, ...] = ()) -> None:
        if self._look is None or self._look.done():
            loop = asyncio.get_running_loop()
            self._look = loop.run_in_executor(self._thread, self._fetch_surely, query, parameters)
            self._look.add_done_callback(_log_look)

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageUnavailable("The database is closed.")
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        source = Path(self._path).resolve().as_uri() + "?mode=ro" if self._read_only else self._path
        connection = sqlite3.connect(
            source, isolation_level=None, check_same_thread=False, uri=self._read_only
        )
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._read_only:
            if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
                raise StorageError(f"`{self._path}` is of another version; start this miniclaw on it once.")
            return
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={self._sync}")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA cache_size=-300")  # KiB; the system keeps what is beyond
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StorageError(NEWER.format(self._path, version))
        scripts = [SCHEMA] if version == 0 else [MIGRATIONS[old] for old in range(version, SCHEMA_VERSION)]
        for statement in (statement for script in scripts for statement in script.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute(
            "INSERT INTO meta VALUES ('epoch', '1') "
            "ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1"
        )
        self.epoch = int(connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])
        connection.execute("COMMIT")

    def _flush(self) -> None:
        if self._is_held:
            return
        batch, self._pending = self._pending, []
        if not batch or self._connection is None:
            return
        connection = self._connection
        done: list[tuple[asyncio.Future[Any], Any]] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for operation, future in batch:
                if not future.cancelled():
                    self._run(connection, operation, future, done, is_alone=len(batch) == 1)
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(connection, batch, error)
            return
        for future, result in done:
            if not future.done():
                future.set_result(result)
        self._maybe_checkpoint()

    def _fail(
        self,
        connection: sqlite3.Connection,
        batch: list[tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]],
        error: sqlite3.Error,
    ) -> None:
        if is_suspect(error):
            self._look_again(CHECK)
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # the next transaction finds it open, and comes here
                connection.execute("ROLLBACK")
        logger.error("a commit of %d writes failed: %s", len(batch), error)
        for _, future in batch:
            if not future.done():
                future.set_exception(StorageUnavailable(f"The database did not take a write: {error}."))

    @staticmethod
    def _run(
        connection: sqlite3.Connection,
        operation: Callable[[sqlite3.Connection], Any],
        future: asyncio.Future[Any],
        done: list[tuple[asyncio.Future[Any], Any]],
        *,
        is_alone: bool,
    ) -> None:
        if not is_alone:
            connection.execute("SAVEPOINT one")
        try:
            result = operation(connection)
        except Exception as error:  # boundary: an operation's own error is its caller's alone
            if type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError):
                raise  # the disk or the file itself: the whole transaction fails
            connection.execute("ROLLBACK" if is_alone else "ROLLBACK TO one")
            future.set_exception(error)
        else:
            done.append((future, result))
        if not is_alone:
            connection.execute("RELEASE one")

    def _maybe_checkpoint(self) -> None:
        self._commits += 1
        if self._commits % 200 or self._checkpoint is not None:
            return
        wal = Path(self._path + "-wal")
        if wal.exists() and wal.stat().st_size >= CHECKPOINT_PAGES * 4096:
            self._start_checkpoint()

    def _start_checkpoint(self, kind: str = "PASSIVE") -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        self._checkpoint = started = loop.run_in_executor(self._thread, self._run_checkpoint, kind)
        started.add_done_callback(self._checkpoint_done)
        return started

    async def scrub(self) -> bool:
        """Let what was deleted be gone from the write-ahead log too; `False`: not yet, since a disk or reader is in the way."""
        for _ in range(SCRUB_TRIES):
            while self._checkpoint is not None:
                await asyncio.wait([self._checkpoint])
            self._is_held = True  # it keeps other writers out until the disk has all, which may be long
            await asyncio.wait([started := self._start_checkpoint("TRUNCATE")])
            if isinstance(started.exception(), sqlite3.Error | OSError):
                return False  # what was deleted is, all the same
            if not started.result():
                return True
            await asyncio.sleep(SCRUB_SECONDS)
        logger.warning("what was deleted stays in the write-ahead log until it is copied: somebody reads it")
        return False

    def _run_checkpoint(self, kind: str) -> bool:
        """Whether somebody was in the way; a wait here would hold the lock that the loop's writes need."""
        with contextlib.closing(self._connect()) as connection:
            connection.execute("PRAGMA busy_timeout=0")
            return bool(connection.execute(f"PRAGMA wal_checkpoint({kind})").fetchone()[0])

    def _checkpoint_done(self, future: asyncio.Future[bool]) -> None:
        self._checkpoint = None
        if error := future.exception():
            logger.warning("the write-ahead log could not be copied into the database: %s", error)
        # SQLite begins the log anew only when all of it is copied, which under a steady load it never is:
        # for the little that came meanwhile, writes are held back.
        self._is_held = not self._is_held and error is None
        if self._is_held:
            self._start_checkpoint()
        else:
            self._flush()


def _fetch(connection: sqlite3.Connection, query: str, parameters: tuple[Any, ...]) -> list[Any]:
    try:
        return connection.execute(query, parameters).fetchall()
    except sqlite3.Error as error:
        if "decode" not in str(error) or connection.text_factory is not str:
            raise
    # A damaged text keeps no other row from being read; whether it is of any use its reader finds out.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.text_factory = str


def _log_look(look: asyncio.Future[list[Any]]) -> None:
    if not look.cancelled() and (error := look.exception()) is not None:
        logger.error("a second look at the database: %s", error)
