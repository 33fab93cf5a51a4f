"""What becomes of a database that is damaged: what is sound is kept, the damaged file is set aside."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from miniclaw.errors import StorageError
from miniclaw.session.models import Entry
from miniclaw.session.sqlite import SQLiteStorage
from tests.support.core import make_session, open_database

SESSIONS, PAGE = 60, 4096


async def fill(tmp_path: Path) -> Path:
    """A database of some hundred pages, closed."""
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for n in range(SESSIONS):
            await storage.save(make_session(f"ses_{n:02}"))
            message = {"role": "user", "content": f"{n} " + "x" * 9_000}
            await storage.append(f"ses_{n:02}", [Entry(f"turn_{n}", 0, message)])
        [(_, _, name)] = database.read("PRAGMA database_list")
    return Path(name)


async def kept(tmp_path: Path) -> list[int]:
    """The sessions that are there with their whole log."""
    found = []
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for n in range(SESSIONS):
            session = await storage.load(f"ses_{n:02}")
            if session is not None and session.messages:
                assert session.messages[0].message["content"].startswith(f"{n} x")
                found.append(n)
        await storage.save(make_session("ses_new"))
    return found


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share) // PAGE * PAGE)


def overwrite(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(b"\xa5" * PAGE)


@pytest.mark.parametrize(
    ("damage", "at_least"),
    [
        (lambda path: cut(path, 0.9), 40),
        (lambda path: overwrite(path, 150), 55),
    ],
    ids=["a tenth is missing", "a page is garbage"],
)
async def test_what_is_sound_of_a_damaged_database_is_kept(
    tmp_path: Path, damage: Callable[[Path], None], at_least: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = await fill(tmp_path)
    damage(path)
    damaged = path.read_bytes()
    assert at_least <= len(await kept(tmp_path)) < SESSIONS
    assert path.with_name(path.name + ".corrupt").read_bytes() == damaged
    assert [r.levelno for r in caplog.records if "set aside" in r.message] == [logging.ERROR]
    caplog.clear()
    assert len(await kept(tmp_path)) >= at_least
    assert not [record for record in caplog.records if "set aside" in record.message]


async def test_a_sound_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = await fill(tmp_path)
    inode = path.stat().st_ino
    assert len(await kept(tmp_path)) == SESSIONS
    assert path.stat().st_ino == inode and not list(tmp_path.rglob("*.corrupt"))


@pytest.mark.parametrize("damage", [lambda path: overwrite(path, 0), lambda path: cut(path, 0.01)])
async def test_a_database_of_which_nothing_can_be_read_is_not_replaced_by_an_empty_one(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = await fill(tmp_path)
    damage(path)
    damaged = path.read_bytes()
    with pytest.raises(StorageError, match="put a backup in its place"):
        await kept(tmp_path)
    assert path.read_bytes() == damaged and not list(path.parent.glob("*.new"))


@pytest.mark.parametrize("step", ["link", "unlink", "replace"])
async def test_a_crash_while_the_databases_are_exchanged_loses_nothing(tmp_path: Path, step: str) -> None:
    path = await fill(tmp_path)
    cut(path, 0.9)
    code = (
        "import os, pathlib, sys\n"
        "from miniclaw import salvage\n"
        "path, step = pathlib.Path(sys.argv[1]), sys.argv[2]\n"
        "def die(*args, **more): os._exit(9)\n"
        "finish = salvage.finish_salvage\n"
        "def finish_and_die(path):\n"
        "    if step == 'link': os.link = die\n"
        "    else: setattr(pathlib.Path, step, die)\n"
        "    finish(path)\n"
        "salvage.finish_salvage = finish_and_die\n"
        "salvage.salvage(path)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path, step], timeout=60, check=False)
    assert done.returncode == 9
    assert 40 <= len(await kept(tmp_path)) < SESSIONS
    assert (
        path.with_name(path.name + ".corrupt").exists()
        and not path.with_name(path.name + ".salvaged").exists()
    )
