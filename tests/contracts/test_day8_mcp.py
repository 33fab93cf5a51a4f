"""Day 8 and MCP: what a message is, what a server offers on both wires, and what a client makes of its servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

import day5_tools
import day8_mcp
from day8_mcp.server import Session as ChapterSession
from miniclaw.errors import ConfigError, MCPError, MCPUnavailable
from miniclaw.mcp.client.client import MCPClient
from miniclaw.mcp.client.config import read_servers
from miniclaw.mcp.client.http import HttpLink
from miniclaw.mcp.client.stdio import StdioLink
from miniclaw.mcp.client.tools import RemoteTool
from miniclaw.mcp.http import McpHttp
from miniclaw.mcp.protocol import decode
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.session import Session
from miniclaw.mcp.stdio import serve_stdio
from miniclaw.mcp.toolset import RegistryTools, context_of
from miniclaw.tools.builtins.order_status_tool import get_order_status
from miniclaw.tools.function import tool
from miniclaw.tools.registry import ToolRegistry
from tests.contracts.support import both
from tests.support.mcp_servers import program

GUARD = 20.0


async def refund(order_id: str) -> str:
    return f"退了 {order_id}"


def chapter_tools() -> Any:
    registry = day5_tools.ToolRegistry([day5_tools.get_order_status, day5_tools.tool(refund)])
    return day8_mcp.RegistryTools(registry)


def core_tools() -> Any:
    registry = ToolRegistry([get_order_status, tool(refund)])
    return RegistryTools(lambda: registry, context=partial(context_of, Path("nowhere"), {}))


class CoreOwner:
    """What a remote tool of the core calls: a client that is started again when it falls."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, name: str, arguments: Any, context: Any) -> Any:
        return await self._client.call_tool(name, arguments)


chapter: Any = SimpleNamespace(
    **{name: getattr(day8_mcp, name) for name in day8_mcp.__all__},
    Session=ChapterSession,
    ConfigError=day5_tools.ConfigError,
    ToolRegistry=day5_tools.ToolRegistry,
    tools=chapter_tools,
    client=day8_mcp.MCPClient,
    owner=lambda client: client,
)
core: Any = SimpleNamespace(
    ConfigError=ConfigError,
    HttpLink=HttpLink,
    MCPError=MCPError,
    MCPServer=MCPServer,
    MCPUnavailable=MCPUnavailable,
    McpHttp=McpHttp,
    RemoteTool=RemoteTool,
    Session=Session,
    StdioLink=StdioLink,
    ToolRegistry=ToolRegistry,
    client=partial(MCPClient, era="handshake"),
    decode=decode,
    owner=CoreOwner,
    read_servers=read_servers,
    serve_stdio=serve_stdio,
    tools=core_tools,
)
sides = both(chapter, core)


def shop(side: Any) -> Any:
    return side.MCPServer(name="shop", tools=[side.tools()])


class Talk:
    """One client's connection; keeps the answers."""

    def __init__(self, side: Any) -> None:
        self._decode = side.decode
        self.answers: list[dict[str, Any]] = []
        self.session = side.Session(shop(side), lambda data: self.answers.append(json.loads(data)))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": len(self.answers), "method": method, "params": params}
        async with asyncio.timeout(GUARD):
            await self.session.receive(self._decode(json.dumps(body).encode()))
        return self.answers[-1]

    async def hello(self, version: str = "2025-11-25") -> dict[str, Any]:
        return await self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo={})


@sides
def test_a_message_is_read_or_refused_by_number(side: Any) -> None:
    request = side.decode(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert (request.id, request.method, request.params) == (1, "ping", {})
    assert side.decode(b'{"jsonrpc":"2.0","id":"x","result":{}}').result == {}
    for data, code in (
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"a"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":[1]}', -32600),
    ):
        with pytest.raises(side.MCPError) as caught:
            side.decode(data)
        assert caught.value.code == code


@sides
async def test_a_version_is_agreed_upon_before_anything_else(side: Any) -> None:
    talk = Talk(side)
    assert (await talk.ask("ping"))["result"] == {}
    assert (await talk.ask("tools/list"))["error"]["code"] == -32602
    for wanted, spoken in (("2025-06-18", "2025-06-18"), ("2099-01-01", "2025-11-25")):
        result = (await Talk(side).hello(wanted))["result"]
        assert result["protocolVersion"] == spoken and result["serverInfo"]["name"] == "shop"


@sides
async def test_tools_that_read_are_listed_and_called(side: Any) -> None:
    talk = Talk(side)
    await talk.hello()
    (row,) = (await talk.ask("tools/list"))["result"]["tools"]
    assert row["name"] == "get_order_status" and row["inputSchema"]["required"] == ["order_id"]
    found = await talk.ask("tools/call", name="get_order_status", arguments={"order_id": "4471"})
    assert "顺丰" in found["result"]["content"][0]["text"] and not found["result"]["isError"]
    missing = await talk.ask("tools/call", name="get_order_status", arguments={"order_id": "9"})
    assert missing["result"]["isError"] is True
    assert (await talk.ask("tools/call", name="fly"))["error"]["code"] == -32602
    assert (await talk.ask("tools/fly"))["error"]["code"] == -32601


@sides
async def test_stdio_serves_until_its_input_ends(side: Any) -> None:
    inputs, source = os.pipe()
    answers, target = os.pipe()
    os.write(source, b'nonsense\n{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    os.close(source)
    async with asyncio.timeout(GUARD):
        await side.serve_stdio(shop(side), inputs, target)
    os.close(target)
    with os.fdopen(answers, "rb") as file:
        lines = [json.loads(line) for line in file]
    assert {line["id"] for line in lines} == {None, 1}
    assert [line["error"]["code"] for line in lines if "error" in line] == [-32700]


@asynccontextmanager
async def served(side: Any) -> AsyncIterator[str]:
    mcp = side.McpHttp(shop(side))

    async def handle(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = await mcp.handle(request, "owner")
        return response

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@sides
async def test_the_same_server_is_used_over_http(side: Any) -> None:
    async with asyncio.timeout(GUARD), served(side) as url, side.client(lambda: side.HttpLink(url)) as client:
        assert client.version == "2025-11-25"
        assert [row["name"] for row in await client.list_tools()] == ["get_order_status"]
        result = await client.call_tool("get_order_status", {"order_id": "4471"})
        assert "顺丰" in result["content"][0]["text"]


@sides
async def test_what_a_server_refuses_or_sends_elsewhere_is_told(side: Any) -> None:
    arrived: list[str] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        arrived.append(request.path)
        return web.json_response({})

    async def refuse(request: web.Request) -> web.StreamResponse:
        error = {"code": -32000, "message": "no valid session"}
        return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=400)

    async def lines(request: web.Request) -> web.StreamResponse:
        number = json.dumps((await request.json()).get("id"))
        text = f'data: {{"jsonrpc": "2.0", "id": {number},\ndata: "result": {{"protocolVersion": "2025-11-25"}}}}'
        return web.Response(text=f"{text}\n\n", content_type="text/event-stream")

    async def moved(request: web.Request) -> web.StreamResponse:
        return web.Response(
            status=307, headers={"Location": f"http://localhost:{request.url.port}/elsewhere"}
        )

    app = web.Application()
    for handle in (elsewhere, refuse, moved, lines):
        app.router.add_post(f"/{handle.__name__}", handle)
    app.router.add_delete("/lines", elsewhere)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def client(path: str) -> Any:
        return side.client(lambda: side.HttpLink(f"{url}/{path}", headers={"X-Api-Key": "secret"}))

    async with asyncio.timeout(GUARD):
        for path, reason in (("refuse", "no valid session"), ("moved", "moved to|answered 307")):
            with pytest.raises(side.MCPError, match=reason):
                await client(path).__aenter__()
        async with client("lines") as found:
            assert found.version == "2025-11-25"
        await runner.cleanup()
    assert arrived == []


@sides
async def test_a_server_is_a_program_and_its_death_is_told(side: Any, tmp_path: Path) -> None:
    body = """
def call(message):
    if message["params"]["name"] == "die":
        sys.exit(3)
    print("this is no message", flush=True)
    text(message, "ok")
"""
    command = program(tmp_path, body)
    async with asyncio.timeout(GUARD), side.client(lambda: side.StdioLink(command, env={})) as client:
        assert [row["name"] for row in await client.list_tools()] == ["say"]
        assert (await client.call_tool("say"))["content"][0]["text"] == "ok"
        with pytest.raises(side.MCPUnavailable):
            await client.call_tool("die")
        with pytest.raises(side.MCPUnavailable):
            await client.call_tool("say")


@sides
async def test_a_server_that_does_not_answer_is_given_up(side: Any, tmp_path: Path) -> None:
    command = program(tmp_path, "def call(message):\n    pass\n")
    make = partial(side.client, lambda: side.StdioLink(command, env={}), call_seconds=1.0)
    async with asyncio.timeout(GUARD), make() as client:
        with pytest.raises(side.MCPUnavailable):
            await client.call_tool("say")


@sides
async def test_what_is_no_answer_is_an_error_of_ours(side: Any, tmp_path: Path) -> None:
    body = """
def call(message):
    send({"id": message["id"], "error": message["params"]["arguments"]["error"]})
"""
    command = program(tmp_path, body)
    async with asyncio.timeout(GUARD), side.client(lambda: side.StdioLink(command, env={})) as client:
        for error in ("no", [1], {"code": "x"}):
            with pytest.raises(side.MCPError):
                await client.call_tool("say", {"error": error})


@sides
async def test_a_remote_tool_is_one_of_ours_and_a_write_unless_it_is_trusted(
    side: Any, tmp_path: Path
) -> None:
    command = program(tmp_path)
    listed = {"name": "say", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    async with asyncio.timeout(GUARD), side.client(lambda: side.StdioLink(command, env={})) as client:
        make = partial(
            side.RemoteTool, side.owner(client), "mcp__fake__say", server_name="fake", listed=listed
        )
        assert make(is_trusted=True).risk == "read"
        remote = make(is_trusted=False)
        assert remote.risk == "write"
        registry = side.ToolRegistry([remote])
        assert (await registry.execute("mcp__fake__say", {"words": "你好"})).content == "你好"
    gone = await registry.execute("mcp__fake__say", {})
    assert not gone.ok and "MCP server `fake`" in gone.content


@sides
def test_servers_are_read_in_the_form_of_other_hosts(side: Any, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    assert side.read_servers(path).servers == {}
    servers = {
        "shop": {
            "command": sys.executable,
            "args": ["server.py"],
            "env": {"KEY": "${SHOP_KEY}"},
            "autoApprove": [],
        },
        "both": {"command": "x", "url": "http://x"},
        "unset": {"command": "${NOT_SET}"},
        "typed": {"url": "http://x", "headers": "Bearer ${SHOP_KEY}"},
    }
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    found = side.read_servers(path, {"SHOP_KEY": "sk-secret"})
    assert list(found.servers) == ["shop"] and found.servers["shop"].env == {"KEY": "sk-secret"}
    assert sorted(found.broken) == ["both", "typed", "unset"] and "NOT_SET" in found.broken["unset"]
    assert "headers" in found.broken["typed"] and "sk-secret" not in str(found.broken)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(side.ConfigError):
        side.read_servers(path)
