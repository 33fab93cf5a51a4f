"""The `delegate` tool: one sub-task for an agent with a context of its own, inside the turn that asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from miniclaw.agent.budget import Budget, Stop
from miniclaw.agent.gate import TurnGate
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.replies import limit_sentence
from miniclaw.agent.runtime import AgentRuntime, Finished, ToolFinished
from miniclaw.agent.trace import TurnTrace
from miniclaw.errors import ModelError, ToolError
from miniclaw.memory.context import Layer
from miniclaw.memory.short_term import ShortTermMemory
from miniclaw.session.history import HistoryView, message_tokens
from miniclaw.tools.base import Tool, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["DelegateTool", "PARENT", "Parent"]

SHARE: Final = 0.5
"""The part of what is left of the turn's budget that a sub-task may use."""
MOST_MODEL_CALLS: Final = 10
MOST_TOOL_CALLS: Final = 20
TIMEOUT: Final = 24 * 3600.0
"""No limit of its own: its share of the turn's time is one, and waiting for a person is not counted there."""

PERSONA: Final = """\
You carry out one task for another assistant, which sees only your last message: put the whole result there.
Use the tools where data from outside is needed. When a tool fails or is refused, say so; never invent a result.
Answer in the language of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The turn inside which a tool runs."""

    runtime: AgentRuntime
    toolbox: ToolBox
    gate: TurnGate
    budget: Budget
    trace: TurnTrace
    window: ShortTermMemory
    model: str | None
    """The session's own, where it has one."""
    model_name: str


PARENT: ContextVar[Parent | None] = ContextVar("parent", default=None)
"""Set in the task of an attempt, and so for the tools that run in it."""


class DelegateTool(Tool):
    """Runs a bounded agent; it has no session, no mailbox, and cannot delegate again."""

    name = "delegate"
    description = (
        "Give a self-contained part of the work, such as reading many pages for one fact, to an assistant that "
        "sees nothing of this conversation and returns only its result. Not for what one tool call can do."
    )
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "everything it must know, in full sentences"},
            "tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "names of the tools that it may use; left out = those that change nothing",
            },
        },
        "required": ["task"],
        "additionalProperties": False,
    }
    risk = "write"
    timeout = TIMEOUT
    wants_context = True

    async def execute(self, *, tool_context: ToolContext | None = None, **arguments: Any) -> ToolResult:
        parent, task = PARENT.get(), arguments["task"]
        if parent is None or tool_context is None:
            raise ToolError("A sub-task belongs to a turn: this works only inside a conversation.")
        toolbox = _Subset(parent.toolbox, arguments.get("tools"))
        budget = parent.budget.share(SHARE, iterations=MOST_MODEL_CALLS, tool_calls=MOST_TOOL_CALLS)
        end, known = Finished(LLMResponse(), Stop("seconds")), ""
        events = parent.runtime.run(
            _TaskTranscript(task, parent),
            toolbox,
            parent.gate,
            context=tool_context,
            model=parent.model,
            budget=budget,
            trace=parent.trace.part("delegate", [Layer(name="persona", text=PERSONA)]),
        )
        try:
            async with asyncio.timeout(budget.config.turn_timeout) as timer:
                with parent.gate.pause.holding(timer):
                    async for event in events:
                        match event:
                            case ToolFinished() if event.result.ok:
                                known = event.result.lasting
                            case Finished():
                                end = event
        except TimeoutError:
            if not timer.expired():
                raise
        except ModelError as error:
            raise ToolError(f"The sub-task failed: {error}") from error
        if end.stop is not None:
            return replace(ToolResult.failure(limit_sentence(end.stop, task, known)), data=known)
        return ToolResult(content=end.response.text)


class _TaskTranscript:
    """The `Transcript` of a sub-task, kept in memory only."""

    def __init__(self, task: str, parent: Parent) -> None:
        self._view = HistoryView()
        self._view.extend([{"role": "user", "content": task}])
        self._window = parent.window
        self._model = parent.model_name
        self._models = {self._model}

    def messages(self) -> list[Message]:
        return self._window.fit(PERSONA, self._view, model=min(self._models, key=self._window.size))

    def settled(self) -> Sequence[tuple[ToolCall, str]]:
        return ()

    def pending(self) -> Sequence[ToolCall]:
        return ()

    def told(self, counted: int) -> None:
        """What a turn learns of it is enough."""

    def offer(self, tools: list[Message]) -> list[Message]:
        return tools

    def shrink(self, limit: int | None, requested: int | None = None, model: str = "") -> bool:
        sent = self._size()
        self._models.add(refused := model or self._model)
        return self._window.lower(refused, limit, self._size, sent=sent, requested=requested)

    def _size(self) -> int:
        return sum(map(message_tokens, self.messages()))

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        self._view.extend([message])


class _Subset:
    """Some tools of a toolbox, never `delegate`; raises `ToolError` for one that is not there."""

    def __init__(self, toolbox: ToolBox, names: Sequence[str] | None) -> None:
        self._toolbox = toolbox
        listed = [row["function"]["name"] for row in toolbox.get_openai_tools()]
        listed.remove(DelegateTool.name)
        unknown = [name for name in names or () if name not in listed]
        if unknown:
            raise ToolError(f"A sub-task cannot have `{unknown[0]}`; it can have: {', '.join(listed)}.")
        if names is None:
            found = [(name, toolbox.find(name)) for name in listed]
            names = [name for name, tool in found if tool is not None and tool.risk == "read"]
        self._names = frozenset(names)

    def get_openai_tools(self) -> list[dict[str, Any]]:
        return [row for row in self._toolbox.get_openai_tools() if row["function"]["name"] in self._names]

    def find(self, name: str) -> Tool | None:
        tool = self._toolbox.find(name)
        return tool if tool is not None and tool.name in self._names else None

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        if self.find(name) is None:
            return ToolResult.failure(
                f"a sub-task has no tool `{name}`; it has: {', '.join(sorted(self._names)) or 'none'}"
            )
        return await self._toolbox.execute(name, arguments, context)
