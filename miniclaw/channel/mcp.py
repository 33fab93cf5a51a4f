"""MCP over HTTP as a channel: `/mcp` on the one HTTP port, and the way of `ask_agent` into the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from aiohttp import web

from miniclaw.agent.core import Core
from miniclaw.agent.patience import refuse_at_once
from miniclaw.agent.policy import verdict_of
from miniclaw.channel.cli import CLIChannel, TerminalLink
from miniclaw.gateway.connection import Hub
from miniclaw.gateway.events import LiveEvent
from miniclaw.gateway.http import PROTECTED_RESOURCE, HttpServer, Route, json_response, user_of
from miniclaw.gateway.protocol import TERMINAL_EVENTS
from miniclaw.mcp.http import McpHttp
from miniclaw.mcp.library import SESSIONS, Library
from miniclaw.mcp.product import product_server
from miniclaw.mcp.skill_prompts import SkillPrompts
from miniclaw.mcp.toolset import RegistryTools, context_of
from miniclaw.skills.tools import skill_tools

__all__ = ["McpChannel"]

PATH: Final = "/mcp"


class McpChannel(CLIChannel):
    """Serves MCP clients; each call of `ask_agent` is a connection of its user."""

    def __init__(self, hub: Hub, core: Core, server: HttpServer) -> None:
        super().__init__(hub, "mcp")
        self._server = server
        # What belongs to a turn of the agent has no meaning to others.
        hidden = {"delegate", *(tool.name for tool in skill_tools(core.skills))}
        tools = RegistryTools(
            lambda: core.registry,
            context=partial(context_of, core.data_dir, core.settings.users),
            verdict=partial(verdict_of, core.settings.approval),
            hidden=hidden,
        )
        self.offered = product_server(
            tools=tools,
            door=self._door,
            library=Library(lambda: contextlib.nullcontext(core.sessions.storage), lambda: core.memory),
            skills=SkillPrompts(lambda: core.skills),
            watches=True,
        )
        self._http = McpHttp(self.offered)
        self._updates = hub.bus.subscribe("session.*", self._on_event)

    def routes(self) -> list[Route]:
        """The path itself, and what describes it to clients that look for how to log in."""
        return [
            Route(method="*", path=PATH, handler=self._mcp),
            *(
                Route(method="GET", path=path, handler=self._metadata, is_open=True)
                for path in (PROTECTED_RESOURCE, PROTECTED_RESOURCE + PATH)
            ),
        ]

    async def stop(self) -> None:
        """End all sessions, and with them their open streams."""
        self._updates.close()
        await self._http.close()
        await super().stop()

    @contextlib.asynccontextmanager
    async def _door(self, user_id: str) -> AsyncIterator[TerminalLink]:
        link = self.link(user_id)
        try:
            yield link
        finally:
            await link.aclose()

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        refuse_at_once(False)  # it is a call's result that is waited for, and what a cancel does
        return await self._http.handle(request, user_of(request))

    async def _metadata(self, request: web.Request) -> web.Response:
        """RFC 9728: tokens of ours in the header; there is no server that hands them out."""
        url = self._server.url
        return json_response(
            {"resource": url + PATH, "bearer_methods_supported": ["header"], "resource_name": "miniclaw"}
        )

    def _on_event(self, topic: str, event: Any) -> None:
        if isinstance(event, LiveEvent) and event.name in TERMINAL_EVENTS:
            self.offered.updated(SESSIONS + event.session_id)
