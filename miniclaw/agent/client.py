"""The client of model servers: connections, and what has to be imported for them, late or ahead of the first request."""

from __future__ import annotations

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
    """A client that repeats nothing by itself; `connect` and `read` are limits in seconds."""
    import httpx2
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)

    async def bounded(response: httpx2.Response) -> None:
        # Bodies that are read whole: refusals, and the list of models.
        if response.status_code >= 400 or response.request.method == "GET":
            response.stream = Bounded(response.stream)

    class Bounded(httpx2.AsyncByteStream):
        """The beginning of a body; what has no end is taken for ended."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for piece in self._stream:
                yield piece
                size += len(piece)
                if size > MOST_BYTES:
                    return

        async def aclose(self) -> None:
            await self._stream.aclose()

    return AsyncOpenAI(
        api_key=api_key,
        base_url=base_url,
        max_retries=0,
        timeout=httpx2.Timeout(read, connect=connect),
        http_client=DefaultAsyncHttpxClient(
            limits=limits, verify=_tls(), event_hooks={"response": [bounded]}
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
