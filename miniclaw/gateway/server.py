"""`GatewayServer`: the raw WebSocket gateway, channel `ws`."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection, broadcast, serve
from websockets.datastructures import MultipleValuesError
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from miniclaw.agent.patience import refuse_at_once
from miniclaw.config import GatewaySettings
from miniclaw.errors import ConfigError
from miniclaw.gateway.access import HostRules, presented_token
from miniclaw.gateway.connection import ConnectionChannel, Hub
from miniclaw.identity import Identities

__all__ = ["GatewayServer"]

logger = logging.getLogger(__name__)

OPEN_SECONDS: Final = 10.0
"""How long a peer may take for the opening handshake."""
CLOSE_SECONDS: Final = 2.0
"""How long a peer may take to answer a close."""
GOING_AWAY: Final = 1001


class GatewayServer(ConnectionChannel):
    """Listens on one address and speaks the message protocol at path `/`.

    Compression is off: it costs three times the memory of an idle connection. Frames over
    `limits.message_bytes` close the connection with 1009; a peer that does not answer pings is dropped.
    """

    name = "ws"

    def __init__(
        self,
        hub: Hub,
        settings: GatewaySettings,
        identities: Identities,
        rules: HostRules,
        *,
        message_bytes: int,
    ) -> None:
        super().__init__(hub)
        self._settings = settings
        self._identities = identities
        self._rules = rules
        self._message_bytes = message_bytes
        self._server: Server | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int | None:
        """The port it listens on, once started."""
        if self._server is None:
            return None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def start(self) -> None:
        try:
            self._server = await serve(
                self._serve_connection,
                self._settings.host,
                self._settings.port,
                process_request=self._check_request,
                # Limits
                max_size=self._message_bytes,
                max_queue=4,
                open_timeout=OPEN_SECONDS,
                close_timeout=CLOSE_SECONDS,
                ping_interval=self._settings.ping_interval,
                ping_timeout=self._settings.ping_timeout,
                # Cost
                compression=None,
                backlog=4096,
            )
        except OSError as error:
            address = f"{self._settings.host}:{self._settings.port}"
            raise ConfigError(
                f"The gateway cannot listen on {address}: {error.strerror or error}; choose another --gateway-port."
            ) from error

    async def stop(self) -> None:
        """Stop listening, then close every connection with 1001 and wait for the handshakes."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close(close_connections=True, code=GOING_AWAY, reason="the gateway is stopping")
        await server.wait_closed()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _check_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse an upgrade before it happens: wrong host, foreign page, no token, too many."""
        try:
            host, origin = request.headers.get("Host"), request.headers.get("Origin")
        except MultipleValuesError:
            return connection.respond(HTTPStatus.BAD_REQUEST, "a header was sent twice\n")
        parts = urlsplit(request.path)
        if not self._rules.allows_host(host):
            return connection.respond(HTTPStatus.MISDIRECTED_REQUEST, "unknown host\n")
        if origin is not None and not self._rules.allows_origin(origin, host):
            return connection.respond(HTTPStatus.FORBIDDEN, "foreign origin\n")
        if parts.path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, "the gateway's path is /\n")
        token = presented_token(request.headers, parts.query)
        user_id = self._identities.user_of_token(token or "")
        if user_id is None:
            return connection.respond(HTTPStatus.UNAUTHORIZED, "a valid token is needed\n")
        if len(self.connections) >= self._settings.max_connections:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        connection.username = user_id
        return None

    async def _serve_connection(self, ws: ServerConnection) -> None:
        query = urlsplit(ws.request.path).query if ws.request is not None else ""
        html = "html=1" in query.split("&")
        refuse_at_once()
        connection = self.open(_WebSocket(ws, self._closing), ws.username, html=html)
        try:
            async for frame in ws:
                await connection.handle(frame)
        except ConnectionClosed:
            pass  # the peer went without a close frame; what it sent is stored, what it missed is resumable
        finally:
            self.closed(connection)


class _WebSocket:
    """The outgoing side of a `websockets` connection, written without waiting."""

    __slots__ = ("_closing", "_ws")

    def __init__(self, ws: ServerConnection, closing: set[asyncio.Task[None]]) -> None:
        self._ws = ws
        self._closing = closing

    def write(self, frame: str) -> None:
        broadcast((self._ws,), frame)

    def backlog(self) -> int:
        return self._ws.transport.get_write_buffer_size()

    def close(self, code: int, reason: str) -> None:
        if self._ws.protocol.state is not State.OPEN:
            return
        task = asyncio.get_running_loop().create_task(self._ws.close(code, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
