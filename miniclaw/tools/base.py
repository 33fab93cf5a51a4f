"""What a tool is, what it returns, and the little that the agent needs of a set of tools."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from miniclaw.tools.context import ToolContext
from miniclaw.tools.schema import schema_fault

__all__ = ["DescribesCall", "Risk", "Tool", "ToolBox", "ToolProblem", "ToolResult", "ToolSource", "fault_of"]

Risk = Literal["read", "write", "forbidden"]
"""`read` changes nothing; `write` asks unless a rule allows it; `forbidden` is never even listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The outcome of one call."""

    ok: bool = True
    content: str = ""
    """What the model reads."""
    data: Any = None
    """The same for programs, where the tool has it; JSON-serialisable."""
    error: str | None = None
    """Why it failed, in a sentence that helps the model to do better; `None` when `ok`."""
    kept: str | None = None
    """What the log keeps in place of the content, where it may be forgotten: the model reads the content in this turn
    only. `None` = the content itself."""

    @property
    def lasting(self) -> str:
        """What may be stored of the content."""
        return self.content if self.kept is None else self.kept

    @classmethod
    def failure(cls, error: str) -> ToolResult:
        """A failed call; the model reads the error as the content."""
        return cls(ok=False, content=f"Error: {error}", error=error)


class Tool(ABC):
    """A function that the model may ask for.

    Subclass it for a tool with state; `@tool` makes one of a typed function.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object with `additionalProperties: false`."""
    risk: Risk | Callable[[Mapping[str, Any]], Risk] = "write"
    """A fixed risk, or a function of the arguments."""
    timeout: float | None = None
    """Seconds one call may take; `None` = the agent's `tool_timeout`."""
    compactable: bool = False
    """Old results may be cleared from the context, since the call can be repeated."""
    idempotent: bool = False
    """Running it twice is the same as running it once, so a crash may repeat it."""
    asks_always: bool = False
    """A yes holds for one call only; of rules, only one for these exact arguments allows it."""
    aliases: tuple[str, ...] = ()
    """Other names that a call is accepted by; never listed."""
    wants_context: bool = False
    """`execute` is also given `tool_context`, a `ToolContext` or `None`, which the model never sees."""
    is_outside: bool = True
    """Whether its results may be words of others, which are no longer the user's when they are saved."""
    origin: str = ""
    """Where it comes from, for messages about it, such as a server's name; empty = where its code is."""

    @abstractmethod
    async def execute(self, /, **kwargs: Any) -> ToolResult:
        """Run with validated arguments; a `ToolError` becomes a failed result."""

    def risk_of(self, arguments: Mapping[str, Any]) -> Risk:
        """The risk of this very call."""
        risk: Risk | Callable[[Mapping[str, Any]], Risk] = self.risk
        return risk if isinstance(risk, str) else risk(arguments)


def fault_of(tool: Tool) -> str:
    """What is wrong with how a tool is declared, in a sentence; empty = nothing."""
    attributes = ("name", "description", "aliases", "parameters", "risk")
    name, about, aliases, schema, risk = (getattr(tool, each, None) for each in attributes)
    if not isinstance(name, str) or not isinstance(about, str):
        return "it needs a `name` and a `description`, which are texts."
    if not isinstance(aliases, tuple) or not all(isinstance(alias, str) for alias in aliases):
        return "its `aliases` have to be a tuple of texts, such as `('readFile',)`."
    if len({name, *aliases}) <= len(aliases):
        return "its name and its `aliases` have to differ from each other."
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its `parameters` have to be the JSON Schema of an object, with `'type': 'object'`."
    try:
        schema = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return f"its `parameters` cannot be written as JSON ({error})."
    if fault := schema_fault(schema):
        return f"its `parameters` are no JSON Schema: {fault}."
    if not callable(risk) and risk not in ("read", "write", "forbidden"):
        return f"there is no risk `{risk}`."
    limit: object = tool.timeout
    if limit is not None and not (isinstance(limit, int | float) and 0 < limit < float("inf")):
        return "its timeout has to be a number of seconds above 0."
    if tool.wants_context and "tool_context" in schema.get("properties", {}):
        return "give the parameter `tool_context` another name; it would hide the context of the call."
    return ""


@runtime_checkable
class DescribesCall(Protocol):
    """A tool that can tell a person what a call is about where its arguments do not."""

    def describe(self, arguments: Mapping[str, Any], context: ToolContext) -> Coroutine[Any, Any, str]:
        """A short text, such as the content that is to be deleted; empty = nothing to add."""
        ...


class ToolBox(Protocol):
    """What the agent runtime needs of a set of tools; `ToolRegistry` meets it."""

    def get_openai_tools(self) -> list[dict[str, Any]]:
        """The tools as the Chat Completions API lists them; the same list object while nothing changed."""
        ...

    def find(self, name: str) -> Tool | None:
        """The listed tool of that name or alias."""
        ...

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Validate the arguments and run the tool; never raises but for cancellation."""
        ...


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A file or package whose tools are not there, and why."""

    source: str
    error: str


class ToolSource(Protocol):
    """Where tools come from that may change while the program runs."""

    problems: tuple[ToolProblem, ...]

    def refresh(self) -> None:
        """Bring the registry up to date; costs next to nothing while nothing changed."""
        ...

    async def refreshed(self) -> None:
        """`refresh`, without stopping the loop while changed files are loaded."""
        ...

    async def reload(self) -> None:
        """Load everything anew."""
        ...
