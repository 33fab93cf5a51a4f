"""The database: group commit, what a failure takes with it, and how it is opened and closed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest

from miniclaw.cli import doctor_command
from miniclaw.db import CHECKPOINT_PAGES, SCHEMA_VERSION, Database
from miniclaw.errors import StorageError, StorageUnavailable
from tests.support.core import open_database


def put(key: str, value: str = "x") -> Any:
    """An operation that stores one row and returns its key."""

    def operation(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
        return key

    return operation


def keys(path: Path) -> set[str]:
    """The rows as another process sees them."""
    connection = sqlite3.connect(path / "miniclaw.db")
    try:
        return {key for (key,) in connection.execute("SELECT key FROM meta WHERE key != 'epoch'")}
    finally:
        connection.close()


async def traced(database: Database) -> list[str]:
    """The statements that the write connection runs from now on."""
    statements: list[str] = []
    await database.write(lambda connection: connection.set_trace_callback(statements.append))
    statements.clear()
    return statements


# --- sharing a transaction --------------------------------------------------------------------------------


async def test_writes_of_one_loop_iteration_share_one_commit(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        statements = await traced(database)
        results = await asyncio.gather(*(database.write(put(f"k{n}")) for n in range(10)))
        assert results == [f"k{n}" for n in range(10)]
        assert statements.count("COMMIT") == 1
        assert statements.count("BEGIN IMMEDIATE") == 1


async def test_writes_that_wait_for_each_other_have_a_commit_each(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        statements = await traced(database)
        for n in range(3):
            await database.write(put(f"k{n}"))
        assert statements.count("COMMIT") == 3


async def test_a_result_is_given_only_after_another_process_can_see_it(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await database.write(put("a"))
        assert keys(tmp_path) == {"a"}


async def test_operations_run_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    ran: list[int] = []
    async with open_database(tmp_path) as database:
        await asyncio.gather(*(database.write(lambda _, n=n: ran.append(n)) for n in range(50)))  # type: ignore[misc]
    assert ran == list(range(50))


async def test_a_write_asked_for_by_an_operation_goes_into_the_next_transaction(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        inner: list[asyncio.Future[str]] = []
        await database.write(lambda _: inner.append(database.write(put("inner"))))
        async with asyncio.timeout(5):
            assert await inner[0] == "inner"


# --- failures ---------------------------------------------------------------------------------------------


async def test_an_operation_that_raises_is_rolled_back_alone_and_its_error_is_its_callers(
    tmp_path: Path,
) -> None:
    class OwnError(Exception):
        pass

    def fails(connection: sqlite3.Connection) -> None:
        put("half")(connection)
        raise OwnError

    async with open_database(tmp_path) as database:
        results = await asyncio.gather(
            database.write(put("a")), database.write(fails), database.write(put("b")), return_exceptions=True
        )
    assert results[0] == "a" and results[2] == "b"
    assert isinstance(results[1], OwnError)
    assert keys(tmp_path) == {"a", "b"}


async def test_a_broken_constraint_is_the_error_of_one_operation(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        results = await asyncio.gather(
            database.write(put("a")),
            database.write(put("a")),
            database.write(put("b")),
            return_exceptions=True,
        )
    assert isinstance(results[1], sqlite3.IntegrityError)
    assert keys(tmp_path) == {"a", "b"}


async def test_a_failing_commit_fails_every_write_in_it_and_the_next_one_works(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        connection = await database.write(lambda c: c)
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        results = await asyncio.gather(
            database.write(put("a")),
            database.write(
                lambda c: c.execute("INSERT INTO child VALUES (1)").rowcount
            ),  # found at the commit
            database.write(put("b")),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [StorageUnavailable] * 3
        assert keys(tmp_path) == set()
        assert await database.write(put("c")) == "c"
    assert keys(tmp_path) == {"c"}


async def test_a_full_disk_fails_every_write_of_the_transaction_and_is_survived(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        connection = await database.write(lambda c: c)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        results = await asyncio.gather(
            database.write(put("a")), database.write(put("big", "x" * 100_000)), return_exceptions=True
        )
        assert [type(result) for result in results] == [StorageUnavailable] * 2
        connection.execute("PRAGMA max_page_count=100000")
        await database.write(put("b"))
    assert keys(tmp_path) == {"b"}


async def test_a_check_writes_each_time(tmp_path: Path) -> None:
    """For a value that is the same SQLite writes nothing, and a full disk would not be noticed."""
    async with open_database(tmp_path) as database:
        probes = []
        for _ in range(2):
            await database.check()
            probes.append(database.read("SELECT value FROM meta WHERE key = 'probe'"))
        assert probes[0] != probes[1]


async def test_an_error_of_the_disk_in_one_operation_fails_the_whole_transaction(tmp_path: Path) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async with open_database(tmp_path) as database:
        results = await asyncio.gather(
            database.write(put("a")), database.write(fails), database.write(put("b")), return_exceptions=True
        )
        assert [type(result) for result in results] == [StorageUnavailable] * 3
        await database.write(put("c"))
    assert keys(tmp_path) == {"c"}


async def test_a_database_held_by_somebody_else_is_unavailable_until_it_is_free(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await database.write(lambda c: c.execute("PRAGMA busy_timeout=0").fetchall())
        other = sqlite3.connect(tmp_path / "miniclaw.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable):
            await database.write(put("a"))
        other.execute("ROLLBACK")
        other.close()
        await database.write(put("b"))
    assert keys(tmp_path) == {"b"}


async def test_a_waiter_cancelled_before_the_commit_leaves_nothing_and_hurts_nobody(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        before, cancelled, after = (database.write(put(key)) for key in ("a", "b", "c"))
        cancelled.cancel()
        assert list(await asyncio.gather(before, after)) == ["a", "c"]
    assert keys(tmp_path) == {"a", "c"}


async def test_damage_in_the_file_is_a_storage_error_for_reads_and_writes(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await asyncio.gather(*(database.write(put(f"k{n:03}", "x" * 3000)) for n in range(200)))
    size = (tmp_path / "miniclaw.db").stat().st_size
    everything = "SELECT SUM(length(value)) FROM meta"
    async with open_database(tmp_path) as database:  # what is damaged before is set aside
        with (tmp_path / "miniclaw.db").open("r+b") as file:
            file.seek(size // 2)
            file.write(os.urandom(size - size // 2))
        with pytest.raises(StorageError):
            database.read(everything)
        with pytest.raises(StorageError):
            await database.read_many(everything)
        with pytest.raises(StorageUnavailable):
            await database.write(lambda c: c.execute(everything).fetchall())


async def test_a_scrub_waits_for_a_reader_and_holds_up_no_write(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await database.write(put("secret", "XYZZY"))
        reader = sqlite3.connect(tmp_path / "miniclaw.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM meta").fetchall()
        await database.write(lambda c: c.execute("DELETE FROM meta WHERE key = 'secret'").rowcount)
        scrub = asyncio.create_task(database.scrub())
        for n in range(5):
            await database.write(put(f"k{n}", "v"))
        assert not scrub.done()
        reader.close()
        await scrub
        assert b"XYZZY" not in Path(f"{tmp_path / 'miniclaw.db'}-wal").read_bytes()


async def test_a_scrub_that_the_disk_does_not_let_through_says_so_and_a_later_one_does_it(
    tmp_path: Path,
) -> None:
    place, away = tmp_path / "data", tmp_path / "away"
    place.mkdir()
    async with open_database(place) as database:
        await database.write(put("secret", "XYZZY"))
        await database.write(lambda c: c.execute("DELETE FROM meta WHERE key = 'secret'").rowcount)
        place.rename(away)  # what is open stays so, and nothing can be opened
        assert await database.scrub() is False
        away.rename(place)
        await database.write(put("more"))
        assert await database.scrub() is True
        assert b"XYZZY" not in (place / "miniclaw.db-wal").read_bytes()


async def test_no_write_meets_the_lock_of_a_scrub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniclaw.db.BUSY_TIMEOUT_MS", 0)  # a disk that is slow to sync holds it for any time
    async with open_database(tmp_path) as database:
        await database.write(put("large", "x" * 20_000_000))
        scrub = asyncio.create_task(database.scrub())
        count = 0
        while not scrub.done():
            await database.write(put(f"k{(count := count + 1)}"))
        assert len(keys(tmp_path)) == count + 1


# --- opening ----------------------------------------------------------------------------------------------


async def test_the_epoch_rises_at_each_start(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        async with open_database(tmp_path) as database:
            epochs.append(database.epoch)
    assert epochs == [1, 2, 3]


async def test_a_newer_schema_is_refused_with_a_sentence_and_left_as_it_is(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await database.write(put("a"))
    other = sqlite3.connect(tmp_path / "miniclaw.db", isolation_level=None, timeout=0)
    other.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    refused = Database(tmp_path / "miniclaw.db")
    with pytest.raises(StorageError, match=r"newer miniclaw.*upgrade miniclaw or choose another --data-dir"):
        await refused.open()
    other.execute("BEGIN IMMEDIATE")  # fails if the refused one still held it
    assert other.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone() == ("1",)
    other.close()
    await refused.close()


@pytest.mark.parametrize(
    "content", [b"this is no database at all, but a text of some length", os.urandom(4096)]
)
async def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "miniclaw.db"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"miniclaw\.db` cannot be opened"):
        await Database(path).open()
    assert path.read_bytes() == content


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
@pytest.mark.parametrize("mode", [0o000, 0o444])
async def test_a_database_without_the_rights_to_it_is_not_told_as_damaged(mode: int) -> None:
    with tempfile.TemporaryDirectory() as directory:  # the fixture's is closed to others
        path = Path(directory, "miniclaw.db")
        await (database := Database(path)).open()
        await database.close()
        path.chmod(mode)
        Path(directory).chmod(0o555)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(
                StorageError, match="give this user the right|see that it can be read"
            ) as error:
                await Database(path).open()
            (check,) = doctor_command._database(path)
        finally:
            os.seteuid(user)
            Path(directory).chmod(0o700)
    assert "begin anew" not in str(error.value)
    assert "damaged" not in check.result and "backup" not in check.mend


async def test_a_directory_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        await Database(tmp_path / "missing" / "miniclaw.db").open()


# --- closing ----------------------------------------------------------------------------------------------


async def test_closing_commits_what_is_pending(tmp_path: Path) -> None:
    database = Database(tmp_path / "miniclaw.db")
    await database.open()
    pending = database.write(put("a"))
    await database.close()
    assert await pending == "a"
    assert keys(tmp_path) == {"a"}


async def test_a_closed_database_says_so_and_can_be_closed_again(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        pass
    await database.close()
    with pytest.raises(StorageUnavailable):
        await database.write(put("a"))
    with pytest.raises(StorageUnavailable):
        database.read("SELECT 1")
    with pytest.raises(StorageUnavailable):
        await database.read_many("SELECT 1")


async def fill_log(database: Database) -> None:
    """Write so much, in so many commits, that a checkpoint has just begun in the thread."""
    await database.write(put("big", "x" * (CHECKPOINT_PAGES * 4096 + 100_000)))
    for n in range(199):
        await database.write(put(f"n{n}"))


async def test_a_write_that_comes_while_closing_waits_for_a_checkpoint_gets_its_answer(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "miniclaw.db")
    await database.open()
    await fill_log(database)
    closing = asyncio.ensure_future(database.close())
    futures: list[asyncio.Future[str]] = []
    async with asyncio.timeout(20):
        while not closing.done():
            futures.append(database.write(put(f"late{len(futures)}")))
            await asyncio.sleep(0)
        await closing
        answers = await asyncio.gather(*futures, return_exceptions=True)
    stored = {answer for answer in answers if isinstance(answer, str)}
    assert all(isinstance(answer, str | StorageUnavailable) for answer in answers)
    assert stored == {key for key in keys(tmp_path) if key.startswith("late")}


# --- reading ----------------------------------------------------------------------------------------------


async def test_both_ways_to_read_see_what_was_committed(tmp_path: Path) -> None:
    query = "SELECT value FROM meta WHERE key = ?"
    async with open_database(tmp_path) as database:
        await database.write(put("a", "1"))
        assert database.read(query, ("a",)) == [("1",)]
        assert await database.read_many(query, ("a",)) == [("1",)]


async def test_a_long_write_ahead_log_is_copied_into_the_database_while_it_is_open(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await fill_log(database)
        await database.read_many("SELECT 1")  # runs in the same thread, behind the checkpoint
        assert (tmp_path / "miniclaw.db").stat().st_size > CHECKPOINT_PAGES * 4096


async def test_the_write_ahead_log_begins_anew_though_there_is_no_moment_without_a_write(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        for n in range(3000):
            await database.write(put(f"n{n}", "x" * 20_000))
        size = (tmp_path / "miniclaw.db-wal").stat().st_size
    assert size < 12 * CHECKPOINT_PAGES * 4096
