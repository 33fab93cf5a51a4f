"""The HTTP client of a platform: what goes wrong on the way is a `DeliveryError` that says what is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from miniclaw.channel.webhook import delivery_error
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError

if TYPE_CHECKING:
    import httpx

__all__ = ["MARK", "AccessToken", "PlatformClient", "is_on"]

MARK: Final = "（可能重复 / possibly a repeat）\n"
"""Begins a text that may have arrived before."""

CONNECT_SECONDS: Final = 5.0
"""How long it may take to reach a host; nothing is sent before."""
REFUSAL_BYTES: Final = 64 * 1024
"""Of what is read of an answer that is no file."""


class PlatformClient:
    """Follows no redirect and no proxy of the environment; opened at the first call."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def call(self, method: str, url: str, **request: Any) -> httpx.Response:
        """Send a request and read its answer, whatever its status.

        Raises:
            DeliveryError: surely not sent where no connection came about; else `unknown`.
        """
        import httpx

        try:
            return await self._opened().request(method, url, **request)
        except (
            httpx.ConnectError,
            httpx.ConnectTimeout,
            httpx.PoolTimeout,
            httpx.UnsupportedProtocol,
        ) as error:
            raise DeliveryError(f"{_host(url)} cannot be reached: {type(error).__name__}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(
                f"{_host(url)} gave no answer: {type(error).__name__}", unknown=True
            ) from error

    async def post_json(self, url: str, body: Mapping[str, Any], *, headers: Mapping[str, str]) -> Any:
        """POST an object and read the object that comes back.

        Raises:
            DeliveryError: as `call` does, and for a status that is no success.
        """
        response = await self.call("POST", url, json=body, headers=headers)
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        return _object(response, url)

    async def download(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        max_bytes: int,
        params: Mapping[str, str] | None = None,
        refusal: Callable[[int, Mapping[str, Any]], DeliveryError | None] | None = None,
    ) -> bytes:
        """GET a file of at most `max_bytes`.

        `refusal` says what a status and a JSON object mean in the place of a file; `None` = the object may be it.

        Raises:
            DeliveryError: it cannot be read, or is larger.
        """
        import httpx

        data = bytearray()
        try:
            async with self._opened().stream("GET", url, headers=headers, params=params) as response:
                is_file = response.status_code == 200
                most = max_bytes if is_file else REFUSAL_BYTES
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > most:
                        break
        except httpx.HTTPError as error:
            raise DeliveryError(f"{_host(url)} gave no file: {type(error).__name__}") from error
        if refusal is not None and response.headers.get("Content-Type", "").startswith("application/json"):
            if (failure := refusal(response.status_code, _read(bytes(data)))) is not None:
                raise failure
        if not is_file:
            raise DeliveryError(f"{_host(url)} answered {response.status_code}")
        if len(data) > max_bytes:
            raise DeliveryError(f"the file is larger than {max_bytes} bytes", permanent=True)
        return bytes(data)

    async def close(self) -> None:
        """Let go of connections; may be called again."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            # How long an answer may take is the caller's to say, such as `delivery.timeout`.
            timeout = httpx.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
            self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout)
        return self._client


class AccessToken:
    """A platform's token: several calls at once ask for it only once, and it is renewed before its end.

    Args:
        ask: gives a token and for how many seconds it is good.
        clock: seconds since the epoch.
        early: seconds before its end in which it is renewed; not more often than twice in what is left of it.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[tuple[str, float]]], *, clock: Clock, early: float
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._early = early
        self._lock = asyncio.Lock()
        self._token = ""
        self._renew_at = 0.0
        self._ends_at = 0.0

    async def get(self, *, refused: str = "") -> str:
        """The token; another one than that which was refused, if the platform gives one.

        Raises:
            DeliveryError: there is none; whatever it was for has surely not been done.
        """
        async with self._lock:
            now, is_good = self._clock(), self._token != refused
            if is_good and now < self._renew_at:
                return self._token
            try:
                self._token, seconds = await self._ask()
            except DeliveryError as error:
                if is_good and now < self._ends_at:
                    return self._token
                raise DeliveryError(
                    f"no token: {error}", permanent=error.permanent, retry_after=error.retry_after
                ) from error
            self._ends_at = now + seconds
            self._renew_at = now + max(seconds - self._early, seconds / 2)
            return self._token


def is_on(url: str, hosts: Collection[str]) -> bool:
    """Whether a URL is HTTPS on one of these hosts, or on one of them named with its port, such as a stand-in."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is out of range
    except ValueError:
        return False
    if "@" in parts.netloc or not url.isprintable() or parts.scheme not in ("http", "https"):
        return False
    named = parts.netloc.lower() in hosts and ":" in parts.netloc
    return named or (parts.scheme == "https" and (parts.hostname or "").lower() in hosts)


def _read(data: bytes) -> Mapping[str, Any]:
    """A JSON object; nothing where it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _object(response: httpx.Response, url: str) -> Any:
    try:
        found = response.json()
    except ValueError as error:
        raise DeliveryError(f"{_host(url)} answered something that is not JSON", unknown=True) from error
    if not isinstance(found, dict):
        raise DeliveryError(f"{_host(url)} answered something that is no object", unknown=True)
    return found


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or "the platform"
