"""DingTalk robots in HTTP mode: signed messages in; Markdown to the message's own `sessionWebhook` out.

Rules: https://open.dingtalk.com/document/orgapp/receive-message (messages and signature),
https://open.dingtalk.com/document/orgapp/robot-reply-and-send-messages (answers),
https://open.dingtalk.com/document/orgapp/download-the-file-content-of-the-robot-receiving-message (files).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from miniclaw.channel.dialects import to_dingtalk
from miniclaw.channel.markup import split_markdown
from miniclaw.channel.platforms.client import MARK, AccessToken, PlatformClient, is_on
from miniclaw.channel.platforms.spoken import spoken, stable_id
from miniclaw.channel.webhook import Answer, WebhookRequest, delivery_error
from miniclaw.channel_settings import DingTalkAccount
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError, ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, Receipt, ReplyTarget

__all__ = ["DingTalkPlatform", "sign"]

WINDOW_SECONDS: Final = 3600
"""How far a request's time may be from ours, in both directions, as DingTalk says."""
PART_BYTES: Final = 18_000
"""Of one message, in UTF-8; DingTalk takes 20,000 with title and mark."""
TITLE_CHARS: Final = 30
RATE_LIMIT_SECONDS: Final = 60.0
"""Before another try; a robot may send 20 messages a minute."""
EARLY_SECONDS: Final = 300
"""Before its end a token is renewed."""

NOTED: Final = Answer(body={})
"""Taken, and nothing is run."""
TOO_OFTEN: Final = frozenset({130101, 130102, 410100, 90018})
UNSURE: Final = frozenset({-1})
"""DingTalk is busy: nobody knows what comes of it."""
KINDS: Final[Mapping[str, Literal["image", "audio", "video", "file"]]] = {
    "picture": "image",
    "audio": "audio",
    "video": "video",
    "file": "file",
}
UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class DingTalkPlatform:
    """One robot. The signature covers the time only, so a URL to answer at is believed on DingTalk's hosts only."""

    def __init__(self, settings: DingTalkAccount, *, clock: Clock, account: str = "") -> None:
        self._settings = settings
        self._clock = clock
        self._client = PlatformClient()
        self._tokens: dict[str, AccessToken] = {}
        self.name = f"dingtalk/{account}" if account else "dingtalk"
        self.paths: Mapping[str, tuple[str, ...]] = {self.name: ("POST",)}

    async def start(self) -> None:
        """Nothing to learn."""

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    def verify(self, request: WebhookRequest) -> None:
        """Check time and signature."""
        moment, given = request.headers.get("timestamp", ""), request.headers.get("sign", "")
        if not (moment.isascii() and moment.isdigit() and len(moment) <= 15):
            raise ProtocolError("unauthorized", "the timestamp is missing or no number")
        if abs(int(moment) / 1000 - request.now) > WINDOW_SECONDS:
            raise ProtocolError("unauthorized", "the timestamp is outside the window")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), sign(self._secret(), moment).encode()):
            raise ProtocolError("unauthorized", "the signature does not match (DINGTALK_APP_SECRET)")

    def parse(self, request: WebhookRequest) -> Inbound | Answer:
        """A message; in a group only one that names the robot."""
        try:
            message = json.loads(request.body)
            if message["senderId"] == message.get("chatbotUserId"):
                return NOTED
            is_group = str(message["conversationType"]) == "2"
            if is_group and self._settings.require_mention and message.get("isInAtList") is False:
                return NOTED
            return self._message(message, is_group=is_group)
        except UNREADABLE as error:
            raise ProtocolError(
                "bad_message", f"the message cannot be read: {type(error).__name__}"
            ) from error

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """An empty object; when DingTalk is to try again, no answer at all."""
        return Answer(hang_up=True) if receipt.status == "unavailable" else NOTED

    def split(self, text: str) -> list[str]:
        """Parts that fit into a message."""
        shown = to_dingtalk(text)
        return split_markdown(shown, PART_BYTES, measure=lambda part: len(part.encode("utf-8", "replace")))

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """Send one part to where the message said; DingTalk knows no idempotency key, so a repeat is marked."""
        if not text.strip():
            return None  # what a command came to, where there is nothing to say
        if target.url is None or not is_on(target.url, self._settings.reply_hosts):
            raise DeliveryError("the sessionWebhook is not on one of DingTalk's hosts", permanent=True)
        if target.expires_at is not None and self._clock() >= target.expires_at:
            raise DeliveryError("the message's sessionWebhook has expired", permanent=True)
        title = next((line.strip("#>*`- ") for line in text.splitlines() if line.strip("#>*`- ")), "…")
        markdown = {"title": title[:TITLE_CHARS], "text": MARK + text if repeat else text}
        response = await self._client.call(
            "POST", target.url, json={"msgtype": "markdown", "markdown": markdown}
        )
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        try:
            answer = response.json()
            code = int(answer["errcode"])
        except (ValueError, KeyError, TypeError) as broken:
            raise DeliveryError("DingTalk's answer cannot be read", unknown=True) from broken
        if code in TOO_OFTEN:
            raise DeliveryError(f"sessionWebhook: {code}", retry_after=RATE_LIMIT_SECONDS)
        if code:
            text = f"sessionWebhook: {code} {str(answer.get('errmsg'))[:300]}"
            raise DeliveryError(text, permanent=code not in UNSURE, unknown=code in UNSURE)
        return None

    async def fetch_file(self, target: ReplyTarget, file: FileRef, *, max_bytes: int) -> bytes:
        """A file; DingTalk tells where it is, and only its own hosts are believed."""
        robot = target.account or ""
        token = self._tokens.setdefault(
            robot, AccessToken(lambda: self._ask_token(robot), clock=self._clock, early=EARLY_SECONDS)
        )
        headers = {"x-acs-dingtalk-access-token": await token.get()}
        body = {"downloadCode": file.id, "robotCode": robot}
        url = f"{self._settings.api_base.rstrip('/')}/v1.0/robot/messageFiles/download"
        place = str((await self._client.post_json(url, body, headers=headers)).get("downloadUrl"))
        if not is_on(place, self._settings.file_hosts):
            raise DeliveryError("the file is not on one of DingTalk's hosts", permanent=True)
        limit = min(max_bytes, self._settings.file_bytes)
        return await self._client.download(place, headers={}, max_bytes=limit)

    async def _ask_token(self, robot: str) -> tuple[str, float]:
        url = f"{self._settings.api_base.rstrip('/')}/v1.0/oauth2/accessToken"
        body = {"appKey": self._settings.app_key or robot, "appSecret": self._secret()}
        answer = await self._client.post_json(url, body, headers={})
        try:
            return str(answer["accessToken"]), float(answer["expireIn"])
        except (KeyError, TypeError, ValueError) as broken:
            raise DeliveryError("DingTalk's answer holds no token") from broken

    def _secret(self) -> str:
        assert self._settings.app_secret is not None
        return self._settings.app_secret.get_secret_value()

    def _message(self, message: dict[str, Any], *, is_group: bool) -> Inbound:
        robot = _id(message.get("robotCode") or message["chatbotUserId"])
        # Somebody from outside the company has no staff id.
        person = _id(message.get("senderStaffId") or message["senderId"])
        conversation, url = _id(message["conversationId"]), _id(message["sessionWebhook"])
        if not is_on(url, self._settings.reply_hosts):
            raise ValueError("its sessionWebhook is not on one of DingTalk's hosts")
        text, files = _content(str(message["msgtype"]), message)
        return spoken(
            self._settings,
            self.name,
            text,
            files,
            msg_id=stable_id("dingtalk", robot, _id(message["msgId"])),
            account=robot,
            sender=person,
            conversation=conversation,
            direct=not is_group,
            dedupe=(f"msg:{robot}:{message['msgId']}",),
            reply_to=ReplyTarget(
                conversation=conversation,
                account=robot,
                sender=person,
                url=url,
                expires_at=_moment(message["sessionWebhookExpiredTime"]),
            ),
        )


def sign(secret: str, moment: str) -> str:
    """The signature of a request of that time (milliseconds since the epoch, as it is sent)."""
    digest = hmac.digest(secret.encode(), f"{moment}\n{secret}".encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def _id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("an id is missing")
    return value


def _moment(milliseconds: Any) -> float:
    """Seconds since the epoch."""
    seconds = float(milliseconds) / 1000
    if not math.isfinite(seconds):
        raise ValueError("a time is no number")
    return seconds


def _content(kind: str, message: dict[str, Any]) -> tuple[str, tuple[FileRef, ...]]:
    """Text and files of a message; DingTalk has taken the robot's own mention out already."""
    if kind == "text":
        return str(message["text"]["content"]).strip(), ()
    content = message.get("content") or {}
    if kind == "richText":
        parts: list[dict[str, Any]] = content["richText"]
        text = "".join(str(part.get("text") or "") for part in parts).strip()
        return text, tuple(_file("picture", part) for part in parts if part.get("downloadCode"))
    if kind in KINDS:
        # What was said is text already; the sound is fetched only where DingTalk understood nothing.
        heard = str(content.get("recognition") or "").strip()
        return heard, () if heard else (_file(kind, content),)
    return f"[{kind[:40]}]", ()


def _file(kind: str, content: dict[str, Any]) -> FileRef:
    return FileRef(kind=KINDS[kind], id=_id(content["downloadCode"]), name=str(content.get("fileName") or ""))
