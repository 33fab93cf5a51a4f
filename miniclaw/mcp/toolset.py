"""The tools of a registry as an MCP server offers them: what reads is run, what changes something is asked."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from miniclaw.errors import ConfigError
from miniclaw.gateway.protocol import new_id
from miniclaw.mcp.call import Call
from miniclaw.mcp.offers import Object

if TYPE_CHECKING:  # a server answers before it needs them
    from miniclaw.tools.base import Risk, Tool, ToolResult
    from miniclaw.tools.context import HasWorkspace, ToolContext

__all__ = ["APPROVAL", "Carry", "Registry", "RegistryTools", "context_of", "text_result"]

NOT_APPROVED: Final = "This call changes something and was not approved, so it was not run."
SHOWN_CHARS: Final = 1000
"""How much of a call's arguments the person who approves it sees."""
APPROVAL: Final = "approval"
"""The question's name among the answers of a call."""
_ELICIT: Final = "elicitation/create"

Carry = Callable[[str, Object, Call], Awaitable[Object]]
"""Has another process run a tool: its name, the arguments and the call → the result of `tools/call`."""
Judge = Callable[["Tool", Mapping[str, Any], "Risk", str], Literal["allow", "ask", "deny"] | None]
"""Tool, arguments, risk and user of a call → what the operator's rules say of it, if anything."""


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
        context: makes the context of a call of that user.
        verdict: what the operator's rules say of a call.
        writing: entered while a tool runs that may change the user's files; what it gives runs the tool instead.
        can_write: whether that can be entered, as far as one can tell.
        hidden: names that are not offered.
    """

    def __init__(
        self,
        registry: Callable[[], Registry],
        *,
        context: Callable[[str], ToolContext],
        verdict: Judge = lambda tool, arguments, risk, user: None,
        writing: Callable[[], AbstractAsyncContextManager[Carry | None]] = nullcontext,
        can_write: Callable[[], bool] = lambda: True,
        hidden: Collection[str] = (),
    ) -> None:
        self._make = registry
        self._registry: Registry | None = None
        self._context = context
        self._verdict = verdict
        self._writing = writing
        self._can_write = can_write
        self._hidden = frozenset(hidden)

    async def list_tools(self, call: Call) -> Sequence[Object]:
        """The tools that this client can use."""
        can_write = self._can_write()
        return [row for row in self._open().get_mcp_tools() if self._is_listed(row["name"], call, can_write)]

    async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
        """Run one, after it was approved where it changes something."""
        tool = self._find(name)
        if tool is None:
            return None
        from miniclaw.tools.risk import risk_of

        risk = await risk_of(tool, arguments)
        verdict = self._verdict(tool, arguments, risk, call.user)
        if verdict == "deny":
            return text_result("The operator's rules do not allow this call.", is_error=True)
        if verdict == "ask" or (verdict is None and risk == "write"):
            if not call.is_modern and not call.can(_ELICIT):
                return text_result(NOT_APPROVED, is_error=True)
            shown = json.dumps(arguments, ensure_ascii=False)[:SHOWN_CHARS]
            answer = await call.elicit(f"Run the tool `{name}` with {shown}?", {}, key=APPROVAL)
            if answer["action"] != "accept":
                return text_result(NOT_APPROVED, is_error=True)
        try:
            async with self._writing() if risk == "write" and tool.wants_context else nullcontext() as carry:
                if carry is not None:
                    return await carry(name, arguments, call)
                context = replace(self._context(call.user), judged=(arguments, risk))
                result = await self._open().execute(name, arguments, context)
        except ConfigError as error:
            return text_result(str(error), is_error=True)
        return text_result(result.content, is_error=not result.ok)

    def _open(self) -> Registry:
        if self._registry is None:
            self._registry = self._make()
        return self._registry

    def _find(self, name: str) -> Tool | None:
        return None if name in self._hidden else self._open().find(name)

    def _is_listed(self, name: str, call: Call, can_write: bool) -> bool:
        tool = self._find(name)
        if tool is None or (tool.risk == "write" and tool.wants_context and not can_write):
            return False
        verdict = self._verdict(tool, {}, "write", call.user) if tool.risk == "write" else "allow"
        return verdict == "allow" or (verdict != "deny" and call.can(_ELICIT))


def context_of(data_dir: Path, users: Mapping[str, HasWorkspace], user: str) -> ToolContext:
    """The context of a call that an MCP client makes: the user's own workspace, and no session."""
    from miniclaw.tools.context import ToolContext, workspace_of

    workspace = workspace_of(data_dir, user, users)
    return ToolContext(
        user_id=user, scope=user, session_id="mcp", turn_id=new_id("turn"), workspace=workspace
    )


def text_result(text: str, *, is_error: bool = False) -> Object:
    """The result of `tools/call` that is a text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}
