"""`MCPServer`: offers a set of tools to one MCP client, whatever carries the messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from miniclaw import __version__
from miniclaw.errors import MCPError
from miniclaw.mcp.protocol import (
    HANDSHAKE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Notification,
    Request,
    Response,
    decode,
    encode_error,
    encode_result,
)
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["MCPServer", "OffersTools"]

logger = logging.getLogger(__name__)

MAX_CALLS: Final = 64
"""Requests of one client that run at once; a further one waits."""
MAX_REQUESTS: Final = 1000
"""Requests of one client that run or wait; a further one is refused."""
NOT_APPROVED: Final = "this call changes something and nobody can approve it here, so it was not run"


class OffersTools(Protocol):
    """What the server needs of a tool registry."""

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


class MCPServer:
    """Answers one client's messages.

    Requests run side by side, so that a slow tool keeps neither `ping` nor a cancellation waiting. A
    cancelled request is not answered. Only calls that read are run: there is nobody to approve others.

    Args:
        tools: what is offered.
        send: takes each outgoing line, in order.
        context: makes the context of a call.
    """

    def __init__(
        self,
        tools: OffersTools,
        send: Callable[[bytes], None],
        *,
        context: Callable[[], ToolContext] | None = None,
    ) -> None:
        self._tools = tools
        self._send = send
        self._context = context
        self._is_initialized = False
        self._running: dict[str | int, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MAX_CALLS)

    def receive(self, line: bytes) -> None:
        """Take one message of the client; whatever is wrong with it is answered."""
        try:
            message = decode(line)
        except MCPError as error:
            self._send(encode_error(None, error))
            return
        match message:
            case Request() if len(self._running) >= MAX_REQUESTS or message.id in self._running:
                refusal = MCPError(INVALID_REQUEST, "Too many requests at once, or an id that is in use.")
                self._send(encode_error(message.id, refusal))
            case Request():
                task = asyncio.get_running_loop().create_task(self._answer(message))
                self._running[message.id] = task
            case Notification(method="notifications/cancelled"):
                wanted = message.params.get("requestId")
                running = self._running.get(wanted) if isinstance(wanted, str | int) else None
                if running is not None:
                    running.cancel()
            case Notification() | Response():
                logger.debug("ignored: %s", message)

    async def close(self, *, grace: float = 0.0) -> None:
        """Let what runs finish for `grace` seconds, then cancel it."""
        tasks = list(self._running.values())
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _answer(self, request: Request) -> None:
        try:
            async with self._places:
                reply = encode_result(request.id, await self._dispatch(request))
        except MCPError as error:
            reply = encode_error(request.id, error)
        except Exception:  # boundary: a request that breaks its handler is answered, and the next one served
            logger.exception("request %s broke", request.method)
            reply = encode_error(request.id, MCPError(INTERNAL_ERROR, "Something broke inside miniclaw."))
        finally:
            self._running.pop(request.id, None)
        self._send(reply)

    async def _dispatch(self, request: Request) -> dict[str, Any]:
        if request.method == "initialize":
            return self._initialize(request.params)
        if request.method == "ping":
            return {}
        if not self._is_initialized:
            raise MCPError(INVALID_PARAMS, "Send `initialize` first.")
        match request.method:
            case "tools/list":
                return {"tools": self._tools.get_mcp_tools()}
            case "tools/call":
                return await self._call(request.params)
            # Several hosts take an error here for the end of the server, so a tools-only one lists nothing.
            case "resources/list":
                return {"resources": []}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "prompts/list":
                return {"prompts": []}
            case _:
                raise MCPError(METHOD_NOT_FOUND, f"There is no method `{request.method}`.")

    def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        version = wanted if wanted in HANDSHAKE else "2025-06-18" if wanted == "2025-03-26" else HANDSHAKE[0]
        self._is_initialized = True
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "miniclaw", "version": __version__},
        }

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        tool = self._tools.find(name) if isinstance(name, str) else None
        if tool is None or not isinstance(name, str):
            raise MCPError(INVALID_PARAMS, f"There is no tool `{name}`.")
        if not isinstance(arguments, dict):
            raise MCPError(INVALID_PARAMS, "`arguments` must be an object.")
        if tool.risk_of(arguments) != "read":
            result = ToolResult.failure(NOT_APPROVED)
        else:
            result = await self._tools.execute(name, arguments, self._context() if self._context else None)
        return {"content": [{"type": "text", "text": result.content}], "isError": not result.ok}
