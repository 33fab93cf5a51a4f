"""三个平台的脾气：签名怎么算，话在哪个字段里。AES 解密由外面给的 `decrypt` 做。"""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from xml.etree import ElementTree

from day1_gateway import GatewayMessage, ProtocolError
from day2_channel.base import spoken
from day2_channel.webhook import Answer, WebhookRequest

WINDOW_SECONDS: Final = 300  # 请求里的时间最多差多少；截获的旧请求不能拿来重放
UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError, ElementTree.ParseError)


def _no_decrypt(text: str) -> str:
    raise ProtocolError("unsupported", "The body is encrypted; AES is left to miniclaw.")


def _check(given: str, expected: str) -> None:
    """比较签名；用时与哪一位不同无关，不给人一位一位猜的机会。"""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
        raise ProtocolError("unauthorized", "the signature does not match")


def _check_time(moment: str, now: float) -> None:
    if not (moment.isascii() and moment.isdigit() and abs(int(moment[:12]) - now) <= WINDOW_SECONDS):
        raise ProtocolError("unauthorized", "the timestamp is missing or outside the window")


def _message(source: str, number: str, text: str) -> GatewayMessage:
    """编号由平台的编号算出：同一条消息再来，编号相同。"""
    digest = hashlib.sha256(f"{source}|{number}".encode("utf-8", "replace")).hexdigest()
    return spoken(source, text, msg_id=f"{source.partition(':')[0]}-{digest[:24]}")


def _object(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


@contextmanager
def _refusing(code: str) -> Iterator[None]:
    """读不懂的正文不是程序的错，是对方的：换成一次拒绝。"""
    try:
        yield
    except UNREADABLE as error:
        raise ProtocolError(code, f"the body cannot be read: {type(error).__name__}") from error


class SlackPlatform:
    """Slack 的 Events API：HMAC-SHA256，签的是 `v0:时间:正文`。"""

    name, paths = "slack", {"slack/events": ("POST",)}

    def __init__(self, signing_secret: str) -> None:
        self._secret = signing_secret.encode()

    def verify(self, request: WebhookRequest) -> None:
        """先看时间，再对原始字节验签：解析过再拼回去的字节不是他签的那些。"""
        moment = request.headers.get("X-Slack-Request-Timestamp", "")
        _check_time(moment, request.now)
        signed = hmac.digest(self._secret, f"v0:{moment}:".encode() + request.body, "sha256").hex()
        _check(request.headers.get("X-Slack-Signature", ""), f"v0={signed}")

    @_refusing("bad_message")
    def parse(self, request: WebhookRequest) -> GatewayMessage | Answer:
        body = _object(request.body)
        if body["type"] == "url_verification":
            return Answer(text=str(body["challenge"]))
        event = body["event"]
        if event["type"] not in ("message", "app_mention") or event.get("subtype") or event.get("bot_id"):
            return Answer()  # 编辑、加入频道、机器人自己的回声
        if not str(event.get("text") or "").strip():
            return Answer()  # 只有图片：收下，不然它一直重发
        return _message(f"slack:{event['channel']}", str(event["ts"]), str(event["text"]))


class FeishuPlatform:
    """飞书的事件：正文里有令牌；设了 Encrypt Key 还有签名，正文也是加密的。"""

    name, paths = "feishu", {"feishu": ("POST",)}

    def __init__(
        self, token: str, *, encrypt_key: str | None = None, decrypt: Callable[[str], str] = _no_decrypt
    ) -> None:
        self._token, self._key, self._decrypt = token, encrypt_key, decrypt

    @_refusing("unauthorized")
    def verify(self, request: WebhookRequest) -> None:
        """签名是 SHA-256；只有核对地址的请求不签名，它也有令牌。"""
        body = self._open(request.body)
        if self._key is not None and body.get("type") != "url_verification":
            moment = request.headers.get("X-Lark-Request-Timestamp", "")
            _check_time(moment, request.now)
            signed = f"{moment}{request.headers.get('X-Lark-Request-Nonce', '')}{self._key}".encode()
            expected = hashlib.sha256(signed + request.body).hexdigest()
            _check(request.headers.get("X-Lark-Signature", ""), expected)
        header = body.get("header")
        _check(str((header if isinstance(header, dict) else body).get("token")), self._token)

    def _open(self, body: bytes) -> dict[str, Any]:
        found = _object(body)
        return _object(self._decrypt(found["encrypt"])) if "encrypt" in found else found

    @_refusing("bad_message")
    def parse(self, request: WebhookRequest) -> GatewayMessage | Answer:
        body = self._open(request.body)
        if body.get("type") == "url_verification":
            return Answer(body={"challenge": str(body["challenge"])})
        if body["header"]["event_type"] != "im.message.receive_v1":
            return Answer(body={})
        message, sender = body["event"]["message"], body["event"]["sender"]
        if sender["sender_type"] != "user" or message["message_type"] != "text":
            return Answer(body={})
        text = str(_object(message["content"])["text"])
        return _message(f"feishu:{message['chat_id']}", str(message["message_id"]), text)


class WeComPlatform:
    """企业微信的应用：SHA-1，签的是排好序的令牌、时间、随机串和密文；正文总是加密的 XML。"""

    name, paths = "wecom", {"wecom": ("GET", "POST")}

    def __init__(self, token: str, *, decrypt: Callable[[str], str] = _no_decrypt) -> None:
        self._token, self._decrypt = token, decrypt

    @_refusing("unauthorized")
    def verify(self, request: WebhookRequest) -> None:
        """签名在查询串里，验的是密文；验过才解密。"""
        given, moment, nonce = (request.query.get(key, "") for key in ("msg_signature", "timestamp", "nonce"))
        parts = sorted((self._token, moment, nonce, _encrypted(request)))
        text = "".join(parts).encode("utf-8", "replace")
        _check(given, hashlib.sha1(text, usedforsecurity=False).hexdigest())

    @_refusing("bad_message")
    def parse(self, request: WebhookRequest) -> GatewayMessage | Answer:
        clear = self._decrypt(_encrypted(request))
        if request.method == "GET":  # 核对地址：解密，原文奉还
            return Answer(text=clear)
        found = _fields(clear)
        if found["MsgType"] != "text":
            return Answer()
        return _message(f"wecom:{found['FromUserName']}", found["MsgId"], found["Content"])


def _encrypted(request: WebhookRequest) -> str:
    return request.query["echostr"] if request.method == "GET" else _fields(request.body.decode())["Encrypt"]


def _fields(text: str) -> dict[str, str]:
    """企业微信的 XML 只有一层；声明了文档类型或实体的不收，那是攻击。"""
    if re.search(r"<!(?!\[CDATA\[)", text):
        raise ValueError("the XML declares something")
    return {child.tag: child.text or "" for child in ElementTree.fromstring(text)}
