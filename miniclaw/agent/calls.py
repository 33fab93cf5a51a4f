"""How the calls of an answer are carried out: in which order, which of them not, and what the model is told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from miniclaw import failpoints
from miniclaw.agent.arguments import parse_call
from miniclaw.agent.budget import Budget, Stop
from miniclaw.agent.providers import NO_OUTPUT, LLMResponse, Message, ToolCall
from miniclaw.agent.trace import TurnTrace
from miniclaw.agent.transcript import fingerprint
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import new_id
from miniclaw.tools.base import Risk, Tool, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.risk import own_risk, risk_of

__all__ = ["CallRunner", "ReadsOnly", "ToolFinished", "ToolGate", "ToolStarted", "Transcript", "may_clear"]

logger = logging.getLogger(__name__)

REPEATS: Final = 3
"""How often the same call with the same arguments runs in a turn; then the model is told to stop."""
BAD_ARGUMENTS: Final = (
    "the arguments are not a JSON object, so the call was not run; send it again with valid JSON, and with less "
    "text at a time if it was cut off"
)
FILTERED: Final = "The provider's content filter stopped the answer; ask in other words."
CANCEL_SECONDS: Final = 1.0
"""How long a tool may take to end when its turn is cancelled; then it is left to itself, and its result too."""
GRACE_SECONDS: Final = 30.0
"""What hooks and a second try may add to a tool's own limit."""
_left_alone: set[asyncio.Task[ToolResult]] = set()
"""Tools that did not end when they were told to."""


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


class Transcript(Protocol):
    """Where the steps of a turn are kept; `append` returns when the step is stored."""

    def messages(self) -> list[Message]:
        """The legal history, system prompt first, as the model is to see it now."""

    def pending(self) -> Sequence[ToolCall]:
        """Calls of the last assistant message that have no result: what an interrupted turn left."""

    def settled(self) -> Sequence[tuple[ToolCall, str]]:
        """Calls of that message that have a result, and its text."""

    def offer(self, tools: list[Message]) -> list[Message]:
        """Those of the tools that the model's window has room for."""

    def told(self, counted: int) -> None:
        """The turn's own model counted so many tokens for the last `messages` and the tools."""

    def shrink(self, limit: int | None, requested: int | None = None, model: str = "") -> bool:
        """This model, or the turn's own, finds the history too long, and may have named what it takes and counted.

        Returns:
            Whether `messages` are fewer tokens from now on.
        """

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        """Store the next step; of a result whose `meta` has a text that is `kept`, that text only."""


class ToolGate(Protocol):
    """Decides whether a call may run; the model only proposes."""

    async def admit(self, call: ToolCall, risk: Risk) -> str | None:
        """`None` = run it now; a text = do not, the model gets this text instead."""


class ReadsOnly:
    """The gate where none is given: nobody was asked, so only what changes nothing runs."""

    async def admit(self, call: ToolCall, risk: Risk) -> str | None:
        return None if risk == "read" else "nobody is there to allow it; only tools that change nothing run"


class CallRunner:
    """One run: its calls, and the way each of them goes."""

    def __init__(
        self,
        transcript: Transcript,
        toolbox: ToolBox,
        gate: ToolGate,
        context: ToolContext | None,
        budget: Budget,
        trace: TurnTrace,
    ) -> None:
        self._transcript = transcript
        self._toolbox = toolbox
        self._gate = gate
        self._context = context
        self._budget = budget
        self._trace = trace
        self._asked_again = False
        self._calls: Sequence[ToolCall] = transcript.pending()
        self._written: dict[tuple[str, str], ToolResult] = {}
        """What this message's `write` calls came to: the same twice in one message runs once."""
        for call, text in transcript.settled() if self._calls else ():  # before the process was started anew
            if (tool := toolbox.find(call.name)) is not None:
                result = ToolResult(ok=not text.startswith("Error: "), content=text)
                self._written[fingerprint(replace(call, name=tool.name))] = result
        self.stop: Stop | None = None
        self.warnings: dict[str, None] = {}  # what the user should know of the answers so far, each once

    async def take(self, response: LLMResponse) -> bool:
        """Store the calls of a response as the next step; `True` when it is the answer instead.

        Raises:
            ModelError: it is empty, for the second time or because the provider filtered it.
        """
        if response.warning:
            self.warnings[response.warning] = None
        if response.finish == "content_filter":
            if not response.text.strip():
                raise ModelError("model_error", FILTERED, kind="content_filter")
            self.warnings[FILTERED] = None
        response = self._with_fresh_ids(response)
        self._calls = response.tool_calls
        self._written.clear()
        if self._calls:
            meta: dict[str, Any] = {"reasoning": response.reasoning} if response.reasoning else {}
            if response.finish == "length":
                self._calls = [replace(call, arguments=None) for call in self._calls]
                meta["cut"] = True
            await self._transcript.append(response.to_message(), meta | self._budget.mark())
            failpoints.hit("after-calls")
            return False
        if not response.text.strip() and self._asked_again:
            raise ModelError("empty_answer", "The model gave an empty answer twice; ask in other words.")
        self._asked_again = True
        return bool(response.text.strip())

    def _with_fresh_ids(self, response: LLMResponse) -> LLMResponse:
        """The response with call ids that the turn has not seen: approvals and results hang on them."""
        used, calls = self._budget.call_ids, []
        for call in response.tool_calls:
            calls.append(replace(call, id=new_id("call")) if call.id in used else call)
            used.add(calls[-1].id)
        return replace(response, tool_calls=tuple(calls)) if calls else response

    async def run(self) -> AsyncIterator[ToolStarted | ToolFinished]:
        """Run the calls of one message: neighbouring reads side by side, everything else one by one."""
        calls, self._calls = self._calls, ()
        group: list[tuple[ToolCall, Risk]] = []
        for call in calls:
            if (risk := await self._risk(call)) == "read":
                group.append((call, risk))
                continue
            async for event in self._run_group(group):
                yield event
            group = []
            async for event in self._run_group([(call, risk)]):
                yield event
        async for event in self._run_group(group):
            yield event

    async def _risk(self, call: ToolCall) -> Risk:
        """The risk of a call; that of one that will not run is `read`."""
        tool = self._toolbox.find(call.name)
        return "read" if tool is None or call.arguments is None else await risk_of(tool, call.arguments)

    async def _run_group(
        self, calls: list[tuple[ToolCall, Risk]]
    ) -> AsyncIterator[ToolStarted | ToolFinished]:
        for call, _ in calls:
            yield ToolStarted(call)
        if len(calls) == 1:
            yield await self._run_one(*calls[0])
            return
        tasks = {asyncio.create_task(self._run_one(call, risk)) for call, risk in calls}
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

    async def _run_one(self, call: ToolCall, risk: Risk) -> ToolFinished:
        began = time.perf_counter()
        result = await self._outcome(call, risk)
        ms = round((time.perf_counter() - began) * 1000)
        content = result.content if result.content.strip() else NO_OUTPUT
        message = {"role": "tool", "tool_call_id": call.id, "content": content}
        meta = {"ok": result.ok, "ms": ms, "name": call.name, "kept": result.kept}
        await self._transcript.append(message, meta | self._budget.mark())
        self._trace.tool(call, result, ms)
        failpoints.hit("after-result")
        return ToolFinished(call, result, ms)

    async def _outcome(self, call: ToolCall, risk: Risk) -> ToolResult:
        self._budget.count(tool_calls=1)
        if self._budget.tool_calls > self._budget.config.max_tool_calls:
            self.stop = Stop("tool_calls")
            return ToolResult.failure("this turn has used up its tool calls; the call was not run")
        tool = self._toolbox.find(call.name)
        if tool is not None:
            call = replace(call, name=tool.name)
        if (failure := self._again(call)) is not None:
            return ToolResult.failure(failure)
        if call.arguments is None:
            return ToolResult.failure(BAD_ARGUMENTS)
        if tool is None:
            return await self._toolbox.execute(call.name, call.arguments, self._context)  # says what there is
        key = fingerprint(call)
        if risk == "write" and key in self._written:
            return self._written[key]
        refusal = await self._gate.admit(call, risk)
        result = await self._execute(tool, call, risk) if refusal is None else ToolResult.failure(refusal)
        if risk == "write":
            self._written[key] = result
        if refusal is not None:
            return result
        failpoints.hit("in-read-tool" if risk == "read" else "in-write-tool")
        return result

    def _again(self, call: ToolCall) -> str | None:
        """Count the call; what the model is told when it was asked for too often."""
        key = fingerprint(call)
        self._budget.seen[key] += 1
        if self._budget.seen[key] <= REPEATS:
            return None
        if self._budget.seen[key] > REPEATS + 1:
            self.stop = Stop("tool_calls")
        return (
            f"`{call.name}` was called {REPEATS} times with the same arguments and nothing will change; "
            "answer with what you know, or do something else"
        )

    async def _execute(self, tool: Tool, call: ToolCall, risk: Risk) -> ToolResult:
        """Run the tool in a task of its own: one that does not end cannot hold up the turn's end."""
        given = call.arguments or {}
        context = self._context and replace(self._context, call_id=call.id, judged=(given, risk))
        task = asyncio.create_task(self._toolbox.execute(tool.name, given, context))
        seconds = self._budget.config.tool_timeout if tool.timeout is None else tool.timeout
        try:
            # The registry holds it to its time, unless it does not end when it is told to.
            await asyncio.wait([task], timeout=2 * seconds + GRACE_SECONDS)
            if not task.done():
                _leave_alone(task, tool)
                return ToolResult.failure(
                    f"`{tool.name}` does not end; what it did is unknown. Find another way."
                )
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_SECONDS)
            if not task.done():
                _leave_alone(task, tool)
            raise
        if task.cancelled():
            return ToolResult.failure(f"`{tool.name}` ended its own task; what it did is unknown.")
        return task.result()


def _leave_alone(task: asyncio.Task[ToolResult], tool: Tool) -> None:
    logger.warning("tool %s did not end when it was told to", tool.name)
    _left_alone.add(task)
    task.add_done_callback(_left_alone.discard)


def may_clear(toolbox: ToolBox, name: str, arguments: str) -> bool:
    """Whether the result of a call can be had again, so that an old one need not be kept before the model.

    Where a function of others tells the risk, it is not asked: the result is kept.
    """
    tool = toolbox.find(name)
    if tool is None or not tool.compactable:
        return False
    given = parse_call("", name, arguments).arguments
    return given is None or own_risk(tool, given) == "read"
