"""A stand-in for Feishu's Open API, with its rules on tokens, idempotency keys, card sequences and sizes."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from typing import Any, Final

from aiohttp import web

from miniclaw.channel.platforms.feishu_client import FeishuError
from miniclaw.channel.platforms.feishu_crypto import encrypt, sign
from miniclaw.channel.standins.base import Event, Fault, Shown, Standin
from miniclaw.channel_settings import FeishuAccount
from miniclaw.config import Settings

__all__ = ["FeishuStandin", "event_of", "posted", "standin_of"]

CARD_BYTES: Final = 30_000
TABLES: Final = 4
TENANT: Final = "2e00simulated000"
_ROUTES: Final = (
    ("token", "POST", r"auth/v3/tenant_access_token/internal"),
    ("bot", "GET", r"bot/v3/info"),
    ("reply", "POST", r"im/v1/messages/([^/]+)/reply"),
    ("create", "POST", r"im/v1/messages"),
    ("patch", "PATCH", r"im/v1/messages/([^/]+)"),
    ("react", "POST", r"im/v1/messages/([^/]+)/reactions"),
    ("unreact", "DELETE", r"im/v1/messages/([^/]+)/reactions/([^/]+)"),
    ("resource", "GET", r"im/v1/messages/([^/]+)/resources/([^/]+)"),
    ("card", "POST", r"cardkit/v1/cards"),
    ("content", "PUT", r"cardkit/v1/cards/([^/]+)/elements/([^/]+)/content"),
    ("settings", "PATCH", r"cardkit/v1/cards/([^/]+)/settings"),
)
_TABLE = re.compile(r"^[ ]{0,3}\|?[ :]*-+[ :|-]*$", re.MULTILINE)


class FeishuStandin(Standin):
    """Feishu, for one app.

    Attributes:
        tokens: those that are taken now; clear it, and a new one has to be asked for.
        withdrawn: messages that nobody can reply to.
        reactions: emoji by message, for as long as they are there.
    """

    def __init__(self, *, bot_open_id: str = "ou_bot", secret: str | None = None) -> None:
        super().__init__()
        self._bot_open_id = bot_open_id
        self._secret = secret
        self._numbers = itertools.count(1)
        self._sent: dict[str, str] = {}
        self._cards: dict[str, dict[str, Any]] = {}
        self.tokens: set[str] = set()
        self.withdrawn: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.reactions: dict[str, str] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/open-apis/{path:.*}", self._handle)]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        for name, method, pattern in _ROUTES:
            match = re.fullmatch(pattern, request.match_info["path"])
            if match is not None and request.method == method:
                return await self._method(request, name, list(match.groups()))
        return web.Response(status=404, text="404 page not found")

    async def _method(self, request: web.Request, name: str, ids: list[str]) -> web.StreamResponse:
        raw = await request.read()
        body: dict[str, Any] = json.loads(raw) if raw else {}
        self.calls.append((name, {**body, "ids": ids, **request.query}))
        self.news()
        fault = self.fault_of(name)
        if fault is not None and not fault.stored:
            return await self._failed(request, fault)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            if name != "token" and token not in self.tokens:
                raise _refused(99991663 if token else 99991661)
            if name == "resource":
                return web.Response(body=self.files[ids[1]])
            answer = getattr(self, f"_{name}")(body, *ids)
        except FeishuError as error:
            answer, code = None, error.code
        if fault is not None:
            return await self._failed(request, fault)
        if answer is None:
            return web.json_response({"code": code, "msg": "refused"}, status=400)
        return web.json_response({"code": 0, "msg": "success", **answer})

    async def _failed(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.kind != "error":
            return await self.fail(request, fault)
        headers = {"x-ogw-ratelimit-reset": str(fault.retry_after)} if fault.retry_after is not None else {}
        return web.json_response({"code": fault.value, "msg": "injected"}, status=400, headers=headers)

    def _token(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._secret is not None and body.get("app_secret") != self._secret:
            raise _refused(10014)
        if not self.tokens:
            self.tokens.add(f"t-{secrets.token_hex(8)}")
        return {"tenant_access_token": max(self.tokens), "expire": 7200}

    def _bot(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"bot": {"open_id": self._bot_open_id, "app_name": "miniClaw"}}

    def _reply(self, body: dict[str, Any], message_id: str) -> dict[str, Any]:
        if message_id in self.withdrawn:
            raise _refused(230011)
        return self._post(body, f"reply:{message_id}", body.get("reply_in_thread"))

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._post(body, body["receive_id"], None)

    def _post(self, body: dict[str, Any], place: str, thread: object) -> dict[str, Any]:
        """Send once for each `uuid`, whatever the later content."""
        uuid, content = body.get("uuid"), json.loads(body["content"])
        if uuid is not None and len(uuid) > 50:
            raise _refused(230001)
        if uuid in self._sent:
            return {"data": {"message_id": self._sent[uuid]}}
        message = Shown(f"om_{next(self._numbers)}", place, "thread" if thread else None, "")
        if body["msg_type"] == "text":
            message.text = content["text"]
        elif "card_id" in content.get("data", {}):
            card = self._cards[content["data"]["card_id"]]
            if card.setdefault("message", message) is not message:
                raise _refused(230001)
            message.text, message.is_open = card["text"], card["streaming"]
        else:
            message.text, message.raw = _text_of(content), content
        if uuid is not None:
            self._sent[uuid] = message.id
        self.show(message)
        return {"data": {"message_id": message.id}}

    def _patch(self, body: dict[str, Any], message_id: str) -> dict[str, Any]:
        message = next((one for one in self.shown if one.id == message_id), None)
        if message is None:
            raise _refused(230001)
        message.raw = json.loads(body["content"])
        message.text = _text_of(message.raw)
        self.show(message)
        return {"data": {}}

    def _react(self, body: dict[str, Any], message_id: str) -> dict[str, Any]:
        if message_id in self.withdrawn:
            raise _refused(231003)
        self.reactions[message_id] = body["reaction_type"]["emoji_type"]
        return {"data": {"reaction_id": f"r_{message_id}"}}

    def _unreact(self, body: dict[str, Any], message_id: str, reaction_id: str) -> dict[str, Any]:
        del self.reactions[message_id]
        self.news()
        return {"data": {}}

    def _card(self, body: dict[str, Any]) -> dict[str, Any]:
        card = json.loads(body["data"])
        card_id = f"73{next(self._numbers):015}"
        self._cards[card_id] = {
            "text": _text_of(card),
            "streaming": card["config"].get("streaming_mode", False),
            "sequence": 0,
            "element": card["body"]["elements"][0].get("element_id"),
        }
        return {"data": {"card_id": card_id}}

    def expire_streams(self) -> None:
        """Ten minutes have passed."""
        for card in self._cards.values():
            card["streaming"] = False

    def lose_cards(self) -> None:
        """Fourteen days have passed."""
        self._cards.clear()

    def _turned(self, body: dict[str, Any], card_id: str) -> dict[str, Any]:
        card = self._cards.get(card_id)
        if card is None:
            raise _refused(200740)
        if not card["sequence"] < body["sequence"] < 2**31:
            raise _refused(300317)
        if body.get("uuid") in self._sent:
            raise _refused(200770)
        self._sent[body["uuid"]] = card_id
        card["sequence"] = body["sequence"]
        return card

    def _content(self, body: dict[str, Any], card_id: str, element: str) -> dict[str, Any]:
        card = self._turned(body, card_id)
        if not card["streaming"]:
            raise _refused(300309)
        if element != card["element"] or not 1 <= len(body["content"]) <= 100_000:
            raise _refused(10002)
        card["text"] = _checked(body["content"])
        return self._changed(card)

    def _settings(self, body: dict[str, Any], card_id: str) -> dict[str, Any]:
        card = self._turned(body, card_id)
        card["streaming"] = json.loads(body["settings"])["config"]["streaming_mode"]
        return self._changed(card)

    def _changed(self, card: dict[str, Any]) -> dict[str, Any]:
        if (message := card.get("message")) is not None:
            message.text, message.is_open = card["text"], card["streaming"]
            self.show(message)
        return {"data": {}}


def _refused(code: int) -> FeishuError:
    return FeishuError("refused", code=code)


def _text_of(card: dict[str, Any]) -> str:
    if len(json.dumps(json.dumps(card, ensure_ascii=False), ensure_ascii=False).encode()) > CARD_BYTES:
        raise _refused(230025)
    return _checked(card["body"]["elements"][0]["content"])


def _checked(content: str) -> str:
    """A text that a card takes."""
    outside = re.sub(r"^```.*?^```", "", content, flags=re.DOTALL | re.MULTILINE)
    if len(_TABLE.findall(outside)) > TABLES or re.search(r"!\[[^\]]*\]\((?!img_)", outside):
        raise _refused(230099)
    return content


def event_of(settings: FeishuAccount, text: str, *, now: float) -> Event:
    """A direct message as Feishu posts it: encrypted and signed where there is an Encrypt Key."""
    token = settings.verification_token
    message_id, moment = f"om_{secrets.token_hex(12)}", f"{now * 1000:.0f}"
    event = {
        "schema": "2.0",
        "header": {
            "event_id": secrets.token_hex(16),
            "event_type": "im.message.receive_v1",
            "create_time": moment,
            "token": token.get_secret_value() if token else "",
            "app_id": settings.app_id,
            "tenant_key": TENANT,
        },
        "event": {
            "sender": {
                "sender_id": {"open_id": "ou_simulated"},
                "sender_type": "user",
                "tenant_key": TENANT,
            },
            "message": {
                "message_id": message_id,
                "create_time": moment,
                "chat_id": "oc_simulated",
                "chat_type": "p2p",
                "message_type": "text",
                "content": json.dumps({"text": text}),
            },
        },
    }
    return posted(settings, event, now=now)


def posted(settings: FeishuAccount, event: dict[str, Any], *, now: float) -> Event:
    """Any event as Feishu posts it."""
    headers = {"Content-Type": "application/json; charset=utf-8"}
    body = json.dumps(event, ensure_ascii=False).encode()
    if settings.encrypt_key is not None:
        key, moment, nonce = settings.encrypt_key.get_secret_value(), str(int(now)), secrets.token_hex(8)
        body = json.dumps({"encrypt": encrypt(key, body.decode())}).encode()
        headers["X-Lark-Request-Timestamp"], headers["X-Lark-Request-Nonce"] = moment, nonce
        headers["X-Lark-Signature"] = sign(key, moment, nonce, body)
    return Event(path="feishu", headers=headers, body=body)


def standin_of(settings: Settings) -> FeishuStandin:
    """The stand-in that fits these settings."""
    secret = settings.channels.feishu.app_secret
    return FeishuStandin(secret=secret.get_secret_value() if secret else None)
