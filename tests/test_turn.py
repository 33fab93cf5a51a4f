"""One turn in a whole gateway: what it stores, what readers are shown, how it ends, how it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.budget import Stop
from miniclaw.agent.progress import Pause
from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ToolCall
from miniclaw.agent.replies import is_chinese, limit_sentence, stopped_note
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.agent.transcript import pending_calls
from miniclaw.app import MiniClaw
from miniclaw.errors import ModelError, StorageError
from miniclaw.gateway.events import LiveEvent
from miniclaw.gateway.protocol import CommandPayload, MessageType
from miniclaw.session.history import INTERRUPTED
from miniclaw.session.models import Entry, Session, Usage
from miniclaw.session.sqlite import SQLiteStorage
from tests.support.agent import (
    DictatedProvider,
    Zap,
    eventually,
    log_of,
    outcome,
    question,
    result_in,
    say,
    send,
    zap,
)
from tests.support.claw import running_claw
from tests.support.core import text_message
from tests.support.inside import database_of
from tests.support.model import illegal, last_user

DONE = LLMResponse(text="done")


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}", usage=Usage(model="m", input_tokens=5, calls=1))


async def hang(messages: list[Message]) -> LLMResponse:
    await asyncio.Event().wait()
    return DONE


def watch(claw: MiniClaw) -> list[LiveEvent]:
    """Every live event from now on."""
    events: list[LiveEvent] = []
    claw.bus.subscribe("session.*", lambda topic, event: events.append(event))
    return events


def told(entries: Sequence[Entry]) -> list[tuple[str, Any]]:
    return [(entry.message["role"], entry.message["content"]) for entry in entries]


# --- how it ends ------------------------------------------------------------------------------------------


async def test_an_end_tells_what_the_turn_used_and_the_log_holds_question_and_answer(tmp_path: Path) -> None:
    save = ToolCall.of("c1", "memory_save", {"content": "the owner likes tea"})
    usage = Usage(model="m", input_tokens=2, output_tokens=1, calls=1)
    script: list[Script] = [
        LLMResponse(tool_calls=(save,), usage=usage, text="noted, ", reasoning="save it"),
        LLMResponse(text="I will remember", usage=usage, reasoning="done now"),
    ]
    async with running_claw(tmp_path, ScriptedProvider(script)) as claw:
        known = await claw.memory.save("owner", "tea is drunk from cups", source="user")
        receipt = await send(claw, "I like tea\nvery much")
        data = (await outcome(claw, receipt.turn_id))["data"]
        log = await log_of(claw, receipt.session_id)
        session = await claw.sessions.get(receipt.session_id or "")
        assert session is not None and session.title == "I like tea"
    assert data["text"] == "I will remember"
    assert data["usage"] == Usage(model="m", input_tokens=4, output_tokens=2, calls=2, cost=None).to_dict()
    assert [(tool["name"], tool["call_id"], tool["ok"]) for tool in data["tools"]] == [
        ("memory_save", "c1", True)
    ]
    assert data["used_memories"] == [{"memory_id": known.memory_id, "category": "fact"}], (
        "words are kept in memory alone"
    )
    (saved,) = data["saved_memories"]
    assert saved.startswith("mem_") and "stopped_by" not in data
    assert [entry.message["role"] for entry in log] == ["user", "assistant", "tool", "assistant"]
    assert [entry.step for entry in log] == [0, 1, 2, 3]
    assert (log[1].meta or {})["reasoning"] == "save it" and log[3].meta == {"reasoning": "done now"}


async def test_recalled_memories_are_in_the_prompt_and_a_groups_prompt_never_holds_a_persons(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider([echo] * 2)
    async with running_claw(tmp_path, provider) as claw:
        await claw.memory.save("owner", "the secret garden is in Hangzhou", source="user")
        await say(claw, "where is the secret garden?")
        group: dict[str, Any] = {"channel": "chat", "conversation": "team", "direct": False}
        receipt = await send(claw, "where is the secret garden?", **group)
        ended = await outcome(claw, receipt.turn_id)
    assert "Hangzhou" in provider.requests[0][0]["content"]
    assert "Hangzhou" not in provider.requests[1][0]["content"]
    assert ended["data"]["used_memories"] == []


async def test_a_turn_that_fails_says_why_keeps_the_question_and_the_next_one_goes_well(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider([ModelError("model_quota", "No quota left; top it up."), echo])
    async with running_claw(tmp_path, provider) as claw:
        receipt = await send(claw, "one")
        ended = await outcome(claw, receipt.turn_id)
        assert ended["name"] == "turn.failed"
        assert ended["data"] == {"code": "model_quota", "message": "No quota left; top it up."}
        await say(claw, "two", session_id=receipt.session_id)
        assert told(await log_of(claw, receipt.session_id)) == [
            ("user", "one"),
            ("user", "two"),
            ("assistant", "echo: two"),
        ]
    assert [message["content"] for message in provider.requests[1][1:]] == ["one", "two"]


@pytest.mark.parametrize("broken", [RuntimeError("oops"), asyncio.CancelledError(), TimeoutError()], ids=repr)
async def test_whatever_breaks_in_a_turn_ends_that_turn_and_nothing_else(
    tmp_path: Path, broken: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(messages: list[Message]) -> LLMResponse:
        raise broken

    with caplog.at_level(logging.CRITICAL):
        async with running_claw(tmp_path, ScriptedProvider([breaks, echo])) as claw:
            receipt = await send(claw, "one")
            ended = await outcome(claw, receipt.turn_id)
            assert (ended["name"], ended["data"]["code"]) == ("turn.failed", "internal")
            assert "oops" not in ended["data"]["message"]
            assert await say(claw, "two", session_id=receipt.session_id) == "echo: two"


async def test_text_that_was_shown_before_a_failure_is_not_kept_as_an_answer(tmp_path: Path) -> None:
    class Cut(ScriptedProvider):
        async def stream(
            self, messages: Sequence[Message], tools: Sequence[Message] | None = None
        ) -> AsyncIterator[LLMChunk]:
            yield LLMChunk("half", "a thought")
            raise ModelError("model_unreachable", "It was cut.", retryable=True)

    async with running_claw(tmp_path, Cut([])) as claw:
        events = watch(claw)
        receipt = await send(claw, "one")
        await outcome(claw, receipt.turn_id)
        assert told(await log_of(claw, receipt.session_id)) == [("user", "one")]
    assert [event.name for event in events] == [
        "turn.started",
        "text.delta",
        "reasoning.delta",
        "turn.failed",
    ]


@pytest.mark.parametrize(
    ("arguments", "script", "stopped_by"),
    [
        ({"agent.max_iterations": 1}, [zap("a")], "iterations"),
        ({"agent.max_tool_calls": 1}, [zap("a"), zap("b", call_id="c2")], "tool_calls"),
        ({"agent.turn_timeout": 0.5}, [zap("a"), hang], "seconds"),
    ],
)
async def test_a_limit_ends_the_turn_with_a_stored_sentence_that_says_which_and_what_is_known(
    tmp_path: Path, arguments: dict[str, Any], script: list[Script], stopped_by: str
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([*script]), arguments=arguments) as claw:
        claw.registry.register(Zap("read"))
        receipt = await send(claw, "拉一下")
        data = (await outcome(claw, receipt.turn_id))["data"]
        log = await log_of(claw, receipt.session_id)
    assert data["stopped_by"] == stopped_by
    assert data["text"].startswith("这一轮没有做完：") and data["text"].endswith("：zapped a")
    assert (log[-1].message["content"], log[-1].meta) == (data["text"], {"stopped_by": stopped_by})
    assert illegal([entry.message for entry in log]) is None


async def test_the_time_that_a_person_takes_to_answer_is_not_the_turns(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    arguments = {"agent.turn_timeout": 0.3}
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), DONE]), arguments=arguments) as claw:
        claw.registry.register(Zap())
        receipt = await send(claw)
        asked = await question(claw)
        late = loop.time() + 0.35
        await eventually(lambda: loop.time() > late)
        await claw.desk.decide(asked.approval_id, "owner", "once")
        assert "stopped_by" not in (await outcome(claw, receipt.turn_id))["data"]


async def test_a_pause_stops_the_clock_and_gives_what_was_left_back() -> None:
    shown: list[str] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(100) as timer:
        pause = Pause(timer, shown.append)
        pause(False)
        before = timer.when()
        pause(True)
        assert timer.when() is None
        pause(True)
        pause(False)
        after = timer.when()
        assert before is not None and after is not None and before <= after <= loop.time() + 100
    assert shown == ["running", "waiting_approval", "waiting_approval", "running"]


async def test_a_cancelled_answer_keeps_what_was_shown_and_says_that_it_was_stopped(tmp_path: Path) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        events = watch(claw)
        receipt = await send(claw, "tell me")
        dictated.say("Once upon ")
        await eventually(lambda: [event for event in events if event.name == "text.delta"])
        assert await claw.commands.cancel(receipt.turn_id or "", "owner") is True
        ended = await outcome(claw, receipt.turn_id)
        assert (ended["name"], ended["data"]["text"]) == ("turn.cancelled", "Once upon")
        used = ended["data"]["usage"]
        assert used["calls"] == 1 and used["input_tokens"] > 0, "what was sent is billed, cancelled or not"
        log = await log_of(claw, receipt.session_id)
        assert told(log)[1] == ("assistant", "Once upon\n\n" + stopped_note("tell me"))
        assert log[1].meta == {"cancelled": True, "shown": "Once upon"}


async def test_a_call_that_a_cancel_interrupted_gets_a_result_that_says_so(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), echo])) as claw:
        tool = Zap("read", never.wait)
        claw.registry.register(tool)
        receipt = await send(claw, "one")
        await eventually(lambda: tool.ran)
        await claw.commands.cancel(receipt.turn_id or "", "owner")
        await outcome(claw, receipt.turn_id)
        log = await log_of(claw, receipt.session_id)
        assert told(log) == [
            ("user", "one"),
            ("assistant", None),
            ("tool", INTERRUPTED),
            ("assistant", stopped_note("one")),
        ]
        assert await say(claw, "two", session_id=receipt.session_id) == "echo: two"


async def test_a_queued_command_that_is_cancelled_while_it_waits_is_answered_by_an_error(
    tmp_path: Path,
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([hang])) as claw:
        receipt = await send(claw, "one")
        events = watch(claw)
        await eventually(lambda: claw.live.get(receipt.session_id or ""))
        command = {"msg_type": MessageType.COMMAND, "payload": CommandPayload(name="clear")}
        inbound = text_message(user_id="owner", channel="library", msg_id="c1", session_id=receipt.session_id)
        queued = await claw.router.route(inbound.model_copy(update=command))
        assert queued.status == "accepted"
        await claw.commands.cancel(queued.turn_id or "", "owner")
        (error,) = [event for event in events if event.name == "error"]
        assert (error.data["code"], error.data["reply_to"]) == ("unsupported", "c1")
        await claw.commands.cancel(receipt.turn_id or "", "owner")
        await outcome(claw, receipt.turn_id)


async def test_a_turn_whose_session_was_deleted_is_dropped_quietly(tmp_path: Path) -> None:
    provider = ScriptedProvider([hang, echo])
    async with running_claw(tmp_path, provider, arguments={"limits.running": 1}) as claw:
        first = await send(claw, "one")
        await eventually(lambda: provider.requests)
        second = await send(claw, "two")
        await claw.sessions.delete(second.session_id or "")
        await claw.commands.cancel(first.turn_id or "", "owner")
        await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})
        assert claw.turns.get(second.turn_id or "") is None
        assert await say(claw, "three") == "echo: three"


class Damaged(SQLiteStorage):
    """A back end that cannot read sessions."""

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        raise StorageError("The database cannot be read: database disk image is malformed.")


async def test_a_turn_whose_session_cannot_be_read_fails_and_says_so(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([hang]), arguments={"limits.running": 1}) as claw:
        first = await send(claw, "one")
        second = await send(claw, "two")
        events = watch(claw)
        claw.sessions.storage = Damaged(database_of(claw))
        claw.sessions._forget(second.session_id or "")
        await claw.commands.cancel(first.turn_id or "", "owner")
        await outcome(claw, second.turn_id)
        assert events[-1].name == "turn.failed" and "damaged" in events[-1].data["message"]


# --- how it goes on ---------------------------------------------------------------------------------------


async def test_a_call_that_has_the_id_of_one_that_a_sub_task_began_is_another_call(tmp_path: Path) -> None:
    """Else a write that never ran would be reported as interrupted."""
    stop = {"limits.drain_seconds": 0}
    async with running_claw(tmp_path, ScriptedProvider([hang]), arguments=stop) as claw:
        receipt = await send(claw)
        await eventually(lambda: claw.mailbox.load["running"])
        await claw.turns.mark_started(receipt.turn_id or "", "c1", fence=database_of(claw).epoch)
    tool = Zap("write")
    async with running_claw(
        tmp_path, ScriptedProvider([zap("a"), DONE]), arguments=stop | {"approval.allow": ("zap",)}
    ) as claw:
        claw.registry.register(tool)
        await outcome(claw, receipt.turn_id)
        assert len(tool.ran) == 1


async def test_after_a_restart_the_turn_goes_on_and_readers_get_what_was_shown_before(tmp_path: Path) -> None:
    look = LLMResponse(text="let me see", tool_calls=zap("a").tool_calls)
    tool = Zap("read")
    stop = {"limits.drain_seconds": 0}
    async with running_claw(tmp_path, ScriptedProvider([look, hang]), arguments=stop) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        await eventually(lambda: tool.ran)
        await eventually(lambda: not pending_calls(_steps(claw, receipt.session_id)))
    provider = ScriptedProvider([DONE])
    async with running_claw(tmp_path, provider, arguments=stop) as claw:
        events = watch(claw)
        await outcome(claw, receipt.turn_id)
        log = await log_of(claw, receipt.session_id)
    assert tool.ran == ["a"]
    assert [event.name for event in events[:2]] == ["turn.started", "turn.snapshot"]
    assert {event.attempt for event in events} == {2}
    snapshot = events[1].data
    assert snapshot["text"] == "let me see" and snapshot["segment"] == ""
    (shown,) = snapshot["tools"]
    assert (shown["name"], shown["ok"], shown["content"]) == ("zap", True, "zapped a")
    assert [entry.message["role"] for entry in log] == ["user", "assistant", "tool", "assistant"]
    assert len(provider.requests) == 1 and result_in(provider.requests[0]) == "zapped a"


def _steps(claw: MiniClaw, session_id: str | None) -> list[Entry]:
    session = claw.sessions._alive.get(session_id or "")
    return list(session.messages) if session else []


@pytest.mark.parametrize(
    ("risk", "idempotent", "times"), [("read", False, 2), ("write", True, 2), ("write", False, 1)]
)
async def test_a_call_that_a_stop_interrupted_runs_again_only_if_that_does_no_harm(
    tmp_path: Path, risk: Any, idempotent: bool, times: int
) -> None:
    body = [asyncio.Event().wait, None]

    async def once() -> str:
        wait = body.pop(0)
        return str(await wait() if wait else "zapped")

    tool = Zap(risk, once)
    tool.idempotent = idempotent
    arguments = {"limits.drain_seconds": 0, "approval.allow": ("zap",)}
    async with running_claw(tmp_path, ScriptedProvider([zap("a")]), arguments=arguments) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        await eventually(lambda: tool.ran)
    provider = ScriptedProvider([DONE])
    async with running_claw(tmp_path, provider, arguments=arguments) as claw:
        claw.registry.register(tool)
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "done"
    assert len(tool.ran) == times
    assert result_in(provider.requests[0]) == ("zapped" if times == 2 else f"Error: {INTERRUPTED}")


# --- sentences --------------------------------------------------------------------------------------------


def test_the_program_answers_in_the_language_of_the_question() -> None:
    assert is_chinese("在吗 ok") and not is_chinese("ok? é😀")
    assert stopped_note("停") == "（用户在这里停止了回答。）"
    assert stopped_note("stop") == "(The user stopped this answer here.)"
    known = limit_sentence(Stop("seconds"), "what?", " 42 " + "x" * 900)
    assert known.startswith(
        "This turn is not finished: the time limit was reached. The last result so far: 42 "
    )
    assert len(known) < 700
    assert limit_sentence(Stop("money"), "多少", "").endswith("目前还没有可用的结果。")
    assert limit_sentence(Stop("tokens"), "how?", " ").endswith("There is no usable result yet.")
