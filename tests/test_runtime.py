"""The ReAct loop alone: which calls run, in what order, what the model is told, and where it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from miniclaw.agent.budget import Budget, Stop
from miniclaw.agent.config import AgentConfig
from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ToolCall
from miniclaw.agent.runtime import (
    AgentEvent,
    AgentRuntime,
    Finished,
    ToolFinished,
    ToolStarted,
)
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.agent.transcript import pending_calls, settled_calls
from miniclaw.errors import ModelError, StorageUnavailable
from miniclaw.session.history import legal
from miniclaw.session.models import Entry, Usage
from miniclaw.tools.base import Risk, Tool, ToolResult
from miniclaw.tools.registry import ToolRegistry
from tests.support.model import illegal

GUARD = 10.0


class ListTranscript:
    """A turn's steps in a list."""

    def __init__(self, steps: Iterable[Message] = ()) -> None:
        self.steps: list[Message] = [{"role": "user", "content": "go"}, *steps]
        self.metas: list[dict[str, Any] | None] = [None] * len(self.steps)

    def messages(self) -> list[Message]:
        return legal(self.steps)

    def settled(self) -> list[tuple[ToolCall, str]]:
        return settled_calls([Entry("t", number, step) for number, step in enumerate(self.steps)])

    def pending(self) -> Sequence[ToolCall]:
        return pending_calls([Entry("t", number, step) for number, step in enumerate(self.steps)])

    def told(self, counted: int) -> None: ...

    def offer(self, tools: list[Message]) -> list[Message]:
        return tools

    def shrink(self, limit: int | None, requested: int | None = None, model: str = "") -> bool:
        return False

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        await asyncio.sleep(0)
        self.steps.append(message)
        self.metas.append(meta)

    @property
    def results(self) -> dict[str, str]:
        """Contents of the results by call id."""
        return {step["tool_call_id"]: step["content"] for step in self.steps if step["role"] == "tool"}


class OpenGate:
    """Lets every call pass but those of some tools, and keeps what it was asked."""

    def __init__(self, refusals: Mapping[str, str] | None = None) -> None:
        self._refusals = refusals or {}
        self.asked: list[tuple[str, Risk]] = []

    async def admit(self, call: ToolCall, risk: Risk) -> str | None:
        self.asked.append((call.id, risk))
        return self._refusals.get(call.name)


class Probe(Tool):
    """A tool whose body a test writes; counts how often it ran and how many ran at once."""

    parameters: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}

    def __init__(
        self, name: str, risk: Risk | Callable[[Mapping[str, Any]], Risk] = "read", body: Any = None
    ) -> None:
        self.name = name
        self.description = name
        self.risk = risk
        self._body = body
        self.ran: list[dict[str, Any]] = []
        self.running = self.most = 0

    async def execute(self, **kwargs: Any) -> ToolResult:
        self.ran.append(kwargs)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return ToolResult(content=str(await self._body(**kwargs) if self._body else "done"))
        finally:
            self.running -= 1


def asks(*calls: ToolCall, **more: Any) -> LLMResponse:
    return LLMResponse(tool_calls=calls, finish="tool_calls", **more)


def call(call_id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall.of(call_id, name, arguments)


async def run(
    script: Iterable[Script],
    *tools: Tool,
    transcript: ListTranscript | None = None,
    gate: OpenGate | None = None,
    model: str | None = None,
    provider: ScriptedProvider | None = None,
    **config: Any,
) -> tuple[list[AgentEvent], ListTranscript]:
    """Run a turn to its end; its events and its steps. Every history that the model saw was legal."""
    transcript = transcript or ListTranscript()
    provider = provider or ScriptedProvider(script)
    runtime = AgentRuntime(provider, AgentConfig(**config))
    budget = Budget(runtime.config)
    budget.restore(Entry("t", number, step) for number, step in enumerate(transcript.steps))
    box, gate = ToolRegistry(tools), gate or OpenGate()
    async with asyncio.timeout(GUARD):
        events = [event async for event in runtime.run(transcript, box, gate, model=model, budget=budget)]
    assert [illegal(request) for request in provider.requests] == [None] * len(provider.requests)
    return events, transcript


def end_of(events: list[AgentEvent]) -> Finished:
    (end,) = [event for event in events if isinstance(event, Finished)]
    assert events[-1] is end
    return end


# --- the way of an answer ---------------------------------------------------------------------------------


async def test_an_answer_is_streamed_and_left_to_be_committed_with_the_end() -> None:
    events, transcript = await run([LLMResponse(text="hello", usage=Usage(calls=1))])
    assert [event.text for event in events if isinstance(event, LLMChunk)] == ["hell", "o"]
    end = end_of(events)
    assert (end.response.text, end.stop) == ("hello", None)
    assert len(transcript.steps) == 1


async def test_calls_are_stored_before_they_run_and_results_before_they_are_shown() -> None:
    tool = Probe("look")
    answer = asks(call("c1", "look", place="here"), text="let me see", reasoning="hmm")
    events, transcript = await run([answer, LLMResponse(text="there")], tool)
    kinds = [type(event) for event in events if not isinstance(event, LLMChunk)]
    assert kinds == [ToolStarted, ToolFinished, Finished]
    assert tool.ran == [{"place": "here"}]
    assert transcript.steps[1:] == [
        answer.to_message(),
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    kept = transcript.metas[1] or {}
    assert kept["reasoning"] == "hmm" and kept["usage"][0]["calls"] == 1
    meta = transcript.metas[2] or {}
    assert (meta["ok"], meta["name"]) == (True, "look")


async def test_a_call_runs_only_once_it_is_stored() -> None:
    transcript = ListTranscript()
    tool = Probe("look", body=lambda: looked(transcript))

    async def looked(steps: ListTranscript) -> str:
        return str(steps.steps[-1]["role"])

    await run([asks(call("c1", "look")), LLMResponse(text="x")], tool, transcript=transcript)
    assert transcript.results == {"c1": "assistant"}


@pytest.mark.parametrize("is_stored", [True, False])
async def test_of_two_writes_that_are_the_same_one_runs_also_when_the_process_ends_between_them(
    is_stored: bool,
) -> None:
    twins = [call("c1", "store", at="x"), call("c2", "save", at="x")]
    asked = asks(*twins).to_message()
    done: list[Message] = [{"role": "tool", "tool_call_id": "c1", "content": "saved"}] if is_stored else []
    tool = Probe("save", "write")
    tool.aliases = ("store",)
    gate = OpenGate({} if is_stored else {"save": "interrupted"})
    _, transcript = await run(
        [LLMResponse(text="x")], tool, transcript=ListTranscript([asked, *done]), gate=gate
    )
    assert tool.ran == []
    assert transcript.results["c2"] == ("saved" if is_stored else transcript.results["c1"])
    assert len(gate.asked) == (0 if is_stored else 1)


async def test_another_model_is_asked_when_the_session_has_one() -> None:
    seen = []

    class Named(ScriptedProvider):
        async def stream(
            self, messages: Sequence[Message], tools: Sequence[Message] | None = None
        ) -> AsyncIterator[LLMChunk]:
            seen.append(self.info.name)
            async for chunk in super().stream(messages, tools):
                yield chunk

    for model in (None, "bigger"):
        await run([], provider=Named([LLMResponse(text="x")], model="own"), model=model)
    assert seen == ["own", "bigger"]


async def test_a_turn_that_was_interrupted_runs_what_was_left_before_it_asks_the_model() -> None:
    tool = Probe("look")
    left = asks(call("c1", "look"), call("c2", "look", again=True)).to_message()
    transcript = ListTranscript([left, {"role": "tool", "tool_call_id": "c1", "content": "known"}])
    provider = ScriptedProvider([LLMResponse(text="x")])
    await run([], tool, transcript=transcript, provider=provider)
    assert tool.ran == [{"again": True}]
    assert transcript.results == {"c1": "known", "c2": "done"}
    assert len(provider.requests) == 1


# --- side by side and one after another -------------------------------------------------------------------


async def test_neighbouring_reads_run_side_by_side() -> None:
    """Each waits for the other, so one after the other they would wait for ever."""
    barrier = asyncio.Barrier(3)
    tools = [Probe(name, body=barrier.wait) for name in "abc"]
    events, transcript = await run([asks(*(call(f"c{n}", n) for n in "abc")), LLMResponse(text="x")], *tools)
    kinds = [type(event) for event in events if isinstance(event, ToolStarted | ToolFinished)]
    assert kinds == [ToolStarted] * 3 + [ToolFinished] * 3
    assert set(transcript.results) == {"ca", "cb", "cc"}


async def test_reads_that_end_in_another_order_keep_their_own_results() -> None:
    second_is_done = asyncio.Event()

    async def slow() -> str:
        await second_is_done.wait()
        return "slow"

    async def quick() -> str:
        second_is_done.set()
        return "quick"

    _, transcript = await run(
        [asks(call("c1", "slow"), call("c2", "quick")), LLMResponse(text="x")],
        Probe("slow", body=slow),
        Probe("quick", body=quick),
    )
    assert list(transcript.results.items()) == [("c2", "quick"), ("c1", "slow")]


async def test_writes_run_one_after_another_in_order_and_never_beside_a_read() -> None:
    order: list[str] = []
    running = itertools.count()
    busy: set[int] = set()

    def body(name: str, alone: bool) -> Callable[..., Any]:
        async def work() -> str:
            number = next(running)
            assert not (busy and alone), f"{name} runs beside another"
            busy.add(number)
            order.append(f"+{name}")
            for _ in range(5):
                await asyncio.sleep(0)
            order.append(f"-{name}")
            busy.discard(number)
            return name

        return work

    names = {"r1": False, "r2": False, "w1": True, "w2": True, "r3": False}
    tools = [Probe(name, "write" if alone else "read", body(name, alone)) for name, alone in names.items()]
    _, transcript = await run([asks(*(call(n, n) for n in names)), LLMResponse(text="x")], *tools)
    assert order[:4] == ["+r1", "+r2", "-r1", "-r2"]
    assert order[4:] == ["+w1", "-w1", "+w2", "-w2", "+r3", "-r3"]
    assert transcript.results == {name: name for name in names}


async def test_a_turn_that_is_cancelled_ends_the_reads_that_run() -> None:
    never, both = asyncio.Event(), asyncio.Barrier(3)

    async def hang() -> None:
        await both.wait()
        await never.wait()

    tools = [Probe("a", body=hang), Probe("b", body=hang)]
    task = asyncio.create_task(run([asks(call("c1", "a"), call("c2", "b"))], *tools))
    async with asyncio.timeout(GUARD):
        await both.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [tool.running for tool in tools] == [0, 0]


async def test_a_result_that_cannot_be_stored_ends_the_turn_and_the_reads_beside_it() -> None:
    never = asyncio.Event()

    class Broken(ListTranscript):
        async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
            if message["role"] == "tool":
                raise StorageUnavailable("no")
            await super().append(message, meta)

    hanging = Probe("a", body=never.wait)
    with pytest.raises(StorageUnavailable):
        await run([asks(call("c1", "a"), call("c2", "b"))], hanging, Probe("b"), transcript=Broken())
    assert (len(hanging.ran), hanging.running) == (1, 0)


# --- calls that do not run --------------------------------------------------------------------------------


async def test_a_result_without_a_text_says_so_for_servers_that_refuse_a_blank_one() -> None:
    bodies = {"nothing": "", "blanks": " \n"}

    def body(text: str) -> Any:
        async def execute(**_: Any) -> str:
            return text

        return execute

    tools = [Probe(name, body=body(text)) for name, text in bodies.items()]
    asked = asks(*(ToolCall.of(name, name, {}) for name in bodies))
    _, transcript = await run([asked, LLMResponse(text="ok")], *tools)
    assert transcript.results == dict.fromkeys(bodies, "(no output)")


async def test_a_tool_that_is_not_there_is_answered_with_those_that_are() -> None:
    gate = OpenGate()
    script = [asks(call("c1", "lok")), LLMResponse(text="x")]
    _, transcript = await run(script, Probe("look"), Probe("secret", "forbidden"), gate=gate)
    assert transcript.results == {"c1": "Error: There is no tool `lok`. Did you mean `look`?"}
    assert gate.asked == []
    _, transcript = await run([asks(call("c1", "look")), LLMResponse(text="x")])
    assert transcript.results == {"c1": "Error: There is no tool `look`. The tools are: none."}


async def test_a_tool_that_cancels_its_own_task_has_failed_and_the_turn_goes_on() -> None:
    async def leave(**_: Any) -> None:
        for task in asyncio.all_tasks():
            if "execute" in str(task.get_coro()):
                task.cancel()
        await asyncio.sleep(0)

    events, transcript = await run([asks(call("c1", "go")), LLMResponse(text="x")], Probe("go", body=leave))
    assert "ended its own task" in transcript.results["c1"] and end_of(events).stop is None


async def test_arguments_that_are_no_object_are_sent_back_and_nothing_runs() -> None:
    tool, gate = Probe("look", "write"), OpenGate()
    broken = ToolCall("c1", "look", '{"a": ', None)
    events, transcript = await run([asks(broken), LLMResponse(text="x")], tool, gate=gate)
    assert "not a JSON object" in transcript.results["c1"]
    assert (tool.ran, gate.asked) == ([], [])
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert not finished.result.ok


async def test_a_call_that_the_gate_refuses_is_told_to_the_model_and_does_not_run() -> None:
    tool, gate = Probe("wipe", "write"), OpenGate({"wipe": "the user said no"})
    _, transcript = await run([asks(call("c1", "wipe")), LLMResponse(text="x")], tool, gate=gate)
    assert transcript.results == {"c1": "Error: the user said no"}
    assert (tool.ran, gate.asked) == ([], [("c1", "write")])


async def test_the_risk_may_depend_on_the_arguments() -> None:
    gate = OpenGate()
    tool = Probe("http", lambda arguments: "read" if arguments["method"] == "GET" else "write")
    script = [asks(call("c1", "http", method="GET"), call("c2", "http", method="PUT")), LLMResponse(text="x")]
    await run(script, tool, gate=gate)
    assert gate.asked == [("c1", "read"), ("c2", "write")]


async def test_a_risk_that_cannot_be_told_counts_as_a_write_and_the_turn_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = OpenGate({"http": "no"})
    tool = Probe("http", lambda arguments: "read" if arguments["method"] == "GET" else "write")
    with caplog.at_level(logging.CRITICAL):
        events, _ = await run([asks(call("c1", "http", url="x")), LLMResponse(text="x")], tool, gate=gate)
    assert gate.asked == [("c1", "write")]
    assert end_of(events).response.text == "x"


# --- limits -----------------------------------------------------------------------------------------------


async def test_a_turn_ends_at_its_limit_of_model_calls_with_the_last_calls_answered() -> None:
    tool = Probe("look")
    script = [asks(call(f"c{n}", "look", n=n)) for n in range(9)]
    provider = ScriptedProvider(script)
    events, transcript = await run([], tool, provider=provider, max_iterations=3)
    assert end_of(events).stop == Stop("iterations")
    assert len(provider.requests) == 3
    assert list(transcript.results) == ["c0", "c1", "c2"]


async def test_a_turn_ends_at_its_limit_of_tool_calls_and_the_call_beyond_is_not_run() -> None:
    tool = Probe("look")
    script = [asks(call("c0", "look", n=0)), asks(*(call(f"c{n}", "look", n=n) for n in (1, 2)))]
    provider = ScriptedProvider(script)
    events, transcript = await run([], tool, provider=provider, max_tool_calls=2)
    assert end_of(events).stop == Stop("tool_calls")
    assert [ran["n"] for ran in tool.ran] == [0, 1]
    assert "used up" in transcript.results["c2"]
    assert len(provider.requests) == 2


async def test_the_limit_of_tool_calls_may_be_reached_and_not_passed() -> None:
    script = [asks(call("c0", "look", n=0), call("c1", "look", n=1)), LLMResponse(text="done")]
    events, _ = await run(script, Probe("look"), max_tool_calls=2)
    assert end_of(events).stop is None


async def test_the_same_call_runs_three_times_then_the_model_is_told_and_then_the_turn_ends() -> None:
    tool = Probe("look")
    script = [asks(call(f"c{n}", "look", place="here")) for n in range(9)]
    provider = ScriptedProvider(script)
    events, transcript = await run([], tool, provider=provider)
    assert len(tool.ran) == 3
    assert "was called 3 times" in transcript.results["c3"]
    assert end_of(events).stop == Stop("tool_calls")
    assert len(provider.requests) == 5


async def test_a_model_that_does_something_else_when_it_is_told_goes_on() -> None:
    tool = Probe("look")
    script: list[Script] = [asks(call(f"c{n}", "look", place="here")) for n in range(4)]
    script += [asks(call("c4", "look", place="there")), LLMResponse(text="found")]
    events, _ = await run(script, tool)
    assert end_of(events).response.text == "found"
    assert len(tool.ran) == 4


# --- answers that are none --------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["", " \n\t"])
async def test_an_empty_answer_is_asked_for_once_more(empty: str) -> None:
    provider = ScriptedProvider([LLMResponse(text=empty), LLMResponse(text="now")])
    events, transcript = await run([], provider=provider)
    assert end_of(events).response.text == "now"
    assert provider.requests[0] == provider.requests[1]
    assert len(transcript.steps) == 1


async def test_a_second_empty_answer_is_an_error() -> None:
    with pytest.raises(ModelError) as raised:
        await run([LLMResponse(), LLMResponse(reasoning="only thoughts")])
    assert raised.value.code == "empty_answer"


async def test_a_stream_without_an_end_is_a_cut_one() -> None:
    class Cut(ScriptedProvider):
        async def stream(
            self, messages: Sequence[Message], tools: Sequence[Message] | None = None
        ) -> AsyncIterator[LLMChunk]:
            yield LLMChunk("half")

    with pytest.raises(ModelError) as raised:
        await run([], provider=Cut([]))
    assert (raised.value.code, raised.value.retryable) == ("model_unreachable", True)


# --- ids --------------------------------------------------------------------------------------------------


async def test_a_call_id_that_the_turn_has_seen_is_replaced_within_an_answer_and_across_answers() -> None:
    tool = Probe("look")
    transcript = ListTranscript(
        [asks(call("c", "look", n=0)).to_message(), {"role": "tool", "tool_call_id": "c", "content": "old"}]
    )
    script = [
        asks(call("c", "look", n=1), call("c", "look", n=2), call("d", "look", n=3)),
        asks(call("d", "look", n=4)),
        LLMResponse(text="x"),
    ]
    gate = OpenGate()
    await run(script, tool, transcript=transcript, gate=gate)
    ids = [c["id"] for step in transcript.steps for c in step.get("tool_calls") or ()]
    assert len(set(ids)) == len(ids) == 5
    assert (ids[0], ids[3]) == ("c", "d")
    assert [call_id for call_id, _ in gate.asked] == ids[1:]
    assert sorted(ran["n"] for ran in tool.ran) == [1, 2, 3, 4]
    assert set(transcript.results) == set(ids)


async def test_without_a_gate_only_reads_run() -> None:
    look, save = Probe("look"), Probe("save", "write")
    transcript = ListTranscript()
    provider = ScriptedProvider([asks(call("a", "look"), call("b", "save")), LLMResponse(text="x")])
    runtime = AgentRuntime(provider, AgentConfig())
    async with asyncio.timeout(GUARD):
        events = [event async for event in runtime.run(transcript, ToolRegistry([look, save]))]
    assert end_of(events).response.text == "x"
    assert (len(look.ran), len(save.ran)) == (1, 0)
    assert "nobody is there to allow it" in transcript.results["b"]
