"""真的 WebSocket：从连接到回复，从坏帧到停止。"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from day1_gateway import (
    CommandPayload,
    EventBus,
    GatewayMessage,
    GatewayServer,
    MessageRouter,
    MessageType,
    command_result,
    event_message,
    server,
)


async def answer(inbound: GatewayMessage) -> GatewayMessage:
    return event_message("turn.finished", {"text": "已发货"}, target=inbound.source)


async def command(inbound: GatewayMessage) -> GatewayMessage:
    assert isinstance(inbound.payload, CommandPayload)
    return command_result(inbound.msg_id, inbound.payload.name, {}, target=inbound.source)


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def router() -> MessageRouter:
    router = MessageRouter()
    router.register(MessageType.COMMAND, command)
    return router


@pytest.fixture
async def gateway(bus: EventBus, router: MessageRouter) -> AsyncIterator[GatewayServer]:
    gateway = GatewayServer(router, bus, port=0)
    await gateway.start()
    yield gateway
    await gateway.stop()


def url(gateway: GatewayServer) -> str:
    return f"ws://127.0.0.1:{gateway.port}/"


def frame(msg_id: str, msg_type: str = "text", **fields: Any) -> str:
    payload = {"text": "4471"} if msg_type == "text" else {"name": "ping"}
    return json.dumps({"msg_id": msg_id, "msg_type": msg_type, "payload": payload, **fields})


async def read(ws: ClientConnection) -> GatewayMessage:
    async with asyncio.timeout(5):
        return GatewayMessage.model_validate_json(await ws.recv())


async def test_a_text_is_answered_on_its_own_connection(
    gateway: GatewayServer, router: MessageRouter
) -> None:
    router.register(MessageType.TEXT, answer)
    async with connect(url(gateway)) as one, connect(url(gateway)) as other:
        await one.send(frame("m1"))
        await other.send(frame("m2", "command"))
        assert "已发货" in (await read(one)).to_json()
        assert "command.result" in (await read(other)).to_json()


async def test_the_source_is_stamped_by_the_server(gateway: GatewayServer, bus: EventBus) -> None:
    seen: list[GatewayMessage] = []
    bus.subscribe("message.inbound", lambda _, message: seen.append(message))
    async with connect(url(gateway)) as ws:
        await ws.send(frame("m1", "command", source="ws:boss", timestamp="1970"))
        await read(ws)
        (connection_id,) = gateway.connections
    assert seen[0].source == f"ws:{connection_id}"
    assert seen[0].timestamp != "1970"


async def test_a_bad_frame_is_answered_and_the_connection_lives(gateway: GatewayServer) -> None:
    async with connect(url(gateway)) as ws:
        for bad, code in (
            ("{", "bad_json"),
            (frame("m1", "song"), "bad_message"),
            (frame("m2"), "unsupported"),
        ):
            await ws.send(bad)
            assert f'"code":"{code}"' in (await read(ws)).to_json()
        await ws.send(frame("m3", "command"))
        assert "command.result" in (await read(ws)).to_json()


@pytest.mark.parametrize(
    "reply",
    [
        "pong",
        event_message("x", {"of": object()}, target="ws:1"),
        event_message("x", {"text": "\ud800"}, target="ws:1"),
    ],
)
async def test_a_reply_that_cannot_be_sent_is_internal_and_the_connection_lives(
    gateway: GatewayServer, router: MessageRouter, reply: Any
) -> None:
    async def careless(inbound: GatewayMessage) -> GatewayMessage:
        return reply  # type: ignore[no-any-return]

    router.register(MessageType.TEXT, careless)
    async with connect(url(gateway)) as ws:
        await ws.send(frame("m1"))
        refusal = (await read(ws)).to_json()
        assert '"code":"internal"' in refusal and '"reply_to":"m1"' in refusal
        await ws.send(frame("m2", "command"))
        assert "command.result" in (await read(ws)).to_json()


async def test_the_pool_holds_who_is_connected_and_the_bus_tells_who_comes_and_goes(
    gateway: GatewayServer, bus: EventBus
) -> None:
    events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    bus.subscribe("connection.*", lambda topic, event: events.put_nowait((topic, event)))
    async with asyncio.timeout(5):
        async with connect(url(gateway)):
            topic, connection_id = await events.get()
            assert topic == "connection.opened"
            assert list(gateway.connections) == [connection_id]
        assert await events.get() == ("connection.closed", connection_id)
    assert gateway.connections == {}


async def test_a_message_is_sent_to_the_connection_that_its_target_names(gateway: GatewayServer) -> None:
    async with connect(url(gateway)) as ws:
        await ws.send(frame("m1", "command"))
        await read(ws)
        (connection_id,) = gateway.connections
        await gateway.send(event_message("news", {}, target=f"ws:{connection_id}"))
        assert '"news"' in (await read(ws)).to_json()
        await gateway.send(event_message("news", {}, target="ws:gone"))


async def test_a_web_page_cannot_connect(gateway: GatewayServer) -> None:
    with pytest.raises(InvalidStatus):
        await connect(url(gateway), origin=Origin("https://evil.example")).__aenter__()


async def test_a_frame_that_is_too_large_closes_with_1009(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(url(gateway)) as ws:
        with pytest.raises(ConnectionClosed) as caught:
            await ws.send(" " * (server.MESSAGE_BYTES + 1))
            await read(ws)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009


async def test_who_does_not_read_is_cut_and_others_are_served(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OUTBOX", 2)
    async with connect(url(gateway)) as deaf:
        await deaf.send(frame("m1", "command"))
        await read(deaf)
        (connection_id,) = gateway.connections
        # 一次塞满：写任务还没有机会跑，队列放不下第三条。
        for _ in range(3):
            await gateway.send(event_message("news", {}, target=f"ws:{connection_id}"))
        with pytest.raises(ConnectionClosed):
            while True:
                await read(deaf)
    async with connect(url(gateway)) as ws:
        await ws.send(frame("m2", "command"))
        assert "command.result" in (await read(ws)).to_json()


async def test_who_reads_may_say_much_at_once(gateway: GatewayServer) -> None:
    many = 4 * server.OUTBOX
    async with asyncio.timeout(20), connect(url(gateway)) as ws:
        for number in range(many):
            await ws.send(frame(f"m{number}", "command"))
        for number in range(many):
            assert f'"m{number}"' in (await read(ws)).to_json()


async def test_who_never_reads_the_answers_is_cut_and_told_of_once(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "OUTBOX", 2)
    monkeypatch.setattr(server, "ROOM_SECONDS", 0.05)
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        head = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade"
        writer.write(f"{head}\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        body = b"{}"
        with contextlib.suppress(ConnectionError):
            while gateway.connections:  # 只说不听，直到它断开
                writer.write((bytes([0x81, 0x80 | len(body), 0, 0, 0, 0]) + body) * 1000)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
    assert caplog.text.count("does not read and is cut") == 1


async def test_stop_closes_with_1001_and_may_be_called_twice(gateway: GatewayServer) -> None:
    async with connect(url(gateway)) as ws:
        await gateway.stop()
        with pytest.raises(ConnectionClosed) as caught:
            await read(ws)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1001
    await gateway.stop()
    assert gateway.port is None and gateway.connections == {}


async def test_stop_does_not_wait_for_ever_for_a_handler(
    gateway: GatewayServer,
    router: MessageRouter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.05)
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(inbound: GatewayMessage) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    router.register(MessageType.TEXT, hang)
    async with asyncio.timeout(5), connect(url(gateway)) as ws:
        await ws.send(frame("m1"))
        await began.wait()
        await gateway.stop()
    assert cancelled.is_set() and "does not return" in caplog.text
