"""Tool boxes around a tool box: another name, fewer tools, a question before each write."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from miniclaw.tools.base import Tool, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.risk import risk_of

__all__ = ["ApprovalTools", "FilteredTools", "PrefixedTools"]


class PrefixedTools:
    """The tools of a box under names that begin with `prefix`."""

    def __init__(self, inner: ToolBox, prefix: str) -> None:
        self._inner = inner
        self._prefix = prefix
        self._listed: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])

    def get_openai_tools(self) -> list[dict[str, Any]]:
        """The list of the box with the longer names."""
        before, after = self._listed
        if (tools := self._inner.get_openai_tools()) is not before:
            after = [{**one, "function": self._renamed(one["function"])} for one in tools]
            self._listed = (tools, after)
        return after

    def find(self, name: str) -> Tool | None:
        """The tool, which goes by the longer name."""
        tool = self._inner.find(name.removeprefix(self._prefix)) if name.startswith(self._prefix) else None
        if tool is not None:
            tool = copy.copy(tool)
            tool.name = self._prefix + tool.name
        return tool

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Run the tool of that longer name."""
        if not name.startswith(self._prefix):
            return ToolResult.failure(f"There is no tool `{name}`; the names begin with `{self._prefix}`.")
        return await self._inner.execute(name.removeprefix(self._prefix), arguments, context)

    def _renamed(self, function: dict[str, Any]) -> dict[str, Any]:
        return {**function, "name": self._prefix + function["name"]}


class FilteredTools:
    """The tools of a box that `keep` says yes to; the others are as if they were not there.

    `keep` has to say the same of a name each time.
    """

    def __init__(self, inner: ToolBox, keep: Callable[[str], bool]) -> None:
        self._inner = inner
        self._keep = keep
        self._listed: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])

    def get_openai_tools(self) -> list[dict[str, Any]]:
        """The part of the list that is kept."""
        before, after = self._listed
        if (tools := self._inner.get_openai_tools()) is not before:
            after = [one for one in tools if self._keep(one["function"]["name"])]
            self._listed = (tools, after)
        return after

    def find(self, name: str) -> Tool | None:
        """The tool, if its name is kept; an alias counts as the name."""
        tool = self._inner.find(name)
        return tool if tool is not None and self._keep(tool.name) else None

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Run it, if its name is kept."""
        if self.find(name) is None:
            return ToolResult.failure(f"There is no tool `{name}` here.")
        return await self._inner.execute(name, arguments, context)


class ApprovalTools:
    """The tools of a box, each call of which that is no read needs the yes of `ask`, which returns `None`.

    A text that it returns is the reason why not, which the model gets. For boxes used without a gateway,
    where the gate of the turn asks.
    """

    def __init__(
        self,
        inner: ToolBox,
        ask: Callable[[Tool, Mapping[str, Any], ToolContext | None], Awaitable[str | None]],
    ) -> None:
        self._inner = inner
        self._ask = ask

    def get_openai_tools(self) -> list[dict[str, Any]]:
        """The list of the box."""
        return self._inner.get_openai_tools()

    def find(self, name: str) -> Tool | None:
        """The tool of the box."""
        return self._inner.find(name)

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Run it, if it reads or is allowed."""
        tool = self._inner.find(name)
        if tool is not None and await risk_of(tool, arguments) != "read":
            reason = await self._ask(tool, arguments, context)
            if reason is not None:
                return ToolResult.failure(f"`{tool.name}` was not run: {reason}")
        return await self._inner.execute(name, arguments, context)
