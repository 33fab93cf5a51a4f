"""`MiniClaw` as a program embeds it: ask, start, stop, what it holds, and what happens when a part breaks."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from miniclaw import app
from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.cli import CLIChannel
from miniclaw.config import load_settings
from miniclaw.errors import ConfigError, ModelError, ProtocolError
from miniclaw.gateway import reader
from miniclaw.gateway.protocol import Inbound
from tests.support.agent import (
    GUARD,
    DictatedProvider,
    Zap,
    eventually,
    log_of,
    outcome,
    question,
    say,
    send,
    zap,
)
from tests.support.claw import TOKEN, running_claw
from tests.support.core import START, FakeClock
from tests.support.inside import database_of
from tests.support.model import last_user

DONE = LLMResponse(text="done")
STOP_AT_ONCE = {"limits.drain_seconds": 0}


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


async def hang(messages: list[Message]) -> LLMResponse:
    await asyncio.Event().wait()
    return DONE


def announced(data_dir: Path) -> dict[str, Any] | None:
    path = data_dir / "run" / "gateway.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


# --- ask --------------------------------------------------------------------------------------------------


async def test_reply_is_the_whole_answer_and_names_the_session_to_go_on_in(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo, echo, ModelError("model_error", "The model is broken.")])
    async with running_claw(tmp_path, provider) as claw:
        first = await claw.reply("one")
        second = await claw.reply("two", session_id=first.session_id)
        with pytest.raises(ModelError, match="The model is broken") as caught:
            await claw.reply("three")
    assert (first.text, second.text) == ("echo: one", "echo: two")
    assert [message["content"] for message in second.history] == ["one", "echo: one", "two", "echo: two"]
    assert second.used_memories == [] and caught.value.code == "model_error"


async def test_ask_gives_the_turns_events_in_order_and_ends_with_its_end(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), echo])) as claw:
        claw.registry.register(Zap("read"))
        events = [event async for event in claw.ask("hello")]
    names = [event["name"] for event in events]
    assert names[0] == "turn.started" and names[-1] == "turn.finished" and names.count("turn.finished") == 1
    assert names[1:3] == ["tool.started", "tool.finished"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "".join(e["data"]["text"] for e in events if e["name"] == "text.delta") == "echo: hello"
    assert set(events[0]) == {"name", "session_id", "turn_id", "attempt", "seq", "data"}
    assert len({(event["session_id"], event["turn_id"]) for event in events}) == 1


async def test_ask_begins_a_session_or_goes_on_with_the_named_one_of_its_user(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo] * 3)
    async with running_claw(tmp_path, provider) as claw:
        first = [event async for event in claw.ask("one")][-1]
        second = [event async for event in claw.ask("two", session_id=first["session_id"])][-1]
        other = [event async for event in claw.ask("three", user_id="ann")][-1]
        assert second["session_id"] == first["session_id"] != other["session_id"]
        assert [s.session_id for s in await claw.sessions.list("ann")] == [other["session_id"]]
        for wrong in ({"session_id": "ses_no"}, {"session_id": first["session_id"], "user_id": "ann"}):
            with pytest.raises(ProtocolError) as refused:
                await anext(claw.ask("x", **wrong))
            assert refused.value.code == "session_not_found"
        with pytest.raises(ConfigError, match="Not A User"):
            await anext(claw.ask("x", user_id="Not A User"))
    assert [m["content"] for m in provider.requests[1][1:]] == ["one", "echo: one", "two"]


async def test_two_that_ask_in_one_session_get_their_own_events_only(tmp_path: Path) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        first = claw.ask("one")
        started = await anext(first)
        second = claw.ask("two", session_id=started["session_id"])
        queued = await anext(second)
        assert (queued["name"], queued["data"]) == (
            "turn.queued",
            {"position": 1, "text": "two", "attachments": []},
        )
        dictated.end("to the first")
        dictated.end("to the second")
        for asker, text in ((first, "to the first"), (second, "to the second")):
            events = [event async for event in asker]
            assert events[-1]["data"]["text"] == text
            assert len({event["turn_id"] for event in events}) == 1


async def test_who_leaves_in_the_middle_leaves_the_turn_to_go_on(tmp_path: Path) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        asking = claw.ask("one")
        started = await anext(asking)
        await asking.aclose()  # type: ignore[attr-defined]  # it is an async generator
        assert f"session.{started['session_id']}" not in claw.bus._handlers
        dictated.end("nobody listens")
        assert (await outcome(claw, started["turn_id"]))["data"]["text"] == "nobody listens"


async def test_who_does_not_read_loses_deltas_and_never_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "EVENTS", 5)
    async with running_claw(tmp_path, ScriptedProvider([LLMResponse(text="word " * 100)])) as claw:
        asking = claw.ask("one")
        started = await anext(asking)
        await outcome(claw, started["turn_id"])
        rest = [event async for event in asking]
        assert [event["name"] for event in rest] == ["text.delta"] * 4 + ["turn.finished"]
        assert rest[-1]["data"]["text"] == "word " * 100


async def test_ask_ends_when_the_gateway_stops_and_the_turn_goes_on_at_the_next_start(tmp_path: Path) -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()

    async def ask(claw: MiniClaw) -> None:
        async for event in claw.ask("one"):
            begun.put_nowait(event["turn_id"])

    async with running_claw(tmp_path, ScriptedProvider([hang]), arguments=STOP_AT_ONCE) as claw:
        asking = asyncio.create_task(ask(claw))
        async with asyncio.timeout(GUARD):
            turn_id = await begun.get()
    async with asyncio.timeout(GUARD):
        with pytest.raises(ProtocolError) as stopped:
            await asking
    assert stopped.value.code == "draining"
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        assert (await outcome(claw, turn_id))["data"]["text"] == "echo: one"


# --- start and stop ---------------------------------------------------------------------------------------


async def test_a_stop_lets_running_turns_end_takes_nothing_new_and_starts_no_waiting_one(
    tmp_path: Path,
) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        running = await send(claw, "one")
        waiting = await send(claw, "two", session_id=running.session_id)
        await eventually(lambda: dictated.requests)
        stopping = asyncio.create_task(claw.mailbox.stop(GUARD))
        await eventually(lambda: claw.mailbox.is_stopped)
        refused = await send(claw, "three")
        assert (refused.status, refused.code) == ("unavailable", "draining")
        dictated.end("first answer")
        await stopping
        assert (await outcome(claw, running.turn_id))["data"]["text"] == "first answer"
        left = claw.turns.get(waiting.turn_id or "")
        assert left is not None and left.outcome is None
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        assert (await outcome(claw, waiting.turn_id))["data"]["text"] == "echo: two"
        assert [entry.message["content"] for entry in await log_of(claw, running.session_id)] == [
            *("one", "first answer", "two", "echo: two")
        ]


async def test_turns_that_were_left_go_on_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([hang]), arguments=STOP_AT_ONCE) as claw:
        receipts = [await send(claw, "0")]
        receipts += [await send(claw, str(n), session_id=receipts[0].session_id) for n in (1, 2)]
    async with running_claw(tmp_path, ScriptedProvider([echo] * 3)) as claw:
        await outcome(claw, receipts[-1].turn_id)
        said = [entry.message["content"] for entry in await log_of(claw, receipts[0].session_id)]
    assert said == ["0", "echo: 0", "1", "echo: 1", "2", "echo: 2"]


async def test_only_turns_of_channels_that_run_go_on(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([hang]), arguments=STOP_AT_ONCE) as claw:
        receipt = await send(claw, "one", channel="ws")
    without = {"gateway.port": None}
    async with running_claw(tmp_path, ScriptedProvider([echo]), arguments=without) as claw:
        assert claw.gateway is None
        await say(claw, "two")
        turn = claw.turns.get(receipt.turn_id or "")
        assert turn is not None and turn.outcome is None
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "echo: one"


async def test_where_it_listens_is_told_while_it_runs(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        assert claw.gateway is not None and claw.web is not None
        found = announced(tmp_path)
        assert found is not None
        assert (found["gateway_port"], found["web_port"]) == (claw.gateway.port, claw.web.port)
        assert found["token"] == TOKEN
    assert announced(tmp_path) is None
    closed = {"gateway.port": None, "web.port": None}
    async with running_claw(tmp_path, ScriptedProvider([]), web=True, arguments=closed):
        found = announced(tmp_path)
        assert found is not None and (found["gateway_port"], found["web_port"]) == (None, None)


async def test_without_a_model_the_demo_answers(tmp_path: Path) -> None:
    async with running_claw(tmp_path) as claw:
        assert claw.provider.info.demo
        assert await say(claw, "37*43 等于多少") == "37*43 = **1591**"


async def test_a_second_one_on_the_same_directory_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path,
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        with pytest.raises(ConfigError, match="Another miniclaw"):
            async with running_claw(tmp_path, ScriptedProvider([])):
                pass
        assert announced(tmp_path) is not None
        assert await say(claw, "still there?") == "echo: still there?"


@pytest.mark.parametrize("which", ["gateway.port", "web.port"])
async def test_a_taken_port_is_refused_and_the_directory_is_free_again(tmp_path: Path, which: str) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(ConfigError, match=str(port)):
            async with running_claw(tmp_path, ScriptedProvider([]), web=True, arguments={which: port}):
                pass
    async with running_claw(tmp_path, ScriptedProvider([echo]), web=True) as claw:
        assert await say(claw) == "echo: go"


async def test_a_data_directory_that_cannot_be_one_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        async with running_claw(tmp_path / "file", ScriptedProvider([])):
            pass


async def test_tools_that_are_added_on_entering_are_there_when_a_former_turn_goes_on(tmp_path: Path) -> None:
    tool = Zap()
    async with running_claw(tmp_path, ScriptedProvider([zap("a")]), arguments=STOP_AT_ONCE) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        await question(claw)
    # A push channel makes the start wait for the disk once more.
    generic = {"channels.generic.secret": "whsec_" + "QUFB" * 8, "channels.generic.user": "monitor"}
    async with running_claw(tmp_path, ScriptedProvider([DONE]), web=True, arguments=generic) as claw:
        claw.registry.register(tool)
        await claw.desk.decide((await question(claw)).approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
    assert tool.ran == ["a"]


# --- parts that run for ever ------------------------------------------------------------------------------


async def test_a_channel_that_breaks_is_told_to_whoever_keeps_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: CLIChannel) -> Inbound:
        raise RuntimeError("the channel is gone")

    monkeypatch.setattr(CLIChannel, "receive", broken)
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        async with asyncio.timeout(GUARD):
            await claw.broken.wait()
        assert await say(claw) == "echo: go"
    assert [r.levelno for r in caplog.records if "a part of the gateway broke" in r.message] == [
        logging.CRITICAL
    ]


async def test_idle_sessions_and_old_keys_are_cleaned_up_also_after_storage_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "HOUSEKEEPING_SECONDS", 0.02)
    clock = FakeClock(START)
    given = {"gateway.port": None, "storage.session_ttl": {"library": 3600.0, "web": 10 * 24 * 3600.0}}
    loaded = load_settings(env={}, data_dir=str(tmp_path), arguments={**given, "gateway.token": TOKEN})
    async with MiniClaw(loaded, provider=ScriptedProvider([echo] * 3), web=False, clock=clock) as claw:
        await say(claw, "one", msg_id="m1")
        ((turn_id,),) = database_of(claw).read("SELECT turn_id FROM turns")
        in_the_way = tmp_path / "traces" / "2020-01-01" / f"{turn_id}.jsonl"
        in_the_way.mkdir(parents=True)  # a file that cannot be removed
        await say(claw, "two", msg_id="m2", channel="web")
        assert (await send(claw, "one", msg_id="m1")).status == "duplicate"
        lock = sqlite3.connect(tmp_path / "miniclaw.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        clock.advance(3 * 24 * 3600.0)
        await eventually(lambda: "put off" in caplog.text)
        lock.execute("ROLLBACK")
        lock.close()
        left: list[str] = []

        async def look() -> None:
            left[:] = [session.channel for session in await claw.sessions.list()]

        async with asyncio.timeout(GUARD):
            while left != ["web"]:
                await look()
                await asyncio.sleep(0.005)
        await eventually(lambda: "cannot be removed" in caplog.text)
        in_the_way.rmdir()
        await eventually(lambda: database_of(claw).read("SELECT COUNT(*) FROM entries") == [(2,)])
        assert (await send(claw, "again", msg_id="m2", channel="web")).status == "accepted"
        assert not claw.broken.is_set()


class ColdProvider(ScriptedProvider):
    def warm_up(self) -> None:
        raise OSError(24, "Too many open files")


async def test_a_client_that_cannot_be_made_ready_ahead_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_claw(tmp_path, ColdProvider([echo])) as claw:
        await eventually(lambda: "could not be made ready" in caplog.text)
        assert (await claw.reply("hi")).text
        assert not claw.broken.is_set()
