"""客户端：真的子进程、真的 HTTP，和不守规矩的服务器。"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from day8_mcp import HttpLink, MCPClient, MCPError, MCPUnavailable, RemoteTool, StdioLink
from day8_mcp import link as link_module

SERVER = Path(__file__).parent.parent / "example" / "server.py"
ENV = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}

FAKE = """
import json, sys, time
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if method == "initialize":
        print("hello, I am chatty")
        send(id=99, method="roots/list")
        send(id=[], result={})
        send(id=number, result={"protocolVersion": VERSION})
    elif method == "tools/list":
        cursor = message["params"].get("cursor")
        page = {"tools": [{"name": cursor or "first"}]}
        send(id=str(number), result=page if cursor else {**page, "nextCursor": "second"})
    elif method == "tools/call" and message["params"]["name"] == "die":
        sys.exit(3)
    elif method == "tools/call" and message["params"]["name"] == "refuse":
        wrong = {"code": -32602, "message": "no such tool"}
        send(id=number, error=message["params"]["arguments"].get("error", wrong))
    elif method == "tools/call" and message["params"]["name"] == "flood":
        print("x" * 500_000, flush=True)
"""


def fake(directory: Path, version: str = '"2025-06-18"', more: str = "", before: str = "") -> MCPClient:
    path = directory / "fake.py"
    path.write_text(before + FAKE.replace("VERSION", version) + more, encoding="utf-8")
    command = [sys.executable, "-I", "-S", str(path)]
    return MCPClient(lambda: StdioLink(command, env={}, name="fake"))


async def test_the_shop_is_used_over_a_program_of_its_own() -> None:
    link = StdioLink([sys.executable, str(SERVER)], env=ENV)
    async with asyncio.timeout(20), MCPClient(lambda: link) as client:
        assert client.version == "2025-11-25"
        assert [tool["name"] for tool in await client.list_tools()] == [
            "get_order_status",
            "calculator",
            "datetime",
        ]
        result = await client.call_tool("get_order_status", {"order_id": "4471"})
        assert "顺丰" in result["content"][0]["text"]
        with pytest.raises(MCPError, match="no tool `fly`"):
            await client.call_tool("fly")
    await client.__aexit__()
    with pytest.raises(MCPUnavailable):
        await client.list_tools()


async def test_rubbish_and_questions_of_a_server_do_no_harm_and_pages_are_turned(tmp_path: Path) -> None:
    async with asyncio.timeout(20), fake(tmp_path) as client:
        assert client.version == "2025-06-18"
        assert [tool["name"] for tool in await client.list_tools()] == ["first", "second"]
        with pytest.raises(MCPError) as caught:
            await client.call_tool("refuse")
        assert (caught.value.code, str(caught.value)) == (-32602, "no such tool")


async def test_a_server_that_dies_fails_who_waits_and_who_comes_later(tmp_path: Path) -> None:
    async with asyncio.timeout(20), fake(tmp_path) as client:
        with pytest.raises(MCPUnavailable, match="ended without an answer"):
            await client.call_tool("die")
        with pytest.raises(MCPUnavailable, match="does not run"):
            await client.call_tool("first")


async def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with asyncio.timeout(20), fake(tmp_path) as client:
        client._call_seconds = 0.05
        with pytest.raises(MCPUnavailable, match=r"`tools/call` was not answered in 0\.05 s"):
            await client.call_tool("silent")


async def test_a_line_without_end_ends_the_server_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_LINE", 1000)  # 下面写的超过两倍：管道停下来，没人读就关不上
    async with asyncio.timeout(20), fake(tmp_path) as client:
        for reason in ("ended without an answer", "does not run"):
            with pytest.raises(MCPUnavailable, match=reason):
                await client.call_tool("flood")


@pytest.mark.parametrize("error", ['"no"', "[1]", '{"code": "x"}', "5"])
async def test_an_error_of_any_shape_is_an_error_of_ours(tmp_path: Path, error: str) -> None:
    async with asyncio.timeout(20), fake(tmp_path) as client:
        with pytest.raises(MCPError, match="gave no reason"):
            await client.call_tool("refuse", {"error": json.loads(error)})


@pytest.mark.parametrize("tools", [None, 5, {}, [5], [{"description": "x"}]])
async def test_a_list_of_tools_that_is_none_is_told(tools: Any) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        result = {"protocolVersion": "2025-06-18", "tools": tools}
        return web.json_response({"jsonrpc": "2.0", "id": message.get("id"), "result": result})

    async with asyncio.timeout(5), served(handle) as url, MCPClient(lambda: HttpLink(url)) as client:
        with pytest.raises(MCPError, match="lists its tools"):
            await client.list_tools()


async def test_a_list_without_end_comes_to_an_end() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        result = {"protocolVersion": "2025-06-18", "tools": [], "nextCursor": "more"}
        return web.json_response({"jsonrpc": "2.0", "id": message.get("id"), "result": result})

    async with asyncio.timeout(5), served(handle) as url, MCPClient(lambda: HttpLink(url)) as client:
        assert await client.list_tools() == []


async def test_a_version_that_nobody_speaks_here_ends_the_connection(tmp_path: Path) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(MCPUnavailable, match="1999"):
            await fake(tmp_path, '"1999-01-01"').__aenter__()


async def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(MCPUnavailable, match="cannot be started"):
        await MCPClient(lambda: StdioLink(["/no/such/program"], env={})).__aenter__()


async def test_a_stubborn_server_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "END_SECONDS", 0.05)
    async with asyncio.timeout(20):
        async with fake(tmp_path, more="\nwhile True: time.sleep(60)\n") as client:
            process = client._link._process  # type: ignore[union-attr] # 看它是不是真的没了
        assert process is not None and process.returncode == -9  # 255 是返回码丢了：先拆线，再收尸


async def test_a_server_that_prints_without_end_takes_neither_the_limit_nor_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "END_SECONDS", 0.1)
    client = MCPClient(lambda: StdioLink(["yes"], env={}), call_seconds=0.3)
    async with asyncio.timeout(8):
        with pytest.raises(MCPUnavailable, match="`initialize` was not answered"):
            await client.__aenter__()
    assert len([one for one in caplog.records if "no message" in one.message]) == 3


async def test_a_stranger_who_holds_the_output_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "END_SECONDS", 0.1)
    stranger = "import subprocess\nsubprocess.Popen(['sleep', '4'], start_new_session=True)\n"
    async with asyncio.timeout(20):
        client = await fake(tmp_path, before=stranger).__aenter__()
        began = asyncio.get_running_loop().time()
        assert await client.list_tools()
        await client.__aexit__()
        assert asyncio.get_running_loop().time() - began < 3, "等了那个 sleep"


async def test_a_server_that_takes_no_notification_is_given_up() -> None:
    released = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if "id" not in message:
            await released.wait()
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": {"protocolVersion": "2025-06-18"}}
        return web.json_response(answer)

    async with asyncio.timeout(5), served(handle) as url:
        client = MCPClient(lambda: HttpLink(url))
        client._call_seconds = 0.2
        with pytest.raises(MCPUnavailable, match="`initialized` was not answered"):
            await client.__aenter__()
        released.set()


async def test_secrets_stay_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    link = StdioLink(["x"], env={"GIVEN": "1"})
    assert "OPENAI_API_KEY" not in link._env and link._env["GIVEN"] == "1" and "PATH" in link._env


@asynccontextmanager
async def served(handle: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    await runner.cleanup()


async def test_an_answer_may_be_an_event_stream_and_a_session_is_kept() -> None:
    headers: list[dict[str, str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        headers.append(dict(request.headers))
        if "id" not in message:
            return web.Response(status=202)
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": "2025-06-18"}}
        if message["method"] == "initialize":
            return web.json_response(answer, headers={"Mcp-Session-Id": "s1"})
        note = {"jsonrpc": "2.0", "method": "notifications/progress"}
        events = f"event: message\ndata: {json.dumps(note)}\n\ndata:\n\ndata: {json.dumps(answer)}\n\n"
        return web.Response(text=events, content_type="text/event-stream")

    async with asyncio.timeout(5), served(handle) as url:
        async with MCPClient(lambda: HttpLink(url, headers={"Authorization": "Bearer t"})) as client:
            assert await client.request("ping") == {"protocolVersion": "2025-06-18"}
        assert headers[-1]["Mcp-Session-Id"] == "s1" and headers[-1]["Authorization"] == "Bearer t"
        assert headers[-1]["MCP-Protocol-Version"] == "2025-06-18"
        with pytest.raises(MCPUnavailable, match="was closed"):
            await client.list_tools()


async def test_data_on_several_lines_is_one_message() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        number = (await request.json()).get("id")
        head = f'data: {{"jsonrpc": "2.0", "id": {json.dumps(number)},\n'
        events = head + 'data: "result": {"protocolVersion": "2025-06-18"}}\n\n'
        return web.Response(text=events, content_type="text/event-stream")

    async with asyncio.timeout(5), served(handle) as url, MCPClient(lambda: HttpLink(url)) as client:
        assert client.version == "2025-06-18"


async def test_a_server_that_moved_gets_no_headers_of_ours_at_the_new_place() -> None:
    arrived: list[Any] = []

    async def stranger(request: web.Request) -> web.StreamResponse:
        arrived.append(request.headers)
        return web.json_response({})

    async with asyncio.timeout(5), served(stranger) as other:

        async def handle(request: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": other})

        async with served(handle) as url:
            with pytest.raises(MCPUnavailable, match="answered 307"):
                await MCPClient(lambda: HttpLink(url, headers={"X-Api-Key": "secret"})).__aenter__()
    assert arrived == []


JSON = {"content_type": "application/json"}
REFUSED = '{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no valid session"}}'


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": 500}, "answered 500"),
        ({"status": 401, "text": '{"error": "unauthorized"}', **JSON}, "answered 401"),
        ({"status": 400, "text": REFUSED, **JSON}, "answered 400: no valid session"),
        ({"text": "{", "content_type": "application/json"}, "not JSON"),
        ({"text": "", "content_type": "text/event-stream"}, "without a result"),
    ],
)
async def test_a_bad_answer_over_http_is_told(response: dict[str, Any], reason: str) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(**response)

    async with asyncio.timeout(5), served(handle) as url:
        with pytest.raises(MCPError, match=reason):
            await MCPClient(lambda: HttpLink(url)).__aenter__()


async def test_a_url_where_nobody_is_cannot_be_reached() -> None:
    with pytest.raises(MCPUnavailable, match="cannot be reached"):
        await MCPClient(lambda: HttpLink("http://127.0.0.1:9/mcp")).__aenter__()


@pytest.mark.parametrize(
    ("listed", "is_trusted", "risk"),
    [({"readOnlyHint": True}, True, "read"), ({"readOnlyHint": True}, False, "write"), (None, True, "write")],
)
def test_a_remote_tool_is_a_write_unless_a_trusted_server_says_otherwise(
    listed: dict[str, Any] | None, is_trusted: bool, risk: str
) -> None:
    client = MCPClient(lambda: HttpLink("http://x"))
    schema = {"type": "object", "required": None}  # 有的语言把空的也写出来
    row = {"name": "look", "annotations": listed, "inputSchema": schema}
    tool = RemoteTool(client, "mcp__shop__look", server_name="shop", listed=row, is_trusted=is_trusted)
    assert (tool.name, tool.description, tool.risk) == ("mcp__shop__look", "look", risk)
    assert tool.parameters == {"type": "object"}
