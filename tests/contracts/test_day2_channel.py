"""Day 2 and the channels: pumps, webhooks of three platforms, the web page's way in and out, the terminal."""

from __future__ import annotations

import asyncio
import hmac
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import day1_gateway
import day2_channel
import miniclaw.channel
import miniclaw.channel.webhook
import miniclaw.errors
import miniclaw.gateway.router
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.platforms.feishu import FeishuPlatform
from miniclaw.channel.platforms.feishu_crypto import decrypt, encrypt
from miniclaw.channel.platforms.feishu_crypto import sign as sign_feishu
from miniclaw.channel.platforms.slack import SlackPlatform
from miniclaw.channel.platforms.wecom import WeComPlatform
from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel_settings import FeishuAccount, SlackAccount, WeComAccount
from miniclaw.gateway.protocol import Inbound, MessageType, Receipt, TextPayload
from tests.contracts.support import both
from tests.support.claw import TOKEN, running_claw

REFUSED = (day1_gateway.ProtocolError, miniclaw.errors.ProtocolError)
NOW = 1_800_000_000
SECRET, ENCRYPT_KEY, VERIFY_TOKEN = "slack-secret", "feishu-key", "feishu-token"
CORP, WECOM_TOKEN, AES_KEY = (
    "ww0123456789abcdef",
    "wecom-token",
    "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG",
)
CRYPTO = WeComCrypto(WECOM_TOKEN, AES_KEY, CORP)


@dataclass(frozen=True)
class Platforms:
    """The three platforms of a side, with the same secrets."""

    request: Callable[..., Any]
    slack: Any
    feishu: Any
    wecom: Any


CHAPTER = Platforms(
    day2_channel.WebhookRequest,
    day2_channel.SlackPlatform(SECRET),
    day2_channel.FeishuPlatform(
        VERIFY_TOKEN, encrypt_key=ENCRYPT_KEY, decrypt=lambda text: decrypt(ENCRYPT_KEY, text)
    ),
    day2_channel.WeComPlatform(WECOM_TOKEN, decrypt=CRYPTO.decrypt),
)
CORE = Platforms(
    miniclaw.channel.webhook.WebhookRequest,
    SlackPlatform(SlackAccount.model_validate({"signing_secret": SECRET})),
    FeishuPlatform(
        FeishuAccount.model_validate({"verification_token": VERIFY_TOKEN, "encrypt_key": ENCRYPT_KEY}),
        clock=lambda: NOW,
    ),
    WeComPlatform(
        WeComAccount.model_validate({"corp_id": CORP, "token": WECOM_TOKEN, "encoding_aes_key": AES_KEY}),
        clock=lambda: NOW,
    ),
)
platforms = both(CHAPTER, CORE)


def slack(side: Platforms, body: dict[str, Any], *, secret: str = SECRET, moment: int = NOW) -> Any:
    raw = json.dumps(body).encode()
    signed = hmac.digest(secret.encode(), f"v0:{moment}:".encode() + raw, "sha256").hex()
    headers = {"X-Slack-Request-Timestamp": str(moment), "X-Slack-Signature": f"v0={signed}"}
    path = "/webhooks/slack/events"
    return side.request(method="POST", path=path, headers=headers, query={}, body=raw, now=float(NOW))


def slack_text(text: str) -> dict[str, Any]:
    event = {
        "type": "message",
        "channel_type": "im",
        "channel": "D1",
        "user": "U1",
        "ts": "17.5",
        "text": text,
    }
    return {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}


def feishu(side: Platforms, body: dict[str, Any], *, key: str = ENCRYPT_KEY) -> Any:
    raw = json.dumps({"encrypt": encrypt(ENCRYPT_KEY, json.dumps(body))}).encode()
    headers = {
        "X-Lark-Request-Timestamp": str(NOW),
        "X-Lark-Request-Nonce": "n",
        "X-Lark-Signature": sign_feishu(key, str(NOW), "n", raw),
    }
    path = "/webhooks/feishu"
    return side.request(method="POST", path=path, headers=headers, query={}, body=raw, now=float(NOW))


def feishu_text(text: str, *, token: str = VERIFY_TOKEN) -> dict[str, Any]:
    message = {
        "chat_id": "oc_1",
        "chat_type": "p2p",
        "message_id": "om_1",
        "message_type": "text",
        "create_time": str(NOW * 1000),
        "content": json.dumps({"text": text}),
    }
    header = {"event_type": "im.message.receive_v1", "token": token, "app_id": "a", "tenant_key": "t"}
    sender = {"sender_type": "user", "sender_id": {"open_id": "ou_1"}}
    return {"schema": "2.0", "header": header, "event": {"message": message, "sender": sender}}


def wecom(side: Platforms, inner: str, *, token: str = WECOM_TOKEN, method: str = "POST") -> Any:
    sealed = CRYPTO.encrypt(inner)
    signed = WeComCrypto(token, AES_KEY, CORP).sign(str(NOW), "n", sealed)
    query = {"msg_signature": signed, "timestamp": str(NOW), "nonce": "n"}
    body = b""
    if method == "GET":
        query["echostr"] = sealed
    else:
        body = f"<xml><ToUserName>{CORP}</ToUserName><Encrypt>{sealed}</Encrypt></xml>".encode()
    return side.request(
        method=method, path="/webhooks/wecom", headers={}, query=query, body=body, now=float(NOW)
    )


def wecom_text(text: str) -> str:
    return (
        f"<xml><ToUserName>{CORP}</ToUserName><FromUserName>zhang</FromUserName><CreateTime>{NOW}</CreateTime>"
        f"<MsgType>text</MsgType><Content>{text}</Content><MsgId>7</MsgId><AgentID>1</AgentID></xml>"
    )


def read(platform: Any, request: Any) -> Any:
    platform.verify(request)
    return platform.parse(request)


@platforms
def test_bodies_of_three_platforms_become_one_kind_of_message(side: Platforms) -> None:
    words = "订单 4471 到哪了？"
    for platform, request in (
        (side.slack, slack(side, slack_text(words))),
        (side.feishu, feishu(side, feishu_text(words))),
        (side.wecom, wecom(side, wecom_text(words))),
    ):
        first, again = read(platform, request), read(platform, request)
        assert (first.msg_type, first.payload.text) == ("text", words)
        assert first.source.startswith(f"{platform.name}:")
        assert first.msg_id == again.msg_id


@platforms
def test_what_is_not_signed_with_our_secret_is_unauthorized(side: Platforms) -> None:
    for platform, request in (
        (side.slack, slack(side, slack_text("x"), secret="other")),
        (side.slack, slack(side, slack_text("x"), moment=NOW - 301)),
        (side.feishu, feishu(side, feishu_text("x"), key="other")),
        (side.feishu, feishu(side, feishu_text("x", token="other"))),
        (side.wecom, wecom(side, wecom_text("x"), token="other")),
    ):
        with pytest.raises(REFUSED) as caught:
            platform.verify(request)
        assert caught.value.code == "unauthorized"  # type: ignore[attr-defined] # both kinds carry it


@platforms
def test_a_platform_that_checks_the_address_gets_its_word_back(side: Platforms) -> None:
    assert read(side.slack, slack(side, {"type": "url_verification", "challenge": "c"})).text == "c"
    check = {"type": "url_verification", "token": VERIFY_TOKEN, "challenge": "c"}
    assert read(side.feishu, feishu(side, check)).body == {"challenge": "c"}
    assert read(side.wecom, wecom(side, "echo", method="GET")).text == "echo"


@platforms
def test_what_the_bot_said_itself_is_no_message(side: Platforms) -> None:
    body = slack_text("x")
    body["event"]["bot_id"] = "B1"
    answer = read(side.slack, slack(side, body))
    assert (answer.status, answer.body, answer.text) == (200, None, None)


@platforms
def test_xml_that_declares_something_is_refused(side: Platforms) -> None:
    inner = '<!DOCTYPE x [<!ENTITY a "b">]>' + wecom_text("&a;")
    with pytest.raises(REFUSED) as caught:
        read(side.wecom, wecom(side, inner))
    assert caught.value.code == "bad_message"  # type: ignore[attr-defined] # both kinds carry it


class ChapterLines(day2_channel.Channel):
    name = "lines"

    def __init__(self, count: int) -> None:
        self._left = list(range(count))
        self.answered: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def receive(self) -> day1_gateway.GatewayMessage:
        if not self._left:
            await asyncio.Event().wait()
        payload = day1_gateway.TextPayload(text="4471")
        return day1_gateway.GatewayMessage(
            msg_id=f"m{self._left.pop(0)}",
            msg_type=day1_gateway.MessageType.TEXT,
            source="lines:1",
            payload=payload,
        )

    async def send(self, message: day1_gateway.GatewayMessage) -> None:
        self.answered.append(message.payload.data["id"])  # type: ignore[union-attr] # an event
        if message.payload.data["id"] == "m0":  # type: ignore[union-attr] # an event
            raise ConnectionError("the peer is gone")


class CoreLines(miniclaw.channel.Channel):
    name = "lines"

    def __init__(self, count: int) -> None:
        self._left = list(range(count))
        self.answered: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def receive(self) -> Inbound:
        if not self._left:
            await asyncio.Event().wait()
        payload = TextPayload(text="4471")
        return Inbound(
            msg_id=f"m{self._left.pop(0)}", msg_type=MessageType.TEXT, payload=payload, channel="lines"
        )

    async def send(self, message: Any) -> None: ...

    def settle(self, inbound: Inbound, receipt: Receipt) -> None:
        self.answered.append(inbound.msg_id)
        if inbound.msg_id == "m0":
            raise ConnectionError("the peer is gone")


@dataclass(frozen=True)
class Pumping:
    channel: Callable[[int], Any]
    router: Callable[[], Any]
    pump: Callable[..., Any]
    answer: Callable[[Any], Any]


PUMPS = both(
    Pumping(
        ChapterLines,
        day1_gateway.MessageRouter,
        day2_channel.pump,
        lambda inbound: day1_gateway.event_message("x", {"id": inbound.msg_id}, target=inbound.source),
    ),
    Pumping(
        CoreLines,
        miniclaw.gateway.router.MessageRouter,
        miniclaw.gateway.router.pump,
        lambda inbound: Receipt(status="accepted"),
    ),
)


@PUMPS
async def test_an_answer_that_cannot_be_given_does_not_stop_the_channel(side: Pumping) -> None:
    channel, router, last = side.channel(3), side.router(), asyncio.Event()

    async def handle(inbound: Any) -> Any:
        if inbound.msg_id == "m2":
            last.set()
        return side.answer(inbound)

    router.register("text", handle)
    task = asyncio.create_task(side.pump(channel, router))
    async with asyncio.timeout(5):
        await last.wait()
        while len(channel.answered) < 3:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert channel.answered == ["m0", "m1", "m2"]


@PUMPS
async def test_cancelling_a_pump_cancels_what_it_is_doing(side: Pumping) -> None:
    channel, router = side.channel(1), side.router()
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(inbound: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    router.register("text", hang)
    task = asyncio.create_task(side.pump(channel, router))
    async with asyncio.timeout(5):
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cancelled.is_set()


@dataclass(frozen=True)
class Web:
    """A running web chat of either side."""

    port: int
    headers: dict[str, str]
    body: Callable[[str], dict[str, Any]]


async def _echo(inbound: day1_gateway.GatewayMessage) -> day1_gateway.GatewayMessage:
    return day1_gateway.event_message("turn.finished", {"text": "ok"}, target=inbound.source)


@asynccontextmanager
async def chapter_web() -> AsyncIterator[Web]:
    router = day1_gateway.MessageRouter()
    router.register(day1_gateway.MessageType.TEXT, _echo)
    channel = day2_channel.WebChatChannel(day1_gateway.EventBus(), port=0)
    await channel.start()
    pumping = asyncio.create_task(day2_channel.pump(channel, router))
    try:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{channel.port}") as http,
            http.ws_connect("/ws") as ws,
        ):
            client = (await ws.receive_json(timeout=10))["payload"]["data"]["client"]
            yield Web(channel.port or 0, {}, lambda text: {"client": client, "text": text})
    finally:
        pumping.cancel()
        await channel.stop()


@asynccontextmanager
async def core_web() -> AsyncIterator[Web]:
    with tempfile.TemporaryDirectory() as directory:
        async with running_claw(
            Path(directory), ScriptedProvider([LLMResponse(text="ok")]), web=True
        ) as claw:
            assert claw.web is not None
            headers = {"Authorization": f"Bearer {TOKEN}"}
            yield Web(claw.web.port or 0, headers, lambda text: {"text": text})


Webs = Callable[[], AbstractAsyncContextManager[Web]]
WEBS = both(chapter_web, core_web)


async def posted(web: Web, body: object, **headers: str) -> int:
    url = f"http://127.0.0.1:{web.port}/api/messages"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json=body, headers={**web.headers, **headers}) as answer,
    ):
        return answer.status


@WEBS
async def test_a_message_by_http_is_taken_with_202_and_a_bad_one_refused_with_400(side: Webs) -> None:
    async with side() as web:
        assert await posted(web, web.body("4471")) == 202
        assert await posted(web, web.body(" ")) == 400
        assert await posted(web, {"text": 5}) == 400


@WEBS
async def test_a_foreign_host_name_is_refused_with_421(side: Webs) -> None:
    async with side() as web:
        assert await posted(web, web.body("4471"), Host="evil.example") == 421


@WEBS
async def test_the_page_is_served_without_anything_to_present(side: Webs) -> None:
    async with side() as web, aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{web.port}/") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")


@asynccontextmanager
async def chapter_terminal() -> AsyncIterator[Any]:
    bus = day1_gateway.EventBus()
    channel = day2_channel.CLIChannel(bus, user="owner", lines=["4471"])
    await channel.start()
    yield channel
    await channel.stop()


@asynccontextmanager
async def core_terminal() -> AsyncIterator[Any]:
    hub: Any = type("Hub", (), {"bus": miniclaw.gateway.EventBus(), "soft_limit": 1 << 20, "html": None})()
    channel = miniclaw.channel.CLIChannel(hub)
    link = channel.link("owner")
    task = asyncio.create_task(link.send({"msg_id": "m1", "msg_type": "text", "payload": {"text": "4471"}}))
    yield channel
    task.cancel()
    await channel.stop()


@both(chapter_terminal, core_terminal)
async def test_a_typed_line_is_a_text_of_the_terminals_user(
    side: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    async with side() as channel, asyncio.timeout(10):
        inbound = await channel.receive()
    assert (inbound.msg_type, inbound.payload.text) == ("text", "4471")
    assert inbound.source == f"{channel.name}:owner"
