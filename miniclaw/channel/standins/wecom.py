"""A stand-in for WeCom: its API with the rules on tokens, sizes and repeats, and a bot's side of the callbacks."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any, Final

from aiohttp import web

from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel.standins.base import Event, Fault, Shown, Standin
from miniclaw.channel_settings import WeComAccount
from miniclaw.config import Settings
from miniclaw.errors import ConfigError

__all__ = ["WeComStandin", "bot_event", "event_of", "posted", "read_stream", "standin_of"]

TEXT_BYTES: Final = 2048
BOT_BYTES: Final = 20_480


class WeComStandin(Standin):
    """WeCom, for one app.

    Attributes:
        tokens: those that are taken now; clear it, and a new one has to be asked for.
        people: who can be reached; empty = everybody.
        files: what people sent, by its id; of a bot's files the encrypted bytes.
    """

    def __init__(self, *, secret: str | None = None) -> None:
        super().__init__()
        self._secret = secret
        self._numbers = itertools.count(1)
        self._sent: set[str] = set()
        self._used: set[str] = set()
        self.tokens: set[str] = set()
        self.people: set[str] = set()
        self.files: dict[str, bytes] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/cgi-bin/gettoken", self._handle),
            web.post("/cgi-bin/message/send", self._handle),
            web.get("/cgi-bin/media/get", self._handle),
            web.post("/cgi-bin/aibot/response", self._handle),
            web.get("/files/{name}", self._handle),
        ]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        name = request.path.removeprefix("/cgi-bin").split("/")[1]
        raw = await request.read()
        body: dict[str, Any] = json.loads(raw) if raw else dict(request.query)
        self.calls.append((name, body))
        self.news()
        fault = self.fault_of(name)
        if fault is not None and not fault.stored:
            return await self._failed(request, fault)
        if name in ("message", "media") and request.query.get("access_token") not in self.tokens:
            return _error(40014)
        if name in ("media", "files"):
            data = self.files.get(request.query.get("media_id") or request.match_info.get("name", ""))
            kind = "application/json" if data is not None and data[:1] == b"{" else "application/octet-stream"
            return web.Response(body=data, content_type=kind) if data is not None else _error(40007)
        answer = getattr(self, f"_{name}")(body, request)
        if fault is not None:
            return await self._failed(request, fault)
        return answer if isinstance(answer, web.Response) else _error(answer)

    async def _failed(self, request: web.Request, fault: Fault) -> web.Response:
        return _error(int(fault.value)) if fault.kind == "error" else await self.fail(request, fault)

    def _gettoken(self, body: dict[str, Any], request: web.Request) -> web.Response | int:
        if self._secret is not None and body.get("corpsecret") != self._secret:
            return 40001
        if not self.tokens:
            self.tokens.add(f"token-{secrets.token_hex(8)}")
        return web.json_response({"errcode": 0, "access_token": max(self.tokens), "expires_in": 7200})

    def _message(self, body: dict[str, Any], request: web.Request) -> web.Response | int:
        """Show a message, once for each request; what is too long is cut off, as WeCom does without a word."""
        if self.people and body["touser"] not in self.people:
            return 81013
        if not 0 < int(body.get("duplicate_check_interval", 1800)) <= 4 * 3600:
            return 40035
        same, number = json.dumps(body, sort_keys=True), f"msg{next(self._numbers)}"
        if not (body.get("enable_duplicate_check") and same in self._sent):
            content = body[body["msgtype"]]["content"].encode()[:TEXT_BYTES].decode(errors="ignore")
            if not content:
                return 44004
            self._sent.add(same)
            self.show(Shown(number, body["touser"], None, content, raw=body))
        return web.json_response({"errcode": 0, "errmsg": "ok", "msgid": number})

    def _aibot(self, body: dict[str, Any], request: web.Request) -> web.Response | int:
        """The URL of a bot's message: one message, no more."""
        code = request.query["response_code"]
        content = body["markdown"]["content"]
        if code in self._used or not 0 < len(content.encode()) <= BOT_BYTES:
            return 40058
        self._used.add(code)
        self.show(Shown(f"msg{next(self._numbers)}", f"response:{code}", None, content))
        return web.json_response({"errcode": 0, "errmsg": "ok"})


def _error(code: int) -> web.Response:
    return web.json_response({"errcode": code, "errmsg": "injected or refused"})


def posted(settings: WeComAccount, fields: dict[str, str], *, now: float) -> Event:
    """Any message or event of an app, as WeCom posts it."""
    crypto = _crypto(settings, bot=False)
    inner = "".join(f"<{name}>{_cdata(value)}</{name}>" for name, value in fields.items())
    encrypted, query = _signed(crypto, f"<xml>{inner}</xml>", now)
    outer = {"ToUserName": settings.corp_id, "Encrypt": encrypted, "AgentID": str(settings.agent_id)}
    body = "".join(f"<{name}>{_cdata(value)}</{name}>\n" for name, value in outer.items())
    headers = {"Content-Type": "text/xml"}
    return Event(path="wecom", headers=headers, body=f"<xml>{body}</xml>".encode(), query=query)


def bot_event(settings: WeComAccount, message: dict[str, Any], *, now: float) -> Event:
    """Any message of an AI bot, as WeCom posts it."""
    encrypted, query = _signed(_crypto(settings, bot=True), json.dumps(message), now)
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"encrypt": encrypted}).encode()
    return Event(path="wecom-bot", headers=headers, body=body, query=query)


def read_stream(settings: WeComAccount, answer: dict[str, Any]) -> dict[str, Any]:
    """The stream of a bot's encrypted answer; raises `ProtocolError` when it is not signed as it should be."""
    crypto = _crypto(settings, bot=True)
    crypto.check(answer["msgsignature"], str(answer["timestamp"]), answer["nonce"], answer["encrypt"])
    clear = json.loads(crypto.decrypt(answer["encrypt"]))
    assert clear["msgtype"] == "stream" and len(clear["stream"]["content"].encode()) <= BOT_BYTES
    stream: dict[str, Any] = clear["stream"]
    return stream


def _crypto(settings: WeComAccount, *, bot: bool) -> WeComCrypto:
    token = settings.bot_token if bot and settings.bot_token else settings.token
    key = (
        settings.bot_encoding_aes_key if bot and settings.bot_encoding_aes_key else settings.encoding_aes_key
    )
    if token is None or key is None:
        raise ConfigError("Only a WeCom app with WECOM_TOKEN and WECOM_ENCODING_AES_KEY can be simulated.")
    return WeComCrypto(token.get_secret_value(), key.get_secret_value(), "" if bot else settings.corp_id)


def _signed(crypto: WeComCrypto, text: str, now: float) -> tuple[str, dict[str, str]]:
    encrypted, moment, nonce = crypto.encrypt(text), str(int(now)), str(secrets.randbelow(10**10))
    signature = crypto.sign(moment, nonce, encrypted)
    return encrypted, {"msg_signature": signature, "timestamp": moment, "nonce": nonce}


def _cdata(value: str) -> str:
    return f"<![CDATA[{value.replace(']]>', ']]]]><![CDATA[>')}]]>"


def event_of(settings: WeComAccount, text: str, *, now: float) -> Event:
    """A text to the app as WeCom posts it."""
    fields = {
        "ToUserName": settings.corp_id,
        "FromUserName": "Simulated",
        "CreateTime": str(int(now)),
        "MsgType": "text",
        "Content": text,
        "MsgId": str(secrets.randbelow(10**18)),
        "AgentID": str(settings.agent_id),
    }
    return posted(settings, fields, now=now)


def standin_of(settings: Settings) -> WeComStandin:
    """The stand-in that fits these settings."""
    secret = settings.channels.wecom.secret
    return WeComStandin(secret=secret.get_secret_value() if secret else None)
