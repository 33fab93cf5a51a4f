"""A disk that fails for a while: nothing sound is taken for damaged, and what was accepted is done afterwards."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from miniclaw import damage
from miniclaw.agent.patience import until_stored
from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.damage import is_damaged
from miniclaw.db import Database
from miniclaw.errors import DeliveryError, StorageError, StorageUnavailable
from miniclaw.gateway.protocol import CommandPayload, Inbound
from miniclaw.session.mailbox import Mailbox
from miniclaw.session.models import Turn
from tests.support.agent import Zap as ZapTool
from tests.support.agent import eventually, is_asking, outcome, say, send, zap
from tests.support.claw import port_of, running_claw
from tests.support.client import raw_client
from tests.support.core import make_turn, open_database
from tests.support.disk import Disk, disk
from tests.support.model import last_user
from tests.test_dispatcher import Platform, post_office, row

__all__ = ["disk"]

IO, CORRUPT = 10, 11
EVERYTHING = "SELECT * FROM meta"


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


# --- the database -----------------------------------------------------------------------------------------


async def test_one_read_that_fails_is_no_failure(tmp_path: Path, disk: Disk) -> None:
    async with open_database(tmp_path) as database:
        for code in (IO, CORRUPT):
            disk.fails, disk.code, disk.left = True, code, 1
            assert database.read(EVERYTHING)
            disk.left = 1
            assert await database.read_many(EVERYTHING)
        assert len(disk.failed) == 4
        await database.check()


async def test_a_disk_that_fails_is_no_damage_however_often_it_is_asked(tmp_path: Path, disk: Disk) -> None:
    async with open_database(tmp_path) as database:

        async def read() -> int:
            return len(database.read(EVERYTHING))

        disk.fails = True
        waiting = asyncio.create_task(until_stored(read))
        for _ in range(3):
            with pytest.raises(StorageUnavailable):
                await database.read_many(EVERYTHING)
            with pytest.raises(StorageUnavailable):
                database.read(EVERYTHING)
            with pytest.raises(StorageUnavailable):
                await database.write(lambda c: c.execute(EVERYTHING).fetchall())
        assert not waiting.done()
        disk.fails = False
        assert await waiting and await database.read_many(EVERYTHING)
        await database.check()
    assert not is_damaged(tmp_path / "miniclaw.db")


async def test_what_is_damaged_is_told_as_such_while_a_reader_waits(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
        fill += "INSERT INTO meta SELECT i, hex(zeroblob(1000)) FROM n"
        await database.write(lambda c: c.execute(fill).rowcount)
    async with open_database(tmp_path) as database:
        with (tmp_path / "miniclaw.db").open("r+b") as file:
            file.seek(200_000)
            file.write(b"\xa5" * 1_000_000)

        async def read() -> int:
            return len(database.read("SELECT length(value) FROM meta ORDER BY value"))

        with pytest.raises(StorageError) as error:
            await until_stored(read)
        assert not isinstance(error.value, StorageUnavailable)
        assert is_damaged(tmp_path / "miniclaw.db")


async def test_at_a_start_a_single_failure_anywhere_changes_nothing(tmp_path: Path, disk: Disk) -> None:
    async with open_database(tmp_path) as database:
        await database.write(lambda c: c.execute("INSERT INTO meta VALUES ('k', 'v')").rowcount)
    for code in (IO, CORRUPT):
        for number in range(12):
            copy = tmp_path / f"{code}-{number}"
            copy.mkdir()
            shutil.copy(tmp_path / "miniclaw.db", copy)
            disk.fails, disk.code, disk.passes, disk.left = True, code, number, 1
            disk.failed.clear()
            async with open_database(copy) as database:
                assert database.read("SELECT value FROM meta WHERE key = 'k'") == [("v",)]
            assert len(disk.failed) == 1
            assert not list(copy.glob("*.corrupt*"))


async def test_a_start_on_a_disk_that_fails_says_so_and_sets_nothing_aside(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(tmp_path):
        pass
    monkeypatch.setattr(damage, "PAUSES", (0.0, 0.0))
    before = {path.name for path in tmp_path.iterdir()}
    for code in (IO, CORRUPT):
        disk.fails, disk.code = True, code
        with pytest.raises(StorageError, match="look at its disk") as error:
            await Database(tmp_path / "miniclaw.db").open()
        assert "backup" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == before


async def test_a_look_does_not_let_go_of_the_locks_of_the_database(tmp_path: Path, disk: Disk) -> None:
    """To close a file ends all POSIX locks of the process on it; another's last close would then remove the log."""
    async with open_database(tmp_path) as database:
        await database.write(lambda c: c.execute("INSERT INTO meta VALUES ('k', 'v')").rowcount)
        disk.fails, disk.left = True, 3
        with pytest.raises(StorageUnavailable):
            database.read(EVERYTHING)
        await eventually(lambda: database._look is not None and database._look.done())
        code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM meta').fetchall()"
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"{code}; c.close()", str(tmp_path / "miniclaw.db")
        )
        assert await other.wait() == 0
        assert (tmp_path / "miniclaw.db-wal").exists()


# --- turns and deliveries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [IO, CORRUPT])
async def test_a_delivery_that_is_due_while_the_disk_fails_is_made_afterwards(
    tmp_path: Path, disk: Disk, code: int
) -> None:
    disk.code = code
    async with post_office(tmp_path, Platform(a=[DeliveryError("busy")])) as post:
        post.bus.subscribe("system.delivery", lambda topic, told: setattr(disk, "fails", told[1] == "failed"))
        await post.put(row("a"))
        post.tell()
        await eventually(lambda: len(disk.failed) > 5)
        disk.fails = False
        await post.all_are("sent")
    assert [key for key, _ in post.platform.tries] == ["a", "a"]


async def test_a_delivery_that_breaks_is_tried_again_without_another_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with post_office(tmp_path) as post:
        await post.put(row("a"))
        find, failures = post.outbox.next_of, [StorageError("damaged"), RuntimeError("broken")]

        async def next_of(*place: str) -> object:
            if failures:
                raise failures.pop()
            return await find(*place)

        monkeypatch.setattr(post.outbox, "next_of", next_of)
        post.tell()
        await post.all_are("sent")
    assert (failures, [key for key, _ in post.platform.tries]) == ([], ["a"])


@pytest.mark.parametrize("code", [IO, CORRUPT])
async def test_a_turn_that_is_cancelled_while_the_disk_fails_ends(
    tmp_path: Path, disk: Disk, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.code = code
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), echo])) as claw:
        claw.registry.register(ZapTool("write"))
        receipt = await send(claw, "one")
        await eventually(lambda: is_asking(claw, receipt.session_id or ""))
        interrupt = claw.runner.interrupt

        def fail(turn_id: str) -> None:
            disk.fails = True
            interrupt(turn_id)

        monkeypatch.setattr(claw.runner, "interrupt", fail)
        assert await claw.commands.cancel(receipt.turn_id or "", "owner")
        await eventually(lambda: len(disk.failed) > 5)
        disk.fails = False
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
        assert await say(claw, "two", session_id=receipt.session_id) == "echo: two"


async def test_a_cancel_of_a_waiting_turn_is_carried_out_after_the_disk_failed(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = {"limits.drain_seconds": 0}
    async with running_claw(tmp_path, ScriptedProvider([zap("a")]), arguments=at_once) as claw:
        claw.registry.register(ZapTool("write"))
        first = await send(claw, "one")
        await eventually(lambda: is_asking(claw, first.session_id or ""))
        second = await send(claw, "two", session_id=first.session_id)
        take_out = claw.mailbox.take_out

        async def fail(*turn: str) -> Turn | None:
            disk.fails = True
            return await take_out(*turn)

        monkeypatch.setattr(claw.mailbox, "take_out", fail)
        cancelling = asyncio.create_task(claw.commands.cancel(second.turn_id or "", "owner"))
        await eventually(lambda: len(disk.failed) > 3)
        disk.fails = False
        assert await cancelling
        turn = claw.turns.get(second.turn_id or "")
        assert turn is not None and turn.state == "cancelled"


async def test_a_message_to_a_session_that_must_be_read_from_a_failing_disk_is_answered(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        session_id = (await send(claw, "one")).session_id
        await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        begin = claw.turns.begin

        async def begun(*turn: Any, **fence: Any) -> Turn | None:
            found = await begin(*turn, **fence)
            disk.fails = True
            return found

        monkeypatch.setattr(claw.turns, "begin", begun)
        receipt = await send(claw, "two", session_id=session_id)
        await eventually(lambda: len(disk.failed) > 5)
        disk.fails = False
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "echo: two"


async def test_a_clear_whose_turn_comes_while_the_disk_fails_is_carried_out_at_its_first_try(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo, echo])) as claw:
        session_id = (await send(claw, "one")).session_id
        await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})
        run_queued = claw.commands.run_queued

        async def run(*command: Any) -> dict[str, Any]:
            disk.fails = True
            return await run_queued(*command)

        monkeypatch.setattr(claw.commands, "run_queued", run)
        receipt = await claw.router.route(
            Inbound.model_validate(
                {
                    "msg_id": "m_clear",
                    "msg_type": "command",
                    "payload": CommandPayload(name="clear"),
                    "channel": "ws",
                    "user_id": "owner",
                    "session_id": session_id,
                }
            )
        )
        await eventually(lambda: len(disk.failed) > 5)
        disk.fails = False
        assert (await outcome(claw, receipt.turn_id))["data"]["ok"]
        turn = claw.turns.get(receipt.turn_id or "")
        assert turn is not None and (turn.attempt, turn.tries) == (1, 1)


async def test_a_turn_that_storage_breaks_begins_again_before_the_next_of_its_session() -> None:
    began: list[str] = []
    failures = [StorageUnavailable("away"), StorageError("gone")]

    async def run(turn: Turn) -> None:
        began.append(turn.turn_id)
        if failures:
            raise failures.pop()

    mailbox = Mailbox(run, running=1, waiting=9, per_session=9)
    for name in ("a", "b"):
        mailbox.restore(make_turn(name, "s"))
    await eventually(lambda: began == ["a", "a", "a", "b"])
    await eventually(lambda: not mailbox.is_busy("s"))
    assert began == ["a", "a", "a", "b"], "and none once more"


async def test_an_attempt_that_storage_broke_goes_on_from_its_last_step(tmp_path: Path) -> None:
    async def breaks(messages: list[Message]) -> LLMResponse:
        raise StorageUnavailable("away")

    async with running_claw(tmp_path, ScriptedProvider([zap("a"), breaks, echo])) as claw:
        tool = ZapTool("read")
        claw.registry.register(tool)
        assert await say(claw, "one") == "echo: one"
        assert tool.ran == ["a"]


async def test_a_command_whose_read_fails_is_answered_and_the_connection_lives(
    tmp_path: Path, disk: Disk
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw, raw_client(port_of(claw)) as client:
        await client.command("new")
        disk.fails = True
        refused = await client.receipt(await client.send("command", {"name": "ping"}))
        assert refused["code"] == "storage_unavailable"
        disk.fails = False
        assert (await client.command("ping"))["pong"]
