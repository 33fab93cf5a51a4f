"""Faults at any moment: cancels, failing storage, clean stops and `kill -9`. No turn is lost, none ends twice."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw import db
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.gateway.command_table import COMMANDS, read_command
from miniclaw.gateway.events import LiveEvent
from miniclaw.gateway.protocol import TERMINAL_EVENTS, CommandPayload, MessageType, Receipt
from miniclaw.session.history import INTERRUPTED
from miniclaw.session.models import Entry
from tests.support.agent import GUARD, Zap, eventually, log_of, outcome, result_in, say, send, zap
from tests.support.claw import TOKEN, running_claw, server_process
from tests.support.client import raw_client
from tests.support.core import make_session, text_message
from tests.support.inside import database_of, mailbox_of
from tests.support.model import FakeModel, Reply, illegal, last_user
from tests.test_webhook_generic import hooked, post

DONE = LLMResponse(text="done")
STOP_AT_ONCE = {"limits.drain_seconds": 0}


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


async def command(claw: MiniClaw, name: str, *, msg_id: str = "c1", **args: Any) -> Receipt:
    payload = {"msg_type": MessageType.COMMAND, "payload": CommandPayload(name=name, args=args)}
    inbound = text_message(user_id="owner", channel="library", msg_id=msg_id)
    return await claw.router.route(inbound.model_copy(update=payload))


async def ticks(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# --- cancels ----------------------------------------------------------------------------------------------

ANSWERS: dict[str, list[Script]] = {
    "text": [LLMResponse(text="hello, here I am")],
    "tool": [LLMResponse(text="look", tool_calls=zap("a").tool_calls), LLMResponse(text="found")],
}


class Cancels:
    """One gateway in which turn after turn is cancelled at another moment."""

    def __init__(self, claw: MiniClaw, provider: ScriptedProvider, kind: str) -> None:
        self._claw = claw
        self._provider = provider
        self._kind = kind

    async def run(self, *moments: int) -> str:
        """Cancel a new turn so many loop ticks after its receipt; how it ended, once all is checked.

        A turn of the kind `waiting` has another one before it, which ends at that moment.
        """
        claw, ends = self._claw, list[LiveEvent]()
        receipt = await self._begin()
        turn_id = receipt.turn_id or ""

        def take(topic: str, event: LiveEvent) -> None:
            if event.name in TERMINAL_EVENTS and event.turn_id == turn_id:
                ends.append(event)

        subscription = claw.bus.subscribe("session.*", take)
        cancels = []
        for wait in moments:
            await ticks(wait)
            cancels.append(asyncio.create_task(claw.commands.cancel(turn_id, "owner")))
        said = await asyncio.gather(*cancels)
        ended = await outcome(claw, turn_id)
        await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})
        await ticks(3)
        subscription.close()
        assert [event.name for event in ends] == [ended["name"]], f"cancelled after {moments} ticks"
        assert (ended["name"] == "turn.cancelled") == any(said)
        log = await log_of(claw, receipt.session_id)
        assert illegal([entry.message for entry in log]) is None
        self._provider._script[:] = [echo]
        assert await say(claw, "and now?", session_id=receipt.session_id) == "echo: and now?"
        assert illegal(self._provider.requests[-1]) is None
        runner = claw.runner
        assert (runner._cancelled, runner._attempts, runner._progress) == (set(), {}, {})
        assert claw.live.all() == []
        return str(ended["name"])

    async def _begin(self) -> Receipt:
        if self._kind != "waiting":
            self._provider._script[:] = ANSWERS[self._kind]
            return await send(self._claw, "go")
        go = asyncio.Event()

        async def wait(messages: list[Message]) -> LLMResponse:
            await go.wait()
            return await echo(messages)

        self._provider._script[:] = [wait, *ANSWERS["text"]]
        first = await send(self._claw, "first")
        await eventually(lambda: self._provider._script == ANSWERS["text"])
        receipt = await send(self._claw, "go", session_id=first.session_id)
        go.set()
        return receipt


@asynccontextmanager
async def cancelling(tmp_path: Path, kind: str) -> AsyncIterator[Cancels]:
    provider = ScriptedProvider([])
    async with running_claw(tmp_path, provider) as claw:
        claw.registry.register(Zap("read"))
        yield Cancels(claw, provider, kind)


@pytest.mark.parametrize("kind", [*ANSWERS, "waiting"])
async def test_a_cancel_at_every_moment_from_receipt_to_end_gives_exactly_one_end(
    tmp_path: Path, kind: str
) -> None:
    async with cancelling(tmp_path, kind) as cancels:
        ends: list[str] = []
        # Goes on until the cancel has come too late a few times, so the moment of the commit was among them.
        # Later moments lie further apart: how often the loop turns while a thread reads is the machine's.
        while ends[-5:] != ["turn.finished"] * 5:
            number = len(ends)
            ends.append(await cancels.run(number if number < 60 else int(60 * 1.2 ** (number - 60))))
            assert number < 120
    assert ends.count("turn.cancelled") >= 5


@pytest.mark.parametrize("kind", ["tool", "waiting"])
@pytest.mark.parametrize("apart", [0, 1, 2])
async def test_two_cancels_at_any_moments_give_exactly_one_end(tmp_path: Path, kind: str, apart: int) -> None:
    async with cancelling(tmp_path, kind) as cancels:
        ends = {await cancels.run(moment, apart) for moment in range(0, 30, 2 if apart else 1)}
    assert "turn.cancelled" in ends and ends <= {"turn.cancelled", "turn.finished"}


@pytest.mark.parametrize("wait", range(6))
async def test_memory_and_database_agree_after_a_cancel_during_the_append_of_a_result(
    tmp_path: Path, wait: int
) -> None:
    """The cancel is committed before, with and behind the result, which is in both logs or in none."""
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), echo, echo])) as claw:
        cancels: list[asyncio.Task[bool]] = []

        async def cancelled_meanwhile() -> str:
            (turn,) = mailbox_of(claw)._current.values()
            cancels.append(asyncio.create_task(claw.commands.cancel(turn.turn_id, "owner")))
            await ticks(wait)
            return "seen"

        claw.registry.register(Zap("read", cancelled_meanwhile))
        receipt = await send(claw, "one")
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
        assert await cancels[0]
        said = [entry.message["content"] for entry in await log_of(claw, receipt.session_id)]
        assert said[2] in ("seen", INTERRUPTED) and len(said) == 4
        await say(claw, "two", session_id=receipt.session_id)
        assert len(await log_of(claw, receipt.session_id)) == 6


async def test_a_cancel_while_a_long_log_is_loaded_ends_the_turn_without_the_model(tmp_path: Path) -> None:
    async def hang(messages: list[Message]) -> LLMResponse:
        await asyncio.Event().wait()
        return DONE

    async with running_claw(tmp_path, ScriptedProvider([hang] * 20)) as claw:
        for moment in range(20):
            session_id = f"ses_{moment}"
            await claw.sessions.storage.save(make_session(session_id, user_id="owner", channel="library"))
            entries = [Entry(f"t{n}", 0, {"role": "user", "content": "x"}) for n in range(300)]
            await claw.sessions.storage.append(session_id, entries)
            receipt = await send(claw, "go", session_id=session_id)
            await ticks(moment)
            assert await claw.commands.cancel(receipt.turn_id or "", "owner")
            assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
            await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})
        assert claw.runner._cancelled == set()


async def test_a_cancel_that_was_committed_before_a_crash_ends_the_turn_after_the_restart(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()
    tool = Zap("read", never.wait)
    async with running_claw(tmp_path, ScriptedProvider([zap("a")]), arguments=STOP_AT_ONCE) as claw:
        claw.registry.register(tool)
        receipt = await send(claw, "go")
        await eventually(lambda: tool.ran)
        await claw.mailbox.stop(0)
        assert await claw.turns.request_cancel(receipt.turn_id or "")
    provider = ScriptedProvider([echo])
    async with running_claw(tmp_path, provider) as claw:
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
        log = await log_of(claw, receipt.session_id)
        assert [entry.message["content"] for entry in log] == ["go", None, INTERRUPTED]
        assert provider.requests == []
        assert await say(claw, "next", session_id=receipt.session_id) == "echo: next"
    assert illegal(provider.requests[0]) is None


async def test_cancelling_a_waiting_turn_leaves_the_running_one_its_feed_and_phase(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def wait(messages: list[Message]) -> LLMResponse:
        await go.wait()
        return await echo(messages)

    provider = ScriptedProvider([wait])
    async with running_claw(tmp_path, provider) as claw:
        running = await send(claw, "one")
        session_id = running.session_id or ""
        await eventually(lambda: provider.requests)
        feed = claw.live.get(session_id)
        phases: list[str] = []
        ends: list[str] = []
        claw.bus.subscribe(
            "user.owner", lambda topic, frame: phases.append(json.loads(frame)["payload"]["data"]["phase"])
        )
        claw.bus.subscribe(
            f"session.{session_id}", lambda topic, event: ends.append(f"{event.name} {event.turn_id}")
        )
        waiting = await send(claw, "two", session_id=session_id)
        assert await claw.commands.cancel(waiting.turn_id or "", "owner")
        assert claw.live.get(session_id) is feed and feed is not None
        assert (phases, await claw.commands.sessions.phase(session_id)) == ([], "running")
        assert f"turn.cancelled {waiting.turn_id}" in ends
        go.set()
        assert (await outcome(claw, running.turn_id))["data"]["text"] == "echo: one"
        await eventually(lambda: phases == ["idle"])


async def test_cancel_with_nothing_running_is_fine(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        receipt = await command(claw, "cancel")
        assert (receipt.status, receipt.result) == ("answered", {"turn_id": None, "cancelled": False})
        sent = await send(claw)
        await outcome(claw, sent.turn_id)
        for number, args in enumerate([{"turn_id": sent.turn_id}, {"session_id": sent.session_id}]):
            receipt = await command(claw, "cancel", msg_id=f"c{number + 2}", **args)
            assert receipt.result is not None and receipt.result["cancelled"] is False
        assert (await command(claw, "cancel", msg_id="c9", turn_id="turn_no")).code == "turn_not_found"


# --- storage ----------------------------------------------------------------------------------------------


class Lock:
    """Another program that holds the database, so that every commit fails until it lets go."""

    def __init__(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._path = tmp_path / "miniclaw.db"
        self._caplog = caplog
        self._held: sqlite3.Connection | None = None

    def take(self) -> None:
        self._held = sqlite3.connect(self._path, isolation_level=None)
        self._held.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        assert self._held is not None
        self._held.execute("ROLLBACK")
        self._held.close()

    async def release_after(self, failures: int) -> None:
        """Let go once so many commits have failed."""
        await eventually(lambda: self._caplog.text.count("storage is down") >= failures)
        self.release()


@pytest.fixture
def lock(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Lock:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 0)
    return Lock(tmp_path, caplog)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_turn_whose_beginning_cannot_be_stored_is_answered_once_it_can(
    tmp_path: Path, lock: Lock, failures: int
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        claw.bus.subscribe("message.inbound", lambda topic, turn: lock.take())
        receipt = await send(claw, "one")
        assert receipt.status == "accepted"
        await lock.release_after(failures)
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "echo: one"
        assert len(await log_of(claw, receipt.session_id)) == 2
        await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})


async def test_a_result_that_waits_for_storage_keeps_its_place_before_those_that_come_later(
    tmp_path: Path, lock: Lock
) -> None:
    async def first() -> str:
        lock.take()
        return "first"

    async def second() -> str:
        await lock.release_after(2)  # the first one sleeps until its next try
        return "second"

    calls = (ToolCall.of("c1", "first", {"at": "1"}), ToolCall.of("c2", "second", {"at": "2"}))
    provider = ScriptedProvider([LLMResponse(tool_calls=calls, finish="tool_calls"), echo])
    async with running_claw(tmp_path, provider) as claw:
        for name, run in (("first", first), ("second", second)):
            claw.registry.register(Zap("read", run, name=name))
        receipt = await send(claw, "one")
        await outcome(claw, receipt.turn_id)
        steps = await log_of(claw, receipt.session_id)
    assert [(entry.step, entry.message["role"]) for entry in steps] == [
        *((0, "user"), (1, "assistant"), (2, "tool"), (3, "tool"), (4, "assistant"))
    ]
    assert illegal(provider.requests[-1]) is None


@pytest.mark.parametrize("stage", ["begin", "mark_started"])
async def test_the_first_entry_and_the_mark_of_a_write_wait_for_storage(
    tmp_path: Path, lock: Lock, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_claw(
        tmp_path, ScriptedProvider([zap("a"), echo]), arguments={"approval.allow": ["zap"]}
    ) as claw:
        tool = Zap("write")
        claw.registry.register(tool)
        real = getattr(claw.turns, stage)

        moments = [lock.take]

        async def held(*given: Any, **named: Any) -> Any:
            if stage == "begin":
                begun = await real(*given, **named)
            for take in moments:
                moments.clear()
                take()
            return begun if stage == "begin" else await real(*given, **named)

        monkeypatch.setattr(claw.turns, stage, held)
        receipt = await send(claw, "one")
        await lock.release_after(2)
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.finished"
        assert len(await log_of(claw, receipt.session_id)) == 4 and tool.ran == ["a"]


@pytest.mark.parametrize("failures", [1, 3])
async def test_an_answer_whose_end_cannot_be_stored_is_neither_lost_nor_asked_for_again(
    tmp_path: Path, lock: Lock, failures: int
) -> None:
    async def answer(messages: list[Message]) -> LLMResponse:
        lock.take()
        return await echo(messages)

    provider = ScriptedProvider([answer])
    async with running_claw(tmp_path, provider) as claw:
        ends: list[str] = []
        claw.bus.subscribe(
            "session.*",
            lambda topic, event: ends.append(event.name) if event.name in TERMINAL_EVENTS else None,
        )
        receipt = await send(claw, "one")
        await eventually(lambda: provider.requests)
        assert ends == []
        await lock.release_after(failures)
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "echo: one"
        await eventually(lambda: ends)
        assert (ends, len(provider.requests)) == (["turn.finished"], 1)
        assert len(await log_of(claw, receipt.session_id)) == 2


async def test_a_cancel_while_the_end_cannot_be_stored_is_answered_and_the_turn_ends_once(
    tmp_path: Path, lock: Lock
) -> None:
    async def answer(messages: list[Message]) -> LLMResponse:
        lock.take()
        return await echo(messages)

    async with running_claw(tmp_path, ScriptedProvider([answer])) as claw:
        receipt = await send(claw, "one")
        await eventually(lambda: "storage is down" in lock._caplog.text)
        assert (await command(claw, "cancel", turn_id=receipt.turn_id)).code == "storage_unavailable"
        lock.release()
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.finished"
        assert len(await log_of(claw, receipt.session_id)) == 2


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_step_that_cannot_be_stored_is_waited_for_until_a_cancel(
    tmp_path: Path, lock: Lock, is_cancelled: bool
) -> None:
    async def act() -> str:
        lock.take()
        return "done"

    provider = ScriptedProvider([zap("a"), echo])
    async with running_claw(tmp_path, provider) as claw:
        tool = Zap("read", act)
        claw.registry.register(tool)
        receipt = await send(claw, "one")
        await lock.release_after(4 if is_cancelled else 1)
        if is_cancelled:
            assert await claw.commands.cancel(receipt.turn_id or "", "owner")
        ended = await outcome(claw, receipt.turn_id)
        log = await log_of(claw, receipt.session_id)
        said = [entry.message["content"] for entry in log]
        if is_cancelled:
            assert (ended["name"], said[:3]) == ("turn.cancelled", ["one", None, INTERRUPTED])
        else:
            assert (ended["name"], said) == ("turn.finished", ["one", None, "done", "echo: one"])
        provider._script[:] = [echo]
        assert tool.ran == ["a"]
        assert await say(claw, "two", session_id=receipt.session_id) == "echo: two"
    assert illegal(provider.requests[-1]) is None


async def test_a_message_that_cannot_be_stored_is_refused_and_leaves_its_place(
    tmp_path: Path, lock: Lock
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        lock.take()
        receipt = await send(claw, "one", msg_id="m1")
        assert (receipt.status, receipt.code) == ("unavailable", "storage_unavailable")
        assert (await command(claw, "new")).code == "storage_unavailable"
        lock.release()
        assert claw.mailbox.load == {"running": 0, "waiting": 0}
        again = await send(claw, "one", msg_id="m1")
        assert again.status == "accepted", "a message that was refused claimed its id"
        await outcome(claw, again.turn_id)


async def test_a_message_for_which_the_disk_is_too_full_is_refused_and_leaves_its_place(
    tmp_path: Path,
) -> None:
    """The commit fails behind the point at which a place was taken."""
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        pages = await database_of(claw).write(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
        await database_of(claw).write(lambda c: c.execute(f"PRAGMA max_page_count={pages}").fetchall())
        for number in range(3):
            receipt = await send(claw, "x" * 100_000, msg_id=f"m{number}")
            assert (receipt.status, receipt.code) == ("unavailable", "storage_unavailable")
        assert claw.mailbox.load == {"running": 0, "waiting": 0}
        await database_of(claw).write(lambda c: c.execute("PRAGMA max_page_count=1000000").fetchall())
        assert (await say(claw, "x" * 100_000, msg_id="m1")).startswith("echo: x")


async def test_a_message_refused_for_its_envelope_gives_its_place_back(tmp_path: Path) -> None:
    limits = {"limits.waiting": 2, "limits.waiting_per_session": 1}
    async with hooked(tmp_path, [echo], **limits) as (claw, http, url):
        for number in range(4):
            for name in ("sender", "session"):
                body = {"text": "x", name: "\ud800"}
                status, answer = await post(http, url, body, message_id=f"{name}{number}")
                assert (status, answer) in [(400, None), (400, {"status": "bad_message"})]
        assert claw.mailbox.load == {"running": 0, "waiting": 0}
        assert not mailbox_of(claw)._reserved
        status, answer = await post(http, url, {"text": "good", "sender": "s"}, message_id="m")
        assert status == 202
        assert (await outcome(claw, answer["turn_id"]))["data"]["text"] == "echo: good"


async def test_with_one_loaded_session_two_that_are_in_use_keep_their_histories(tmp_path: Path) -> None:
    """Whoever looks at a session while its turn runs must see the object that the turn appends to."""
    go = asyncio.Event()

    async def wait(messages: list[Message]) -> LLMResponse:
        await go.wait()
        return await echo(messages)

    async def asked(count: int) -> None:
        await eventually(lambda: len(provider.requests) == count)

    provider = ScriptedProvider([wait] * 6)
    async with running_claw(tmp_path, provider, arguments={"storage.loaded_sessions": 1}) as claw:
        sessions: dict[int, str | None] = {0: None, 1: None}
        for turn, order in enumerate([(0, 1), (1, 0), (0, 1)]):
            go.clear()
            receipts = {w: await send(claw, f"{w}{turn}", session_id=sessions[w]) for w in order}
            await asked(2 * turn + 2)
            sessions = {who: receipt.session_id for who, receipt in receipts.items()}
            for session_id in sessions.values():
                await command(claw, "seen", msg_id=f"{turn}{session_id}", session_id=session_id)
            go.set()
            for receipt in receipts.values():
                await outcome(claw, receipt.turn_id)
            for request in provider.requests[-2:]:
                assert len(request) == 2 + 2 * turn, "the model did not see what was said before"
        for who, session_id in sessions.items():
            said = [entry.message["content"] for entry in await log_of(claw, session_id)]
            assert said == [text for turn in range(3) for text in (f"{who}{turn}", f"echo: {who}{turn}")]


# --- commands ---------------------------------------------------------------------------------------------


async def test_the_same_new_twice_at_once_makes_one_session(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        receipts = await asyncio.gather(*(command(claw, "new", msg_id="same") for _ in range(5)))
        assert len({receipt.session_id for receipt in receipts}) == 1
        assert len(await claw.sessions.list("owner")) == 1


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("nonsense", {}, "unknown_command"),
        ("ping", {"x": 1}, "bad_arguments"),
        ("approve", {}, "approval_not_found"),
        ("approve", {"approval_id": "apr_x", "scope": "do"}, "bad_arguments"),
        ("history", {"limit": 0}, "bad_arguments"),
        ("resume", {"after_seq": -1}, "bad_arguments"),
        ("remember", {"content": " "}, "bad_arguments"),
        ("remember", {"content": ""}, "bad_arguments"),
        ("forget", {"memory_id": "../x"}, "bad_arguments"),
        ("compact", {}, "bad_arguments"),
        ("deny", {"approval_id": "apr_x"}, "approval_not_found"),
        ("forget", {"memory_id": "mem_0123456789ab"}, "not_found"),
        ("resume", {}, "session_not_found"),
    ],
)
async def test_a_command_that_cannot_be_done_is_refused_with_its_code(
    tmp_path: Path, name: str, args: dict[str, Any], code: str
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        receipt = await command(claw, name, **args)
        assert (receipt.status, receipt.code) == ("refused", code)
        assert receipt.message.endswith(".")
        assert (await command(claw, "ping", msg_id="p")).status == "answered"


async def test_words_behind_approve_break_no_connection(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo] * 2), web=True) as claw:
        assert claw.web is not None
        url = f"http://127.0.0.1:{claw.web.port}/ws?token={TOKEN}"
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(url) as socket,
            http.ws_connect(url) as other,
        ):
            texts = {
                "/approve don't do it": "approval_not_found",
                "/approve abc": "approval_not_found",
                "/deny": "approval_not_found",
            }
            for text, code in texts.items():
                msg_id = f"m{len(text)}"
                await socket.send_json({"msg_id": msg_id, "msg_type": "text", "payload": {"text": text}})
                frame = await socket.receive_json(timeout=GUARD)
                assert (frame["payload"]["code"], frame["payload"]["reply_to"]) == (code, msg_id)
            for number, each in enumerate((socket, other)):
                await each.send_json(
                    {"msg_id": f"x{number}", "msg_type": "text", "payload": {"text": "hello"}}
                )
                while "turn.finished" not in (await each.receive(GUARD)).data:
                    pass


NAMES = st.sampled_from([*COMMANDS, "Approve", "nothing", ""])
WORDS = st.text(st.characters() | st.sampled_from(" \n\t'\"\\/"), max_size=20)


@given(st.sampled_from(["/", "!", "//", ""]), NAMES, st.sampled_from([" ", "\n", "\t", "", "  "]), WORDS)
def test_every_typed_text_is_one_of_our_commands_or_none(mark: str, name: str, gap: str, rest: str) -> None:
    read = read_command(mark + name + gap + rest)
    if read is not None:
        assert read.name in COMMANDS and mark in ("/", "!")
        assert set(read.args) <= set(COMMANDS[read.name].args.model_fields)
        assert all(isinstance(value, str) and value for value in read.args.values())
    elif mark in ("/", "!") and name in COMMANDS:
        assert not gap, "a command's name stood alone and was not taken"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("/approve abc123", {"approval_id": "abc123"}),
        ("!approve abc123 always", {"approval_id": "abc123", "scope": "always"}),
        ("/approve  abc123   session  ", {"approval_id": "abc123", "scope": "session"}),
        ("/approve always", {"scope": "always"}),
        ("/approve abc123 name=Ann B", {"approval_id": "abc123", "answer": "name=Ann B"}),
        ("/approve name=Ann B", {"answer": "name=Ann B"}),
        ("/remember I like\ntea ", {"content": "I like\ntea"}),
        ("/remember\nI like tea", {"content": "I like tea"}),
        ("/ping and more", {}),
        ("/clear\n", {}),
        ("/resume", {}),
    ],
)
def test_typed_words_become_arguments(text: str, args: dict[str, str]) -> None:
    read = read_command(text)
    assert read is not None and read.args == args


# --- stops and kills --------------------------------------------------------------------------------------


async def test_three_clean_stops_do_not_count_as_tries_and_the_turn_is_answered(tmp_path: Path) -> None:
    asked = asyncio.Semaphore(0)

    async def hang(messages: list[Message]) -> LLMResponse:
        asked.release()
        await asyncio.Event().wait()
        return DONE

    receipt: Receipt | None = None
    for _ in range(4):
        async with running_claw(tmp_path, ScriptedProvider([hang]), arguments=STOP_AT_ONCE) as claw:
            receipt = receipt or await send(claw, "a long job")
            async with asyncio.timeout(GUARD):
                await asked.acquire()
    assert receipt is not None
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "echo: a long job"
        turn = claw.turns.get(receipt.turn_id or "")
        assert turn is not None and (turn.attempt, turn.tries) == (5, 1)


async def test_a_turn_whose_process_is_killed_three_times_is_given_up_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    asked, never = asyncio.Semaphore(0), asyncio.Event()

    def script(messages: list[Message], number: int) -> Reply:
        asked.release()
        return {
            "text": f"echo: {last_user(messages)}",
            **({} if last_user(messages) == "good" else {"hold": never}),
        }

    async with FakeModel(script) as model:
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "fake-chat"}
        async with server_process(tmp_path, env=env) as server:
            async with raw_client(server.gateway_port) as client:
                receipt = await client.receipt(await client.send("text", {"text": "poison"}))
            for _ in range(3):
                async with asyncio.timeout(GUARD):
                    await asked.acquire()
                await server.kill()
                await server.start()
            async with raw_client(server.gateway_port) as client:
                args = {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}
                await client.command("resume", args)
                end = await client.end(receipt["turn_id"])
                assert (end["name"], end["data"]["code"], end["attempt"]) == ("turn.failed", "abandoned", 4)
                good = await client.say("good", session_id=receipt["session_id"])
                assert good["data"]["text"] == "echo: good"
        never.set()
        assert len(model.requests) == 4
        assert model.refused == []


LAUNCH = """
import asyncio, os, sys
from pathlib import Path
from miniclaw.app import MiniClaw
from miniclaw.config import load_settings
from miniclaw.tools import tool

marker = Path(sys.argv[2])

@tool(risk="write")
async def launch(at: str) -> str:
    "Launch something that cannot be taken back."
    with marker.open("a", encoding="utf-8") as file:
        file.write(at + "\\n")
    print("launched", file=sys.__stdout__, flush=True)  # what tools print goes to stderr
    await asyncio.Event().wait()
    return "never"

async def main() -> None:
    arguments = {"gateway.port": 0, "gateway.token": "test-token", "approval.allow": ("launch",)}
    loaded = load_settings(env=dict(os.environ), data_dir=sys.argv[1], arguments=arguments)
    async with MiniClaw(loaded, web=False) as claw:
        claw.registry.register(launch)
        print(claw.gateway.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def program(tmp_path: Path, model: FakeModel) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that embeds the gateway with a tool of its own; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LAUNCH, str(tmp_path / "data"), str(tmp_path / "launched")),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "fake-chat"},
    )
    try:
        yield process
    finally:
        process.kill()
        await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(GUARD):
        return (await process.stdout.readline()).decode().strip()


async def test_a_write_that_ran_when_the_process_was_killed_does_not_run_again_and_the_model_is_told(
    tmp_path: Path,
) -> None:
    """Invariant 6, with a real process and a tool that leaves a mark at each run."""

    def script(messages: list[Message], number: int) -> Reply:
        if number == 1:
            return {"calls": [("launch", {"at": "noon"})]}
        return {"text": f"the tool said: {result_in(messages)}"}

    async with FakeModel(script) as model:
        async with program(tmp_path, model) as process:
            async with raw_client(int(await line_of(process))) as client:
                receipt = await client.receipt(await client.send("text", {"text": "launch it"}))
            assert await line_of(process) == "launched"
        async with program(tmp_path, model) as process:
            async with raw_client(int(await line_of(process))) as client:
                args = {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}
                await client.command("resume", args)
                end = await client.end(receipt["turn_id"])
                assert end["name"] == "turn.finished"
                assert INTERRUPTED in end["data"]["text"]
                page = await client.command("history", {"session_id": receipt["session_id"]})
        assert (tmp_path / "launched").read_text(encoding="utf-8") == "noon\n"
        assert [m["role"] for m in page["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert model.refused == [] and len(model.requests) == 2
