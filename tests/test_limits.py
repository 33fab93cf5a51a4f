"""Every turn ends: whatever the model does or does not do, within a limit that it names, and counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai  # noqa: F401  # loaded before a time limit runs, not within it
import pytest

from miniclaw.agent.fallback import FallbackProvider
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import CommandPayload, MessageType
from miniclaw.session.models import Usage
from miniclaw.tools.base import ToolResult
from tests.support.agent import Zap, eventually, log_of, outcome, result_in, say, send, zap
from tests.support.claw import running_claw
from tests.support.core import text_message
from tests.support.inside import database_of
from tests.support.model import FakeModel, Message, Reply, Script, illegal

PRICES = {"fake-chat": {"input": 1.0, "output": 2.0}}


@asynccontextmanager
async def served(
    tmp_path: Path, script: Script, *, prices: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[MiniClaw, FakeModel]]:
    """A gateway in front of a strict model server."""
    arguments = {name.replace("__", "."): value for name, value in more.items()}
    async with FakeModel(script, strict=True) as model:
        provider = OpenAIProvider("fake-chat", api_key="none", base_url=model.url, read_timeout=20)
        given = {"prices": PRICES if prices is None else prices, **arguments}
        async with running_claw(tmp_path, provider, arguments=given) as claw:
            yield claw, model
        await provider.close()
    assert model.refused == []


async def end_of(claw: MiniClaw, text: str = "go", **more: Any) -> dict[str, Any]:
    """How a turn ended, whose session's log is legal then."""
    receipt = await send(claw, text, **more)
    ended = await outcome(claw, receipt.turn_id)
    assert illegal([entry.message for entry in await log_of(claw, receipt.session_id)]) is None
    return ended


async def trace_of(claw: MiniClaw) -> list[dict[str, Any]]:
    """All records so far."""
    await claw.traces.close()
    paths = (claw.data_dir / "traces").rglob("*.jsonl")
    records = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(records, key=lambda record: float(record["at"]))


# --- a model that does not end ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forever",
    [{"content": "word "}, {"reasoning_content": "hmm "}, None, {"tool_calls": [{"index": 0, "id": "c"}]}],
    ids=["text", "reasoning", "keep-alive", "calls"],
)
async def test_a_model_that_streams_for_ever_ends_at_the_time_limit_and_its_stream_is_closed(
    tmp_path: Path, forever: Any
) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return {"forever": forever, "pause": 0.01} if number > 1 else {"text": "connected"}

    shows = forever == {"content": "word "}
    async with served(tmp_path, script, agent__turn_timeout=2.0 if shows else 0.6) as (claw, model):
        await end_of(claw)
        data = (await end_of(claw, "go on"))["data"]
        assert data["stopped_by"] == "seconds" and "the time limit was reached" in data["text"]
        assert data["text"].startswith("word") == shows, "what was shown is kept"
        await eventually(lambda: model.open_streams == 0)
        record = [r for r in await trace_of(claw) if r["kind"] == "model"][-1]
        assert record["error"] == "interrupted" and record["estimated"] and record["input_tokens"] > 0
        assert data["usage"]["cost"] == record["cost"] > 0


async def test_a_model_that_never_answers_ends_at_the_time_limit(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def script(messages: list[Message], number: int) -> Reply:
        await never.wait()
        return {}

    async with served(tmp_path, script, agent__turn_timeout=0.5) as (claw, _):
        data = (await end_of(claw))["data"]
        assert data["stopped_by"] == "seconds" and data["usage"]["calls"] == 1
        never.set()


async def test_an_answer_of_hundreds_of_thousands_of_characters_is_broken_off_as_too_many_tokens(
    tmp_path: Path,
) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return {"forever": {"content": "x" * 50_000}}

    async with served(tmp_path, script) as (claw, model):
        data = (await end_of(claw))["data"]
        assert data["stopped_by"] == "tokens" and 400_000 < len(data["text"]) < 600_000
        await eventually(lambda: model.open_streams == 0)


async def test_attempts_that_were_cut_and_repeated_are_counted_recorded_and_limited_one_by_one(
    tmp_path: Path,
) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        cut = {"calls": [("zap", '{"at": "' + "x" * 15_000)], "cut": True}
        return cut if number % 2 else {"calls": [("zap", {"at": str(number)})]}

    async with served(tmp_path, script, agent__max_tokens_per_turn=10_000) as (claw, model):
        claw.registry.register(Zap("read"))
        data = (await end_of(claw))["data"]
        assert data["stopped_by"] == "tokens" and len(model.requests) == 3
        records = [record for record in await trace_of(claw) if record["kind"] == "model"]
        assert [record["error"] for record in records] == ["model_unreachable", None, "model_unreachable"]
        assert [record["output_tokens"] // 1000 for record in records] == [5, 0, 5]
        assert data["usage"]["output_tokens"] == sum(record["output_tokens"] for record in records)
        assert data["usage"]["calls"] == 3


@pytest.mark.parametrize("finish", ["tool_calls", "length"])
async def test_a_model_whose_arguments_are_always_cut_is_told_and_then_stopped(
    tmp_path: Path, finish: str
) -> None:
    tool = Zap("read")

    def script(messages: list[Message], number: int) -> Reply:
        return {"calls": [("zap", '{"at": "' + "x" * number)], "finish": finish}

    async with served(tmp_path, script) as (claw, model):
        claw.registry.register(tool)
        data = (await end_of(claw))["data"]
        assert data["stopped_by"] == "tool_calls" and tool.ran == []
        assert len(model.requests) == 5
        assert "not a JSON object" in result_in(model.requests[1]["messages"])
        assert "nothing will change" in result_in(model.requests[4]["messages"])


async def test_calls_of_an_answer_that_was_cut_do_not_run_even_if_their_arguments_look_whole(
    tmp_path: Path,
) -> None:
    cut = LLMResponse(tool_calls=zap("a").tool_calls, finish="length")
    tool, stop = Zap("read"), {"limits.drain_seconds": 0}
    async with running_claw(tmp_path, ScriptedProvider([cut, LLMResponse(text="x")]), arguments=stop) as claw:
        claw.registry.register(tool)
        await say(claw)
    assert tool.ran == []


async def test_a_model_that_always_asks_for_the_same_ends_soon_and_costs_what_the_trace_says(
    tmp_path: Path,
) -> None:
    tool = Zap("read")

    def script(messages: list[Message], number: int) -> Reply:
        usage = {
            "prompt_tokens": 1000 * number,
            "completion_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 500},
        }
        return {"calls": [("zap", {"at": "a"} if number % 2 else '{"at" : "a"}')], "usage": usage}

    prices = {"fake-*": {"input": 2.0, "output": 8.0, "cached": 1.0}}
    async with served(tmp_path, script, prices=prices) as (claw, model):
        claw.registry.register(tool)
        data = (await end_of(claw, "拉"))["data"]
        assert tool.ran == ["a"] * 3 and len(model.requests) == 5
        assert data["stopped_by"] == "tool_calls" and "工具调用次数已到上限" in data["text"]
        records = await trace_of(claw)
        models = [record for record in records if record["kind"] == "model"]
        assert [record["input_tokens"] for record in models] == [1000, 2000, 3000, 4000, 5000]
        assert data["usage"]["input_tokens"] == 15_000 and data["usage"]["cached_tokens"] == 2_500
        right = (12_500 * 2 + 2_500 * 1 + 50 * 8) / 1e6
        assert data["usage"]["cost"] == pytest.approx(right)
        assert sum(record["cost"] for record in models) == pytest.approx(right)
        (row,) = await claw.commands._c.usage.rows("owner")
        assert row["cost"] == pytest.approx(right) and row["calls"] == 5
        assert [record["ok"] for record in records if record["kind"] == "tool"] == [True] * 3 + [False] * 2


async def test_a_server_that_tells_no_usage_is_counted_by_an_estimate(tmp_path: Path) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return {"text": "很长的回答" * 100, "usage": None}

    async with served(tmp_path, script) as (claw, _):
        data = (await end_of(claw, "go " * 1000))["data"]
        assert data["usage"]["input_tokens"] > 700 and data["usage"]["output_tokens"] > 300
        (record,) = [r for r in await trace_of(claw) if r["kind"] == "model"]
        assert record["estimated"] is True


# --- tokens and money -------------------------------------------------------------------------------------


def always_zap(messages: list[Message], number: int) -> Reply:
    beside = {"completion_tokens_details": {"reasoning_tokens": 60}}  # as xAI counts its thoughts
    usage = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 1000, **beside}
    return {"calls": [("zap", {"at": str(number)})], "usage": usage}


@pytest.mark.parametrize(
    ("limit", "stopped_by", "requests"),
    [
        ({"agent__max_tokens_per_turn": 2500}, "tokens", 3),
        ({"agent__max_cost_usd": 0.002}, "money", 2),
        ({"limits__user_tokens_per_day": 1500}, "tokens", 2),
        ({"limits__user_cost_usd_per_day": 0.003}, "money", 3),
        ({"agent__max_iterations": 4}, "iterations", 4),
    ],
    ids=str,
)
async def test_a_limit_is_checked_before_each_call_and_ends_the_turn_with_its_reason(
    tmp_path: Path, limit: dict[str, Any], stopped_by: str, requests: int
) -> None:
    async with served(tmp_path, always_zap, **limit) as (claw, model):
        claw.registry.register(Zap("read"))
        data = (await end_of(claw))["data"]
        assert (data["stopped_by"], len(model.requests)) == (stopped_by, requests)
        assert f"The last result so far: zapped {requests}" in data["text"]
        assert data["usage"]["cost"] == pytest.approx(0.0011 * requests)


async def test_the_closing_words_quote_what_ran_and_not_the_refusal_of_a_call(tmp_path: Path) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return {"calls": [("zap", {"at": "roof"})]}

    async with served(tmp_path, script) as (claw, _):
        claw.registry.register(Zap("read"))
        data = (await end_of(claw))["data"]
        assert data["stopped_by"] == "tool_calls"
        assert data["text"].endswith("The last result so far: zapped roof")


async def test_they_quote_what_a_sub_task_knew_when_both_were_stopped(tmp_path: Path) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return {
            "calls": [("delegate", {"task": "look"}) if number == 1 else ("zap", {"at": f"roof {number}"})]
        }

    async with served(tmp_path, script, agent__max_iterations=3, approval__allow=["delegate"]) as (claw, _):
        claw.registry.register(Zap("read"))
        text = (await end_of(claw))["data"]["text"]
    assert text.endswith("The last result so far: zapped roof 3")


async def test_so_they_do_after_a_restart(tmp_path: Path) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        name = "zap" if number == 1 else "nothing"
        return {"calls": [(name, {"at": "roof"})]} if number < 3 else {"forever": {"content": ""}}

    async with served(tmp_path, script, limits__drain_seconds=0) as (claw, model):
        claw.registry.register(Zap("read"))
        receipt = await send(claw)
        await eventually(lambda: len(model.requests) == 3)
    async with served(tmp_path, script, agent__max_iterations=2) as (claw, _):
        data = (await outcome(claw, receipt.turn_id))["data"]
        assert data["text"].endswith("The last result so far: zapped roof")


async def test_a_user_whose_day_is_used_up_is_told_so_and_another_is_served(tmp_path: Path) -> None:
    async with served(tmp_path, always_zap, limits__user_tokens_per_day=900) as (claw, model):
        claw.registry.register(Zap("read"))
        await claw.identities.ensure("ann")
        await end_of(claw)
        data = (await end_of(claw, "再来"))["data"]
        assert data["stopped_by"] == "tokens" and "今天的令牌数已用完" in data["text"]
        assert len(model.requests) == 1
        await end_of(claw, user_id="ann")
        assert len(model.requests) == 2
    async with served(tmp_path, always_zap, limits__user_tokens_per_day=900) as (claw, model):
        assert (await end_of(claw))["data"]["stopped_by"] == "tokens", "the count survives a restart"
        assert model.requests == []


@pytest.mark.parametrize(
    ("limit", "calls"),
    [
        ({"limits__user_tokens_per_day": 6000}, 6),
        ({"limits__user_cost_usd_per_day": 0.0065}, 6),
        ({"limits__user_tokens_per_day": 600}, 1),
    ],
    ids=str,
)
async def test_turns_at_once_share_the_day_of_their_user_and_pass_it_by_one_call_at_most(
    tmp_path: Path, limit: dict[str, Any], calls: int
) -> None:
    async with served(tmp_path, always_zap, **limit) as (claw, model):
        claw.registry.register(Zap("read"))
        ends = await asyncio.gather(*(end_of(claw) for _ in range(12)))
        assert {end["data"]["stopped_by"] for end in ends} <= {"tokens", "money"}
        assert len(model.requests) == calls


async def test_a_call_that_waits_for_another_of_the_day_goes_on_when_that_one_fails(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def script(messages: list[Message], number: int) -> Reply:
        if number > 1:
            return {"text": "hi"}
        await go.wait()
        return {"status": 401}

    async with served(tmp_path, script, limits__user_tokens_per_day=500) as (claw, model):
        first = asyncio.create_task(end_of(claw))
        await eventually(lambda: model.requests)
        second = asyncio.create_task(end_of(claw))
        await eventually(lambda: claw.mailbox.load["running"] == 2)
        go.set()
        assert (await first)["name"] == "turn.failed"
        assert (await second)["data"]["text"] == "hi"


@pytest.mark.parametrize("limit", ["agent__max_cost_usd", "limits__user_cost_usd_per_day"])
async def test_with_a_money_limit_a_model_without_a_price_is_not_asked_and_the_way_to_set_one_is_told(
    tmp_path: Path, limit: str
) -> None:
    async with served(tmp_path, always_zap, prices={}, **{limit: 1.0}) as (claw, model):
        data = (await end_of(claw))["data"]
        assert data["stopped_by"] == "money" and model.requests == []
        assert '[prices."fake-chat"]' in data["text"] and "US dollars" in data["text"]


async def test_with_a_money_limit_another_model_without_a_price_is_not_asked_instead(tmp_path: Path) -> None:
    async with FakeModel(lambda messages, number: {"status": 401}) as down, FakeModel() as other:
        models = [
            OpenAIProvider(name, api_key="none", base_url=server.url)
            for name, server in (("fake-chat", down), ("other", other))
        ]
        provider = FallbackProvider(models)
        given = {"prices": PRICES, "agent.max_cost_usd": 1.0, "agent.max_iterations": 1}
        async with running_claw(tmp_path, provider, arguments=given) as claw:
            for _ in range(2):  # the second time the first model is left alone
                data = (await end_of(claw))["data"]
                assert data["stopped_by"] == "money" and '[prices."other"]' in data["text"]
                assert data["usage"]["cost"] == 0, (
                    "what was not asked costs nothing, and not something unknown"
                )
            records = [record for record in await trace_of(claw) if record["kind"] == "model"]
            assert [(r["model"], r["error"]) for r in records] == [("fake-chat", "model_auth")]
        assert (len(down.requests), other.requests) == (1, [])
        given["prices"] = PRICES | {"other": {"input": 1.0, "output": 2.0}}
        async with running_claw(tmp_path / "2", provider, arguments=given) as claw:
            assert (await end_of(claw))["data"]["text"] == "echo: go"
        await provider.close()


async def test_without_a_price_the_cost_is_unknown_and_never_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, lambda messages, number: {"text": "hi"}, prices={}) as (claw, _):
        assert (await end_of(claw))["data"]["usage"]["cost"] == "unknown"
        stats = await claw.router.route(command("stats"))
        assert stats.result is not None
        (row,) = stats.result["usage"]
        assert (row["cost"], row["calls"], row["input_tokens"]) == ("unknown", 1, 7)


def command(name: str, session_id: str | None = None, **args: Any) -> Any:
    """A command of the owner."""
    inbound = text_message(user_id="owner", channel="library", msg_id=f"c_{name}", session_id=session_id)
    payload = CommandPayload(name=name, args=args)
    return inbound.model_copy(update={"msg_type": MessageType.COMMAND, "payload": payload})


# --- what survives a restart ------------------------------------------------------------------------------


async def test_a_turn_that_goes_on_after_a_restart_goes_on_counting_where_it_was(tmp_path: Path) -> None:
    used = Usage(model="m", input_tokens=900, output_tokens=100, calls=1)
    calls = [
        LLMResponse(tool_calls=zap("a", call_id=f"c{n}").tool_calls, finish="tool_calls", usage=used)
        for n in range(9)
    ]
    arguments = {"limits.drain_seconds": 0, "prices": {"m": {"input": 1, "output": 1}}}
    arguments["agent.max_iterations"] = 4
    never = asyncio.Event()

    async def hang(messages: list[Message]) -> LLMResponse:
        await never.wait()
        return LLMResponse()

    first = ScriptedProvider([*calls[:2], hang])
    async with running_claw(tmp_path, first, arguments=arguments) as claw:
        claw.registry.register(Zap("read"))
        receipt = await send(claw)
        await eventually(lambda: len(first.requests) == 3)
    second = ScriptedProvider(calls[2:])
    async with running_claw(tmp_path, second, arguments=arguments) as claw:
        claw.registry.register(Zap("read"))
        data = (await outcome(claw, receipt.turn_id))["data"]
        (row,) = await claw.commands._c.usage.rows("owner")
    assert data["stopped_by"] == "iterations" and len(second.requests) == 2
    assert data["usage"]["input_tokens"] == 3600 and data["usage"]["calls"] == 4
    assert [tool["name"] for tool in data["tools"]] == ["zap"] * 4
    assert row["calls"] == 4 and row["cost"] == pytest.approx(0.004)


async def test_repeats_of_a_call_and_the_seconds_are_counted_over_a_restart_too(tmp_path: Path) -> None:
    same = [zap("a", call_id=f"c{n}") for n in range(9)]
    never = asyncio.Event()

    async def hang(messages: list[Message]) -> LLMResponse:
        await never.wait()
        return LLMResponse()

    tool, stop = Zap("read"), {"limits.drain_seconds": 0}
    first = ScriptedProvider([*same[:2], hang])
    async with running_claw(tmp_path, first, arguments=stop) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        await eventually(lambda: len(first.requests) == 3)
        log = await log_of(claw, receipt.session_id)
        assert all("spent" in (entry.meta or {}) for entry in log[1:])
    async with running_claw(tmp_path, ScriptedProvider(same[2:]), arguments=stop) as claw:
        claw.registry.register(tool)
        data = (await outcome(claw, receipt.turn_id))["data"]
    assert data["stopped_by"] == "tool_calls" and tool.ran == ["a"] * 3


async def test_the_time_that_earlier_attempts_took_is_not_given_again(tmp_path: Path) -> None:
    tool, stop = Zap("read", asyncio.Event().wait), {"limits.drain_seconds": 0}
    async with running_claw(tmp_path, ScriptedProvider([zap("a")]), arguments=stop) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        await eventually(lambda: tool.ran)
        long = "UPDATE entries SET body = json_set(body, '$.meta.spent', 299.999) WHERE step = 1"
        await database_of(claw).write(lambda c: c.execute(long))
    async with running_claw(tmp_path, ScriptedProvider([]), arguments=stop) as claw:
        claw.registry.register(tool)
        assert (await outcome(claw, receipt.turn_id))["data"]["stopped_by"] == "seconds"


async def test_a_turn_that_was_given_up_is_counted_too(tmp_path: Path) -> None:
    used = Usage(model="m", input_tokens=900, output_tokens=100, calls=1)
    call = LLMResponse(tool_calls=zap("a").tool_calls, finish="tool_calls", usage=used)
    async with running_claw(
        tmp_path, ScriptedProvider([call]), arguments={"limits.drain_seconds": 0}
    ) as claw:
        tool = Zap("read", asyncio.Event().wait)
        claw.registry.register(tool)
        receipt = await send(claw)
        await eventually(lambda: tool.ran)
        await database_of(claw).write(lambda c: c.execute("UPDATE turns SET tries = 9"))
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        ended = await outcome(claw, receipt.turn_id)
        (row,) = await claw.commands._c.usage.rows("owner")
    assert ended["data"]["code"] == "abandoned" and row["input_tokens"] == 900


async def test_a_turn_that_goes_on_after_a_restart_sends_a_history_that_a_strict_server_takes(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()

    async def hang(messages: list[Message], number: int) -> Reply:
        if number == 1:
            return {"text": "let me see", "calls": [("zap", {"at": "a"}), ("zap", {"at": "b"})]}
        await never.wait()
        return {}

    async with served(tmp_path, hang, limits__drain_seconds=0) as (claw, model):
        claw.registry.register(Zap("read"))
        receipt = await send(claw)
        await eventually(lambda: len(model.requests) == 2)
        never.set()
    async with served(tmp_path, lambda messages, number: {"text": "done"}) as (claw, model):
        claw.registry.register(Zap("read"))
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "done"
        assert [m["role"] for m in model.requests[0]["messages"]][1:] == ["user", "assistant", "tool", "tool"]


async def test_what_is_left_of_a_long_conversation_is_a_history_that_a_strict_server_takes(
    tmp_path: Path,
) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        if messages[-1]["role"] == "user" and number % 2:
            return {"calls": [("zap", {"at": "x" * 300})]}
        return {"text": "word " * 100}

    async with served(tmp_path, script, context__max_tokens=4000) as (claw, model):
        claw.registry.register(Zap("read"))
        session_id = None
        for number in range(12):
            receipt = await send(claw, f"{number} " + "question " * 40, session_id=session_id)
            session_id = receipt.session_id
            assert (await outcome(claw, receipt.turn_id))["name"] == "turn.finished"
        sizes = [len(request["messages"]) for request in model.requests]
        assert max(sizes) > 6 and sizes[-1] < 30


# --- too long for the model -------------------------------------------------------------------------------


def limited(tokens: int) -> Script:
    """A server that refuses what is longer, and says how much it takes."""

    def script(messages: list[Message], number: int) -> Reply:
        size = len(json.dumps(messages)) // 4
        if size > tokens:
            what = f"This model's maximum context length is {tokens} tokens. However, you requested {size} tokens."
            return {"status": 400, "message": what}
        return {"text": f"answer {number}"}

    return script


async def test_a_history_too_long_for_the_model_is_shortened_once_and_the_lower_limit_is_remembered(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, limited(3000)) as (claw, model):
        receipt = await send(claw, "first " + "word " * 1200)
        await outcome(claw, receipt.turn_id)
        data = (await end_of(claw, "second " + "word " * 1200, session_id=receipt.session_id))["data"]
        assert data["text"] == "answer 3" and len(model.requests) == 3
        assert [m["content"][:6] for m in model.requests[2]["messages"][1:]] == ["second"]
        await end_of(claw, "third", session_id=receipt.session_id)
        records = [r for r in await trace_of(claw) if r["kind"] == "model"]
        assert [record["error"] for record in records] == [None, "context_overflow", None, None, None]
        purposes = [record["purpose"] for record in records]
        assert purposes == ["answer"] * 3 + ["compact", "answer"], "the lower limit is known now"


async def test_a_long_result_is_shortened_when_the_model_cannot_take_it(tmp_path: Path) -> None:
    small = limited(3000)

    async def script(messages: list[Message], number: int) -> Reply:
        if number == 1:
            return {"calls": [("big", {})]}
        found = small(messages, number)
        assert isinstance(found, dict)
        return found

    async with served(tmp_path, script) as (claw, model):
        claw.registry.register(Zap("read", lambda: _big(), "big"))
        assert (await end_of(claw))["data"]["text"] == "answer 3"
        assert "cut to fit the window" in result_in(model.requests[2]["messages"])


async def _big() -> str:
    return "line of text " * 1500


async def test_a_text_that_is_too_long_for_the_model_is_cut_and_answered(tmp_path: Path) -> None:
    async with served(tmp_path, limited(2000)) as (claw, model):
        ended = await end_of(claw, "word " * 5000)
        assert (ended["name"], len(model.requests)) == ("turn.finished", 2)
        assert model.requests[1]["messages"][-1]["content"].endswith("[… cut to fit the window]")
        assert "saw only its beginning" in ended["data"]["warning"]
        assert claw.commands._c.window.size("fake-chat") <= 2000


async def test_what_cannot_be_shortened_fails_with_a_sentence(tmp_path: Path) -> None:
    async with served(tmp_path, limited(100)) as (claw, model):
        ended = await end_of(claw, "short")
        assert (ended["name"], ended["data"]["code"]) == ("turn.failed", "context_overflow")
        assert ended["data"]["message"].endswith(".") and len(model.requests) <= 2


async def test_a_named_limit_leaves_the_question_whole_and_the_window_as_large_as_the_server_says(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, limited(4000)) as (claw, model):
        session_id, text = None, "word " * 500 + "and the question?"
        for _ in range(8):
            receipt = await send(claw, text, session_id=session_id)
            session_id = receipt.session_id
            assert (await outcome(claw, receipt.turn_id))["name"] == "turn.finished"
        sent = [message for request in model.requests for message in request["messages"]]
        assert all("cut to fit" not in str(m["content"]) for m in sent if m["role"] == "user")
        assert model.requests[-1]["messages"][-1]["content"] == text
        assert 2500 < claw.commands._c.window.size("fake-chat") <= 4000


# --- commands and empty answers ---------------------------------------------------------------------------


async def test_compact_is_counted_shortened_when_it_is_too_long_and_refused_when_the_day_is_used_up(
    tmp_path: Path,
) -> None:
    small = limited(3000)

    def script(messages: list[Message], number: int) -> Any:
        is_compact = messages[0]["content"].startswith("Summarise")
        return small(messages, number) if is_compact else {"text": "yes"}

    async with served(tmp_path, script, limits__user_tokens_per_day=100_000) as (claw, model):
        receipt = await send(claw, "one " + "word " * 700)
        await outcome(claw, receipt.turn_id)
        for number in range(5):
            await end_of(claw, f"{number} " + "word " * 700, session_id=receipt.session_id)
        before = len(model.requests)
        queued = await claw.router.route(command("compact", receipt.session_id))
        ended = await outcome(claw, queued.turn_id)
        assert ended["name"] == "command.result", ended
        records = [r for r in await trace_of(claw) if r["kind"] == "model" and r["purpose"] == "compact"]
        errors = [record["error"] for record in records]
        assert errors == ["context_overflow", None, None, None], "in several parts, since then"
        assert len(model.requests) == before + 4
        (row,) = await claw.commands._c.usage.rows("owner")
        assert row["calls"] == len(model.requests)


@pytest.mark.parametrize("cuts", [1, 99])
async def test_a_summary_that_was_cut_is_asked_for_again_and_then_of_another_model(
    tmp_path: Path, cuts: int
) -> None:
    summaries: list[int] = []

    def script(messages: list[Message], number: int) -> Any:
        if "Summarise" not in messages[0]["content"]:
            return {"text": "yes"}
        summaries.append(number)
        return {"text": "half of a summary", "cut": len(summaries) <= cuts}

    async with FakeModel(script) as down, FakeModel() as other:
        models = [
            OpenAIProvider(name, api_key="none", base_url=server.url, max_retries=1, jitter=lambda: 0.0)
            for name, server in (("fake-chat", down), ("other", other))
        ]
        async with running_claw(tmp_path, FallbackProvider(models)) as claw:
            receipt = await send(claw, "one")
            await outcome(claw, receipt.turn_id)
            queued = await claw.router.route(command("compact", receipt.session_id))
            assert (await outcome(claw, queued.turn_id))["name"] == "command.result"
            assert (len(summaries), len(other.requests)) == (2, int(cuts > 1))
            records = [r for r in await trace_of(claw) if r["kind"] == "model" and r["purpose"] == "compact"]
            assert len(records) == 2 + len(other.requests), "each attempt is counted"
        for model in models:
            await model.close()


async def test_a_compact_that_the_model_does_not_answer_ends_in_time(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def hang(messages: list[Message]) -> LLMResponse:
        await never.wait()
        return LLMResponse()

    provider = ScriptedProvider([LLMResponse(text="hi"), hang])
    async with running_claw(tmp_path, provider, arguments={"agent.turn_timeout": 0.5}) as claw:
        receipt = await send(claw)
        await outcome(claw, receipt.turn_id)
        queued = await claw.router.route(command("compact", receipt.session_id))
        ended = await outcome(claw, queued.turn_id)
        assert (ended["name"], ended["data"]["code"]) == ("error", "model_unreachable")
        assert "did not answer within 0.5 s" in ended["data"]["message"]


async def test_compact_is_refused_with_a_reason_when_the_day_is_used_up(tmp_path: Path) -> None:
    used = Usage(model="m", input_tokens=900, output_tokens=100, calls=1)
    provider = ScriptedProvider([LLMResponse(text="hi", usage=used)])
    async with running_claw(tmp_path, provider, arguments={"limits.user_tokens_per_day": 500}) as claw:
        receipt = await send(claw)
        await outcome(claw, receipt.turn_id)
        queued = await claw.router.route(command("compact", receipt.session_id))
        ended = await outcome(claw, queued.turn_id)
        assert (ended["name"], ended["data"]["code"]) == ("error", "model_quota")
        assert "tokens of today are used up" in ended["data"]["message"]
    assert len(provider.requests) == 1


async def test_an_empty_answer_is_asked_for_once_more_and_then_reported_honestly(tmp_path: Path) -> None:
    async with served(tmp_path, lambda messages, number: {"text": ""}) as (claw, model):
        ended = await end_of(claw)
        assert (ended["name"], ended["data"]["code"]) == ("turn.failed", "empty_answer")
        assert len(model.requests) == 2
        (row,) = await claw.commands._c.usage.rows("owner")
        assert row["calls"] == 2


async def test_a_tool_that_fails_breaks_or_takes_too_long_is_a_result_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    class Slow(Zap):
        timeout = 0.05

        async def execute(self, *, at: str | None = None, **_: Any) -> ToolResult:
            await asyncio.Event().wait()
            return ToolResult()

    async def broken() -> str:
        raise ValueError("inside")

    def script(messages: list[Message], number: int) -> Reply:
        return (
            {"calls": [(name, {})]}
            if (name := {1: "slow", 2: "broken", 3: "Nothing"}.get(number))
            else {"text": "x"}
        )

    async with served(tmp_path, script) as (claw, model):
        claw.registry.register(Slow("read", name="slow"))
        claw.registry.register(Zap("read", broken, "broken"))
        await end_of(claw)
        told = [result_in(request["messages"]) for request in model.requests[1:]]
        assert "did not finish within 0.05 s" in told[0] and "check before you repeat" in told[0]
        assert "do not repeat" in told[1] and "There is no tool `Nothing`" in told[2]


async def test_a_warning_of_the_provider_is_told_with_the_answer(tmp_path: Path) -> None:
    script = [
        LLMResponse(tool_calls=zap("a").tool_calls, finish="tool_calls", warning="asked another model"),
        LLMResponse(text="done", warning="asked another model"),
    ]
    async with running_claw(tmp_path, ScriptedProvider(script)) as claw:
        claw.registry.register(Zap("read"))
        assert (await end_of(claw))["data"]["warning"] == "asked another model"


async def test_a_model_error_after_calls_leaves_a_history_that_a_strict_server_takes(tmp_path: Path) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        if number == 1:
            return {"calls": [("zap", {"at": "a"}), ("zap", {"at": "b"})]}
        return {"status": 401} if number == 2 else {"text": "fine"}

    async with served(tmp_path, script) as (claw, _):
        claw.registry.register(Zap("read"))
        receipt = await send(claw)
        ended = await outcome(claw, receipt.turn_id)
        assert ended["name"] == "turn.failed", ModelError
        assert await say(claw, "again", session_id=receipt.session_id) == "fine"
