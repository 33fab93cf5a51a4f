"""The MCP server as a client sees it, over real pipes, and its codec."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import MCPError
from miniclaw.mcp.protocol import Notification, Request, Response, decode, encode_error, encode_result

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Peer:
    """An MCP client by hand."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def send(self, value: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        line = value if isinstance(value, bytes) else json.dumps({"jsonrpc": "2.0", **value}).encode()
        self.process.stdin.write(line + b"\n")

    async def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            reply: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return reply

    async def request(
        self, message_id: object, method: str, params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self.send({"id": message_id, "method": method, **({"params": params} if params is not None else {})})
        reply = await self.receive()
        assert reply["id"] == message_id and type(reply["id"]) is type(message_id)
        return reply


@asynccontextmanager
async def peer(tmp_path: Path, *, hello: bool = True) -> AsyncIterator[Peer]:
    """A server process, greeted."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "miniclaw",
            "mcp",
            "serve",
            "--data-dir",
            str(tmp_path),
            "--log-level",
            "debug",
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ.copy(),
        limit=1024 * 1024,
    )
    client = Peer(process)
    try:
        if hello:
            await client.request(0, "initialize", HELLO)
            client.send({"method": "notifications/initialized"})
        yield client
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(20):
            assert await process.wait() == 0
            assert process.stdout is not None
            await process.stdout.read()


async def test_the_built_in_tools_are_listed_and_called(tmp_path: Path) -> None:
    async with peer(tmp_path) as client:
        tools = (await client.request("a", "tools/list"))["result"]["tools"]
        assert {tool["name"] for tool in tools} == {
            "calculator",
            "datetime",
            "get_order_status",
            "http_request",
            "web_search",
        }
        assert all(tool["inputSchema"]["type"] == "object" for tool in tools)
        call = {"name": "calculator", "arguments": {"expression": "37*43"}}
        result = (await client.request(1, "tools/call", call))["result"]
        assert result == {"content": [{"type": "text", "text": "1591"}], "isError": False}
        bad = {"name": "calculator", "arguments": {"expression": "import os"}}
        assert (await client.request(2, "tools/call", bad))["result"]["isError"] is True


@pytest.mark.parametrize(
    ("wanted", "spoken"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-06-18"),
        ("2099-01-01", "2025-11-25"),
    ],
)
async def test_the_version_is_the_clients_or_our_newest(tmp_path: Path, wanted: str, spoken: str) -> None:
    async with peer(tmp_path, hello=False) as client:
        reply = await client.request(1, "initialize", {**HELLO, "protocolVersion": wanted})
        assert reply["result"]["protocolVersion"] == spoken


async def test_errors_have_their_codes_and_the_server_goes_on(tmp_path: Path) -> None:
    async with peer(tmp_path, hello=False) as client:
        assert (await client.request(1, "server/discover"))["error"]["code"] == -32602
        for line, code in (
            (b"rubbish", -32700),
            (b"[]", -32600),
            (b'{"jsonrpc":"2.0"}', -32600),
            (b"\xff", -32700),
        ):
            client.send(line)
            assert (await client.receive())["error"]["code"] == code
        await client.request(2, "initialize", HELLO)
        assert (await client.request(3, "no/such"))["error"]["code"] == -32601
        assert (await client.request(4, "tools/call", {"name": "nope"}))["error"]["code"] == -32602
        assert (await client.request(5, "ping"))["result"] == {}
        for method, key in (("resources/list", "resources"), ("prompts/list", "prompts")):
            assert (await client.request(6, method))["result"] == {key: []}


async def test_a_call_that_changes_something_is_not_run(tmp_path: Path) -> None:
    async with peer(tmp_path) as client:
        arguments = {"url": "http://example.com", "method": "POST"}
        reply = await client.request(1, "tools/call", {"name": "http_request", "arguments": arguments})
        assert reply["result"]["isError"] is True and "approve" in reply["result"]["content"][0]["text"]


async def test_a_message_over_the_limit_is_a_parse_error_and_the_next_is_served(tmp_path: Path) -> None:
    async with peer(tmp_path) as client:
        client.send(b'{"x":"' + b"x" * (17 * 1024 * 1024) + b'"}')
        assert (await client.receive())["error"]["code"] == -32700
        assert (await client.request(1, "ping"))["result"] == {}


@given(st.binary(max_size=200))
def test_decoding_arbitrary_bytes_raises_only_protocol_errors(line: bytes) -> None:
    try:
        decode(line)
    except MCPError as error:
        assert error.code in (-32700, -32600)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda c: st.lists(c) | st.dictionaries(st.text(), c),
)


@given(st.integers() | st.text(), st.text(), st.dictionaries(st.text(), JSON))
def test_messages_survive_the_wire_and_keep_to_one_line(
    message_id: int | str, method: str, params: dict[str, Any]
) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}).encode()
    assert decode(line) == Request(message_id, method, params)
    line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
    assert decode(line) == Notification(method, params)
    reply = encode_result(message_id, params)
    assert reply.count(b"\n") == 0 and decode(reply) == Response(message_id, params, None)
    refused = decode(encode_error(message_id, MCPError(-32601, method)))
    assert isinstance(refused, Response) and refused.error == {"code": -32601, "message": method}
