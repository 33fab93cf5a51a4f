"""WeCom apps: encrypted callbacks in; `message/send` out. The AI bot is in `wecom_bot.py`.

Rules: https://developer.work.weixin.qq.com/document/path/90930 (callbacks), /90239 (messages), /90240 (events).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from xml.etree import ElementTree

from miniclaw.channel.platforms.spoken import spoken, stable_id
from miniclaw.channel.platforms.wecom_api import WeComApi
from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import WeComAccount
from miniclaw.config import Clock
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, Receipt, ReplyTarget

__all__ = ["WeComPlatform", "envelope_of", "read_xml"]

ENVELOPE_BYTES: Final = 128 * 1024
"""Of a request that anybody may have sent; WeCom's own have a few thousand, and a long quote 30,000."""
ENVELOPE_ELEMENTS: Final = 50
"""Of its XML; WeCom's has four."""
_DECLARED = re.compile(rb"<!(?!\[CDATA\[)|&")
"""A DOCTYPE, an entity or a comment: nothing that WeCom puts around what it encrypts."""
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that people can type and XML cannot hold."""
KINDS: Final[Mapping[str, Literal["image", "audio", "video", "file"]]] = {
    "image": "image",
    "voice": "audio",
    "video": "video",
    "file": "file",
}


class WeComPlatform(WeComApi):
    """One app of a corp; what it sends is in `WeComApi`."""

    def __init__(self, settings: WeComAccount, *, clock: Clock, account: str = "") -> None:
        super().__init__(settings, clock=clock)
        assert settings.token is not None and settings.encoding_aes_key is not None
        key = settings.encoding_aes_key.get_secret_value()
        self._crypto = WeComCrypto(settings.token.get_secret_value(), key, settings.corp_id)
        self.name = f"wecom/{account}" if account else "wecom"
        self.paths: Mapping[str, tuple[str, ...]] = {self.name: ("GET", "POST")}

    def verify(self, request: WebhookRequest) -> None:
        """Refuse XML that declares anything; then check the signature, and for whom the message is."""
        if _DECLARED.search(request.body):
            raise ProtocolError("bad_message", "the XML holds a DOCTYPE or an entity")
        outer = {} if request.method == "GET" else _outer(request)
        encrypted = echo_of(request) if request.method == "GET" else outer.get("Encrypt", "")
        check_query(self._crypto, request, encrypted)
        text = opened(self._crypto, encrypted)
        if request.method != "GET":
            for name in (outer.get("ToUserName"), _inner(text).get("ToUserName")):
                if name is not None and name != self._settings.corp_id:
                    raise ProtocolError("unauthorized", "the message is for another corp (WECOM_CORP_ID)")

    def parse(self, request: WebhookRequest) -> Inbound | Answer:
        """A check of the address, a message, or an event."""
        if request.method == "GET":
            return Answer(text=opened(self._crypto, echo_of(request)))
        message = _inner(opened(self._crypto, _outer(request)["Encrypt"]))
        try:
            return self._event(message) if message["MsgType"] == "event" else self._message(message)
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                "bad_message", f"the message cannot be read: {type(error).__name__}"
            ) from error

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """An empty 200; when WeCom is to try again, no answer at all, since it does so on nothing else."""
        return Answer(hang_up=receipt.status == "unavailable")

    def _message(self, message: Mapping[str, str]) -> Inbound:
        number = message.get("MsgId") or f"{message['FromUserName']}:{message['CreateTime']}"
        return self._said(message, number, *_content(message))

    def _event(self, event: Mapping[str, str]) -> Inbound | Answer:
        """A click on a menu entry whose key is a command is that command; nothing else is said to anybody."""
        text = event.get("EventKey", "")
        if event["Event"] != "click" or not text.startswith(("/", "!")):
            return Answer()
        return self._said(event, f"{event['FromUserName']}:{event['CreateTime']}:click", text)

    def _said(
        self, message: Mapping[str, str], number: str, text: str, files: tuple[FileRef, ...] = ()
    ) -> Inbound:
        sender, agent = message["FromUserName"], int(message.get("AgentID") or self._settings.agent_id)
        account = f"{self._settings.corp_id}:{agent}"
        kind = "event" if message["MsgType"] == "event" else "msg"
        if not sender:
            raise ValueError("nobody sent it")
        return spoken(
            self._settings,
            self.name,
            text,
            files,
            msg_id=stable_id("wecom", account, sender, number),
            account=account,
            sender=sender,
            conversation=sender,
            dedupe=(f"{kind}:{account}:{number}",),
            reply_to=ReplyTarget(conversation=sender, account=account, sender=sender),
        )


class _NoDoctype(ElementTree.TreeBuilder):
    def doctype(self, *declared: Any) -> None:
        raise ValueError("a DOCTYPE")


class _Small(_NoDoctype):
    """What is not trusted yet must not keep the event loop from everybody else."""

    left = ENVELOPE_ELEMENTS

    def start(self, *element: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("too many elements")
        return super().start(*element)


def read_xml(text: str, builder: type[ElementTree.TreeBuilder] = _NoDoctype) -> dict[str, str]:
    """The fields of WeCom's flat XML, CDATA as it is.

    Raises:
        ValueError: it is no XML, declares a document type, or is more than the builder takes.
    """
    try:
        root = ElementTree.fromstring(text, parser=ElementTree.XMLParser(target=builder()))
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML: {error}") from error
    return {child.tag: child.text or "" for child in root}


def envelope_of(request: WebhookRequest) -> bytes:
    """A body whose signature is not checked yet; raises `ValueError` for one that is larger than any of WeCom's."""
    if len(request.body) > ENVELOPE_BYTES:
        raise ValueError("it is too large")
    return request.body


def _outer(request: WebhookRequest) -> dict[str, str]:
    """The envelope, of which nothing is believed before its signature is checked."""
    try:
        return read_xml(envelope_of(request).decode(), _Small)
    except ValueError as error:
        raise ProtocolError("unauthorized", f"the envelope cannot be read: {error}") from error


def _inner(text: str) -> dict[str, str]:
    try:
        return read_xml(_NO_XML.sub("\ufffd", text))
    except ValueError as error:
        raise ProtocolError("bad_message", f"the message cannot be read: {error}") from error


def echo_of(request: WebhookRequest) -> str:
    """What WeCom wants back, encrypted; a `+` that a proxy took for a blank is one again."""
    return request.query.get("echostr", "").replace(" ", "+")


def check_query(crypto: WeComCrypto, request: WebhookRequest, encrypted: str) -> None:
    """Check the signature in a request's query; raises `ProtocolError`, `unauthorized`."""
    given, moment, nonce = (request.query.get(name, "") for name in ("msg_signature", "timestamp", "nonce"))
    if not encrypted:
        raise ProtocolError("unauthorized", "there is nothing that is signed")
    crypto.check(given, moment, nonce, encrypted)


def opened(crypto: WeComCrypto, encrypted: str) -> str:
    """The clear text of what is signed; raises `ProtocolError`."""
    try:
        return crypto.decrypt(encrypted)
    except ValueError as error:
        raise ProtocolError("bad_message", f"what is signed cannot be decrypted: {error}") from error


def _content(message: Mapping[str, str]) -> tuple[str, tuple[FileRef, ...]]:
    """Text and files of a message."""
    kind = message["MsgType"]
    match kind:
        case "text":
            return message["Content"], ()
        case "image" | "voice" | "video" | "file":
            file = FileRef(kind=KINDS[kind], id=message["MediaId"], name=message.get("FileName", ""))
            return message.get("Recognition", ""), (file,)
        case "location":
            place = f"{message.get('Location_X', '')}, {message.get('Location_Y', '')}"
            return f"[location] {message.get('Label', '')} ({place})", ()
        case "link":
            shown = (message.get(name, "") for name in ("Title", "Description", "Url"))
            return "\n".join(filter(None, shown)), ()
    return f"[{kind[:40]}]", ()
