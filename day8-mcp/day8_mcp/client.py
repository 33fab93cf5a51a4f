"""用别人的工具：握手，列出来，变成我们的。"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self

from day5_tools import Tool, ToolError, ToolResult
from day8_mcp.link import HttpLink, StdioLink
from day8_mcp.protocol import HANDSHAKE, MCPError, MCPUnavailable, Request, encode

ABOUT: Final = {"name": "miniclaw", "version": "0.1.0"}


class MCPClient:
    """到一个服务器的连接：`async with MCPClient(lambda: StdioLink([…], env={})) as client`。"""

    def __init__(self, link: Callable[[], StdioLink | HttpLink], *, call_seconds: float = 60.0) -> None:
        self._link, self._call_seconds = link(), call_seconds
        self._ids, self.version = itertools.count(1), ""

    async def __aenter__(self) -> Self:
        try:
            await self._link.start()
            hello = {"protocolVersion": HANDSHAKE[0], "capabilities": {}, "clientInfo": ABOUT}
            self.version = (await self.request("initialize", hello)).get("protocolVersion", "")
            if self.version not in HANDSHAKE:
                raise MCPUnavailable(f"The server speaks {self.version!r}, which is not spoken here.")
            ready = encode({"method": "notifications/initialized"})
            await self._in_time("initialized", self._link.send(ready))
        except BaseException:
            await self._link.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.close()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """问一次，限时。"""
        request = Request(next(self._ids), method, dict(params or {}))
        headers = {"MCP-Protocol-Version": self.version} if self.version else {}
        return dict(await self._in_time(method, self._link.exchange(request, headers)))

    async def _in_time(self, method: str, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._call_seconds):
                return await work
        except TimeoutError as error:
            raise MCPUnavailable(f"`{method}` was not answered in {self._call_seconds:g} s.") from error

    async def list_tools(self) -> list[dict[str, Any]]:
        found, wanted = list[dict[str, Any]](), dict[str, Any]()
        for _ in range(50):  # 没有尽头的清单，到此为止
            page = await self.request("tools/list", wanted)
            rows, wanted = page.get("tools"), {"cursor": page.get("nextCursor")}
            if not isinstance(rows, list) or not all(isinstance(one, dict) and "name" in one for one in rows):
                raise MCPUnavailable("The server lists its tools in a way that is not understood.")
            found += rows
            if not wanted["cursor"]:
                break
        return found

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.request("tools/call", {"name": name, "arguments": dict(arguments or {})})


class RemoteTool(Tool):
    """别人的一个工具，用起来和自己的一样。没说信得过，就当它会改变东西。"""

    def __init__(
        self, server: MCPClient, name: str, *, server_name: str, listed: Mapping[str, Any], is_trusted: bool
    ) -> None:
        self.name, self._server, self._server_name = name, server, server_name
        self._remote_name = str(listed["name"])
        self.description = str(listed.get("description") or self._remote_name)
        schema, notes = listed.get("inputSchema"), listed.get("annotations")
        known = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
        self.parameters = {key: value for key, value in known.items() if value is not None}
        only_reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
        self.risk = "read" if is_trusted and only_reads else "write"

    async def execute(self, /, **kwargs: Any) -> ToolResult:
        try:
            result = await self._server.call_tool(self._remote_name, kwargs)
        except MCPError as error:
            raise ToolError(f"The MCP server `{self._server_name}`: {error}") from error
        blocks = [block for block in result.get("content") or () if isinstance(block, dict)]
        text = "\n\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in blocks)
        return ToolResult.failure(text) if result.get("isError") else ToolResult(content=text or "(empty)")
