"""From one client's `miniclaw mcp serve` to the process that holds the data directory: calls that change something."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from aiohttp import web

from miniclaw.app import MiniClaw
from miniclaw.errors import ConfigError, MCPError
from miniclaw.gateway.access import HostRules
from miniclaw.gateway.http import HttpServer, Route, user_of
from miniclaw.mcp.call import Call
from miniclaw.mcp.client.client import MCPClient
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.http import HttpLink
from miniclaw.mcp.http import McpHttp
from miniclaw.mcp.offers import Object
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.toolset import APPROVAL
from miniclaw.rundir import RunningGateway

__all__ = ["carry", "road"]

CALL_SECONDS: Final = 3600.0
"""How long a call may take; the tool's own limit is shorter."""


@contextlib.asynccontextmanager
async def road(claw: MiniClaw, offered: MCPServer) -> AsyncIterator[int | None]:
    """Serve `/mcp`, and nothing else, on the loopback port that is given."""
    settings = claw.settings
    local = settings.web.model_copy(update={"host": "127.0.0.1", "port": 0})
    server = HttpServer(local, claw.identities, HostRules(), message_bytes=settings.limits.message_bytes)
    mcp = McpHttp(offered)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await mcp.handle(request, user_of(request))

    server.add([Route(method="*", path="/mcp", handler=handle)])
    try:
        await server.start(may_move=False)
        yield server.port
    finally:
        await mcp.close()
        await server.stop()


async def carry(holder: RunningGateway, name: str, arguments: Object, call: Call) -> Object:
    """Have the holder run a tool; what the person has said to the same question is its answer there too.

    Raises:
        ConfigError: it has no `/mcp`, or gives no result.
    """
    port = holder.mcp_port or holder.web_port
    if port is None:
        raise ConfigError(
            "The miniclaw that runs on this data directory serves no HTTP, so nothing can be changed through it;"
            " stop it, or start it with a --port."
        )

    async def said(params: Object) -> Object:
        return await call.elicit(params["message"], {}, key=APPROVAL)

    headers = {"Authorization": f"Bearer {holder.token}"}
    link = partial(HttpLink, f"http://127.0.0.1:{port}/mcp", headers=headers)
    try:
        async with MCPClient(link, era="modern", host=Host(elicit=said), call_seconds=CALL_SECONDS) as client:
            result = await client.call_tool(name, arguments)
    except MCPError as error:
        raise ConfigError(f"The miniclaw that holds the data directory gave no result: {error}") from error
    return {key: result[key] for key in ("content", "isError") if key in result}
