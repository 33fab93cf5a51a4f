"""A data directory as one file, and back. The copy of the database is of one moment, also while it is written."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import itertools
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import IO, Final

from miniclaw import __version__
from miniclaw.errors import ConfigError, StorageError, way_out
from miniclaw.rundir import RESTORE_MARK, RESTORING, RunDir, check_restored, private_directory
from miniclaw.schema import SCHEMA_VERSION
from miniclaw.wal import behind_damage
from miniclaw.whole_file import is_part_of, whole_file

__all__ = ["back_up", "restore"]

MANIFEST: Final = "backup.json"
DATABASE: Final = "miniclaw.db"
FORMAT: Final = 1
LEFT_OUT: Final = ("run", "logs")
"""What belongs to a process and not to its data."""
PIECE: Final = 1 << 20  # bytes of a file that are in memory at once
REPLACED: Final = "replaced-"
"""Begins the name of where a restore puts what was there."""
WAS_OPEN: Final = (
    "This was not finished when the backup was made; if it was not answered since, please send it again."
)
_UNSOUND: Final = (
    *(OSError, EOFError, tarfile.TarError, zlib.error),
    *(ValueError, KeyError, TypeError, sqlite3.Error),
)


def back_up(data_dir: Path, file: Path) -> int:
    """Write all data into a `.tar.gz` that only this user can read; returns how many files it holds.

    Links are left out. A file that goes away meanwhile is passed over.

    Raises:
        ConfigError: there is nothing to copy, or the file cannot be written.
        StorageError: the database cannot be read.
    """
    if not (data_dir / DATABASE).exists():
        raise ConfigError(f"There are no data in `{data_dir}`; choose another --data-dir.")
    try:
        with whole_file(file) as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            return _fill(archive, data_dir, without=file.parent.resolve() / file.name)
    except OSError as error:
        raise ConfigError(f"`{file}` cannot be written: {error.strerror or error}.") from error


def _fill(archive: tarfile.TarFile, data_dir: Path, *, without: Path) -> int:
    head = {"format": FORMAT, "version": __version__, "schema": SCHEMA_VERSION, "at": int(time.time())}
    info = tarfile.TarInfo(MANIFEST)
    body = json.dumps(head).encode()
    info.size, info.mtime, info.mode = len(body), head["at"], 0o600  # type: ignore[assignment]
    archive.addfile(info, io.BytesIO(body))
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / DATABASE
        _copy_database(data_dir / DATABASE, copy)
        archive.add(copy, DATABASE)
    count = 1
    for folder, names, files in os.walk(data_dir):
        here = Path(folder)
        if here == data_dir:
            names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith(REPLACED)]
            files = [name for name in files if not name.startswith(DATABASE)]
        for path in (here / name for name in sorted(files)):
            if path.is_symlink() or not path.is_file() or _is_of(without, path.resolve()):
                continue
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                name = path.relative_to(data_dir).as_posix()
                _add(archive, archive.gettarinfo(arcname=name, fileobj=file), file)
                count += 1
    return count


def _is_of(backup: Path, path: Path) -> bool:
    return path == backup.resolve() or is_part_of(backup, path)


def _add(archive: tarfile.TarFile, info: tarfile.TarInfo, file: IO[bytes]) -> None:
    """Add what there is of a file, which somebody may be shortening: its size stands before it in the archive."""
    left = info.size
    with tempfile.SpooledTemporaryFile(PIECE) as copy:
        while left and (piece := file.read(min(left, PIECE))):
            left -= copy.write(piece)
        info.size -= left
        copy.seek(0)
        archive.addfile(info, copy)


def _copy_database(source: Path, target: Path) -> None:
    if not RunDir(source.parent).is_held() and behind_damage(source) is not None:
        raise StorageError(
            f"The log of `{source}` is damaged; start miniclaw once, which keeps what is sound."
        )
    try:
        # SQLite reads from one snapshot, whatever the gateway writes meanwhile.
        with (
            contextlib.closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=rw", uri=True)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        raise StorageError(f"`{source}` cannot be read: {error}; see `miniclaw doctor`.") from error


def restore(data_dir: Path, file: Path) -> Path | None:
    """Put a backup in the place of the data; returns where what was there is now.

    Everything is unpacked and checked before anything is moved. One that was interrupted is ended first.

    Raises:
        ConfigError: the file is no backup of ours, is damaged, or is of a newer miniclaw; or something cannot
            be moved.
        DirectoryBusy: a gateway runs on the directory.
    """
    run = RunDir(data_dir)
    run.acquire()
    fresh, mark = data_dir / RESTORING, data_dir / RESTORE_MARK
    try:
        _finish(data_dir)
        shutil.rmtree(fresh, ignore_errors=True)
        private_directory(fresh)
        _unpack(file, fresh)
        _probe(fresh / MANIFEST, run_directory=data_dir / "run")
        (fresh / MANIFEST).unlink()
        return _swap(data_dir)
    except OSError as error:
        check_restored(data_dir, because=f" ({error.strerror or error})")
        raise ConfigError(f"`{data_dir}` cannot be written: {error.strerror or error}.") from error
    finally:
        if not mark.exists():
            shutil.rmtree(fresh, ignore_errors=True)
        run.release()


def _probe(file: Path, *, run_directory: Path) -> None:
    """Raise `OSError` where `run` is a mount of its own; no file takes the place of a directory, so nothing moves."""
    try:
        os.rename(file, run_directory)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise


def _unpack(file: Path, fresh: Path) -> None:
    try:
        with gzip.open(file) as whole:  # to its checksum, which nobody else reads
            while whole.read(1 << 20):
                pass
        with tarfile.open(file) as archive:
            # https://docs.python.org/3/library/tarfile.html#tarfile.data_filter: nothing lands outside.
            archive.extractall(fresh, filter="data")
        head = json.loads((fresh / MANIFEST).read_text(encoding="utf-8"))
        known, schema = head["format"], int(head["schema"])
        source = f"{(fresh / DATABASE).resolve().as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(source, uri=True)) as database:
            is_sound = database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'deliveries'").fetchone():
                _settle(database)
        names = [path.name for path in fresh.iterdir()]
    except _UNSOUND as error:
        if isinstance(error, OSError | sqlite3.Error) and (way := way_out(error)) is not None:
            is_ours = getattr(error, "filename", None) != str(file)
            what = f"`{fresh}` cannot be written" if is_ours else f"`{file}` cannot be read"
            raise ConfigError(f"{what}: {error}; {way}.") from error
        raise ConfigError(f"`{file}` is no sound backup: {error}.") from error
    if any(name in LEFT_OUT or name.startswith(REPLACED) for name in names):
        raise ConfigError(f"`{file}` is no sound backup: it holds what a backup leaves out.")
    if known != FORMAT or schema > SCHEMA_VERSION:
        raise ConfigError(f"`{file}` was made by miniclaw {head.get('version')}; upgrade miniclaw first.")
    if not is_sound:
        raise ConfigError(f"The database in `{file}` is damaged; take another backup.")


def _settle(database: sqlite3.Connection) -> None:
    """End what was open: it went on after the copy, and nobody knows how far.

    A turn could write again, so it fails, and a push channel is told; an answer goes out marked as possibly
    repeated. Queued commands run, which is the same once or twice.
    """
    turns = (
        "state IN ('waiting', 'running') AND json_valid(message) "
        "AND json_extract(message, '$.msg_type') = 'text'"
    )
    with database:
        database.execute(
            "UPDATE deliveries SET uncertain = MAX(uncertain, 1) WHERE state IN ('pending', 'sending')"
        )
        database.execute(
            "UPDATE deliveries SET state = 'dead', uncertain = 1, text = ?1, error = ?1 "
            "WHERE state = 'streaming'",
            (WAS_OPEN,),
        )
        database.execute(
            "INSERT INTO deliveries (key, n, part, turn_id, user_id, channel, account, conversation, target, "
            "text, state, uncertain, next_at, created_at) SELECT turn_id || '.0', n, 0, turn_id, user_id, "
            "channel, COALESCE(json_extract(message, '$.account'), ''), "
            "COALESCE(json_extract(message, '$.reply_to.conversation'), ''), "
            f"json_extract(message, '$.reply_to'), ?, 'pending', 1, 0, created_at FROM turns WHERE {turns} "
            "AND json_type(message, '$.reply_to') = 'object' ON CONFLICT DO NOTHING",
            (WAS_OPEN,),
        )
        database.execute(
            "UPDATE approvals SET state = 'denied' WHERE state = 'asked' "
            f"AND turn_id IN (SELECT turn_id FROM turns WHERE {turns})"
        )
        outcome = {"name": "turn.failed", "data": {"code": "abandoned", "message": WAS_OPEN}, "seq": 1}
        database.execute(
            f"UPDATE turns SET state = 'failed', outcome = ?, ended_at = ? WHERE {turns}",
            (json.dumps(outcome), time.time()),
        )


def _swap(data_dir: Path) -> Path | None:
    old = [
        path.name
        for path in data_dir.iterdir()
        if path.name not in LEFT_OUT and not path.name.startswith(REPLACED)
    ]
    aside = _new_aside(data_dir) if old else data_dir
    mark = data_dir / RESTORE_MARK
    part = mark.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump({"aside": aside.name if old else "", "old": old}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(mark)
    _finish(data_dir)
    return aside if old else None


def _new_aside(data_dir: Path) -> Path:
    """A directory that nothing was in before."""
    aside = _free(data_dir / f"{REPLACED}{time.strftime('%Y%m%d-%H%M%S')}")
    aside.mkdir(mode=0o700)
    return aside


def _free(path: Path) -> Path:
    """This path, or one with a number behind it, where nothing is yet."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not os.path.lexists(one))


def _finish(data_dir: Path) -> None:
    """Move what was there aside, then the backup to its place; after a crash from where it stopped.

    Raises:
        ConfigError: something cannot be moved aside; everything is where it was.
        OSError: it cannot go on, nor back.
    """
    mark, fresh = data_dir / RESTORE_MARK, data_dir / RESTORING
    if not mark.exists():
        return
    plan = json.loads(mark.read_text(encoding="utf-8"))
    aside = data_dir / plan["aside"]
    for name in plan["old"]:
        if os.path.lexists(data_dir / name) and not os.path.lexists(aside / name):
            try:
                (data_dir / name).rename(aside / name)
            except OSError as error:
                _undo(data_dir, aside, plan["old"])
                raise ConfigError(
                    f"`{data_dir / name}` cannot be moved ({error.strerror or error}), so nothing was restored; "
                    "if something is mounted there, unmount it first."
                ) from error
    for path in list(fresh.iterdir()) if fresh.exists() else ():
        target = data_dir / path.name
        if os.path.lexists(target):  # it came since the restore stopped
            aside = _new_aside(data_dir) if aside == data_dir else aside
            target.rename(_free(aside / path.name))
        path.rename(target)
    mark.unlink()


def _undo(data_dir: Path, aside: Path, names: list[str]) -> None:
    for name in names:
        if os.path.lexists(aside / name) and not os.path.lexists(data_dir / name):
            (aside / name).rename(data_dir / name)
    (data_dir / RESTORE_MARK).unlink()
    with contextlib.suppress(OSError):  # something came into it that is not ours
        aside.rmdir()
