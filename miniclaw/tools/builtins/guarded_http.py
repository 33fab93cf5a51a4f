"""An httpx transport that connects only to addresses that an `AddressGuard` has judged.

Import it late: it loads httpx.
"""

from __future__ import annotations

import functools
import ssl
from types import TracebackType
from typing import Final, Self

import httpx

from miniclaw.errors import ToolError
from miniclaw.tools.builtins.addresses import AddressGuard

__all__ = ["GuardedTransport"]

MAX_ADDRESSES: Final = 3
"""How many addresses of one host are tried, one after the other."""


@functools.cache
def _public_certificates() -> ssl.SSLContext:
    """Made once: reading the certificates costs as much as a whole request."""
    return httpx.create_ssl_context()


class GuardedTransport(httpx.AsyncBaseTransport):
    """Checks every request, also each that a redirect leads to, and connects to the checked address.

    The URL's host stays the one that TLS asks for and checks the certificate against, and the `Host`
    header. Connections are never kept: a kept one is known by its address only, and would be used for
    another host name without a look at that host's certificate.
    """

    def __init__(self, guard: AddressGuard, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._guard = guard
        self._inner = httpx.AsyncHTTPTransport(
            verify=ssl_context or _public_certificates(),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to the first address of its host that takes a connection.

        Raises:
            ToolError: the URL or an address of its host is refused; nothing was contacted.
            httpx.TransportError: no address took the connection, or the exchange failed.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        port = {"http": 80, "https": 443}.get(url.scheme, 0) if url.port is None else url.port
        if not host or not 0 < port < 65536:
            raise ToolError("The URL needs `http` or `https`, a host, and a port below 65536.")
        addresses = (await self._guard.addresses(host, port))[:MAX_ADDRESSES]
        for address in addresses[:-1]:
            try:
                return await self._send(request, address, host)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue  # nothing was sent, so the next address may be tried
        return await self._send(request, addresses[-1], host)

    async def _send(self, request: httpx.Request, address: str, host: str) -> httpx.Response:
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host.rstrip(".")},
        )
        return await self._inner.handle_async_request(pinned)

    async def __aenter__(self) -> Self:
        """Open the pool."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Close every connection."""
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()
