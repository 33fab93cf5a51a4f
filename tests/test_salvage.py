"""What becomes of a database that is damaged: what is sound is kept, the damaged file is set aside."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from miniclaw import salvage
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.archive import back_up
from miniclaw.damage import is_damaged
from miniclaw.errors import StorageError, StorageUnavailable
from miniclaw.session.models import Entry
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.wal import behind_damage
from tests.support.agent import eventually
from tests.support.claw import running_claw
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


async def outcome_of(claw: MiniClaw, text: str) -> dict[str, Any]:
    return [event async for event in claw.ask(text)][-1]


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


async def test_an_empty_file_beside_a_log_that_is_not_is_not_begun_anew(tmp_path: Path) -> None:
    """SQLite would throw the log away, in which everything is."""
    path = await fill(tmp_path)
    Path(f"{path}-wal").write_bytes(b"x" * 64)
    os.truncate(path, 0)
    with pytest.raises(StorageError, match="its log"):
        await kept(tmp_path)
    assert Path(f"{path}-wal").stat().st_size == 64


async def test_what_a_second_damage_sets_aside_does_not_overwrite_the_first(tmp_path: Path) -> None:
    path = await fill(tmp_path)
    for _ in range(2):
        cut(path, 0.9)
        await kept(tmp_path)
    assert len(list(tmp_path.glob("*.corrupt*"))) == 2


async def test_sessions_whose_rows_are_lost_are_made_anew_from_their_turns(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([LLMResponse(text="hi")] * 3)) as claw:
        ids = {(await outcome_of(claw, text))["session_id"] for text in ("one", "two", "three")}
    path = tmp_path / "miniclaw.db"
    with closing(sqlite3.connect(path)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sessions'")
    overwrite(path, root - 1)
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        sessions = await claw.sessions.list("owner")
        assert {session.session_id for session in sessions} == ids
        loaded = [await claw.sessions.get(one) for one in ids]
        assert all(session is not None and session.messages for session in loaded)


async def test_damage_that_is_met_later_is_told_and_mended_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large database is not read through at each start."""
    monkeypatch.setattr(salvage, "CHECKED_BYTES", 1024)
    path = await fill(tmp_path)
    raw = path.read_bytes()
    leaves = [
        n for n in range(20, len(raw) // PAGE) if raw[n * PAGE] == 0x0A and b"ses_" in raw[n * PAGE :][:PAGE]
    ]
    overwrite(path, leaves[len(leaves) // 2])
    async with open_database(tmp_path) as database:
        await database.check()
        for n in range(SESSIONS):
            with suppress(StorageError):
                await SQLiteStorage(database).load(f"ses_{n:02}")
        await eventually(lambda: is_damaged(path))  # a second look comes first
        with pytest.raises(StorageUnavailable, match="damaged"):
            await database.check()
    assert SESSIONS - 10 <= len(await kept(tmp_path)) < SESSIONS
    assert list(tmp_path.glob("*.corrupt"))
    async with open_database(tmp_path) as database:
        await database.check()


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


def overwrite_leaves_of(path: Path, *marks: str) -> None:
    """Every leaf of a table on which one of these texts stands."""
    raw = path.read_bytes()
    for mark in marks:
        holders = [n for n in range(len(raw) // PAGE) if mark.encode() in raw[n * PAGE :][:PAGE]]
        leaves = [n for n in holders if raw[n * PAGE] == 0x0A]
        assert leaves, mark
        for page in leaves:
            overwrite(path, page)


async def test_what_stands_between_two_damaged_pages_is_kept(tmp_path: Path) -> None:
    keys = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(400)]

    def more(connection: sqlite3.Connection) -> None:
        def insert(table: str, marks: str, *values: Any) -> None:
            connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)

        for n, key in enumerate(keys):
            letter = "?, ?, 0, 't', 'ann', 'x', '', '', '{}', ?, 'sent', 0, 0, 0, NULL, NULL, 0"
            insert("deliveries", letter, f"t_{key}.0", n, f"letter {n}.")
            insert("dedupe", "?, NULL, NULL, ?, ?", f"web\x1fann\x1f{key}", f'{{"claim": {n}}}', n)
            note = "?, 'a', 'a', '', '', '', '', ?, '', 0, ?, NULL, 0"
            insert("timers", note, key, f"note {n}. {'x' * 90}", n)
            insert("users", "?, ?, ?, 0", f"u{key[:30]}", f"role {n}. {'x' * 90}", f"hash {n}")

    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        await storage.save(make_session())
        log = [Entry(f"t{n}", 0, {"role": "user", "content": f"#{n}# {'x' * 300}"}) for n in range(800)]
        await storage.append("ses_1", log)
        await database.write(more)
    path = tmp_path / "miniclaw.db"
    overwrite_leaves_of(path, "#61#", "#741#")
    order = sorted(range(400), key=keys.__getitem__)
    for n in (order[90], order[310]):
        overwrite_leaves_of(path, f"letter {n}.", f'"claim": {n}}}', f"note {n}.", f"role {n}.")
    tables = ("entries", "deliveries", "dedupe", "timers", "users")
    async with open_database(tmp_path) as database:
        left = {table: database.read(f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables}
    assert left["entries"] >= 760 and min(left.values()) >= 300, left


async def test_a_message_whose_turn_is_lost_can_come_again_and_a_session_half_deleted_does_not_come_back(
    tmp_path: Path,
) -> None:
    path = await fill(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        turn = "INSERT INTO turns VALUES (?, ?, ?, 'ann', 'web', '{}', 'finished', 0, 0, 0, 0, 0, '{}')"
        connection.executemany(turn, [(1, "turn_1", "ses_01"), (2, "turn_2", "ses_gone")])
        claims = [("k1", "turn_1", "ses_01"), ("lost", "turn_9", "ses_01"), ("gone", "turn_2", "ses_gone")]
        connection.executemany("INSERT INTO dedupe VALUES (?, ?, ?, NULL, 0)", claims)
        connection.execute("INSERT INTO meta VALUES ('deleted ses_gone', 'ann')")
        connection.commit()
    overwrite_leaves_of(path, "30 xxx")
    async with open_database(tmp_path) as database:
        assert database.read("SELECT key FROM dedupe ORDER BY key") == [("gone",), ("k1",)]
        assert await SQLiteStorage(database).load("ses_gone") is None
        assert await SQLiteStorage(database).unfinished_deletes() == {"ses_gone": "ann"}
        assert database.read("SELECT turn_id FROM turns") == [("turn_1",), ("turn_2",)]


@pytest.mark.parametrize(
    ("place", "value"),
    [(31, 1), (31, 64), (30, 255), (60, 255), (63, 0)],
    ids=["fewer pages", "other pages", "more pages", "a version below none", "no version"],
)
async def test_a_damaged_number_in_the_head_costs_nothing(tmp_path: Path, place: int, value: int) -> None:
    path = await fill(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[place] = value
    path.write_bytes(raw)
    assert len(await kept(tmp_path)) == SESSIONS


# --- the write-ahead log ----------------------------------------------------------------------------------

FRAME = 24 + PAGE


async def fill_log(tmp_path: Path) -> tuple[Path, list[int]]:
    """A database whose rows all stand in its log, as a kill leaves it, and the ends of its whole commits."""
    (tmp_path / "live").mkdir()
    async with open_database(tmp_path / "live") as database:
        storage = SQLiteStorage(database)
        for n in range(SESSIONS):
            await storage.save(make_session(f"ses_{n:02}"))
            await storage.append(
                f"ses_{n:02}", [Entry(f"turn_{n}", 0, {"role": "user", "content": f"{n} x"})]
            )
        for name in ("miniclaw.db", "miniclaw.db-wal"):
            shutil.copy(tmp_path / "live" / name, tmp_path / name)
    raw = (tmp_path / "miniclaw.db-wal").read_bytes()
    starts = range(32, len(raw) - FRAME + 1, FRAME)
    commits = [start + FRAME for start in starts if raw[start + 4 : start + 8] != bytes(4)]
    return tmp_path / "miniclaw.db", commits


def flip(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :]


@pytest.mark.parametrize(
    "place",
    [0, 10, 17, 25, *(32 + FRAME * 60 + inside for inside in (5, 9, 18, 24, 1000, 4100))],
    ids=lambda place: f"byte {place % FRAME}",
)
async def test_a_damaged_bit_in_the_log_loses_nothing_that_stands_behind_it(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = await fill_log(tmp_path)
    log = Path(f"{path}-wal")
    log.write_bytes(damaged := flip(log.read_bytes(), place))
    with pytest.raises(StorageError, match="start miniclaw once"):  # SQLite would throw the log away
        back_up(tmp_path, tmp_path / "backup.tar.gz")
    assert len(await kept(tmp_path)) >= SESSIONS - 1
    assert path.with_name("miniclaw.db.corrupt-wal").read_bytes() == damaged
    assert [r.levelno for r in caplog.records if "the log of" in r.message] == [logging.ERROR]
    caplog.clear()
    assert len(await kept(tmp_path)) >= SESSIONS - 1
    assert not caplog.records


async def test_a_log_that_is_garbage_is_set_aside_before_it_is_written_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = await fill_log(tmp_path)
    Path(f"{path}-wal").write_bytes(garbage := b"garbage" * 1000)
    assert await kept(tmp_path) == []
    assert path.with_name("miniclaw.db.corrupt-wal").read_bytes() == garbage
    assert "the log of" in caplog.text


@pytest.mark.parametrize("cut_at", [-1, -FRAME, -FRAME - 10, -40 * FRAME + 100])
async def test_a_log_whose_end_a_crash_tore_off_is_no_damage(
    tmp_path: Path, cut_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, commits = await fill_log(tmp_path)
    log = Path(f"{path}-wal")
    end = commits[-1] + cut_at
    log.write_bytes(log.read_bytes()[:end])
    assert len(await kept(tmp_path)) >= sum(commit <= end for commit in commits) // 2 - 2
    assert not list(tmp_path.glob("*.corrupt*")) and not caplog.records


async def test_a_log_that_was_begun_anew_over_an_older_one_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    async with open_database(tmp_path / "live") as database:
        storage = SQLiteStorage(database)
        for n in range(SESSIONS):
            await storage.save(make_session(f"ses_{n:02}"))
            if n == 40:
                await database.write(lambda c: None)
                database._run_checkpoint("RESTART")
        for name in ("miniclaw.db", "miniclaw.db-wal"):
            shutil.copy(tmp_path / "live" / name, tmp_path / name)
    assert behind_damage(tmp_path / "miniclaw.db") is None
    async with open_database(tmp_path) as database:
        assert len(await SQLiteStorage(database).list()) == SESSIONS


async def test_a_start_on_a_full_disk_says_to_make_room_and_not_to_throw_the_database_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await fill(tmp_path)
    cut(path, 0.9)

    def full(*names: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("miniclaw.db.FULL_DISK_BYTES", 1 << 62)
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(StorageError, match="make room"):
        await kept(tmp_path)
