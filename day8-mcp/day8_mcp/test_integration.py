"""第 8 天接第 5 天：别人的工具进了我们的注册表，和自己的一样检查、一样问人。"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from day5_tools import ApprovalTools, ToolRegistry, calculator_tool, get_order_status
from day8_mcp import HttpLink, MCPClient, McpHttp, MCPServer, RegistryTools, RemoteTool


async def test_a_tool_goes_out_of_one_registry_over_http_into_another() -> None:
    theirs = MCPServer(tools=[RegistryTools(ToolRegistry([get_order_status, calculator_tool()]))])
    mcp = McpHttp(theirs)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await mcp.handle(request, "lin")

    app = web.Application()
    app.router.add_post("/mcp", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"

    asked: list[str] = []

    async def ask(tool: Any, arguments: Mapping[str, Any], context: object) -> str | None:
        asked.append(tool.name)
        return None

    ours = ToolRegistry([get_order_status])
    async with asyncio.timeout(10), MCPClient(lambda: HttpLink(url)) as client:
        for listed in await client.list_tools():
            name = f"mcp__shop__{listed['name']}"
            ours.register(RemoteTool(client, name, server_name="shop", listed=listed, is_trusted=False))
        assert ours.names() == ["get_order_status", "mcp__shop__get_order_status", "mcp__shop__calculator"]
        box = ApprovalTools(ours, ask)
        found = await box.execute("mcp__shop__get_order_status", {"order_id": "4471"})
        assert found.ok and "顺丰" in found.content
        missing = await box.execute("mcp__shop__get_order_status", {"order_id": "9"})
        assert not missing.ok and "no order `9`" in missing.content
        wrong = await box.execute("mcp__shop__get_order_status", {})
        assert "`order_id`: is required" in wrong.content
        assert asked == ["mcp__shop__get_order_status"] * 3
    gone = await box.execute("mcp__shop__calculator", {"expression": "1"})
    assert not gone.ok and "MCP server `shop`" in gone.content
    await runner.cleanup()
