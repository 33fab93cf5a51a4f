"""Feishu and Lark: events and clicks in; the Open API out.

Rules: https://open.feishu.cn/document/server-docs/im-v1/message/events/receive,
https://open.feishu.cn/document/feishu-cards/card-callback-communication.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from miniclaw.channel.platforms.feishu_api import FeishuApi
from miniclaw.channel.platforms.feishu_content import read_content
from miniclaw.channel.platforms.feishu_crypto import decrypt, sign
from miniclaw.channel.platforms.spoken import spoken
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import FeishuAccount
from miniclaw.config import Clock
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import (
    CommandPayload,
    Inbound,
    MessageType,
    Receipt,
    ReplyTarget,
    now,
)

__all__ = ["FeishuPlatform"]

logger = logging.getLogger(__name__)

NOTED: Final = Answer(body={})
"""Taken, and nothing is run."""
DIRECT: Final = ("p2p", "private")
CHECK_BYTES: Final = 16 * 1024
"""Of the check of the address, which alone is read without a signature where there is an Encrypt Key."""
SCOPES: Final = {"approve": "once", "once": "once", "session": "session", "always": "always"}
"""What a button approves, by its decision."""
_OLD_AT = re.compile(r"<at [^<>]*>([^<>]*)</at>")
UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, StopIteration, RecursionError)


class FeishuPlatform(FeishuApi):
    """One app of Feishu or Lark; what it sends is in `FeishuApi`."""

    def __init__(self, settings: FeishuAccount, *, clock: Clock, account: str = "") -> None:
        super().__init__(settings, clock=clock)
        self.name = f"feishu/{account}" if account else "feishu"
        self.paths: Mapping[str, tuple[str, ...]] = {self.name: ("POST",)}

    def verify(self, request: WebhookRequest) -> None:
        """Check signature and token; only the check of the address comes without a signature."""
        is_signed = self._settings.encrypt_key is not None and "X-Lark-Signature" in request.headers
        if is_signed:
            self._check_signature(request)
        elif self._settings.encrypt_key is not None and len(request.body) > CHECK_BYTES:
            raise ProtocolError("unauthorized", "the request is not signed")
        try:
            body = self._open(request.body)
        except UNREADABLE as error:
            code = "bad_message" if is_signed else "unauthorized"
            raise ProtocolError(code, f"the request cannot be read: {error}") from error
        if self._settings.encrypt_key and not is_signed and body.get("type") != "url_verification":
            raise ProtocolError("unauthorized", "the request is not signed")
        header = body.get("header")
        given = header.get("token") if isinstance(header, dict) else body.get("token")
        if (token := self._settings.verification_token) is not None:
            expected = token.get_secret_value().encode()
            if not hmac.compare_digest(str(given).encode("utf-8", "replace"), expected):
                raise ProtocolError("unauthorized", "the verification token does not match")

    def _check_signature(self, request: WebhookRequest) -> None:
        moment = request.headers.get("X-Lark-Request-Timestamp", "")
        nonce = request.headers.get("X-Lark-Request-Nonce", "")
        if not (moment.isascii() and moment.isdigit() and len(moment) <= 12):
            raise ProtocolError("unauthorized", "the timestamp is missing or no number")
        window = self._settings.window_seconds
        if window and abs(int(moment) - request.now) > window:
            raise ProtocolError("unauthorized", "the timestamp is outside the window")
        assert self._settings.encrypt_key is not None
        expected = sign(self._settings.encrypt_key.get_secret_value(), moment, nonce, request.body)
        given = request.headers["X-Lark-Signature"].encode("utf-8", "replace")
        if not hmac.compare_digest(given, expected.encode()):
            raise ProtocolError("unauthorized", "the signature does not match")

    def _open(self, body: bytes) -> dict[str, Any]:
        """The object of a body; with an Encrypt Key none is taken that is not encrypted."""
        found = _object(body)
        if (key := self._settings.encrypt_key) is not None:
            return _object(decrypt(key.get_secret_value(), found.get("encrypt", "")))
        if "encrypt" in found:
            raise ValueError("the body is encrypted and FEISHU_ENCRYPT_KEY is not set")
        return found

    def parse(self, request: WebhookRequest) -> Inbound | Answer:
        """A check of the address, a message of either form, or a click."""
        try:
            body = self._open(request.body)
            if body.get("type") == "url_verification":
                return Answer(body={"challenge": str(body["challenge"])})
            event: dict[str, Any] = body["event"]
            if "header" in body:
                header = body["header"]
            elif body.get("type") == "event_callback" and event["type"] == "message":
                header, event = _modern(body)
            else:
                return NOTED
            match header["event_type"]:
                case "im.message.receive_v1":
                    return self._message(header, event, request.now)
                case "card.action.trigger":
                    return self._click(header, event)
            return NOTED
        except UNREADABLE as error:
            raise ProtocolError(
                "bad_message", f"the request cannot be read: {type(error).__name__}"
            ) from error

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """What was taken or is not for us; 503 when Feishu is to try again; a click is told what came of it."""
        if isinstance(inbound.payload, CommandPayload):
            return _toast(receipt)
        return Answer(status=503, body={}) if receipt.status == "unavailable" else NOTED

    def _message(self, header: dict[str, Any], event: dict[str, Any], moment: float) -> Inbound | Answer:
        message, sender = event["message"], event["sender"]
        if sender.get("sender_type") != "user" or sender["sender_id"]["open_id"] == self.bot_open_id:
            return NOTED
        person, message_id = _id(sender["sender_id"]["open_id"]), _id(message["message_id"])
        tenant, chat = _id(header["tenant_key"]), _id(message["chat_id"])
        if moment - float(str(message["create_time"])) / 1000 > self._settings.max_age:
            logger.warning("%s came too late and is not run: %s", self.name, message_id)
            return NOTED
        thread = str(message.get("thread_id") or "") or None
        mentions = message.get("mentions") or []
        direct = message["chat_type"] in DIRECT
        named = direct or event.get("is_mention") or self._is_named(mentions)
        if named is None and self._settings.require_mention:
            return Answer(status=503, body={})  # nobody knows yet: Feishu sends it again
        if not named and self._settings.require_mention and thread is None:
            return NOTED
        names = {str(one["key"]): self._name_of(one) for one in mentions}
        text, files = read_content(str(message["message_type"]), str(message["content"]), names)
        return spoken(
            self._settings,
            self.name,
            text,
            files,
            msg_id=f"feishu-{message_id}",
            account=tenant,
            sender=person,
            conversation=chat,
            thread=thread,
            direct=direct,
            dedupe=(f"msg:{header['app_id']}:{message_id}",),
            reply_to=ReplyTarget(
                conversation=chat,
                thread=thread,
                message_id=message_id,
                account=tenant,
                sender=person,
            ),
            only_known=not named and self._settings.require_mention,
        )

    def _is_named(self, mentions: list[dict[str, Any]]) -> bool | None:
        """Whether the bot is mentioned; `None` while it may be, and Feishu has not told who it is."""
        if self.bot_open_id:
            return any(_open_id(one) == self.bot_open_id for one in mentions)
        return None if any(one.get("mentioned_type", "bot") == "bot" for one in mentions) else False

    def _name_of(self, mention: dict[str, Any]) -> str:
        """What stands for a mention in the text; nothing for the bot's own."""
        return "" if _open_id(mention) == self.bot_open_id else f"@{mention.get('name') or ''}"

    def _click(self, header: dict[str, Any], event: dict[str, Any]) -> Inbound | Answer:
        value, person = event["action"].get("value"), _id(event["operator"]["open_id"])
        if not isinstance(value, dict) or value.get("decision") not in (*SCOPES, "deny"):
            return NOTED
        name, args = "deny", {"approval_id": _id(value["approval_id"])}
        if (scope := SCOPES.get(value["decision"])) is not None:
            name, args["scope"] = "approve", scope
        return Inbound(
            msg_id=f"feishu-{hashlib.sha256(str(header['event_id']).encode()).hexdigest()[:24]}",
            msg_type=MessageType.COMMAND,
            source=f"feishu:{person}",
            payload=CommandPayload(name=name, args=args),
            timestamp=now(),
            channel=self.name,
            account=_id(header["tenant_key"]),
            sender=person,
            strangers=self._settings.strangers,
        )


def _object(body: bytes | str) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def _id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("an id is missing")
    return value


def _open_id(mention: dict[str, Any]) -> str:
    return str(mention["id"].get("open_id"))


def _modern(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and event of the old form as the new form has them.

    The old form is that of https://open.feishu.cn/document/ukTMukTMukTM/uMTNxYjLzUTM24yM1EjN.
    """
    old = body["event"]
    text = _OLD_AT.sub(r"\1", str(old.get("text_without_at_bot", old.get("text", ""))))
    images = [[{"tag": "img", "image_key": key}] for key in old.get("image_keys") or ()]
    content = {**old, "text": text, "content": [[{"tag": "text", "text": text}], *images]}
    message = {
        "message_id": old["open_message_id"],
        "chat_id": old["open_chat_id"],
        "chat_type": old["chat_type"],
        "message_type": old["msg_type"],
        "create_time": float(str(body["ts"])) * 1000,
        "content": json.dumps(content),
    }
    sender = {"sender_type": "user", "sender_id": {"open_id": old["open_id"]}}
    header = {
        "event_type": "im.message.receive_v1",
        "app_id": old["app_id"],
        "tenant_key": old["tenant_key"],
    }
    return header, {"message": message, "sender": sender, "is_mention": bool(old.get("is_mention"))}


def _toast(receipt: Receipt) -> Answer:
    kind, chinese, english = "warning", "没有这个待确认，或不归你决定", "not open, or not yours to decide"
    if receipt.status == "unavailable":
        kind, chinese, english = "error", "没能存下，请再点一次", "not stored; click again"
    elif receipt.status == "answered":
        kind, chinese, english = "success", "已同意", "approved"
        if receipt.name == "deny":
            kind, chinese, english = "info", "已拒绝", "denied"
    toast = {"type": kind, "content": chinese, "i18n": {"zh_cn": chinese, "en_us": english}}
    return Answer(body={"toast": toast})
