"""What a server's HTTP answers mean where they are no messages."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import urljoin, urlsplit

import aiohttp

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client.events import MOST_BYTES
from miniclaw.mcp.client.link import error_of

__all__ = ["body_of", "check_plain", "moved_to", "place", "refusal", "retry_after", "why"]


async def body_of(response: aiohttp.ClientResponse) -> bytes:
    """The whole body.

    Raises:
        MCPUnavailable: it was cut, or is over the limit.
    """
    parts, size = [], 0
    try:
        async for chunk in response.content.iter_any():
            parts.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                raise MCPUnavailable(f"The server sent more than {MOST_BYTES:,} bytes.")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise MCPUnavailable(f"The answer was cut: {why(error)}.") from error
    return b"".join(parts)


def check_plain(response: aiohttp.ClientResponse) -> None:
    """Refuse a compressed body: what is small on the way could be of any size here.

    Raises:
        MCPUnavailable: it is compressed.
    """
    if response.status < 400 and response.headers.get("Content-Encoding", "identity").lower() != "identity":
        response.close()
        where = place(str(response.url))
        raise MCPUnavailable(f"{where} sends compressed answers, though it was asked not to.")


def moved_to(base: str, url: str, response: aiohttp.ClientResponse) -> str | None:
    """Where a request is sent on to; only on the same origin as `base`, so that no token goes elsewhere.

    Raises:
        MCPUnavailable: it is elsewhere, or no address.
    """
    if response.status not in (307, 308):
        return None
    try:
        target = urljoin(url, response.headers.get("Location", ""))
        is_same = urlsplit(target)[:2] == urlsplit(base)[:2]
    except ValueError as error:
        raise MCPUnavailable(f"{place(url)} moved to what is no address.") from error
    if not is_same or target == url:
        raise MCPUnavailable(
            f"The server moved to {place(target)}; if that is right, set it as its `url`.",
            status=response.status,
        )
    return target


def refusal(response: aiohttp.ClientResponse, body: bytes) -> MCPError:
    """The error that a status of 400 and more stands for."""
    status, error = response.status, None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(body)
        error = value.get("error") if isinstance(value, dict) else None
    had_session = "Mcp-Session-Id" in response.request_info.headers
    if had_session and (status == 404 or (status == 400 and b"ession" in body)):
        return MCPUnavailable("The server has forgotten the session.", status=404)
    if isinstance(error, dict) and status not in (401, 403):
        return error_of(error)
    words = {401: "wants a login", 403: "does not allow it"}.get(status, "is out of order or not there")
    where = place(str(response.url))
    return MCPUnavailable(
        f"{where} answers with status {status}: it {words}.", status=status, needs_login=status == 401
    )


def retry_after(response: aiohttp.ClientResponse, default: float) -> float:
    """How many seconds the server wants to be left alone; it may also name a date, which is not read."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else default


def place(url: str) -> str:
    """A URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def why(error: Exception) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
