"""网页：HTTP 进，WebSocket 出，别人的网页进不来。"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from day1_gateway import EventBus, EventPayload, GatewayMessage, TextPayload, event_message
from day2_channel import WebChatChannel, webchat


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
async def channel(bus: EventBus) -> AsyncIterator[WebChatChannel]:
    channel = WebChatChannel(bus, port=0)
    await channel.start()
    yield channel
    await channel.stop()


@pytest.fixture
async def http(channel: WebChatChannel) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{channel.port}") as session:
        yield session


async def hello(ws: aiohttp.ClientWebSocketResponse) -> str:
    first = await ws.receive_json(timeout=5)
    return str(first["payload"]["data"]["client"])


async def test_the_page_is_served(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as response:
        assert response.content_type == "text/html"
        assert "小店" in await response.text()


async def test_a_message_comes_in_by_http_and_its_answer_goes_out_by_websocket(
    http: aiohttp.ClientSession, channel: WebChatChannel
) -> None:
    async with http.ws_connect("/ws") as ws, http.ws_connect("/ws") as other:
        client = await hello(ws)
        await hello(other)
        async with http.post("/api/messages", json={"client": client, "text": "4471"}) as response:
            assert response.status == 202
            msg_id = (await response.json())["msg_id"]
        inbound = await channel.receive()
        assert isinstance(inbound.payload, TextPayload)
        assert (inbound.msg_id, inbound.source, inbound.payload.text) == (msg_id, f"web:{client}", "4471")
        await channel.send(event_message("turn.finished", {"text": "已发货"}, target=inbound.source))
        reply = GatewayMessage.model_validate_json(await ws.receive_str(timeout=5))
        assert isinstance(reply.payload, EventPayload) and reply.payload.data == {"text": "已发货"}
        await channel.send(event_message("bye", {}, target="web:nobody"))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"client": "con_x", "text": "4471"}, 404),
        ({"text": "4471"}, 400),
        ({"client": "x", "text": " "}, 400),
    ],
)
async def test_what_cannot_be_taken_is_refused(http: aiohttp.ClientSession, body: Any, status: int) -> None:
    async with http.post("/api/messages", json=body) as response:
        assert response.status == status
        assert "error" in await response.json()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_another_page_is_refused(
    http: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    async with http.post("/api/messages", data=json.dumps({}), headers=headers) as response:
        assert response.status == status
    async with http.get("/ws", headers=headers) as response:
        assert response.status == status


async def test_connections_are_told_on_the_bus(http: aiohttp.ClientSession, bus: EventBus) -> None:
    events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    bus.subscribe("connection.*", lambda topic, event: events.put_nowait((topic, event)))
    async with asyncio.timeout(5):
        async with http.ws_connect("/ws") as ws:
            client = await hello(ws)
            assert await events.get() == ("connection.opened", client)
        assert await events.get() == ("connection.closed", client)


async def test_a_page_that_does_not_read_is_closed(
    http: aiohttp.ClientSession, channel: WebChatChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webchat, "OUTBOX", 2)
    async with http.ws_connect("/ws") as ws:
        target = f"web:{await hello(ws)}"
        for number in range(4):  # 不让出控制权，写任务来不及取
            channel._write(event_message("news", {"text": str(number)}, target=target))
        async with asyncio.timeout(5):
            last = await ws.receive()
        assert last.type is WSMsgType.CLOSE


async def test_stop_closes_the_pages_with_1001_and_may_be_called_twice(
    http: aiohttp.ClientSession, channel: WebChatChannel
) -> None:
    async with http.ws_connect("/ws") as ws:
        await hello(ws)
        await channel.stop()
        last = await ws.receive(timeout=5)
    assert (last.type, last.data) == (WSMsgType.CLOSE, 1001)
    await channel.stop()
    assert channel.port is None
