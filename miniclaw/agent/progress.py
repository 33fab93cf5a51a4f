"""What a turn has come to so far, and how its steps are shown to readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from miniclaw.agent.budget import Budget, DayBudget
from miniclaw.agent.calls import ToolFinished, ToolStarted
from miniclaw.agent.core import Core
from miniclaw.agent.providers import LLMChunk, ToolCall
from miniclaw.agent.trace import TurnTrace
from miniclaw.agent.transcript import fingerprint, parse_raw_call
from miniclaw.gateway.events import TurnFeed
from miniclaw.memory.models import MemorySearchResult
from miniclaw.session.models import Entry, Session, Turn, TurnState
from miniclaw.tools.context import ToolContext, workspace_of

__all__ = [
    "Outcome",
    "Pause",
    "Progress",
    "keep_steps",
    "report",
    "show_chunk",
    "show_tool",
    "without_memories",
]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a turn came to, before it is committed."""

    state: TurnState
    data: dict[str, Any]
    message: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None


@dataclass(slots=True)
class Progress:
    """What the turn has used and done so far, in all attempts; a turn that ends early still reports it."""

    budget: Budget
    trace: TurnTrace
    context: ToolContext
    seconds: float
    """What earlier attempts took, and a summary before the answer."""
    tools: list[dict[str, Any]]
    memories: list[MemorySearchResult] = field(default_factory=list)
    last_result: str = ""
    """Of a call that ran and did not fail."""
    warning: str = ""
    """What the user should know of the skills that are active."""

    @classmethod
    async def of(cls, core: Core, turn: Turn, session: Session) -> Progress:
        """Where the stored steps of earlier attempts got to."""
        context = ToolContext(
            user_id=turn.user_id,
            scope=turn.scope,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            workspace=workspace_of(core.data_dir, turn.scope, core.settings.users),
        )
        settings, steps = core.settings, session.steps_of(turn.turn_id)
        day = DayBudget(core.usage, turn.user_id, settings.limits)
        budget = Budget(settings.agent, settings.prices, day=day)
        if turn.attempt > 1:  # an id of a sub-task's call that was begun is not to be taken for a new one's
            budget.call_ids |= await core.turns.started_calls(turn.turn_id)
        progress = cls(budget, TurnTrace(turn, core.traces), context, budget.restore(steps), [])
        calls: dict[str, ToolCall] = {}
        for entry in steps:
            message, meta = entry.message, entry.meta or {}
            calls |= {call.id: call for call in map(parse_raw_call, message.get("tool_calls") or ())}
            if (call := calls.get(message.get("tool_call_id", ""))) is not None:
                row = {
                    "call_id": call.id,
                    "name": call.name,
                    "ok": meta.get("ok", True),
                    "ms": meta.get("ms", 0),
                }
                progress.tools.append(row)
                if (tool := core.registry.find(call.name)) is not None and tool.is_outside:
                    context.outside.append(call.name)
                if row["ok"]:
                    progress.last_result = message["content"]
                budget.seen[fingerprint(call)] += 1
        return progress


class Pause:
    """Stops the turn's clock while a person is asked."""

    def __init__(self, timer: asyncio.Timeout, show: Callable[[str], None]) -> None:
        self._timer = timer
        self._show = show
        self._left: float | None = None
        self._inner: Pause | None = None

    @contextmanager
    def holding(self, timer: asyncio.Timeout) -> Iterator[None]:
        """Stop the clock of a sub-task, too, whenever the turn's is stopped; there is one at a time."""
        self._inner = Pause(timer, lambda phase: None)
        try:
            yield
        finally:
            self._inner = None

    def left(self) -> float:
        """Seconds that the turn may still take."""
        if self._left is not None:
            return self._left
        return (self._timer.when() or 0.0) - asyncio.get_running_loop().time()

    def __call__(self, paused: bool) -> None:
        loop = asyncio.get_running_loop()
        deadline = self._timer.when()
        if paused and deadline is not None and not self._timer.expired():
            self._left = deadline - loop.time()
            self._timer.reschedule(None)
        elif not paused and self._left is not None:
            self._timer.reschedule(loop.time() + self._left)
            self._left = None
        if self._inner is not None:
            self._inner(paused)
        self._show("waiting_approval" if paused else "running")


def show_chunk(feed: TurnFeed, chunk: LLMChunk) -> None:
    """Show a piece of the answer or of the reasoning."""
    if chunk.text:
        feed.emit("text.delta", {"text": chunk.text})
    if chunk.reasoning:
        feed.emit("reasoning.delta", {"text": chunk.reasoning})


def show_tool(feed: TurnFeed, event: ToolStarted | ToolFinished, progress: Progress) -> None:
    """Show that a call began or what came of it, and count it."""
    call = event.call
    if isinstance(event, ToolStarted):
        arguments = call.arguments if call.arguments is not None else {"raw": call.raw}
        feed.emit("tool.started", {"call_id": call.id, "name": call.name, "arguments": arguments})
        return
    result = event.result
    if result.ok or isinstance(result.data, str):  # what a sub-task knew when it was stopped
        progress.last_result = (result.lasting if result.ok else result.data) or progress.last_result
    progress.tools.append({"call_id": call.id, "name": call.name, "ok": result.ok, "ms": event.ms})
    logger.info("tool %s: %s in %d ms", call.name, "ok" if result.ok else "failed", event.ms)
    feed.emit(
        "tool.finished",
        {
            "call_id": call.id,
            "name": call.name,
            "ok": result.ok,
            "content": result.content,
            "ms": event.ms,
        },
    )


def keep_steps(feed: TurnFeed, steps: list[Entry]) -> None:
    """Show again what stored steps of earlier attempts had shown."""
    text: list[str] = []
    tools: dict[str, dict[str, Any]] = {}
    for entry in steps:
        message = entry.message
        if message["role"] == "assistant":
            text.append(message.get("content") or "")
            for call in message.get("tool_calls") or ():
                function = call["function"]
                tools[call["id"]] = {
                    "call_id": call["id"],
                    "name": function["name"],
                    "arguments": {"raw": function["arguments"]},
                }
        elif message["role"] == "tool" and message["tool_call_id"] in tools:
            meta = entry.meta or {}
            tools[message["tool_call_id"]].update(
                ok=meta.get("ok", True), ms=meta.get("ms", 0), content=message["content"]
            )
    feed.keep("".join(text), list(tools.values()))


def report(progress: Progress) -> dict[str, Any]:
    """What every end tells: tokens, tools, memories."""
    return {
        "usage": progress.budget.usage.to_dict(),
        "tools": progress.tools,
        "used_memories": [
            found.record.model_dump(include={"memory_id", "content", "category"})
            for found in progress.memories
        ],
        "saved_memories": progress.context.saved_memories,
    }


def without_memories(data: dict[str, Any]) -> dict[str, Any]:
    """An end as it is stored: of what was recalled only ids, so that a memory that is forgotten is gone."""
    if not data.get("used_memories"):
        return data
    used = [{name: one[name] for name in one if name != "content"} for one in data["used_memories"]]
    return {**data, "used_memories": used}
