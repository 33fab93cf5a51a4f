"""The browser's channel: the page, its WebSocket, and `POST /api/messages`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import Field

from miniclaw.errors import ProtocolError
from miniclaw.gateway.api import read_json
from miniclaw.gateway.connection import ConnectionChannel, Hub
from miniclaw.gateway.http import HttpServer, Route, json_response, user_of
from miniclaw.gateway.protocol import (
    Inbound,
    MessageType,
    Receipt,
    TextPayload,
    new_id,
    now,
)
from miniclaw.gateway.reader import TurnReader
from miniclaw.identity import Identities
from miniclaw.logs import request_id
from miniclaw.session.ports import Turns

__all__ = ["WebChatChannel"]

logger = logging.getLogger(__name__)

STATIC: Final = Path(__file__).parent / "static"
MAX_WAIT_SECONDS: Final = 600.0
FRAMES: Final = 20_000
"""Frames between the gateway and one browser; the limit on their bytes is reached first."""
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: https:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


class _MessageBody(TextPayload):
    """The body of `POST /api/messages`."""

    msg_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._:-]{1,128}$")


class WebChatChannel(ConnectionChannel):
    """Serves the page and carries its conversation; answers of `POST /api/messages` are fetched or awaited."""

    name = "web"
    aliases = ("http",)
    typed = True

    def __init__(
        self,
        hub: Hub,
        server: HttpServer,
        identities: Identities,
        turns: Turns,
        *,
        message_bytes: int,
        ping_seconds: float,
        may_move: bool,
    ) -> None:
        super().__init__(hub)
        self._server = server
        self._identities = identities
        self._turns = turns
        self._message_bytes = message_bytes
        self._ping_seconds = ping_seconds
        self._may_move = may_move
        self._sockets: set[web.WebSocketResponse] = set()

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return self._server.url

    @property
    def port(self) -> int | None:
        """The port it listens on."""
        return self._server.port

    def routes(self) -> list[Route]:
        """The page, its files, the WebSocket and the message route."""
        return [
            Route(method="GET", path="/", handler=self._page, is_open=True),
            Route(method="GET", path="/static/{path}", handler=self._file, is_open=True),
            Route(method="GET", path="/ws", handler=self._socket),
            Route(method="POST", path="/api/messages", handler=self._message),
        ]

    async def start(self) -> None:
        await self._server.start(may_move=self._may_move)

    async def stop(self) -> None:
        for socket in tuple(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the gateway is stopping")
        await self._server.stop()

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """The page; with a good `?token=` a login first, so that the token leaves the address bar."""
        token = request.query.get("token")
        if token is None:
            return _static("index.html")
        login = await self._identities.login(token)
        if login is None:
            raise ProtocolError("unauthorized", "This token is not valid; open the URL that `serve` printed.")
        response = web.Response(status=303, headers={"Location": "./", "Cache-Control": "no-store"})
        response.set_cookie(
            self._server.cookie,
            login,
            httponly=True,
            samesite="Strict",
            secure=self._server.url.startswith("https://"),
            max_age=90 * 24 * 3600,
            path="/",
        )
        return response

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["path"]
        path = STATIC / name
        if path.parent != STATIC or path.suffix not in TYPES or not path.is_file():
            raise ProtocolError("not_found", "There is no such file.")
        return _static(name)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(
            heartbeat=self._ping_seconds, max_msg_size=self._message_bytes, compress=False, timeout=2.0
        )
        await ws.prepare(request)
        socket = _BrowserSocket(ws)
        connection = self.open(socket, user_of(request), html=request.query.get("html") == "1")
        self._sockets.add(ws)
        writer = asyncio.get_running_loop().create_task(socket.write_frames())
        try:
            async for message in ws:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await connection.handle(message.data)
        finally:
            self._sockets.discard(ws)
            self.closed(connection)
            writer.cancel()
        return ws

    async def _message(self, request: web.Request) -> web.StreamResponse:
        """Store a message; with `wait` stay until its answer, at most that many seconds."""
        body: _MessageBody = await read_json(request, _MessageBody)
        wait = _seconds(request.query.get("wait"))
        user_id = user_of(request)
        inbound = Inbound(
            msg_id=body.msg_id or new_id("msg"),
            msg_type=MessageType.TEXT,
            source=f"http:{user_id}",
            payload=TextPayload(text=body.text, session_id=body.session_id, attachments=body.attachments),
            timestamp=now(),
            channel="http",
            sender=user_id,
            user_id=user_id,
            session_id=body.session_id,
            request_id=request_id(),
        )
        receipt = await self.submit(inbound)
        if not receipt.stored:
            raise ProtocolError(receipt.code or "internal", receipt.message)
        ids = {"msg_id": inbound.msg_id, "session_id": receipt.session_id, "turn_id": receipt.turn_id}
        outcome = await self._outcome(receipt, wait) if wait is not None else None
        if outcome is None:
            return json_response(ids, status=202)
        data: dict[str, Any] = {"text": "", **outcome["data"]}
        if outcome["name"] == "turn.failed":
            data["error"] = {"code": data.pop("code"), "message": data.pop("message")}
        return json_response({**ids, **data, "state": outcome["name"].removeprefix("turn.")})

    async def _outcome(self, receipt: Receipt, wait: float) -> dict[str, Any] | None:
        """The end of a turn, or `None` when it does not come in time."""
        session_id, turn_id = receipt.session_id or "", receipt.turn_id or ""
        with TurnReader(self.hub.bus, session_id, turn_id) as reader:
            turn = await self._turns.find(turn_id)
            if turn is not None and turn.outcome is not None:
                return turn.outcome
            try:
                async with asyncio.timeout(wait):
                    event = await reader.end()
            except TimeoutError:
                return None
        return {"name": event.name, "data": event.data}


class _BrowserSocket:
    """The outgoing side of an aiohttp WebSocket: a bounded queue and the one task that drains it."""

    def __init__(self, ws: web.WebSocketResponse) -> None:
        self._ws = ws
        self._frames: asyncio.Queue[str | tuple[int, str]] = asyncio.Queue(FRAMES)
        self._bytes = 0

    def write(self, frame: str) -> None:
        if self._frames.full():
            self._overflow()
        else:
            self._bytes += len(frame)
            self._frames.put_nowait(frame)

    def backlog(self) -> int:
        return self._bytes

    def close(self, code: int, reason: str) -> None:
        if self._frames.full():
            self._overflow()
        else:
            self._frames.put_nowait((code, reason))

    def _overflow(self) -> None:
        while not self._frames.empty():
            self._frames.get_nowait()
        self._bytes = 0
        self._frames.put_nowait((WSCloseCode.TRY_AGAIN_LATER, "not reading; resume later"))

    async def write_frames(self) -> None:
        """Send until the connection is closed; aiohttp waits here when the browser is slow."""
        while not self._ws.closed:
            item = await self._frames.get()
            if isinstance(item, tuple):
                await self._ws.close(code=item[0], message=item[1].encode())
                return
            try:
                await self._ws.send_str(item)
            except ConnectionError:
                return  # the browser is gone; its connection's reader sees that too
            self._bytes -= len(item)


def _static(name: str) -> web.Response:
    path = STATIC / name
    return web.Response(
        body=path.read_bytes(), content_type=TYPES[path.suffix], charset="utf-8", headers=HEADERS
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise ProtocolError("bad_arguments", f"`wait` must be seconds from 0 to {MAX_WAIT_SECONDS:.0f}.")
    return seconds
