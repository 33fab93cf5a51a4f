"""How requests reach a model server: the `openai` client's own `aiohttp` transport, with limits and errors made whole.

`aiohttp` takes a stream apart in C: a turn costs a quarter less CPU than on `httpcore2`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
from aiohttp import ClientError
from openai import DefaultAioHttpClient

__all__ = ["ModelClient"]

MAX_CONNECTIONS: Final = 1000
"""Connections to the model server; more requests wait for a free one."""
MOST_BYTES: Final = 1024 * 1024
"""What is read of a refusal or of the list of models."""


class ModelClient(DefaultAioHttpClient):
    """Sends requests and raises nothing but what `httpx2` has; `read` is the limit in seconds for a piece of a body."""

    def __init__(self, *, read: float, **more: Any) -> None:
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        hooks: dict[str, list[Any]] = {"request": [_take_login_out], "response": [self._bound]}
        super().__init__(limits=limits, event_hooks=hooks, **more)
        self._read = read

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        try:
            return await super().send(request, **how)
        except ClientError as error:  # which the transport leaves as it is: an answer that is no HTTP
            raise httpx2.RemoteProtocolError(str(error), request=request) from error

    async def _bound(self, response: httpx2.Response) -> None:
        # Refusals and the list of models are read whole.
        is_whole = response.status_code >= 400 or response.request.method == "GET"
        response.stream = _Body(response.stream, self._read, MOST_BYTES if is_whole else math.inf)


async def _take_login_out(request: httpx2.Request) -> None:
    """The header has the login of the address by now, and `aiohttp` refuses both."""
    if request.url.userinfo:
        request.url = request.url.copy_with(userinfo=b"")


class _Body(httpx2.AsyncByteStream):
    """A body that counts as ended after `most` bytes, and as late when a piece takes over `seconds`."""

    def __init__(self, stream: Any, seconds: float, most: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces, left = aiter(self._stream), self._most
        while left >= 0:
            try:
                # The transport waits for ever behind a chunk without a size, and has a limit for all else.
                async with asyncio.timeout(self._seconds + 1):
                    piece = await anext(pieces, b"")
            except TimeoutError as error:
                raise httpx2.ReadTimeout("") from error
            if not piece:
                return
            yield piece
            left -= len(piece)

    async def aclose(self) -> None:
        await self._stream.aclose()
