"""Any program that can sign a POST, or show a token: Standard Webhooks in, Standard Webhooks out.

The scheme is that of https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md:
`webhook-signature` holds `v1,<base64 of HMAC-SHA256 over "id.timestamp.body">`, several separated by spaces.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from miniclaw.channel.platforms.client import PlatformClient
from miniclaw.channel.webhook import Answer, WebhookRequest, delivery_error
from miniclaw.channel_settings import GenericWebhookSettings
from miniclaw.config import Clock
from miniclaw.errors import ConfigError, DeliveryError, ProtocolError
from miniclaw.gateway.protocol import (
    Inbound,
    MessageType,
    Receipt,
    ReplyTarget,
    TextPayload,
    encode_json,
    has_unreadable,
    new_id,
    now,
)
from miniclaw.identity import is_user_id

__all__ = ["GenericPlatform", "decode_key", "sign"]

WINDOW_SECONDS: Final = 300
"""How far a timestamp may be from our clock, in both directions."""
MAX_ID: Final = 256
MAX_NAME: Final = 200


class GenericPlatform:
    """`POST /webhooks/in`; replies go to the request's `reply_url` if its host is allowed.

    Raises:
        ConfigError: no user is set, or a secret is no base64.
    """

    name = "generic"
    paths: Mapping[str, tuple[str, ...]] = {"in": ("POST",)}

    def __init__(self, settings: GenericWebhookSettings, *, clock: Clock) -> None:
        secrets = settings.secret.get_secret_value().split() if settings.secret else []
        if not is_user_id(settings.user):
            raise ConfigError("`channels.generic.user` must name the user whom webhook messages belong to.")
        self._settings = settings
        self._keys = [decode_key(secret) for secret in secrets]
        self._clock = clock
        self._client = PlatformClient()

    def verify(self, request: WebhookRequest) -> None:
        """Check whichever of the configured proofs the request carries; one it must carry."""
        headers, settings = request.headers, self._settings
        if self._keys and "webhook-signature" in headers:
            self._verify_standard(request)
        elif settings.hub_secret and "x-hub-signature-256" in headers:
            key = settings.hub_secret.get_secret_value().encode()
            expected = "sha256=" + hmac.digest(key, request.body, hashlib.sha256).hex()
            _check_same(headers["x-hub-signature-256"], expected)
        elif settings.bearer and "authorization" in headers:
            _check_same(headers["authorization"], f"Bearer {settings.bearer.get_secret_value()}")
        else:
            raise ProtocolError("unauthorized", "the request carries none of the configured proofs")

    def _verify_standard(self, request: WebhookRequest) -> None:
        """Check id, time and signature; any of the keys and any of the signatures may match."""
        message_id = request.headers.get("webhook-id", "")
        timestamp = request.headers.get("webhook-timestamp", "")
        if not message_id or len(message_id) > MAX_ID or not timestamp.isascii() or not timestamp.isdigit():
            raise ProtocolError("unauthorized", "signature headers are missing or malformed")
        if len(timestamp) > 12 or abs(int(timestamp) - request.now) > WINDOW_SECONDS:
            raise ProtocolError("unauthorized", "the timestamp is outside the window")
        expected = [sign(key, message_id, timestamp, request.body) for key in self._keys]
        given = request.headers.get("webhook-signature", "").split(" ")[:16]
        matches = [
            hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
            for one in given
            for other in expected
        ]
        if not any(matches):
            raise ProtocolError("unauthorized", "no signature matches")

    def parse(self, request: WebhookRequest) -> Inbound | Answer:
        """The message by the field map of the settings."""
        body = _object(request.body)
        text = body.get(self._settings.text_field)
        thread = body.get(self._settings.thread_field)
        sender = body.get(self._settings.sender_field)
        if not isinstance(text, str) or not text.strip() or has_unreadable(text):
            raise ProtocolError("bad_message", f"`{self._settings.text_field}` must be a text")
        for name, value in (("thread", thread), ("sender", sender)):
            if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_NAME):
                raise ProtocolError(
                    "bad_message", f"the {name} must be a text of at most {MAX_NAME} characters"
                )
        # GitHub's name for the id of a delivery; whoever names none may send the same text twice.
        message_id = (
            request.headers.get("webhook-id") or request.headers.get("x-github-delivery") or new_id("in")
        )
        digest = hashlib.sha256(message_id.encode("utf-8", "replace")).hexdigest()[:32]
        return Inbound(
            msg_id=f"wh-{digest}",
            msg_type=MessageType.TEXT,
            source=f"generic:{sender or 'webhook'}",
            payload=TextPayload(text=text),
            timestamp=now(),
            channel=self.name,
            sender=sender or "",
            user_id=self._settings.user,
            conversation=f"webhook:{thread}" if thread else None,
            dedupe=(message_id,),
            reply_to=self._reply_target(body.get("reply_url"), thread),
            asks=False,
        )

    async def start(self) -> None:
        """Nothing to learn."""

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """202 with the ids, 429 when the session is full, 503 when nothing can be stored now."""
        if receipt.stored:
            ids = {"session_id": receipt.session_id, "turn_id": receipt.turn_id}
            return Answer(status=202, body={"status": "accepted", **ids})
        statuses = {"busy": 429, "unavailable": 503}
        return Answer(status=statuses.get(receipt.status, 400), body={"status": receipt.code})

    def split(self, text: str) -> list[str]:
        """One part: a program takes any length."""
        return [text]

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """POST the reply, signed, with the delivery's key as `webhook-id`, the same at each try."""
        if target.url is None or not self._is_allowed(target.url):
            raise DeliveryError("the reply's host is not in channels.generic.reply_hosts", permanent=True)
        payload = {"text": text, "turn_id": key.rpartition(".")[0], "session": target.thread}
        body = encode_json({**payload, "possibly_repeated": True} if repeat else payload)
        timestamp = str(math.floor(self._clock()))
        headers = {
            "Content-Type": "application/json",
            "webhook-id": key,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(sign(one, key, timestamp, body) for one in self._keys),
        }
        response = await self._client.call("POST", target.url, content=body, headers=headers)
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        return None

    async def close(self) -> None:
        await self._client.close()

    def _reply_target(self, url: Any, thread: str | None) -> ReplyTarget | None:
        if url is None:
            return None
        if not isinstance(url, str) or not self._is_allowed(url):
            raise ProtocolError("bad_message", "`reply_url` points to a host that is not allowed")
        return ReplyTarget(conversation=thread or url, thread=thread, url=url)

    def _is_allowed(self, url: str) -> bool:
        """Only hosts that the operator named, exactly; what is named may be on this machine."""
        try:
            parts = urlsplit(url)
            netloc, host = parts.netloc.lower(), (parts.hostname or "").lower()
            _ = parts.port  # raises when it is out of range
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or "@" in netloc or not host or not url.isprintable():
            return False
        return any(allowed.lower() in (host, netloc) for allowed in self._settings.reply_hosts)


def sign(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """A Standard Webhooks signature, `v1,…`."""
    signed = f"{message_id}.{timestamp}.".encode("utf-8", "replace") + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _check_same(given: str, expected: str) -> None:
    if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
        raise ProtocolError("unauthorized", "the signature or token does not match")


def decode_key(secret: str) -> bytes:
    """The key of a secret `whsec_…`; raises `ConfigError`."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("GENERIC_WEBHOOK_SECRET must be `whsec_` and base64.") from error
    if len(key) < 16:
        raise ConfigError("GENERIC_WEBHOOK_SECRET is too short: 24 to 64 random bytes in base64 are usual.")
    return key


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("bad_message", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError("bad_message", "the body is not a JSON object")
    return value
