"""The ReAct loop: ask the model, run the tools it asks for, until it answers or a limit is reached.

Knows neither sessions nor channels: what it says goes out as events, what it learns goes into a
`Transcript`, and whether a call may run is the `ToolGate`'s to say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from miniclaw import failpoints
from miniclaw.agent.config import AgentConfig
from miniclaw.agent.providers import LLMChunk, LLMProvider, LLMResponse, Message, ToolCall
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import new_id
from miniclaw.session.models import Usage
from miniclaw.tools.base import Risk, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = [
    "AgentEvent",
    "AgentRuntime",
    "Finished",
    "ModelCalled",
    "StoppedBy",
    "ToolFinished",
    "ToolGate",
    "ToolStarted",
    "Transcript",
]

StoppedBy = Literal["iterations", "tool_calls", "tokens", "seconds", "money"]

logger = logging.getLogger(__name__)

REPEATS: Final = 3
"""How often the same call with the same arguments runs in a turn; then the model is told to stop."""


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call is taken up."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A call has its result, which is in the transcript already."""

    call: ToolCall
    result: ToolResult
    ms: int


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """One request to the model is over."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Finished:
    """The turn's answer; not in the transcript yet, since its end is committed with it."""

    response: LLMResponse
    stopped_by: StoppedBy | None = None


AgentEvent = LLMChunk | ToolStarted | ToolFinished | ModelCalled | Finished


class Transcript(Protocol):
    """Where the steps of a turn are kept; `append` returns when the step is stored."""

    def messages(self) -> list[Message]:
        """The legal history, system prompt first, as the model is to see it now."""
        ...

    def pending(self) -> Sequence[ToolCall]:
        """Calls of the last assistant message that have no result: what an interrupted turn left."""
        ...

    def call_ids(self) -> set[str]:
        """Ids of the calls that this turn has made already."""
        ...

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        """Store the next step."""
        ...


class ToolGate(Protocol):
    """Decides whether a call may run; the model only proposes."""

    async def admit(self, call: ToolCall, risk: Risk) -> str | None:
        """`None` = run it now; a text = do not, the model gets this text instead."""
        ...


class AgentRuntime:
    """Runs turns with one model and one configuration."""

    def __init__(self, provider: LLMProvider, config: AgentConfig) -> None:
        self.provider = provider
        self.config = config

    async def run(
        self,
        transcript: Transcript,
        toolbox: ToolBox,
        gate: ToolGate,
        *,
        context: ToolContext | None = None,
        model: str | None = None,
    ) -> AsyncIterator[AgentEvent]:
        """Go on from where the transcript stands until the answer; the last event is `Finished`.

        Raises:
            ModelError: the model gave no usable answer.
        """
        provider = self.provider.with_model(model) if model else self.provider
        turn = _Turn(transcript, toolbox, gate, context, self.config)
        tools = toolbox.get_openai_tools() or None
        while True:
            if turn.calls:
                async for event in turn.run_calls():
                    yield event
            if turn.stopped_by is not None or turn.iterations >= self.config.max_iterations:
                yield Finished(LLMResponse(), turn.stopped_by or "iterations")
                return
            turn.iterations += 1
            failpoints.hit("before-model")
            response = None
            async for chunk in provider.stream(transcript.messages(), tools):
                if chunk.response is None:
                    yield chunk
                else:
                    response = chunk.response
            if response is None:
                raise ModelError("model_unreachable", "The model's stream was cut.", retryable=True)
            yield ModelCalled(response.usage)
            if await turn.take(response):
                yield Finished(response)
                return


def _with_fresh_ids(response: LLMResponse, used: set[str]) -> LLMResponse:
    """The response with call ids that the turn has not seen: approvals and results hang on them."""
    calls = []
    for call in response.tool_calls:
        calls.append(replace(call, id=new_id("call")) if call.id in used else call)
        used.add(calls[-1].id)
    return replace(response, tool_calls=tuple(calls)) if calls else response


class _Turn:
    """The counters of one run, and the way a call goes."""

    def __init__(
        self,
        transcript: Transcript,
        toolbox: ToolBox,
        gate: ToolGate,
        context: ToolContext | None,
        config: AgentConfig,
    ) -> None:
        self._transcript = transcript
        self._toolbox = toolbox
        self._gate = gate
        self._context = context
        self._max_calls = config.max_tool_calls
        self._count = 0
        self._used_ids = transcript.call_ids()
        self._asked_again = False
        self.calls: Sequence[ToolCall] = transcript.pending()
        self._seen: dict[tuple[str, str], int] = {}
        self.iterations = 0
        self.stopped_by: StoppedBy | None = None

    async def take(self, response: LLMResponse) -> bool:
        """Store the calls of a response as the next step; `True` when it is the answer instead.

        Raises:
            ModelError: it is empty, for the second time.
        """
        response = _with_fresh_ids(response, self._used_ids)
        self.calls = response.tool_calls
        if self.calls:
            meta = {"reasoning": response.reasoning} if response.reasoning else None
            await self._transcript.append(response.to_message(), meta)
            failpoints.hit("after-calls")
            return False
        if not response.text.strip() and self._asked_again:
            raise ModelError("empty_answer", "The model gave an empty answer twice; ask in other words.")
        self._asked_again = True
        return bool(response.text.strip())

    async def run_calls(self) -> AsyncIterator[AgentEvent]:
        """Run the calls of one message: neighbouring reads side by side, everything else one by one."""
        group: list[ToolCall] = []
        for call in self.calls:
            if self._risk(call) == "read":
                group.append(call)
                continue
            async for event in self._run_group(group):
                yield event
            group = []
            async for event in self._run_group([call]):
                yield event
        async for event in self._run_group(group):
            yield event

    async def _run_group(self, calls: list[ToolCall]) -> AsyncIterator[AgentEvent]:
        for call in calls:
            yield ToolStarted(call)
        if len(calls) == 1:
            yield await self._run_one(calls[0])
            return
        tasks = {asyncio.create_task(self._run_one(call)) for call in calls}
        try:
            while tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_one(self, call: ToolCall) -> ToolFinished:
        began = time.perf_counter()
        result = await self._outcome(call)
        ms = round((time.perf_counter() - began) * 1000)
        message = {"role": "tool", "tool_call_id": call.id, "content": result.content}
        await self._transcript.append(message, {"ok": result.ok, "ms": ms, "name": call.name})
        failpoints.hit("after-result")
        return ToolFinished(call, result, ms)

    async def _outcome(self, call: ToolCall) -> ToolResult:
        self._count += 1
        if self._count > self._max_calls:
            self.stopped_by = "tool_calls"
            return ToolResult.failure("this turn has used up its tool calls; the call was not run")
        if call.arguments is None:
            return ToolResult.failure(
                "the arguments are not a JSON object; send the call again with valid JSON"
            )
        key = (call.name, call.raw)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] > REPEATS:
            if self._seen[key] > REPEATS + 1:
                self.stopped_by = "tool_calls"
            return ToolResult.failure(
                f"`{call.name}` has run {REPEATS} times with the same arguments and will not change; "
                "answer with what you know, or do something else"
            )
        if self._toolbox.find(call.name) is None:
            names = ", ".join(tool["function"]["name"] for tool in self._toolbox.get_openai_tools())
            return ToolResult.failure(f"there is no tool `{call.name}`; the tools are: {names or 'none'}")
        refusal = await self._gate.admit(call, self._risk(call))
        if refusal is not None:
            return ToolResult.failure(refusal)
        result = await self._toolbox.execute(call.name, call.arguments, self._context)
        failpoints.hit("in-read-tool" if self._risk(call) == "read" else "in-write-tool")
        return result

    def _risk(self, call: ToolCall) -> Risk:
        tool = self._toolbox.find(call.name)
        if tool is None or call.arguments is None:
            return "read"  # it will not run
        try:
            return tool.risk_of(call.arguments)
        except Exception:  # boundary: a tool's own function, which sees arguments before they are checked
            logger.exception("the risk of a call of %s cannot be told; it counts as a write", call.name)
            return "write"
