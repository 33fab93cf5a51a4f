"""Webhook：签名对的、没来过的，才进得来；三个平台，同一种消息。"""

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from day1_gateway import EventBus, GatewayMessage, ProtocolError, TextPayload, error_message, event_message
from day2_channel import (
    Answer,
    FeishuPlatform,
    Platform,
    SlackPlatform,
    WebChatChannel,
    WebhookChannel,
    WebhookRequest,
    WeComPlatform,
    webhook,
)

NOW = 1_700_000_000
SECRET = "slack-secret"


def seal(text: str) -> str:
    """测试里的“加密”：换成 base64，够看出解密发生在验签之后。"""
    return base64.b64encode(text.encode()).decode()


def unseal(text: str) -> str:
    return base64.b64decode(text, validate=True).decode()


def request(body: bytes = b"", *, method: str = "POST", **parts: dict[str, str]) -> WebhookRequest:
    headers, query = parts.get("headers", {}), parts.get("query", {})
    return WebhookRequest(method=method, path="/", headers=headers, query=query, body=body, now=NOW)


def slack(event: dict[str, Any], *, moment: int = NOW, secret: str = SECRET) -> WebhookRequest:
    body = json.dumps({"type": "event_callback", "event": event}).encode()
    signed = hmac.new(secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": str(moment), "X-Slack-Signature": f"v0={signed}"}
    return request(body, headers=headers)


SAID = {"type": "message", "channel": "C1", "ts": "17.1", "user": "U1", "text": "4471 到哪了？"}


def feishu(body: dict[str, Any], *, key: str | None = None) -> WebhookRequest:
    raw = json.dumps(body).encode()
    if key is None:
        return request(raw)
    signed = hashlib.sha256(f"{NOW}n{key}".encode() + raw).hexdigest()
    headers = {"X-Lark-Request-Timestamp": str(NOW), "X-Lark-Request-Nonce": "n", "X-Lark-Signature": signed}
    return request(raw, headers=headers)


def feishu_event(token: str = "tok", kind: str = "text") -> dict[str, Any]:
    message = {"chat_id": "oc_1", "message_id": "om_1", "message_type": kind, "content": '{"text": "4471"}'}
    return {
        "header": {"event_type": "im.message.receive_v1", "token": token},
        "event": {"message": message, "sender": {"sender_type": "user"}},
    }


def wecom(inner: str, *, token: str = "tok", method: str = "POST") -> WebhookRequest:
    sealed = seal(inner)
    signed = hashlib.sha1("".join(sorted((token, "1", "n", sealed))).encode()).hexdigest()
    query = {"msg_signature": signed, "timestamp": "1", "nonce": "n"}
    if method == "GET":
        return request(method="GET", query={**query, "echostr": sealed})
    return request(f"<xml><Encrypt><![CDATA[{sealed}]]></Encrypt></xml>".encode(), query=query)


WECOM_TEXT = (
    "<xml><FromUserName>zhang</FromUserName><MsgType>text</MsgType>"
    "<Content><![CDATA[4471 到哪了？]]></Content><MsgId>7</MsgId></xml>"
)


def read(platform: Platform, incoming: WebhookRequest) -> GatewayMessage | Answer:
    platform.verify(incoming)
    return platform.parse(incoming)


def code_of(platform: Platform, incoming: WebhookRequest) -> str:
    with pytest.raises(ProtocolError) as caught:
        read(platform, incoming)
    return caught.value.code


CASES: list[tuple[Platform, WebhookRequest, str]] = [
    (SlackPlatform(SECRET), slack(SAID), "slack:C1"),
    (FeishuPlatform("tok"), feishu(feishu_event()), "feishu:oc_1"),
    (
        FeishuPlatform("tok", encrypt_key="k", decrypt=unseal),
        feishu({"encrypt": seal(json.dumps(feishu_event()))}, key="k"),
        "feishu:oc_1",
    ),
    (WeComPlatform("tok", decrypt=unseal), wecom(WECOM_TEXT), "wecom:zhang"),
]


@pytest.mark.parametrize(("platform", "incoming", "source"), CASES)
def test_three_bodies_become_one_kind_of_message(
    platform: Platform, incoming: WebhookRequest, source: str
) -> None:
    first, again = read(platform, incoming), read(platform, incoming)
    assert isinstance(first, GatewayMessage) and isinstance(again, GatewayMessage)
    assert isinstance(first.payload, TextPayload) and first.payload.text.startswith("4471")
    assert first.source == source
    assert first.msg_id == again.msg_id, "同一条消息，编号必须相同"


@pytest.mark.parametrize(
    ("platform", "incoming"),
    [
        (SlackPlatform(SECRET), slack(SAID, secret="other")),
        (SlackPlatform(SECRET), slack(SAID, moment=NOW - 301)),
        (SlackPlatform(SECRET), slack(SAID, moment=NOW + 301)),
        (SlackPlatform(SECRET), request(b"{}")),
        (FeishuPlatform("tok"), feishu(feishu_event(token="other"))),
        (FeishuPlatform("tok"), request(b"[]")),
        (FeishuPlatform("tok", encrypt_key="k"), feishu(feishu_event())),
        (FeishuPlatform("tok", encrypt_key="k"), feishu(feishu_event(), key="other")),
        (WeComPlatform("tok", decrypt=unseal), wecom(WECOM_TEXT, token="other")),
        (WeComPlatform("tok", decrypt=unseal), request(b"no xml")),
    ],
)
def test_a_wrong_signature_or_an_old_request_is_unauthorized(
    platform: Platform, incoming: WebhookRequest
) -> None:
    assert code_of(platform, incoming) == "unauthorized"


@pytest.mark.parametrize(
    ("platform", "incoming"),
    [
        (SlackPlatform(SECRET), slack({"type": "message", "text": "x"})),
        (WeComPlatform("tok", decrypt=unseal), wecom("<xml><MsgType>text</MsgType></xml>")),
        (WeComPlatform("tok", decrypt=unseal), wecom('<!DOCTYPE x [<!ENTITY a "b">]><xml>&a;</xml>')),
    ],
)
def test_a_signed_body_that_cannot_be_read_is_a_bad_message(
    platform: Platform, incoming: WebhookRequest
) -> None:
    assert code_of(platform, incoming) == "bad_message"


def test_what_is_encrypted_is_left_to_miniclaw() -> None:
    assert code_of(WeComPlatform("tok"), wecom(WECOM_TEXT)) == "unsupported"


@pytest.mark.parametrize(
    ("platform", "incoming", "answer"),
    [
        (SlackPlatform(SECRET), slack({**SAID, "bot_id": "B1"}), Answer()),
        (SlackPlatform(SECRET), slack({**SAID, "text": " "}), Answer()),
        (SlackPlatform(SECRET), slack({**SAID, "text": None}), Answer()),
        (SlackPlatform(SECRET), slack({**SAID, "subtype": "message_changed"}), Answer()),
        (FeishuPlatform("tok"), feishu(feishu_event(kind="image")), Answer(body={})),
        (FeishuPlatform("tok"), feishu({"header": {"event_type": "x", "token": "tok"}}), Answer(body={})),
        (
            FeishuPlatform("tok"),
            feishu({"type": "url_verification", "token": "tok", "challenge": "c"}),
            Answer(body={"challenge": "c"}),
        ),
        (WeComPlatform("tok", decrypt=unseal), wecom("hello", method="GET"), Answer(text="hello")),
        (WeComPlatform("tok", decrypt=unseal), wecom("<xml><MsgType>image</MsgType></xml>"), Answer()),
    ],
)
def test_handshakes_are_answered_and_other_things_are_passed_over(
    platform: Platform, incoming: WebhookRequest, answer: Answer
) -> None:
    assert read(platform, incoming) == answer


class Shop:
    """Slack 的渠道，接在网页渠道的 HTTP 服务上。"""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        bus = EventBus()
        self.channel = WebhookChannel(SlackPlatform(SECRET), bus, self._deliver, clock=lambda: float(NOW))
        self.web = WebChatChannel(bus, port=0, extra=self.channel.routes())

    async def _deliver(self, target: str, text: str) -> None:
        self.sent.append((target, text))

    async def post(self, incoming: WebhookRequest) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.web.port}/webhooks/slack/events"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                url, data=incoming.body, headers={**incoming.headers, "Host": "shop.example"}
            ) as answer,
        ):
            return answer.status, await answer.text()


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    shop = Shop()
    await shop.web.start()
    yield shop
    await shop.web.stop()


async def test_a_message_that_comes_three_times_is_taken_once(shop: Shop) -> None:
    for _ in range(3):
        assert (await shop.post(slack(SAID)))[0] == 200
    assert (await shop.channel.receive()).source == "slack:C1"
    assert shop.channel._queue.empty()


async def test_a_refusal_tells_nobody_why(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await shop.post(slack(SAID, secret="other")) == (401, "")
        assert await shop.post(slack({"type": "message", "text": "x"})) == (400, "")
    assert "the signature does not match" in caplog.text


async def test_a_handshake_is_answered(shop: Shop) -> None:
    body = b'{"type": "url_verification", "challenge": "c3"}'
    signed = hmac.new(SECRET.encode(), f"v0:{NOW}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": str(NOW), "X-Slack-Signature": f"v0={signed}"}
    assert await shop.post(request(body, headers=headers)) == (200, "c3")


async def test_what_finds_no_place_is_to_be_sent_again_and_is_then_taken(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    while not shop.channel._queue.full():
        shop.channel._queue.put_nowait(event_message("x", {}, target="x"))
    assert (await shop.post(slack(SAID)))[0] == 503
    await shop.channel.receive()
    assert (await shop.post(slack(SAID)))[0] == 200


async def test_only_so_many_ids_are_remembered(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "REMEMBERED", 2)
    for number in range(4):
        await shop.post(slack({**SAID, "ts": str(number)}))
    assert len(shop.channel._seen) == 2


async def test_answers_go_out_by_the_platforms_own_way(shop: Shop) -> None:
    await shop.channel.start()
    await shop.channel.send(event_message("turn.finished", {"text": "已发货"}, target="slack:C1"))
    await shop.channel.send(error_message("internal", "sorry", target="slack:C1"))
    await shop.channel.send(event_message("typing", {}, target="slack:C1"))
    await shop.channel.stop()
    assert shop.sent == [("slack:C1", "已发货"), ("slack:C1", "sorry")]
