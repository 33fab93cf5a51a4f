"""MCP over Streamable HTTP, both wires on one path. Who may connect at all is checked before it comes here.

Rules are those of https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http
and https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http. An answer that
is there soon is plain JSON; one that takes longer, or has anything sent before it, is an event stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from miniclaw.errors import MCPError
from miniclaw.mcp.call import Call
from miniclaw.mcp.headers import check_headers
from miniclaw.mcp.http_session import HttpSession
from miniclaw.mcp.protocol import (
    HANDSHAKE,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META_VERSION,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    MODERN,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Message,
    Request,
    decode,
    encode_error,
)
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.session import Session
from miniclaw.mcp.streams import EventStream

__all__ = ["McpHttp"]

SOON_SECONDS: Final = 0.5
"""How long an answer may take to be plain JSON with a handshake; then a stream is opened, which can be resumed."""
WATCH_SECONDS: Final = 1.0
"""How often a modern client is looked after, whose leaving cancels its request."""
MODERN_LOOKS: Final = 5
"""Such looks before a stream is opened; its status tells no error any more."""
ALIVE_SECONDS: Final = 15.0
ALIVE_LOOKS: Final = 15
"""How often such looks are quiet before the stream gets a sign of life."""
RETRY_MS: Final = 1000
"""When a client whose stream broke is to come back."""
IDLE_SECONDS: Final = 1800.0
MODERN_REQUESTS: Final = 1000
"""Requests without a handshake that run at once; a further one is refused."""
METHODS: Final = "GET, POST, DELETE"

_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
_EVENTS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class _Refused(MCPError):
    """A request that HTTP refuses; the status says why, and the code as near as JSON-RPC can."""

    def __init__(self, status: int, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(code, message)
        self.status = status


class McpHttp:
    """Serves one path for any number of clients.

    Args:
        server: what is offered.
        sessions: how many are kept; the one that has been silent longest makes room.
    """

    def __init__(self, server: MCPServer, *, sessions: int = 1000) -> None:
        self._server = server
        self._limit = sessions
        self._clients: dict[str, HttpSession] = {}
        self._running = 0

    async def handle(self, request: web.Request, user: str) -> web.StreamResponse:
        """Answer a request of an authenticated user."""
        message: Message | None = None
        try:
            if request.method == "POST":
                _check_types(request)
                message = decode(await request.read())
                return await self._post(request, message, user)
            is_modern = request.headers.get("MCP-Protocol-Version") == MODERN
            if request.method not in ("GET", "DELETE") or is_modern:
                return web.Response(status=405, headers={"Allow": "POST" if is_modern else METHODS})
            client = self._client(request, user)
            if request.method == "GET":
                return await self._get(request, client)
            await self._forget(client)
            return web.Response(status=204)
        except MCPError as error:
            status = error.status if isinstance(error, _Refused) else _STATUS.get(error.code, 200)
            return _json(encode_error(message.id if isinstance(message, Request) else None, error), status)

    async def close(self) -> None:
        """End all sessions."""
        self._server.stopping.set()
        for client in tuple(self._clients.values()):
            await self._forget(client)

    async def _post(self, request: web.Request, message: Message, user: str) -> web.StreamResponse:
        stated = isinstance(message, Request) and META_VERSION in message.meta
        if stated or request.headers.get("MCP-Protocol-Version") == MODERN:
            return await self._modern(request, message, user)
        if isinstance(message, Request) and message.method == "initialize":
            client = await self._admit(user)
        else:
            client = self._client(request, user)
        if not isinstance(message, Request):
            client.session.receive(message)
            return web.Response(status=202)
        stream = EventStream()
        task = client.session.receive(message, stream.put)
        _end_with(stream, task)
        await stream.wait(SOON_SECONDS)
        headers = {"Mcp-Session-Id": client.id} if message.method == "initialize" else {}
        if (reply := _only(stream, task)) is not None:
            return _json(reply, 200, headers)
        if stream.is_ended and stream.is_empty:
            return web.Response(status=202)  # cancelled: nobody waits for an answer any more
        client.keep(stream)
        return await self._stream(request, client, stream, 0)

    async def _get(self, request: web.Request, client: HttpSession) -> web.StreamResponse:
        if not _accepts(request, "text/event-stream"):
            raise _Refused(406, "GET needs `Accept: text/event-stream`.")
        name, _, number = request.headers.get("Last-Event-ID", "g.").rpartition(".")
        stream = client.streams.get(name)
        if stream is None or not (number or "0").isdecimal():
            raise _Refused(400, "The stream of `Last-Event-ID` is not kept any more; send the request again.")
        return await self._stream(request, client, stream, int(number[:18]) if number else stream.sent)

    async def _stream(
        self, request: web.Request, client: HttpSession, stream: EventStream, after: int
    ) -> web.StreamResponse:
        """Send a stream's events; a client that goes away may come back for the rest."""
        response = web.StreamResponse(headers=_EVENTS)
        client.open += 1
        try:
            await response.prepare(request)
            if client.primes:
                await response.write(f"id: {stream.name}.{after}\nretry: {RETRY_MS}\ndata:\n\n".encode())
            async for event in stream.read(after, idle=ALIVE_SECONDS):
                await response.write(event)
        except ConnectionError:
            pass
        finally:
            client.open -= 1
            client.used = asyncio.get_running_loop().time()
        return response

    async def _modern(self, request: web.Request, message: Message, user: str) -> web.StreamResponse:
        """One request that stands for itself; its client's leaving cancels it."""
        if not isinstance(message, Request):
            return web.Response(status=202)
        if self._running >= MODERN_REQUESTS:
            raise _Refused(503, "There are too many requests at once; try again later.")
        stream = EventStream(keeps=False)
        session = Session(self._server, stream.put, user=user, is_modern=True)
        call = Call(session, message, stream.put)
        self._server.check_meta(call)
        schema = None
        if message.method == "tools/call":
            schema = await self._server.input_schema(call)
        check_headers(message, request.headers, schema)
        self._server.check_version(call)
        task = session.receive(message)
        _end_with(stream, task)
        self._running += 1
        try:
            for _ in range(MODERN_LOOKS):
                await stream.wait(WATCH_SECONDS)
                if stream.is_ended or not stream.is_empty or is_gone(request):
                    break
            if (reply := _only(stream, task)) is not None:
                code = task.result() if task is not None else None
                return _json(reply, _STATUS.get(code or 0, 200))
            return await _stream_modern(request, stream)
        finally:
            self._running -= 1
            session.cancel(message.id)
            await session.close()

    async def _admit(self, user: str) -> HttpSession:
        """A new session; those that nobody used for long make room."""
        now = asyncio.get_running_loop().time()
        silent = sorted((one for one in self._clients.values() if not one.open), key=lambda one: one.used)
        for client in silent:
            if now - client.used > IDLE_SECONDS or len(self._clients) >= self._limit:
                await self._forget(client)
        if len(self._clients) >= self._limit:
            raise _Refused(503, "There are too many sessions; try again later.")
        client = HttpSession(self._server, user)
        client.used = now
        self._clients[client.id] = client
        return client

    def _client(self, request: web.Request, user: str) -> HttpSession:
        """The session that a request belongs to."""
        session_id = request.headers.get("Mcp-Session-Id")
        if session_id is None:
            raise _Refused(400, "The header `Mcp-Session-Id` is missing; send `initialize` first.")
        client = self._clients.get(session_id)
        if client is None or client.user != user:
            raise _Refused(404, "The session is over; send `initialize` again.")
        version = request.headers.get("MCP-Protocol-Version")
        if version is not None and version not in (*HANDSHAKE, "2025-03-26"):
            raise _Refused(400, f"Revision {version} is not spoken in this session.")
        client.used = asyncio.get_running_loop().time()
        return client

    async def _forget(self, client: HttpSession) -> None:
        self._clients.pop(client.id, None)
        await client.session.close()
        for stream in client.streams.values():
            stream.end()


async def _stream_modern(request: web.Request, stream: EventStream) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENTS)
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        quiet = 0
        async for event in stream.read(0, idle=WATCH_SECONDS):
            quiet = quiet + 1 if event.startswith(b":") else 0
            if is_gone(request):
                break
            if quiet == 0 or quiet % ALIVE_LOOKS == 0:
                await response.write(event)
    return response


def _end_with(stream: EventStream, task: asyncio.Task[Any] | None) -> None:
    """End the stream when its request is answered; at once where it was refused."""
    if task is None:
        stream.end()
    else:
        task.add_done_callback(lambda _: stream.end())


def _only(stream: EventStream, task: asyncio.Task[Any] | None) -> bytes | None:
    """The answer, where nothing else was sent before it."""
    return None if task is not None and task.cancelled() else stream.only()


def is_gone(request: web.Request) -> bool:
    """Whether whoever asked has closed the connection."""
    return request.transport is None or request.transport.is_closing()


def _check_types(request: web.Request) -> None:
    if request.content_type != "application/json":
        raise _Refused(415, "The body must be `Content-Type: application/json`.")
    if not _accepts(request, "application/json") or not _accepts(request, "text/event-stream"):
        raise _Refused(406, "`Accept` must name `application/json` and `text/event-stream`.")


def _accepts(request: web.Request, kind: str) -> bool:
    accept = request.headers.get("Accept", "*/*")
    return kind in accept or "*/*" in accept or kind.partition("/")[0] + "/*" in accept


def _json(body: bytes, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
