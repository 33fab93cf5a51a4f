"""服务器：握手、清单、调用、一起跑，和两种线。"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web

from day5_tools import ToolRegistry, get_order_status, tool
from day8_mcp import McpHttp, MCPServer, RegistryTools, decode, serve_stdio
from day8_mcp import server as server_module
from day8_mcp.server import Session


@tool
async def refund(order_id: str) -> str:
    return f"退了 {order_id}"


@tool(risk="read")
async def wait() -> str:
    await asyncio.Event().wait()
    return ""


class Broken(RegistryTools):
    async def list_tools(self, call: Any) -> Any:
        raise RuntimeError("password=123")


def shop() -> MCPServer:
    return MCPServer(name="shop", tools=[RegistryTools(ToolRegistry([get_order_status, refund, wait]))])


class Talk:
    """一个客户端的连接，回答都收着。"""

    def __init__(self, server: MCPServer) -> None:
        self.answers: list[dict[str, Any]] = []
        self.session = Session(server, lambda data: self.answers.append(json.loads(data)))
        self._count = 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        body = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        task = self.session.receive(decode(json.dumps(body).encode()))
        assert task is not None
        async with asyncio.timeout(5):
            await task
        (answer,) = [one for one in self.answers if one["id"] == self._count]
        return answer

    async def hello(self, version: str = "2025-11-25") -> dict[str, Any]:
        return await self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo={})


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk(shop())
    await talk.hello()
    yield talk
    await talk.session.close()


@pytest.mark.parametrize(
    ("wanted", "spoken"), [("2025-06-18", "2025-06-18"), ("2099-01-01", "2025-11-25"), ("", "2025-11-25")]
)
async def test_a_version_is_agreed_upon(wanted: str, spoken: str) -> None:
    result = (await Talk(shop()).hello(wanted))["result"]
    assert result["protocolVersion"] == spoken
    assert result["serverInfo"]["name"] == "shop" and "tools" in result["capabilities"]


async def test_nothing_but_ping_goes_before_the_handshake() -> None:
    talk = Talk(shop())
    assert (await talk.ask("ping"))["result"] == {}
    assert (await talk.ask("tools/list"))["error"]["code"] == -32602


async def test_only_tools_that_read_are_offered_and_run(talk: Talk) -> None:
    tools = (await talk.ask("tools/list"))["result"]["tools"]
    assert [one["name"] for one in tools] == ["get_order_status", "wait"]
    assert tools[0]["inputSchema"]["required"] == ["order_id"]
    assert tools[0]["annotations"] == {"readOnlyHint": True}
    answer = await talk.ask("tools/call", name="get_order_status", arguments={"order_id": "4471"})
    assert "顺丰" in answer["result"]["content"][0]["text"] and answer["result"]["isError"] is False
    refused = await talk.ask("tools/call", name="refund", arguments={"order_id": "4471"})
    assert "no tool `refund`" in refused["error"]["message"]


async def test_a_failed_call_is_a_result_and_a_wrong_request_an_error(talk: Talk) -> None:
    failed = await talk.ask("tools/call", name="get_order_status", arguments={"order_id": "9"})
    assert failed["result"]["isError"] is True
    for params in ({}, {"name": 5}, {"name": "get_order_status", "arguments": [1]}):
        assert (await talk.ask("tools/call", **params))["error"]["code"] == -32602
    assert (await talk.ask("tools/fly"))["error"]["code"] == -32601


async def test_a_broken_handler_tells_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk(MCPServer(tools=[Broken(ToolRegistry())]))
    await talk.hello()
    answer = await talk.ask("tools/list")
    assert answer["error"]["code"] == -32603 and "password" not in str(answer)
    assert "password=123" in caplog.text


async def test_a_slow_call_does_not_hold_up_the_next_and_too_many_are_refused(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": {"name": "wait"}}
    talk.session.receive(decode(json.dumps(body).encode()))
    assert (await talk.ask("ping"))["result"] == {}
    monkeypatch.setattr(server_module, "MAX_CALLS", 1)
    assert (await talk.ask("ping"))["error"]["code"] == -32600
    assert talk.session.receive(decode(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')) is None


async def test_stdio_serves_until_its_input_ends() -> None:
    inputs, source = os.pipe()
    answers, target = os.pipe()
    ids = (b"not json", b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b'{"jsonrpc":"2.0","id":2,"method":"x"}')
    os.write(source, b"\n".join(ids) + b"\n")
    os.close(source)
    async with asyncio.timeout(5):
        await serve_stdio(shop(), inputs, target)
    os.close(target)
    with os.fdopen(answers, "rb") as file:
        lines = [json.loads(line) for line in file]
    assert lines[0]["error"]["code"] == -32700
    assert {line["id"] for line in lines} == {None, 1, 2}


async def test_stdio_ends_when_its_client_is_gone() -> None:
    inputs, source = os.pipe()
    answers, target = os.pipe()
    os.close(answers)
    os.write(source, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    os.close(source)
    async with asyncio.timeout(5):
        await serve_stdio(shop(), inputs, target)
    with pytest.raises(BrokenPipeError):  # 它往那头写过，那头没有人
        os.write(target, b"x")
    os.close(target)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    mcp = McpHttp(shop())

    async def handle(request: web.Request) -> web.StreamResponse:
        return await mcp.handle(request, "lin")

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {}, 200, "result"),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', {}, 202, ""),
        (b"{", {}, 400, "-32700"),
        (b"{}", {"Origin": "https://evil.example"}, 403, ""),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Origin": "http://localhost:3000"}, 200, "result"),
        (b"{}", {"Origin": "http://["}, 403, ""),
        (b"{}", {"Origin": "http://localhost.evil.example"}, 403, ""),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"MCP-Protocol-Version": "2025-06-18"}, 200, "result"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"MCP-Protocol-Version": "2099-01-01"}, 400, "2099"),
    ],
)
async def test_http_answers_one_message_a_post(
    url: str, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    async with ClientSession() as http, http.post(url, data=body, headers=headers) as response:
        assert response.status == status and said in await response.text()


async def test_http_takes_nothing_but_post(url: str) -> None:
    async with ClientSession() as http, http.get(url) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_an_input_that_breaks_off_is_its_end() -> None:
    inputs, broken = os.pipe()
    os.close(inputs)  # 从写的那一头读：和终端没了一样，是 OSError
    async with asyncio.timeout(5):
        await serve_stdio(shop(), broken, 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "什么也没留下"
