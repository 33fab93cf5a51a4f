"""A server at a URL: Streamable HTTP on both wires.

Rules are those of https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http
and https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import aiohttp

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client.answers import body_of, check_plain, moved_to, place, refusal, retry_after, why
from miniclaw.mcp.client.events import EventReader
from miniclaw.mcp.client.link import Link
from miniclaw.mcp.protocol import MODERN, MessageId, Request, encode_request

__all__ = ["Authorizer", "HttpLink"]

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 20.0
BUSY_TRIES: Final = 3
BUSY_SECONDS: Final = 60.0
"""The longest `Retry-After` that is waited for."""
RESUMES: Final = 5
"""How often in a row a stream that gives nothing new is asked for again."""
MAX_MOVES: Final = 5
"""How often one request is sent on."""
RETRY_SECONDS: Final = 1.0
LOCAL: Final = ("http://127.0.0.1:", "http://localhost:")  # no proxy is asked for this machine
IDLE_SECONDS: Final = 0.5
"""The least pause after a stream that gave no message, whatever the server says."""
MAX_RETRY_SECONDS: Final = 60.0
LISTEN_SECONDS: Final = 2.0
"""How long a server may take to open the general stream; some say nothing until they have something to say."""
DELETE_SECONDS: Final = 2.0
MAX_LOGINS: Final = 3
"""How often one request may lead to a new token."""


class Authorizer(Protocol):
    """Who gets tokens for a server."""

    async def token(self) -> str | None:
        """The token to send, if there is one."""
        ...

    async def refused(self, status: int, challenges: list[str], token: str | None) -> bool:
        """The server refused this token (401, 403); whether the request may be sent again with another.

        Raises:
            MCPUnavailable: the operator must log in.
        """
        ...


class HttpLink(Link):
    """Sends each message as a request of its own.

    Args:
        url: where the server is.
        headers: what is sent with every request.
        authorizer: gets tokens; without one a server that wants them is out of reach.

    Attributes:
        session: the server's id of the session, if it gave one.
    """

    has_headers = True

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, authorizer: Authorizer | None = None
    ) -> None:
        super().__init__()
        self.session: str | None = None
        self._url = url
        self._headers = {"Accept": "application/json, text/event-stream", **(headers or {})}
        self._auth = authorizer
        self._http: aiohttp.ClientSession | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Nothing is sent yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        by_proxy = not self._url.startswith(LOCAL)
        self._http = aiohttp.ClientSession(
            timeout=timeout, trust_env=by_proxy, read_bufsize=2**18, auto_decompress=False
        )

    async def exchange(self, request: Request, headers: Mapping[str, str]) -> dict[str, Any]:
        """Send a request and return its result, from whichever stream it comes."""
        if request.method == "initialize":
            self.session = None
        future = self.expect(request.id)
        body = encode_request(request.id, request.method, request.params)
        reading = asyncio.get_running_loop().create_task(self._post_and_read(request, body, headers, future))
        both: set[asyncio.Future[Any]] = {reading, future}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            reading.result()  # raises why there is no answer
            raise MCPUnavailable("The server ended the stream without an answer.")
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            self.forget(request.id)

    async def send(self, message: bytes) -> None:
        """Send what is not answered."""
        async with self._request("POST", message) as response:
            if response.status >= 400:
                raise refusal(response, await body_of(response))

    async def listen(self) -> None:
        """Hold a stream for what belongs to no request, where the server offers one.

        Waits until it is there: what servers send before that is lost, also their questions.
        """
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        opened = asyncio.Event()
        self._listening = asyncio.get_running_loop().create_task(self._listen(opened))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(opened.wait(), LISTEN_SECONDS)

    async def close(self) -> None:
        """End the session and all connections."""
        if self._http is None:
            return
        self.end(MCPUnavailable("The connection was closed."))
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if self.session is not None:
            with contextlib.suppress(MCPError, TimeoutError):
                async with asyncio.timeout(DELETE_SECONDS), self._request("DELETE", None):
                    pass
        http, self._http = self._http, None
        await http.close()

    # --- requests -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _request(
        self, verb: str, body: bytes | None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request, with tokens as the server wants them and after the pauses that it wants."""
        url, busy, logins, moves = self._url, 0, 0, 0
        while True:
            token = await self._auth.token() if self._auth is not None else None
            sent = {**self._headers, **self._standard(body, token), **(headers or {})}
            response = await self._open(verb, url, body, sent)
            async with response:
                if (moved := moved_to(self._url, url, response)) is not None:
                    url, moves = moved, moves + 1
                    if moves > MAX_MOVES:
                        raise MCPUnavailable(f"{place(self._url)} sends on and on, to {place(url)} at last.")
                elif response.status in (401, 403) and self._auth is not None and logins < MAX_LOGINS:
                    logins += 1
                    challenges = response.headers.getall("WWW-Authenticate", [])
                    if not await self._auth.refused(response.status, challenges, token):
                        yield response
                        return
                elif response.status in (429, 503) and busy < BUSY_TRIES:
                    busy += 1
                    if (wait := retry_after(response, 2.0 ** (busy - 1))) > BUSY_SECONDS:
                        yield response
                        return
                    await asyncio.sleep(wait)
                else:
                    yield response
                    return

    async def _open(
        self, verb: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        if self._http is None:
            raise MCPUnavailable("The connection was closed.")
        try:
            response = await self._http.request(verb, url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise MCPUnavailable(f"{place(url)} cannot be reached: {why(error)}.") from error
        check_plain(response)
        return response

    def _standard(self, body: bytes | None, token: str | None) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if self.version:
            headers["MCP-Protocol-Version"] = self.version
        if self.session is not None:
            headers["Mcp-Session-Id"] = self.session
        return headers

    async def _post_and_read(
        self,
        request: Request,
        body: bytes,
        headers: Mapping[str, str],
        future: asyncio.Future[dict[str, Any]],
    ) -> None:
        """Send a request and dispatch what comes for it until it is answered."""
        reader = EventReader()
        async with self._request("POST", body, headers) as response:
            if response.status >= 400:
                raise refusal(response, await body_of(response))
            if request.method == "initialize":
                self.session = response.headers.get("Mcp-Session-Id")
            if response.content_type != "text/event-stream":
                await self._read_json(response, request.id)
                return
            came = await self._read_events(response, reader, request.id)
        if not future.done() and self.version != MODERN:
            await self._resume(reader, request.id, future, came)

    async def _read_json(self, response: aiohttp.ClientResponse, request_id: MessageId) -> None:
        body = await body_of(response)
        if not body.strip():
            return
        try:
            self.receive(body, request_id)
        except MCPError as error:
            raise MCPUnavailable(f"{place(self._url)} is no MCP server: {error}") from error

    async def _read_events(
        self, response: aiohttp.ClientResponse, reader: EventReader, related: MessageId | None
    ) -> bool:
        """Dispatch the messages of a stream until it ends or breaks; whether there were any."""
        came = False
        try:
            async for chunk in response.content.iter_any():
                for event in reader.feed(chunk):
                    if event.name != "message" or not event.data.strip():
                        continue
                    try:
                        self.receive(event.data, related)
                        came = True
                    except MCPUnavailable:
                        raise
                    except MCPError as error:
                        logger.warning("an event that is no message: %.200s", error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.debug("a stream broke: %s", error)
        return came

    async def _resume(
        self, reader: EventReader, request_id: MessageId, future: asyncio.Future[dict[str, Any]], came: bool
    ) -> None:
        """Ask for the rest of a stream that ended before the answer."""
        tries = 0
        while reader.last_id and tries < RESUMES and not future.done():
            pause = RETRY_SECONDS if reader.retry is None else reader.retry
            await asyncio.sleep(pause if came else max(pause, IDLE_SECONDS))
            before, tries, came = reader.last_id, tries + 1, False
            reader = reader.again()
            with contextlib.suppress(MCPUnavailable):
                async with self._request("GET", None, {"Last-Event-ID": before}) as response:
                    if response.content_type != "text/event-stream" or response.status != 200:
                        raise refusal(response, await body_of(response))
                    came = await self._read_events(response, reader, request_id)
            if came:
                tries = 0

    async def _listen(self, opened: asyncio.Event) -> None:
        """Hold the general stream; a server without one says so by its status."""
        reader, wait = EventReader(), RETRY_SECONDS
        while True:
            headers = {"Accept": "text/event-stream"}
            if reader.last_id:
                headers["Last-Event-ID"] = reader.last_id
            came = False
            try:
                async with self._request("GET", None, headers) as response:
                    opened.set()
                    if 400 <= response.status < 500 or response.content_type != "text/event-stream":
                        return
                    reader = reader.again()
                    came = await self._read_events(response, reader, None)
                    wait = RETRY_SECONDS if came else wait
            except MCPUnavailable as error:
                logger.debug("no general stream: %s", error)
                opened.set()
            pause = wait if reader.retry is None else max(reader.retry, wait - RETRY_SECONDS)
            pause = pause if came else max(pause, IDLE_SECONDS)
            await asyncio.sleep(pause * random.uniform(1.0, 1.2))
            wait = min(wait * 2, MAX_RETRY_SECONDS)
