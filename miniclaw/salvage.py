"""Takes what is sound out of a damaged database; the damaged one is set aside as `<name>.corrupt`.

A crash at any moment leaves either the damaged database as it was or the whole new one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from miniclaw.damage import SecondLook, forget_damage, is_damaged, report_damage
from miniclaw.schema import SCHEMA, SCHEMA_VERSION
from miniclaw.wal import LostPages, apply, behind_damage

__all__ = ["mend", "salvage"]

logger = logging.getLogger(__name__)

CHECKED_BYTES: Final = 16 * 1024 * 1024
"""A larger database is not read through at each start, only looked at whether its end is missing."""
FIRST: Final = float("-inf")
LAST: Final = b""
"""Below and above every key: SQLite has numbers before texts, and those before bytes."""
TRIES: Final = 9
"""How often a range in which nothing can be read is halved."""
_GONE: Final = "session_id IN (SELECT substr(key, 9) FROM meta WHERE key GLOB 'deleted *')"
_MEND: Final = (
    "INSERT INTO sessions SELECT session_id, user_id, channel, NULL, NULL, MIN(created_at), "
    "MAX(COALESCE(ended_at, created_at)), '{}' FROM turns "
    f"WHERE session_id NOT IN (SELECT session_id FROM sessions) AND NOT {_GONE} "
    "AND CASE WHEN json_valid(message) THEN COALESCE(json_extract(message, '$.direct'), 1) ELSE 0 END "
    "GROUP BY session_id",
    "DELETE FROM entries WHERE session_id NOT IN (SELECT session_id FROM sessions)",
    f"DELETE FROM turns WHERE session_id NOT IN (SELECT session_id FROM sessions) AND NOT {_GONE}",
    "DELETE FROM dedupe WHERE session_id IN (SELECT session_id FROM sessions) "
    "AND turn_id NOT IN (SELECT turn_id FROM turns)",
)
"""Sessions whose row is lost are made anew from their turns, but for those that were being deleted, whose turns the
end of that still needs; what belongs to nobody stays in the damaged file. A message whose turn is lost can come again.
"""


def mend(path: Path, *, is_sure: bool) -> None:
    """Make sure that there is a sound database or none, and a copy of one that is about to be upgraded.

    Raises as `salvage` does, and unless it `is_sure` where that would be called.
    """
    finish_salvage(path)
    if not path.exists() or not path.stat().st_size:
        if (log := Path(f"{path}-wal")).exists() and log.stat().st_size:
            raise sqlite3.DatabaseError(f"it is empty, but its log `{log.name}` is not")
        return
    if (lost := behind_damage(path)) is not None:
        _replay(lost, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            sound = _is_sound(connection, path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            sound = False
        if sound:
            _keep_older(connection, path)
    if not sound:
        if not is_sure:
            raise sqlite3.DatabaseError("it reads as damaged")
        salvage(path)
    forget_damage(path)


def _replay(lost: LostPages, path: Path) -> None:
    """Put what a damaged log holds into the database, before SQLite writes over it."""
    fresh = path.with_name(path.name + ".new")
    apply(lost, path, fresh)
    report_damage(path)  # a page may be a former one, so all of it is to be checked
    _exchange(path, fresh)
    logger.error(
        "the log of `%s` is damaged; it was set aside beside `%s.corrupt` with the suffix `-wal`, and %d pages "
        "of it were kept",
        path,
        path.name,
        len(lost[0]),
    )


def _keep_older(connection: sqlite3.Connection, path: Path) -> None:
    """Copy a database of an older schema to `<name>.schema<number>`, for a way back; once."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    kept = path.with_name(f"{path.name}.schema{version}")
    if not 0 < version < SCHEMA_VERSION or kept.exists():
        return
    temporary = kept.with_name(kept.name + ".part")
    temporary.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(temporary)) as copy:
        connection.backup(copy)
    temporary.chmod(0o600)
    temporary.replace(kept)
    logger.info("the database is upgraded; what it was is kept as `%s`", kept)


def _is_sound(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the database can be trusted, as far as can be told in a moment."""
    size = path.stat().st_size
    is_cut = size < _counted(path)  # or its end is still in the write-ahead log
    if size > CHECKED_BYTES and not is_cut and not is_damaged(path):
        return True
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < 0 or (version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
        return False
    how = "integrity_check" if is_damaged(path) else "quick_check"
    return bool(connection.execute(f"PRAGMA {how}(1)").fetchone()[0] == "ok")


def _counted(path: Path) -> int:
    """How large a database is by its own head."""
    with path.open("rb") as file:
        head = file.read(32)
    # https://www.sqlite.org/fileformat.html#the_database_header: page size at 16, number of pages at 28
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    return pages * (65_536 if page == 1 else page)


def _whole(path: Path) -> Path:
    """The database, or a copy from whose head a wrong number of pages is taken, so that its size counts."""
    log = Path(f"{path}-wal")
    if _counted(path) == path.stat().st_size or (log.exists() and log.stat().st_size):
        return path
    copy = path.with_name(path.name + ".part")
    shutil.copyfile(path, copy)
    with copy.open("r+b") as file:
        file.seek(28)
        file.write(bytes(4))
    return copy


def salvage(path: Path) -> None:
    """Put a new database with all rows that can be read in the place of a damaged one.

    Raises:
        sqlite3.Error, OSError: not even its list of tables can be read, or there is no room; nothing
            was changed.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    source = sqlite3.connect(whole := _whole(path), isolation_level=None)
    source.execute(
        "PRAGMA writable_schema=ON"
    )  # nothing is written; it lets a file be read whose end is missing
    source.text_factory = lambda text: text.decode("utf-8", "replace")
    target = sqlite3.connect(fresh, isolation_level=None)
    try:
        kept = _copy_all(source, target)
        with contextlib.closing(SecondLook(path)) as look:
            look.read_through()  # what the disk did not give is not to be given up
    except BaseException:
        fresh.unlink()
        raise
    finally:
        source.close()
        target.close()
        if whole != path:
            whole.unlink()
    _exchange(path, fresh)
    logger.error(
        "`%s` is damaged; it was set aside as `%s.corrupt`, and what could be read was kept: %s",
        path,
        path.name,
        ", ".join(f"{count} {table}" for table, count in kept.items()),
    )


def _exchange(path: Path, fresh: Path) -> None:
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.replace(path.with_name(path.name + ".salvaged"))
    finish_salvage(path)


def finish_salvage(path: Path) -> None:
    """Exchange the two; called at each start, since a crash may have come in between."""
    salvaged = path.with_name(path.name + ".salvaged")
    if not salvaged.exists():
        return
    names = (f"{path}.corrupt{f'.{n}' if n else ''}" for n in itertools.count())
    aside = next(name for name in names if not Path(name).exists())
    for suffix in ("-wal", ""):
        if (old := Path(f"{path}{suffix}")).exists():
            Path(f"{aside}{suffix}").unlink(missing_ok=True)
            os.link(old, f"{aside}{suffix}")
    # A log that belongs to the damaged database must not be read into the new one.
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    salvaged.replace(path)


def _copy_all(source: sqlite3.Connection, target: sqlite3.Connection) -> dict[str, int]:
    """Fill a new database; returns how many rows each table got."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
    found = {row[0] for row in source.execute(tables)}
    target.executescript(f"{SCHEMA}; PRAGMA user_version={SCHEMA_VERSION}; BEGIN")
    wanted = [row[0] for row in target.execute(f"{tables} ORDER BY name != 'sessions'")]
    kept = {table: _copy(source, target, table) for table in wanted if table in found}
    for statement in _MEND:
        target.execute(statement)
    target.execute("COMMIT")
    if not any(kept.values()):
        raise sqlite3.DatabaseError("no row of it can be read")
    return kept


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> int:
    """Copy the rows of a table that can be read; returns how many."""
    theirs = {row[1] for row in source.execute(f"PRAGMA table_info({table})")}
    info = [row for row in target.execute(f"PRAGMA table_info({table})") if row[1] in theirs]
    columns = ", ".join(row[1] for row in info)
    key = [row[1] for row in sorted(info, key=lambda row: int(row[5])) if row[5]]
    statement = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({', '.join('?' * len(info))})"
    select = f"SELECT {columns} FROM {table} WHERE"
    whole = _Walk(source, select, (), key, key[0], info)
    # A session has many entries, so its id says little about where the damage is.
    rows = [whole.rows(tries=1 if table == "entries" else TRIES)]
    if table in ("entries", "turns"):  # the way to a session may be whole where that to the first row is not
        sessions = target.execute("SELECT session_id FROM sessions").fetchall()
        select += " session_id = ? AND"
        rows += [_Walk(source, select, session, key, key[-1], info).rows() for session in sessions]
    count = 0
    for row in itertools.chain.from_iterable(rows):
        with contextlib.suppress(sqlite3.IntegrityError):  # a row with a hole where something must be
            count += target.execute(statement, row).rowcount
    return count


class _Walk:
    """Rows of `select` by their `key`, from both ends and, halving the range of `column`, between damaged pages."""

    def __init__(
        self,
        source: sqlite3.Connection,
        select: str,
        values: tuple[str, ...],
        key: list[str],
        column: str,
        info: list[tuple[Any, ...]],
    ) -> None:
        self._source = source
        self._values = values
        self._place, self._is_number = next(
            (n, row[2] == "INTEGER") for n, row in enumerate(info) if row[1] == column
        )
        orders = (", ".join(f"{name} {order}" for name in key) for order in ("ASC", "DESC"))
        self._queries = [f"{select} {column} BETWEEN ? AND ? ORDER BY {order}" for order in orders]

    def rows(self, low: Any = FIRST, high: Any = LAST, tries: int = TRIES) -> Iterator[tuple[Any, ...]]:
        """Those with keys from `low` to `high`; some may come twice."""
        ends, found = [low, high], False
        for end, query in enumerate(self._queries):
            try:
                for row in self._source.execute(query, (*self._values, *ends)):
                    ends[end] = row[self._place]
                    found = found or low != ends[end] != high
                    yield row
                return
            except sqlite3.DatabaseError as error:
                logger.debug("reading stops: %s %s: %s", query, ends, error)
        tries = TRIES if found else tries - 1
        if tries and (middle := self._middle(*ends)) is not None:
            yield from self.rows(ends[0], middle, tries)
            yield from self.rows(middle, ends[1], tries)

    def _middle(self, low: Any, high: Any) -> Any:
        """A key between the two; `None` where there is none to be thought of."""
        kind = int if self._is_number else str
        if not all(isinstance(end, kind) for end in (low, high) if end not in (FIRST, LAST)):
            return None
        if self._is_number:
            low = 0 if low == FIRST else low
            middle: Any = 2 * low + 64 if high == LAST else (low + high) // 2
            return middle if high == LAST or low < middle < high else None
        ends = ["" if low == FIRST else low, "\x7f" if high == LAST else high]
        size = max(map(len, ends)) + 1
        one, two = (int.from_bytes(end.encode("ascii", "replace").ljust(size, b"\0"), "big") for end in ends)
        middle = bytes(min(byte, 127) for byte in ((one + two) // 2).to_bytes(size, "big")).decode()
        return middle if ends[0] < middle < ends[1] else None
