"""Calls of Feishu's Open API: the tenant's token, and what an error code means for a delivery.

Rules: https://open.feishu.cn/document/ukTMukTMukTM/ukDNz4SO0MjL5QzM/auth-v3/auth/tenant_access_token_internal,
https://open.feishu.cn/document/server-docs/api-call-guide/frequency-control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from miniclaw.channel.platforms.client import PlatformClient
from miniclaw.channel.webhook import LONGEST_WAIT, delivery_error
from miniclaw.channel_settings import FeishuAccount
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError

if TYPE_CHECKING:
    import httpx

__all__ = ["FeishuClient", "FeishuError"]

T = TypeVar("T")

EARLY_SECONDS: Final = 20 * 60
"""Before its end a token is renewed; Feishu gives a new one in the last half hour, and takes both."""

INVALID_TOKEN: Final = frozenset({99991661, 99991663, 99991664})
TOO_OFTEN: Final = frozenset({99991400, 230020, 11232, 11233, 11247})
UNSURE: Final = frozenset({230049, 300120, 1500, 2200})
"""Feishu's own failures, and a message that is just being sent: nobody knows what comes of it."""
LATER: Final = frozenset({200810, 300317}) | INVALID_TOKEN
"""Surely not done: somebody clicks on the card just now, a later update was faster, the token is not taken."""
WRONG_APP: Final = frozenset({10003, 10014})


class FeishuError(DeliveryError):
    """Feishu answered with an error code.

    Attributes:
        code: Feishu's.
    """

    def __init__(self, message: str, *, code: int, **known: Any) -> None:
        super().__init__(message, **known)
        self.code = code


class FeishuClient:
    """One app; holds its token, which several calls at once ask for only once."""

    def __init__(self, settings: FeishuAccount, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._http = PlatformClient()
        self._base = f"{settings.api_base.rstrip('/')}/open-apis/"
        self._lock = asyncio.Lock()
        self._token = ""
        self._ends_at = 0.0

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, give: str = "", **request: Any
    ) -> str:
        """Call a method; with a token that turns out to be none, once more with a fresh one.

        Args:
            method: of HTTP.
            path: below `/open-apis/`.
            body: sent as JSON.
            give: which field of the answer is returned, such as `data.message_id`.
            request: further arguments of the request.

        Raises:
            DeliveryError: a `FeishuError` where Feishu gave a code.
        """
        if body is not None:
            request["json"] = body
        found: Any = await self._with_token(lambda token: self._ask(method, path, token, request))
        for name in give.split(".") if give else ():
            found = found.get(name) if isinstance(found, dict) else None
        if give and not isinstance(found, str):
            raise DeliveryError(f"{path}: Feishu's answer names no {give}", unknown=True)
        return found if give else ""

    async def download(self, path: str, *, params: Mapping[str, str], max_bytes: int) -> bytes:
        """A file; the token goes to the host of the settings only."""

        def refusal(status: int, answer: Mapping[str, Any]) -> FeishuError | None:
            code = answer.get("code")
            if status == 200 or not isinstance(code, int):
                return None
            return FeishuError(f"{path}: {code} {str(answer.get('msg'))[:300]}", code=code)

        async def fetch(token: str) -> bytes:
            headers, url = {"Authorization": f"Bearer {token}"}, self._base + path
            return await self._http.download(
                url, headers=headers, params=params, max_bytes=max_bytes, refusal=refusal
            )

        return await self._with_token(fetch)

    async def _with_token(self, work: Callable[[str], Awaitable[T]]) -> T:
        """Do something with the token; where that turns out to be none, once more with a fresh one."""
        token = await self._get_token()
        try:
            return await work(token)
        except FeishuError as error:
            if error.code not in INVALID_TOKEN:
                raise
        return await work(await self._get_token(refused=token))

    async def _ask(self, method: str, path: str, token: str, request: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        response = await self._http.call(method, self._base + path, headers=headers, **request)
        try:
            answer: dict[str, Any] = response.json()
            code = int(answer["code"])
        except (ValueError, KeyError, TypeError) as broken:
            failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
            raise failure or DeliveryError(
                f"{path}: Feishu's answer cannot be read", unknown=True
            ) from broken
        if code:
            raise _failure(f"{path}: {code} {str(answer.get('msg'))[:300]}", code, response)
        return answer

    async def _get_token(self, *, refused: str = "") -> str:
        """The token; another one than that which was refused."""
        async with self._lock:
            now = self._clock()
            if self._token != refused and now < self._ends_at - EARLY_SECONDS:
                return self._token
            try:
                await self._renew(now)
            except DeliveryError as error:
                if self._token == refused or now >= self._ends_at:
                    # Whatever became of this call, nothing was delivered by it.
                    raise DeliveryError(
                        f"no token: {error}", permanent=error.permanent, retry_after=error.retry_after
                    ) from error
            return self._token

    async def _renew(self, now: float) -> None:
        app, secret = self._settings.app_id, self._settings.app_secret
        if not app or secret is None:
            raise DeliveryError("FEISHU_APP_ID or FEISHU_APP_SECRET is not set", permanent=True)
        body = {"app_id": app, "app_secret": secret.get_secret_value()}
        answer = await self._ask("POST", "auth/v3/tenant_access_token/internal", "", {"json": body})
        try:
            token, seconds = str(answer["tenant_access_token"]), float(answer["expire"])
        except (KeyError, TypeError, ValueError) as broken:
            raise DeliveryError("Feishu's answer holds no token") from broken
        self._token, self._ends_at = token, now + seconds


def _failure(text: str, code: int, response: httpx.Response) -> FeishuError:
    headers = response.headers
    if code in TOO_OFTEN or response.status_code == 429:
        named = headers.get("x-ogw-ratelimit-reset") or headers.get("Retry-After") or ""
        seconds = min(float(named), LONGEST_WAIT) if named.isascii() and named.isdigit() else None
        return FeishuError(text, code=code, retry_after=seconds)
    if code in UNSURE or response.status_code >= 500:
        return FeishuError(text, code=code, unknown=True)
    return FeishuError(text, code=code, permanent=code not in LATER)
