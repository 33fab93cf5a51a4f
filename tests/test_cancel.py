"""A cancel ends the turn at once, whatever it is doing; what cannot be ended is left alone and not believed."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.replies import stopped_note
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.gateway.events import LiveEvent
from miniclaw.session.history import INTERRUPTED, NOT_BEGUN
from miniclaw.tools import tool
from miniclaw.tools.base import ToolResult
from miniclaw.tools.builtins.run_command_tool import run_command_tool
from tests.support.agent import Zap, eventually, log_of, outcome, question, result_in, say, send, zap
from tests.support.claw import running_claw
from tests.support.model import FakeModel, Message, Reply, illegal

DONE = LLMResponse(text="done")


def process_of(word: str) -> list[int]:
    """Processes whose command line holds a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if word in line:
                found.append(int(entry.name))
    return found


async def cancelled(claw: MiniClaw, turn_id: str | None) -> dict[str, Any]:
    """Cancel as a person does, and wait for the end."""
    assert turn_id is not None
    assert await claw.commands.cancel(turn_id, "owner")
    ended = await outcome(claw, turn_id)
    assert ended["name"] == "turn.cancelled"
    return ended


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the child in /proc")
async def test_a_cancel_ends_the_program_that_a_tool_runs(tmp_path: Path) -> None:
    """HKUDS/nanobot#2765 and #1762: `/stop` left the shell's child running, or could not interrupt at all.

    openclaw/openclaw#9958: after that no request of the session was legal any more.
    """
    seconds = "98765.4321"
    call = ToolCall.of("c1", "run_command", {"command": ["sleep", seconds]})
    rule = {"tool": "run_command", "arguments": {"command": f'["sleep", "{seconds}"]'}, "action": "allow"}
    provider = ScriptedProvider([LLMResponse(tool_calls=(call,)), DONE])
    async with running_claw(tmp_path, provider, arguments={"approval.rules": [rule]}) as claw:
        claw.registry.remove("run_command")
        claw.registry.register(run_command_tool(bwrap=""))
        receipt = await send(claw)
        await eventually(lambda: process_of(seconds))
        await cancelled(claw, receipt.turn_id)
        assert process_of(seconds) == []
        assert await say(claw, session_id=receipt.session_id) == "done"
        assert illegal(provider.requests[-1]) is None and result_in(provider.requests[-1]) == INTERRUPTED


async def test_a_cancel_closes_the_models_stream(tmp_path: Path) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return {"forever": {"content": "word "}, "pause": 0.01} if number == 1 else {"text": "fine"}

    async with FakeModel(script, strict=True) as model:
        provider = OpenAIProvider("fake-chat", api_key="none", base_url=model.url)
        async with running_claw(tmp_path, provider) as claw:
            receipt = await send(claw)
            await eventually(lambda: model.open_streams)
            await cancelled(claw, receipt.turn_id)
            await eventually(lambda: model.open_streams == 0)
            assert await say(claw, "again", session_id=receipt.session_id) == "fine"
        await provider.close()
        assert model.refused == []
        assert stopped_note("go") in model.requests[1]["messages"][-2]["content"]


async def test_a_call_that_was_only_asked_for_is_told_as_not_carried_out(tmp_path: Path) -> None:
    tool = Zap("write")
    async with running_claw(tmp_path, ScriptedProvider([zap("a")])) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        await question(claw)
        await cancelled(claw, receipt.turn_id)
        log = await log_of(claw, receipt.session_id)
        assert [e.message["content"] for e in log if e.message["role"] == "tool"] == [NOT_BEGUN]
    assert tool.ran == []


async def test_a_tool_in_a_thread_runs_out_and_its_result_is_not_believed(tmp_path: Path) -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    @tool(risk="read")
    def slow() -> str:
        """Wait in a thread."""
        began.set()
        release.wait(30)
        ended.set()
        return "too late"

    call = LLMResponse(tool_calls=(ToolCall.of("c1", "slow", {}),))
    async with running_claw(tmp_path, ScriptedProvider([call, DONE])) as claw:
        claw.registry.register(slow)
        receipt = await send(claw)
        await eventually(began.is_set)
        await cancelled(claw, receipt.turn_id)
        assert not ended.is_set()
        log = await log_of(claw, receipt.session_id)
        assert [e.message["content"] for e in log if e.message["role"] == "tool"] == [INTERRUPTED]
        release.set()
        await eventually(ended.is_set)
        assert await log_of(claw, receipt.session_id) == log


async def test_a_tool_that_will_not_be_cancelled_is_left_alone_and_the_turn_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    class Stubborn(Zap):
        async def execute(self, *, at: str | None = None, **_: Any) -> ToolResult:
            self.ran.append(at)
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return ToolResult(content="too late")

    stubborn = Stubborn("read")
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), DONE])) as claw:
        claw.registry.register(stubborn)
        receipt = await send(claw)
        await eventually(lambda: stubborn.ran)
        with caplog.at_level(logging.WARNING, "miniclaw.agent.calls"):
            await cancelled(claw, receipt.turn_id)
        assert "did not end when it was told to" in caplog.text
        log = await log_of(claw, receipt.session_id)
        assert [e.message["content"] for e in log if e.message["role"] == "tool"] == [INTERRUPTED]
        release.set()
        assert await say(claw, session_id=receipt.session_id) == "done"
        assert "too late" not in str(await log_of(claw, receipt.session_id))


async def test_what_is_sent_during_a_long_tool_waits_its_turn_and_its_place_is_told(tmp_path: Path) -> None:
    """NousResearch/hermes-agent#11633: a new message must not end long work; here it queues, and says so."""
    release = asyncio.Event()
    slow = Zap("read", release.wait)
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), DONE, DONE])) as claw:
        claw.registry.register(slow)
        events: list[LiveEvent] = []
        claw.bus.subscribe("session.*", lambda topic, event: events.append(event))
        first = await send(claw, "long")
        await eventually(lambda: slow.ran)
        second = await send(claw, "quick", session_id=first.session_id)
        await eventually(lambda: [event for event in events if event.name == "turn.queued"])
        (queued,) = [event for event in events if event.name == "turn.queued"]
        assert (queued.turn_id, queued.data["position"]) == (second.turn_id, 1)
        release.set()
        ends = [await outcome(claw, receipt.turn_id) for receipt in (first, second)]
        assert [end["name"] for end in ends] == ["turn.finished"] * 2
        told = [
            e.message["content"] for e in await log_of(claw, first.session_id) if e.message["role"] == "user"
        ]
        assert told == ["long", "quick"]
