"""The tools of a registry as an MCP server offers them: what reads is run, what changes something is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from miniclaw.mcp.call import Call
from miniclaw.mcp.offers import Object
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["Registry", "RegistryTools", "text_result"]

NOT_APPROVED: Final = "This call changes something and was not approved, so it was not run."
SHOWN_CHARS: Final = 1000
"""How much of a call's arguments the person who approves it sees."""
_ELICIT: Final = "elicitation/create"


class Registry(Protocol):
    """What is needed of a tool registry."""

    def get_mcp_tools(self) -> list[dict[str, Any]]:
        """The tools in MCP form."""
        ...

    def find(self, name: str) -> Tool | None:
        """A listed tool."""
        ...

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Run one; never raises but for cancellation."""
        ...


class RegistryTools:
    """Offers a registry's tools by policy.

    A call that changes something is put before the person at the client, unless a rule allows it. Tools
    that only change something are left out where the client cannot ask.

    Args:
        registry: makes the registry when it is first needed.
        context: makes the context of a call of that user; tools that want one are left out without it.
        allows: whether a rule allows a call of this tool with these arguments.
    """

    def __init__(
        self,
        registry: Callable[[], Registry],
        *,
        context: Callable[[str], ToolContext] | None = None,
        allows: Callable[[Tool, Mapping[str, Any]], bool] = lambda tool, arguments: False,
    ) -> None:
        self._make = registry
        self._registry: Registry | None = None
        self._context = context
        self._allows = allows

    async def list_tools(self, call: Call) -> Sequence[Object]:
        """The tools that this client can use."""
        asks = call.can(_ELICIT)
        registry = self._open()
        return [row for row in registry.get_mcp_tools() if self._find(row["name"], asks=asks) is not None]

    async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
        """Run one, after it was approved where it changes something."""
        tool = self._find(name, asks=True)
        if tool is None:
            return None
        if tool.risk_of(arguments) == "write" and not self._allows(tool, arguments):
            if not call.is_modern and not call.can(_ELICIT):
                return text_result(NOT_APPROVED, is_error=True)
            shown = json.dumps(arguments, ensure_ascii=False)[:SHOWN_CHARS]
            answer = await call.elicit(f"Run the tool `{name}` with {shown}?", {}, key="approval")
            if answer.get("action") != "accept":
                return text_result(NOT_APPROVED, is_error=True)
        context = self._context(call.user) if self._context is not None else None
        result = await self._open().execute(name, arguments, context)
        return text_result(result.content, is_error=not result.ok)

    def _open(self) -> Registry:
        if self._registry is None:
            self._registry = self._make()
        return self._registry

    def _find(self, name: str, *, asks: bool) -> Tool | None:
        tool = self._open().find(name)
        if tool is None or (tool.wants_context and self._context is None):
            return None
        return tool if asks or tool.risk != "write" or self._allows(tool, {}) else None


def text_result(text: str, *, is_error: bool = False) -> Object:
    """The result of `tools/call` that is a text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}
