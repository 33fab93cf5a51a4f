"""`MCPClient`: one connection to an MCP server, on the wire that it speaks.

`async with MCPClient(lambda: StdioLink(["npx", "…"])) as client: await client.call_tool("echo", {…})`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, TypedDict, Unpack

from miniclaw.errors import MCPError
from miniclaw.mcp.client.calls import Progress
from miniclaw.mcp.client.connection import Connection
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.headers import mirrored
from miniclaw.mcp.protocol import HEADER_MISMATCH, METHOD_NOT_FOUND

__all__ = ["MCPClient"]

logger = logging.getLogger(__name__)

MAX_PAGES: Final = 1000
MAX_ROWS: Final = 5000
"""Things of one list, and pages of it, that are read."""


class Asking(TypedDict, total=False):
    """Who is shown how far a request is, and who answers what the server asks in it."""

    progress: Progress | None
    host: Host | None


class MCPClient(Connection):
    """What a server offers: tools, resources, prompts, completion."""

    async def ping(self) -> None:
        """Ask whether the server is there; the modern wire has no such question, so it is asked what it is."""
        await self.request("server/discover" if self.is_modern else "ping")

    async def list_tools(self) -> list[dict[str, Any]]:
        """All tools that may be used."""
        tools = await self._list("tools/list", "tools", "tools")
        if not (self.is_modern and self.link.has_headers):
            return tools
        self.mirrors, usable = {}, []
        for tool in tools:
            wanted = mirrored(tool.get("inputSchema"))
            if wanted is None:
                logger.warning(
                    "%s: the tool %.100s is left out: its headers are wrong", self, tool.get("name")
                )
            else:
                self.mirrors[str(tool.get("name"))] = wanted
                usable.append(tool)
        return usable

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **asking: Unpack[Asking],
    ) -> dict[str, Any]:
        """The result of a call, also of one that failed (`isError`).

        Raises:
            MCPError: the server refused it, or is gone.
        """
        params = {"name": name, "arguments": dict(arguments or {})}
        try:
            return await self.request("tools/call", params, **asking)
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
        await self.list_tools()  # its schema is another one now
        return await self.request("tools/call", params, **asking)

    async def list_resources(self) -> list[dict[str, Any]]:
        """All resources."""
        return await self._list("resources/list", "resources", "resources")

    async def list_templates(self) -> list[dict[str, Any]]:
        """All URI templates of resources."""
        return await self._list("resources/templates/list", "resourceTemplates", "resources")

    async def read_resource(self, uri: str, **asking: Unpack[Asking]) -> dict[str, Any]:
        """The contents of a resource."""
        return await self.request("resources/read", {"uri": uri}, **asking)

    async def list_prompts(self) -> list[dict[str, Any]]:
        """All prompts."""
        return await self._list("prompts/list", "prompts", "prompts")

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, **asking: Unpack[Asking]
    ) -> dict[str, Any]:
        """The messages of a prompt."""
        return await self.request("prompts/get", {"name": name, "arguments": dict(arguments or {})}, **asking)

    async def complete(
        self, ref: Mapping[str, Any], name: str, value: str, context: Mapping[str, str] | None = None
    ) -> list[str]:
        """What an argument of a prompt or template may be that begins like `value`."""
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": name, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        completion = (await self.request("completion/complete", params)).get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [str(one) for one in values] if isinstance(values, list) else []

    async def _list(self, method: str, key: str, capability: str) -> list[dict[str, Any]]:
        """All pages of a list; a server that does not have such things has none of them."""
        if capability != "tools" and capability not in self.capabilities:
            return []  # some servers do not even refuse what they do not know
        found: list[dict[str, Any]] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            try:
                result = await self.request(method, params)
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND and capability not in self.capabilities:
                    return []
                raise
            rows = result.get(key)
            found += [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                return found
            if cursor in seen or len(found) >= MAX_ROWS:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        logger.warning("%s: `%s` has no end; the first %d are used", self, method, len(found[:MAX_ROWS]))
        return found[:MAX_ROWS]
