"""Day 4 and the agent: the loop and its ends, what a failure is, who is asked next, what history is legal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

import day4_agent
from miniclaw.agent.config import AgentConfig
from miniclaw.agent.fallback import FallbackProvider
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMChunk, LLMResponse, ToolCall
from miniclaw.agent.runtime import AgentRuntime, Finished, ToolFinished, ToolStarted
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import ModelError
from miniclaw.session.history import legal
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.registry import ToolRegistry
from tests.contracts.support import both

Message = dict[str, Any]
GUARD = 10.0
USER: list[Message] = [{"role": "user", "content": "订单 4471 到哪了？"}]
SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}}


async def look_up(order_id: str) -> str:
    if order_id == "slow":
        await asyncio.Event().wait()
    return {"4471": "已发货", "4472": "处理中"}[order_id]


class CoreTool(Tool):
    name = "get_order_status"
    description = "orders"
    parameters: dict[str, Any] = SCHEMA
    risk = "read"

    def __init__(self, ran: list[str]) -> None:
        self._ran = ran

    async def execute(self, **kwargs: Any) -> ToolResult:
        self._ran.append(kwargs["order_id"])
        return ToolResult(content=await look_up(kwargs["order_id"]))


class ChapterBox:
    def __init__(self, ran: list[str]) -> None:
        self._ran = ran

    def get_openai_tools(self) -> list[Message]:
        return [{"type": "function", "function": {"name": "get_order_status", "parameters": SCHEMA}}]

    async def execute(self, name: str, arguments: Any) -> day4_agent.ToolResult:
        if name != "get_order_status":
            return day4_agent.ToolResult.failure(f"There is no tool `{name}`.")
        self._ran.append(arguments["order_id"])
        return day4_agent.ToolResult(content=await look_up(arguments["order_id"]))


def core_box(ran: list[str], seconds: float) -> ToolRegistry:
    return ToolRegistry([CoreTool(ran)], default_timeout=seconds)


def core_failure(kind: str, **more: Any) -> ModelError:
    return ModelError(f"model_{kind}", kind, kind=kind, **more)


chapter: Any = SimpleNamespace(
    **{name: getattr(day4_agent, name) for name in day4_agent.__all__},
    box=lambda ran, seconds: ChapterBox(ran),
    failure=lambda kind, **more: day4_agent.ModelError(f"model_{kind}", kind, **more),
)
core: Any = SimpleNamespace(
    AgentConfig=AgentConfig,
    AgentRuntime=AgentRuntime,
    FallbackProvider=FallbackProvider,
    Finished=Finished,
    LLMChunk=LLMChunk,
    LLMResponse=LLMResponse,
    ModelError=ModelError,
    OpenAIProvider=OpenAIProvider,
    ScriptedProvider=ScriptedProvider,
    ToolCall=ToolCall,
    ToolFinished=ToolFinished,
    ToolResult=ToolResult,
    ToolStarted=ToolStarted,
    legal=legal,
    box=core_box,
    failure=core_failure,
)
sides = both(chapter, core)


class ListTranscript:
    """A turn's steps in a list."""

    def __init__(self, side: Any) -> None:
        self.steps = list(USER)
        self._legal = side.legal

    def messages(self) -> list[Message]:
        view: list[Message] = self._legal(self.steps)
        return view

    def pending(self) -> Sequence[Any]:
        return ()

    def settled(self) -> Sequence[Any]:
        return ()

    def told(self, counted: int) -> None: ...

    def offer(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return tools

    def shrink(self, limit: int | None, requested: int | None = None, model: str = "") -> bool:
        return False

    async def append(self, message: Message, meta: Message | None = None) -> None:
        self.steps.append(message)


class Turn:
    """A script, run to its end."""

    def __init__(self, side: Any, *script: Any, seconds: float = GUARD, **config: Any) -> None:
        self.side = side
        self.ran: list[str] = []
        self.transcript = ListTranscript(side)
        self.provider = side.ScriptedProvider(script)
        self.runtime = side.AgentRuntime(self.provider, side.AgentConfig(tool_timeout=seconds, **config))
        self.box = side.box(self.ran, seconds)
        self.events: list[Any] = []

    async def run(self) -> Any:
        async with asyncio.timeout(GUARD), aclosing(self.runtime.run(self.transcript, self.box)) as events:
            async for event in events:
                self.events.append(event)
        assert isinstance(self.events[-1], self.side.Finished)
        return self.events[-1]

    @property
    def results(self) -> list[str]:
        return [step["content"] for step in self.transcript.steps if step["role"] == "tool"]


def wants(side: Any, *orders: str, name: str = "get_order_status", **more: Any) -> Any:
    calls = tuple(side.ToolCall.of(f"c-{order}-{id(orders)}", name, {"order_id": order}) for order in orders)
    return side.LLMResponse(tool_calls=calls, **{"finish": "tool_calls", **more})


@sides
async def test_the_model_acts_sees_the_result_and_answers(side: Any) -> None:
    turn = Turn(side, wants(side, "4471"), side.LLMResponse(text="已发货"))
    end = await turn.run()
    assert (end.response.text, end.stop, turn.ran) == ("已发货", None, ["4471"])
    assert [message["role"] for message in turn.provider.requests[1]] == ["user", "assistant", "tool"]
    kinds = [type(event) for event in turn.events if not isinstance(event, side.LLMChunk)]
    assert kinds == [side.ToolStarted, side.ToolFinished, side.Finished]
    assert "".join(event.text for event in turn.events if isinstance(event, side.LLMChunk)) == "已发货"


@sides
async def test_a_failed_call_is_a_result_that_the_model_reads(side: Any) -> None:
    turn = Turn(side, wants(side, "4471", name="fly"), side.LLMResponse(text="我不会飞"))
    await turn.run()
    assert "no tool `fly`" in turn.results[0]
    failed = side.ToolResult.failure("no such order")
    assert (failed.ok, failed.content, failed.error) == (False, "Error: no such order", "no such order")


@sides
async def test_a_call_that_is_broken_or_cut_is_not_run(side: Any) -> None:
    broken = side.LLMResponse(tool_calls=(side.ToolCall("c1", "get_order_status", "{oops", None),))
    cut = wants(side, "4471", finish="length")
    turn = Turn(side, broken, cut, side.LLMResponse(text="再来"))
    await turn.run()
    assert turn.ran == [] and len(turn.results) == 2
    assert all("not a JSON object" in result for result in turn.results)


@sides
async def test_the_same_call_runs_three_times_at_most(side: Any) -> None:
    turn = Turn(side, *(wants(side, "4471") for _ in range(4)), side.LLMResponse(text="好"))
    await turn.run()
    assert len(turn.ran) == 3 and "do something else" in turn.results[-1]


@sides
async def test_a_limit_ends_the_turn_and_is_named(side: Any) -> None:
    turn = Turn(side, *(wants(side, order) for order in ("4471", "4472")), max_iterations=2)
    assert (await turn.run()).stop.limit == "iterations"
    turn = Turn(side, wants(side, "4471", "4472"), max_tool_calls=1)
    assert (await turn.run()).stop.limit == "tool_calls"
    assert len(turn.ran) == 1 and len(turn.results) == 2


@sides
async def test_a_tool_that_hangs_is_stopped(side: Any) -> None:
    turn = Turn(side, wants(side, "slow"), side.LLMResponse(text="查不到"), seconds=0.02)
    assert (await turn.run()).response.text == "查不到"
    assert "did not finish" in turn.results[0]


@sides
async def test_another_model_answers_when_the_first_cannot(side: Any) -> None:
    for kind in ("unreachable", "rate_limited", "auth"):
        script = [side.failure(kind, retryable=kind != "auth")]
        provider = side.FallbackProvider(
            [side.ScriptedProvider(script), side.ScriptedProvider([side.LLMResponse(text="备用的在")])]
        )
        assert (await provider.chat(USER)).text == "备用的在"
    second = side.ScriptedProvider([side.LLMResponse(text="不该问我")])
    wrong = side.ScriptedProvider([side.failure("error")])
    with pytest.raises(side.ModelError):
        await side.FallbackProvider([wrong, second]).chat(USER)
    assert second.requests == []


@sides
async def test_a_script_is_said_in_pieces_and_then_whole(side: Any) -> None:
    provider = side.ScriptedProvider([side.LLMResponse(text="2 天后送达")], piece=4)
    chunks = [chunk async for chunk in provider.stream(USER)]
    assert [chunk.text for chunk in chunks] == ["2 天后", "送达", ""]
    assert chunks[-1].response.text == "2 天后送达" and provider.requests == [USER]


@sides
def test_an_answer_is_written_into_the_history_as_the_api_takes_it(side: Any) -> None:
    assert side.LLMResponse(text="好").to_message() == {"role": "assistant", "content": "好"}
    function = {"name": "t", "arguments": '{"城市": "杭州"}'}
    call = {"id": "c1", "type": "function", "function": function}
    response = side.LLMResponse(tool_calls=(side.ToolCall.of("c1", "t", {"城市": "杭州"}),))
    assert response.to_message() == {"role": "assistant", "content": None, "tool_calls": [call]}


@sides
def test_an_interrupted_call_gets_a_result_in_the_view_only(side: Any) -> None:
    asked = wants(side, "4471", "4472").to_message()
    first, second = (call["id"] for call in asked["tool_calls"])
    answered = {"role": "tool", "tool_call_id": first, "content": "已发货"}
    stray = {"role": "tool", "tool_call_id": "x", "content": "?"}
    log = [*USER, asked, answered, stray, {"role": "user", "content": "还在吗？"}]
    view = side.legal(log)
    assert [message["role"] for message in view] == ["user", "assistant", "tool", "tool", "user"]
    assert [message["tool_call_id"] for message in view[2:4]] == [first, second]
    assert "interrupted" in view[3]["content"] and len(log) == 5
    assert side.legal(view) == view


class FakeServer:
    """Answers each request with the next line: a status, or the chunks of a stream."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.bodies: list[Message] = []
        self.slept: list[float] = []

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        line = self.script.pop(0)
        if isinstance(line, int):
            return web.json_response({"error": {"message": "no"}}, status=line, headers={"Retry-After": "3"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta, finish in line:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            await response.write(f"data: {web.json_response({'choices': [choice]}).text}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def provider(self, make: Callable[..., Any]) -> AsyncIterator[Any]:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        provider = make("m", api_key="k", base_url=url, temperature=0.5, max_tokens=9, sleep=sleep)
        try:
            yield provider
        finally:
            await provider.close()
            await runner.cleanup()


def piece(arguments: str, **head: Any) -> Message:
    function = {"arguments": arguments, **({"name": head.pop("name")} if "name" in head else {})}
    return {"tool_calls": [{"index": 0, "function": function, **head}]}


@sides
async def test_a_busy_server_is_asked_again_and_a_streamed_call_is_put_together(side: Any) -> None:
    parts = [
        (piece("", id="c1", name="get_order_status"), None),
        (piece('{"order_id":'), None),
        (piece(' "4471"}'), "tool_calls"),
    ]
    server = FakeServer(429, parts)
    async with asyncio.timeout(GUARD), server.provider(side.OpenAIProvider) as provider:
        response = await provider.chat(USER, [{"type": "function", "function": {"name": "get_order_status"}}])
    (call,) = response.tool_calls
    assert (call.id, call.name, call.arguments) == ("c1", "get_order_status", {"order_id": "4471"})
    assert server.slept == [3.0]
    assert (server.bodies[-1]["temperature"], server.bodies[-1]["max_tokens"]) == (0.5, 9)


@sides
async def test_a_refused_key_is_not_tried_again(side: Any) -> None:
    server = FakeServer(401)
    async with asyncio.timeout(GUARD), server.provider(side.OpenAIProvider) as provider:
        with pytest.raises(side.ModelError) as caught:
            await provider.chat(USER)
    assert caught.value.code == "model_auth" and server.slept == []
