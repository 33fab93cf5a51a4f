"""A data directory as one file, and back. The copy of the database is of one moment, also while it is written."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import Final

from miniclaw import __version__
from miniclaw.errors import ConfigError, StorageError
from miniclaw.rundir import RunDir, private_directory
from miniclaw.schema import SCHEMA_VERSION
from miniclaw.wal import behind_damage

__all__ = ["back_up", "restore"]

MANIFEST: Final = "backup.json"
DATABASE: Final = "miniclaw.db"
FORMAT: Final = 1
LEFT_OUT: Final = ("run", "logs")
"""What belongs to a process and not to its data."""
REPLACED: Final = "replaced-"
"""Begins the name of where a restore puts what was there."""
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
    temporary = file.with_name(file.name + ".part")
    try:
        temporary.unlink(missing_ok=True)  # of another backup that was killed, or not ours at all
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            count = _fill(archive, data_dir, without={file.resolve(), temporary.resolve()})
        temporary.replace(file)
    except OSError as error:
        raise ConfigError(f"`{file}` cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _fill(archive: tarfile.TarFile, data_dir: Path, *, without: set[Path]) -> int:
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
            if path.is_symlink() or not path.is_file() or path.resolve() in without:
                continue
            with contextlib.suppress(FileNotFoundError):
                archive.add(path, path.relative_to(data_dir).as_posix())
                count += 1
    return count


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

    Everything is unpacked and checked before anything is moved.

    Raises:
        ConfigError: the file is no backup of ours, is damaged, or is of a newer miniclaw.
        DirectoryBusy: a gateway runs on the directory.
    """
    run = RunDir(data_dir)
    run.acquire()
    fresh = data_dir / "run" / "restoring"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        private_directory(fresh)
        _unpack(file, fresh)
        (fresh / MANIFEST).unlink()
        return _swap(data_dir, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        run.release()


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
        names = [path.name for path in fresh.iterdir()]
    except _UNSOUND as error:
        raise ConfigError(f"`{file}` is no sound backup: {error}.") from error
    if any(name in LEFT_OUT or name.startswith(REPLACED) for name in names):
        raise ConfigError(f"`{file}` is no sound backup: it holds what a backup leaves out.")
    if known != FORMAT or schema > SCHEMA_VERSION:
        raise ConfigError(f"`{file}` was made by miniclaw {head.get('version')}; upgrade miniclaw first.")
    if not is_sound:
        raise ConfigError(f"The database in `{file}` is damaged; take another backup.")


def _swap(data_dir: Path, fresh: Path) -> Path | None:
    old = [
        path
        for path in data_dir.iterdir()
        if path.name not in LEFT_OUT and not path.name.startswith(REPLACED)
    ]
    aside = None
    if old:
        aside = data_dir / f"{REPLACED}{time.strftime('%Y%m%d-%H%M%S')}"
        private_directory(aside)
        for path in old:
            path.rename(aside / path.name)
    for path in list(fresh.iterdir()):
        path.rename(data_dir / path.name)
    return aside
