"""What we ask of WeCom: send a message to a person, fetch what a person sent.

Methods: https://developer.work.weixin.qq.com/document/path/90236 (send), /90254 (media), /91039 (token);
error codes: https://developer.work.weixin.qq.com/document/path/90313.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from miniclaw.channel.dialects import to_wecom_app
from miniclaw.channel.markup import split_markdown
from miniclaw.channel.platforms.client import MARK, AccessToken, PlatformClient
from miniclaw.channel.webhook import delivery_error
from miniclaw.channel_settings import WeComAccount
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError
from miniclaw.gateway.protocol import FileRef, ReplyTarget

__all__ = ["WeComApi", "size", "wecom_answer"]

T = TypeVar("T")

PART_BYTES: Final = 2000
"""Of one message; WeCom cuts off what is beyond 2,048 bytes, of which a mark may need some."""
KNOWN_SECONDS: Final = 3 * 3600
"""For how long at least WeCom knows a message that it was sent; it takes up to four hours."""
SPREAD: Final = 3600
"""So many intervals tell equal messages apart."""
EARLY_SECONDS: Final = 300
"""Before its end a token is renewed."""
RATE_LIMIT_SECONDS: Final = 60.0
"""Before another try, where WeCom says that it is too much; its limits are by the minute."""

INVALID_TOKEN: Final = frozenset({40001, 40014, 42001})
TOO_OFTEN: Final = frozenset({45009, 45011, 45033, 45047})
UNSURE: Final = frozenset({-1})
"""WeCom is busy: nobody knows what comes of it."""


class WeComError(DeliveryError):
    """WeCom answered with an error code.

    Attributes:
        code: WeCom's.
    """

    def __init__(self, message: str, *, code: int, **known: Any) -> None:
        super().__init__(message, **known)
        self.code = code


class WeComApi:
    """The sending half of a WeCom app."""

    known_seconds = KNOWN_SECONDS

    def __init__(self, settings: WeComAccount, *, clock: Clock) -> None:
        self._settings = settings
        self._client = PlatformClient()
        self._base = f"{settings.api_base.rstrip('/')}/cgi-bin"
        self._intervals: dict[tuple[int, int], str] = {}
        """Which delivery uses which interval for the same words, the latest."""
        self._token = AccessToken(self._ask_token, clock=clock, early=EARLY_SECONDS)

    async def start(self) -> None:
        """Nothing to learn."""

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    def split(self, text: str) -> list[str]:
        """Parts that fit into a message."""
        shown = to_wecom_app(text) if self._settings.markdown else text
        return split_markdown(shown, PART_BYTES, measure=size)

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """Send one part; see `Delivers.deliver`.

        WeCom sends the same request only once within its `duplicate_check_interval`. That is made of the
        key, so that the same words in another answer are another request.
        """
        if not text.strip():
            return None  # what a command came to, where there is nothing to say
        if repeat:
            text = MARK + text
        kind = "markdown" if self._settings.markdown else "text"
        body = {
            "touser": target.sender,
            "msgtype": kind,
            "agentid": int((target.account or "").rpartition(":")[2] or 0),
            kind: {"content": text},
            "enable_duplicate_check": 1,
            "duplicate_check_interval": self._interval(hash((target.sender, text)), key),
        }
        answer = await self._with_token(lambda token: self._ask("POST", "message/send", token, json=body))
        if missed := answer.get("invaliduser") or answer.get("unlicenseduser"):
            raise DeliveryError(f"message/send: {missed} cannot be reached by this app", permanent=True)
        return str(answer["msgid"]) if answer.get("msgid") else None

    def _interval(self, said: int, key: str) -> int:
        """Tells this delivery from others of the same words to the same person; the same at each try."""
        seconds = zlib.crc32(key.encode()) % SPREAD
        if len(self._intervals) == SPREAD:  # fewer, so that one is free
            del self._intervals[next(iter(self._intervals))]
        while self._intervals.setdefault((said, seconds), key) != key:
            seconds = (seconds + 1) % SPREAD
        return KNOWN_SECONDS + seconds

    async def fetch_file(self, target: ReplyTarget, file: FileRef, *, max_bytes: int) -> bytes:
        """A file that a person sent; WeCom keeps it for three days."""
        limit = min(max_bytes, self._settings.file_bytes)

        async def fetch(token: str) -> bytes:
            params = {"access_token": token, "media_id": file.id}
            return await self._client.download(
                f"{self._base}/media/get", headers={}, params=params, max_bytes=limit, refusal=_refusal
            )

        return await self._with_token(fetch)

    async def _with_token(self, work: Callable[[str], Awaitable[T]]) -> T:
        """Do something with the token; where that turns out to be none, once more with a fresh one."""
        token = await self._token.get()
        try:
            return await work(token)
        except WeComError as error:
            if error.code not in INVALID_TOKEN:
                raise
        return await work(await self._token.get(refused=token))

    async def _ask_token(self) -> tuple[str, float]:
        secret = self._settings.secret
        if secret is None:
            raise DeliveryError("WECOM_SECRET is not set", permanent=True)
        params = {"corpid": self._settings.corp_id, "corpsecret": secret.get_secret_value()}
        try:
            answer = await self._ask("GET", "gettoken", "", params=params)
            return str(answer["access_token"]), float(answer["expires_in"])
        except WeComError as error:
            if error.code not in INVALID_TOKEN:
                raise
            raise DeliveryError(str(error), permanent=True) from error  # the secret is wrong
        except (KeyError, TypeError, ValueError) as broken:
            raise DeliveryError("WeCom's answer holds no token") from broken

    async def _ask(self, method: str, path: str, token: str, **request: Any) -> Mapping[str, Any]:
        if token:
            request["params"] = {"access_token": token}
        response = await self._client.call(method, f"{self._base}/{path}", **request)
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        try:
            return wecom_answer(path, response.json())
        except (ValueError, KeyError, TypeError) as broken:
            raise DeliveryError(f"{path}: WeCom's answer cannot be read", unknown=True) from broken


def wecom_answer(path: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """An answer of WeCom that reports no failure.

    Raises:
        WeComError: as its code says: for good, for now, or not known.
        ValueError, KeyError, TypeError: it is none.
    """
    code = int(answer["errcode"])
    if code == 0:
        return answer
    text = f"{path}: {code} {str(answer.get('errmsg'))[:300]}"
    if code in TOO_OFTEN:
        raise WeComError(text, code=code, retry_after=RATE_LIMIT_SECONDS)
    again = code in UNSURE or code in INVALID_TOKEN
    raise WeComError(text, code=code, permanent=not again, unknown=code in UNSURE)


def _refusal(status: int, answer: Mapping[str, Any]) -> DeliveryError | None:
    """What it means instead of a file; a person's own JSON may look much like it."""
    if set(answer) != {"errcode", "errmsg"} or type(answer["errcode"]) is not int:
        return None
    try:
        wecom_answer("media/get", answer)
    except WeComError as error:
        return error
    return None


def size(text: str) -> int:
    """The size of a text in WeCom's unit, bytes of UTF-8."""
    return len(text.encode("utf-8", "replace"))
