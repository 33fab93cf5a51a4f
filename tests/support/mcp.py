"""MCP clients written by hand, on two pipes and over HTTP, and the fixture server behind them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from miniclaw.mcp.http import McpHttp
from miniclaw.mcp.protocol import META_CAPABILITIES, META_VERSION, MODERN
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.stdio import serve_stdio

GUARD = 20.0
Object = dict[str, Any]


def hello(version: str = "2025-11-25", **capabilities: Any) -> Object:
    """The parameters of `initialize`."""
    client = {"name": "test", "version": "1"}
    return {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}


def meta(**capabilities: Any) -> Object:
    """The `_meta` of a modern request."""
    return {META_VERSION: MODERN, META_CAPABILITIES: capabilities}


class Peer:
    """A client on stdio."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        write: Callable[[bytes], None],
        stop_reading: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self.write = write
        self.stop_reading = stop_reading
        self.others: list[Object] = []
        """What came while an answer was waited for."""

    def send(self, value: Object | bytes) -> None:
        """Send a message, or a line as it is."""
        line = value if isinstance(value, bytes) else json.dumps({"jsonrpc": "2.0", **value}).encode()
        self.write(line + b"\n")

    async def receive(self) -> Object:
        """The next message."""
        async with asyncio.timeout(GUARD):
            message: Object = json.loads(await self._reader.readline())
        return message

    async def answer(self, message_id: object) -> Object:
        """The answer to a request; what comes before it is kept in `others`."""
        while True:
            message = await self.receive()
            if "method" not in message and message.get("id") == message_id:
                assert type(message["id"]) is type(message_id)
                return message
            self.others.append(message)

    async def request(self, message_id: object, method: str, params: Object | None = None) -> Object:
        """Ask something and return the answer."""
        self.send({"id": message_id, "method": method, **({"params": params} if params is not None else {})})
        return await self.answer(message_id)

    async def call(self, message_id: object, name: str, **arguments: Any) -> Object:
        """The answer to a call of a tool."""
        return await self.request(message_id, "tools/call", {"name": name, "arguments": arguments})

    async def greet(self, **capabilities: Any) -> Object:
        """Shake hands."""
        reply = await self.request("hello", "initialize", hello(**capabilities))
        self.send({"method": "notifications/initialized"})
        return reply


@asynccontextmanager
async def piped(server: MCPServer) -> AsyncIterator[tuple[Peer, asyncio.Task[None]]]:
    """A client on pipes to a server in this process, and the task that serves it."""
    from_client, to_server = os.pipe()
    from_server, to_client = os.pipe()
    loop = asyncio.get_running_loop()
    task = loop.create_task(serve_stdio(server, from_client, to_client))
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    ends = [os.fdopen(from_server, "rb"), os.fdopen(to_server, "wb")]
    protocol = asyncio.StreamReaderProtocol(reader)
    incoming, _ = await loop.connect_read_pipe(lambda: protocol, ends[0])
    outgoing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, ends[1])
    try:
        yield Peer(reader, outgoing.write, incoming.close), task
    finally:
        outgoing.close()
        async with asyncio.timeout(GUARD):
            await asyncio.gather(task, return_exceptions=True)
        incoming.close()
        for descriptor in (from_client, to_client):
            os.close(descriptor)


def mcp_serve(data_dir: Path, *more: str) -> tuple[str, ...]:
    """The command that serves a data directory."""
    return (sys.executable, "-m", "miniclaw", "mcp", "serve", "--data-dir", str(data_dir), *more)


@asynccontextmanager
async def serving(
    command: tuple[str, ...], *, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Peer, asyncio.subprocess.Process]]:
    """A client of a server as a process; at the end it must have exited with 0 by itself."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith(("OPENAI_", "MINICLAW_"))}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=env
        if env is not None
        else {**clean, "MINICLAW_PROJECT": "", "MINICLAW_MODEL__PROBE_LOCAL": "false"},
        limit=1024 * 1024,
    )
    assert process.stdin is not None and process.stdout is not None
    peer = Peer(process.stdout, process.stdin.write)
    try:
        yield peer, process
    finally:
        process.stdin.close()
        async with asyncio.timeout(GUARD):
            assert await process.wait() == 0
        while rest := await process.stdout.readline():
            json.loads(rest)


class HttpPeer:
    """A client over Streamable HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._http = http
        self.url = url
        self.headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            **headers,
        }
        self._ids = itertools.count(1)

    def request(self, verb: str = "POST", body: Any = None, **headers: str | None) -> Any:
        """One HTTP request; a header that is `None` is left out, `_` in a name is `-`."""
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        kept = {name: value for name, value in given.items() if value is not None}
        data = body if isinstance(body, bytes | None) else json.dumps({"jsonrpc": "2.0", **body})
        return self._http.request(verb, self.url, data=data, headers=kept)

    async def greet(self, version: str = "2025-11-25", **capabilities: Any) -> Object:
        """Begin a session; its headers are sent from now on."""
        for name in ("Mcp-Session-Id", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"):
            self.headers.pop(name, None)
        body = {"id": 0, "method": "initialize", "params": hello(version, **capabilities)}
        async with self.request(body=body) as response:
            reply: Object = await response.json()
            self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            self.headers["MCP-Protocol-Version"] = reply["result"]["protocolVersion"]
        return reply

    async def ask(self, method: str, params: Object | None = None) -> Object:
        """The answer to a request, however it comes; what came before it is under `others`."""
        body = {"id": next(self._ids), "method": method, "params": params or {}}
        async with self.request(body=body) as response:
            if response.content_type == "application/json":
                reply: Object = await response.json()
                return {**reply, "status": response.status, "others": []}
            messages = [message async for _, message in events(response)]
        return {**messages[-1], "status": response.status, "others": messages[:-1]}

    async def modern(self, method: str, params: Object | None = None, **capabilities: Any) -> Object:
        """The answer to a request without a handshake."""
        name = (params or {}).get("name") or (params or {}).get("uri")
        self.headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        self.headers.pop("Mcp-Name", None)
        if name:
            self.headers["Mcp-Name"] = name
        return await self.ask(method, {**(params or {}), "_meta": meta(**capabilities)})


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Object]]:
    """The messages of an event stream with their ids."""
    event_id = ""
    async with asyncio.timeout(GUARD):
        async for line in response.content:
            if line.startswith(b"id: "):
                event_id = line[4:].strip().decode()
            if line.startswith(b"data: "):
                yield event_id, json.loads(line[6:])


@asynccontextmanager
async def http_peer(server: MCPServer, *, sessions: int = 10) -> AsyncIterator[HttpPeer]:
    """A client of a server in this process, where everybody may connect."""
    mcp = McpHttp(server, sessions=sessions)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await mcp.handle(request, request.headers.get("X-User", "owner"))

    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            yield HttpPeer(http, f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", {})
    finally:
        await mcp.close()
        await runner.cleanup()
