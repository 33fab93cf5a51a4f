"""Sub-tasks: an agent of their own inside the turn, with a share of its budget, its gate and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.delegate import PERSONA, DelegateTool
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.errors import ModelError, ToolError
from miniclaw.session.models import Usage
from tests.support.agent import Zap, eventually, log_of, outcome, question, result_in, say, send, zap
from tests.support.claw import running_claw
from tests.support.model import FakeModel, Reply
from tests.test_limits import trace_of

USED = Usage(model="m", input_tokens=100, output_tokens=10, calls=1)


def delegates(task: str = "look at everything", call_id: str = "d1", **arguments: Any) -> LLMResponse:
    call = ToolCall.of(call_id, "delegate", {"task": task, **arguments})
    return LLMResponse(tool_calls=(call,), finish="tool_calls", usage=USED)


def answer(text: str) -> LLMResponse:
    return LLMResponse(text=text, usage=USED)


@asynccontextmanager
async def delegating(
    tmp_path: Path, script: list[Script], tool: Zap, **more: Any
) -> AsyncIterator[tuple[MiniClaw, ScriptedProvider]]:
    provider = ScriptedProvider(script)
    arguments: dict[str, Any] = {"approval.allow": ("delegate",), "prices": {"m": {"input": 1, "output": 1}}}
    arguments |= {"limits.drain_seconds": 0, **{k.replace("__", "."): v for k, v in more.items()}}
    async with running_claw(tmp_path, provider, arguments=arguments) as claw:
        claw.registry.register(tool)
        yield claw, provider


async def test_a_sub_task_sees_only_its_task_and_gives_back_only_its_result(tmp_path: Path) -> None:
    tool = Zap("read")
    script: list[Script] = [delegates("find the roof"), zap("roof"), answer("it is red"), answer("red, then")]
    async with delegating(tmp_path, script, tool) as (claw, provider):
        assert await say(claw, "what colour is it?") == "red, then"
        (session,) = await claw.sessions.list("owner")
        log = await log_of(claw, session.session_id)
    inner, told = provider.requests[1], provider.requests[3]
    assert inner == [{"role": "system", "content": PERSONA}, {"role": "user", "content": "find the roof"}]
    assert tool.ran == ["roof"] and result_in(told) == "it is red"
    assert [entry.message["role"] for entry in log] == ["user", "assistant", "tool", "assistant"]


async def test_a_strict_server_takes_the_histories_of_a_turn_and_of_its_sub_task(tmp_path: Path) -> None:
    steps: list[Reply] = [
        {"calls": [("delegate", {"task": "both", "tools": ["zap"]}), ("zap", {"at": "z"})]},
        {"calls": [("zap", {"at": "a"}), ("zap", {"at": "b"})]},
        {"text": "a and b"},
        {"text": "done"},
    ]
    async with FakeModel(lambda messages, number: steps[number - 1], strict=True) as model:
        provider = OpenAIProvider("fake-chat", api_key="none", base_url=model.url)
        arguments = {"approval.allow": ("delegate",)}
        async with running_claw(tmp_path, provider, arguments=arguments) as claw:
            claw.registry.register(Zap("read"))
            assert await say(claw) == "done"
        await provider.close()
        assert model.refused == []
        offered = [[tool["function"]["name"] for tool in body["tools"]] for body in model.requests]
    assert offered[1] == offered[2] == ["zap"] and "delegate" in offered[0]


async def test_what_a_sub_task_uses_is_counted_with_the_turn_and_seen_in_the_trace(tmp_path: Path) -> None:
    look = LLMResponse(tool_calls=zap("a").tool_calls, finish="tool_calls", usage=USED)
    script: list[Script] = [delegates(), look, answer("x"), answer("done")]
    async with delegating(tmp_path, script, Zap("read")) as (claw, _):
        receipt = await send(claw)
        data = (await outcome(claw, receipt.turn_id))["data"]
        records = await trace_of(claw)
    assert data["usage"]["calls"] == 4 and data["usage"]["cost"] == pytest.approx(4 * 110 / 1e6)
    purposes = [(r["kind"], r["purpose"]) for r in records if r["kind"] != "prompt"]
    assert purposes == [
        ("model", "answer"),
        ("model", "delegate"),
        ("tool", "delegate"),
        ("model", "delegate"),
        ("tool", "answer"),
        ("model", "answer"),
    ]
    assert [r["layers"][0]["text"] for r in records if r["kind"] == "prompt"][1] == PERSONA


async def test_a_sub_task_asks_before_it_runs_and_so_do_its_writes_through_the_same_gate(
    tmp_path: Path,
) -> None:
    tool = Zap("write")
    inner = [zap("a"), zap("b", call_id="c2"), answer("a done, b refused")]
    script: list[Script] = [delegates("do a and b", tools=["zap"]), *inner, answer("done")]
    async with delegating(tmp_path, script, tool, approval__allow=()) as (claw, provider):
        receipt = await send(claw)
        first = await question(claw)
        assert first.tool == "delegate" and first.arguments["task"] == "do a and b"
        await claw.desk.decide(first.approval_id, "owner", "once")
        second = await question(claw, but=first.approval_id)
        assert (second.tool, second.arguments, second.turn_id) == ("zap", {"at": "a"}, receipt.turn_id)
        await claw.desk.decide(second.approval_id, "owner", "once")
        third = await question(claw, but=second.approval_id)
        await claw.desk.decide(third.approval_id, "owner", "deny")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"] and "said no" in result_in(provider.requests[3])


async def test_by_default_a_sub_task_has_only_tools_that_change_nothing_and_never_itself(
    tmp_path: Path,
) -> None:
    seen: list[str] = []
    tool = Zap("write")
    inner = [delegates("deeper", "d2"), zap("a"), answer("could not")]
    script: list[Script] = [delegates(), *inner, answer("done")]
    async with delegating(tmp_path, script, tool) as (claw, provider):
        await say(claw)
    seen = [result_in(request) for request in provider.requests[2:4]]
    assert "no tool `delegate`" in seen[0] and "no tool `zap`" in seen[1] and "calculator" in seen[1]
    assert tool.ran == []


async def test_a_tool_that_a_sub_task_cannot_have_is_refused_with_those_that_it_can(tmp_path: Path) -> None:
    script: list[Script] = [
        delegates(tools=["delegate"]),
        delegates(tools=["nothing"], call_id="d2"),
        answer("x"),
    ]
    async with delegating(tmp_path, script, Zap("read")) as (claw, provider):
        await say(claw)
    assert "cannot have `delegate`; it can have:" in result_in(provider.requests[1])
    assert "cannot have `nothing`" in result_in(provider.requests[2])


async def test_a_sub_task_has_a_share_of_the_turns_calls_and_says_what_it_knows_at_its_end(
    tmp_path: Path,
) -> None:
    calls = [zap("0"), zap("1", call_id="c1"), zap("2", call_id="c2", name="nothing")]
    script: list[Script] = [delegates(), *calls, answer("I know a little")]
    async with delegating(tmp_path, script, Zap("read"), agent__max_iterations=8) as (claw, provider):
        assert await say(claw) == "I know a little"
    told = result_in(provider.requests[4])
    assert told.endswith("the limit of model calls was reached. The last result so far: zapped 1")


async def test_a_sub_task_that_takes_too_long_ends_before_its_turn_does(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def hang(messages: list[Message]) -> LLMResponse:
        await never.wait()
        return LLMResponse()

    script: list[Script] = [delegates(), hang, answer("it took too long")]
    async with delegating(tmp_path, script, Zap("read"), agent__turn_timeout=3.0) as (claw, provider):
        receipt = await send(claw)
        data = (await outcome(claw, receipt.turn_id))["data"]
    assert data["text"] == "it took too long" and "stopped_by" not in data
    assert "the time limit was reached" in result_in(provider.requests[2])


async def test_the_clock_of_a_sub_task_stands_still_while_a_person_is_asked_about_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.agent.delegate.SHARE", 0.02)  # half a second
    tool, loop = Zap("read"), asyncio.get_running_loop()
    script: list[Script] = [delegates(tools=["zap"]), zap("a"), answer("seen"), answer("done")]
    more = {"agent__turn_timeout": 25.0, "agent__max_iterations": 200, "agent__max_tool_calls": 200}
    rules = [{"tool": "zap", "action": "ask"}]
    async with delegating(tmp_path, script, tool, approval__rules=rules, **more) as (claw, provider):
        receipt = await send(claw)
        asked = await question(claw)
        late = loop.time() + 0.6
        await eventually(lambda: loop.time() > late)
        await claw.desk.decide(asked.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"] and result_in(provider.requests[3]) == "seen"


async def test_a_model_that_fails_in_a_sub_task_is_told_and_the_turn_goes_on(tmp_path: Path) -> None:
    script: list[Script] = [delegates(), ModelError("model_error", "The server broke."), answer("sorry")]
    async with delegating(tmp_path, script, Zap("read")) as (claw, provider):
        assert await say(claw) == "sorry"
    assert "The sub-task failed: The server broke." in result_in(provider.requests[2])


async def test_a_sub_task_is_cancelled_with_its_turn_and_its_tools_too(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def body() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    tool = Zap("read", body)
    async with delegating(tmp_path, [delegates(), zap("a")], tool) as (claw, _):
        receipt = await send(claw)
        await eventually(lambda: tool.ran)
        await claw.commands.cancel(receipt.turn_id or "", "owner")
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
        assert ended.is_set()


async def test_a_long_history_of_a_sub_task_is_shortened_like_that_of_a_turn(tmp_path: Path) -> None:
    async def big() -> str:
        return "word " * 3000

    overflow = ModelError("context_overflow", "Too long.", limit=1500)
    script: list[Script] = [delegates(), zap("a"), overflow, answer("short"), answer("done")]
    async with delegating(tmp_path, script, Zap("read", big)) as (claw, provider):
        assert await say(claw) == "done"
    assert "cut to fit the window" in result_in(provider.requests[3])


async def test_a_sub_task_outside_a_turn_is_refused() -> None:
    with pytest.raises(ToolError, match="inside a conversation"):
        await DelegateTool().execute(task="x")
