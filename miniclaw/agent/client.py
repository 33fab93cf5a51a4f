"""The client of model servers: connections, and what has to be imported for them, late or ahead of the first request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI

__all__ = ["new_client", "warm_up"]

MAX_CONNECTIONS: Final = 1000
"""Connections to the model server; more requests wait for a free one."""
MOST_BYTES: Final = 1024 * 1024
"""What is read of a refusal or of the list of models."""


def new_client(base_url: str | None, api_key: str, connect: float, read: float) -> AsyncOpenAI:
    """A client that repeats nothing by itself; `connect` and `read` are limits in seconds.

    Its transport is `aiohttp`, which takes a stream apart in C: a turn costs a quarter less CPU than on `httpcore2`.
    """
    import httpx2
    from aiohttp import ClientError
    from openai import AsyncOpenAI, DefaultAioHttpClient

    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)

    class Body(httpx2.AsyncByteStream):
        """A body with its limits; one that is read whole counts as ended after `most` bytes."""

        def __init__(self, stream: Any, most: float) -> None:
            self._stream = stream
            self._most = most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            pieces, left = aiter(self._stream), self._most
            while left >= 0:
                try:
                    # The transport waits for ever behind a chunk without a size, and has a limit for all else.
                    async with asyncio.timeout(read + 1):
                        piece = await anext(pieces, b"")
                except TimeoutError as error:
                    raise httpx2.ReadTimeout("") from error
                if not piece:
                    return
                yield piece
                left -= len(piece)

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Client(DefaultAioHttpClient):
        """With the errors of its transport that it leaves as they are, such as an answer that is no HTTP."""

        async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
            try:
                return await super().send(request, **how)
            except ClientError as error:
                raise httpx2.RemoteProtocolError(str(error), request=request) from error

    async def without_login(request: httpx2.Request) -> None:
        # The header has it by now, and `aiohttp` refuses both.
        if request.url.userinfo:
            request.url = request.url.copy_with(userinfo=b"")

    async def bounded(response: httpx2.Response) -> None:
        # Refusals and the list of models are read whole.
        is_whole = response.status_code >= 400 or response.request.method == "GET"
        response.stream = Body(response.stream, MOST_BYTES if is_whole else math.inf)

    return AsyncOpenAI(
        api_key=api_key,
        base_url=base_url,
        max_retries=0,
        timeout=httpx2.Timeout(read, connect=connect),
        http_client=Client(
            limits=limits,
            verify=_tls(),
            event_hooks={"request": [without_login], "response": [bounded]},
        ),
    )


def warm_up() -> None:
    """Import the client's libraries and read the certificates: most of a second, in any thread."""
    import openai

    _ = openai.AsyncOpenAI, openai.AsyncStream
    _tls()


@cache
def _tls() -> ssl.SSLContext:
    """Made once: to read all certificates costs more than a request."""
    import httpx2

    return httpx2.create_ssl_context()
