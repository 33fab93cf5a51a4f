"""Day 1 and the gateway: what a frame must be, how the bus and the router behave, how connections end."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import day1_gateway
import miniclaw.errors
import miniclaw.gateway.events
import miniclaw.gateway.protocol
import miniclaw.gateway.router
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from tests.contracts.support import both
from tests.support.claw import TOKEN, running_claw

protocols = both(day1_gateway, miniclaw.gateway.protocol)
buses = both(day1_gateway.EventBus, miniclaw.gateway.events.EventBus)

REFUSED = (day1_gateway.ProtocolError, miniclaw.errors.ProtocolError)


def frame(msg_id: str = "m1", msg_type: str = "text", **fields: Any) -> str:
    payload = {"text": "4471"} if msg_type == "text" else {"name": "ping"}
    return json.dumps({"msg_id": msg_id, "msg_type": msg_type, "payload": payload, **fields})


@protocols
def test_three_fields_are_enough_and_the_rest_has_defaults(side: Any) -> None:
    message = side.parse_frame(frame())
    assert (message.msg_id, message.msg_type, message.payload.text) == ("m1", "text", "4471")
    assert (message.source, message.target) == ("", "agent")


@protocols
@pytest.mark.parametrize("data", ["{", "[1]", b"\xff", '{"a": NaN}', '{"a": "\\ud800"}'])
def test_what_is_no_json_object_is_bad_json(side: Any, data: str | bytes) -> None:
    with pytest.raises(REFUSED) as caught:
        side.parse_frame(data)
    assert caught.value.code == "bad_json"  # type: ignore[attr-defined] # both kinds carry it


@protocols
@pytest.mark.parametrize(
    "changes",
    [
        {"payload": {}},
        {"payload": {"text": " "}},
        {"msg_type": "song"},
        {"msg_type": "event", "payload": {"name": "x"}},
        {"colour": "red"},
    ],
)
def test_a_wrong_field_is_bad_message_and_names_the_message(side: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(REFUSED) as caught:
        side.parse_frame(frame(**changes))
    error: Any = caught.value
    assert (error.code, error.reply_to) == ("bad_message", "m1")


@protocols
def test_a_message_goes_through_json_unchanged(side: Any) -> None:
    message = side.event_message("turn.finished", {"text": "2 天后送达"}, target="ws:1")
    again = side.GatewayMessage.model_validate_json(message.to_json())
    assert again.payload.data == {"text": "2 天后送达"}
    assert json.loads(again.to_json()) == json.loads(message.to_json())
    assert set(json.loads(message.to_json())) == {
        *("msg_id", "msg_type", "source", "target", "payload", "timestamp")
    }


@buses
def test_a_subscriber_gets_its_topic_or_its_prefix(side: Any) -> None:
    bus, got = side(), []
    bus.subscribe("session.*", lambda topic, event: got.append((topic, event)))
    bus.subscribe("session.1", lambda topic, event: got.append((topic, event)))
    for topic in ("session.1", "session.2", "session", "sessions.1"):
        bus.publish(topic, 0)
    assert got == [("session.1", 0), ("session.1", 0), ("session.2", 0)]
    with pytest.raises(ValueError, match="may only stand at the end"):
        bus.subscribe("session*", lambda topic, event: None)


@buses
def test_a_failing_subscriber_does_not_hurt_the_next(side: Any) -> None:
    bus, got = side(), []
    bus.subscribe("a", lambda topic, event: 1 / 0)
    bus.subscribe("a", lambda topic, event: got.append(event))
    bus.publish("a", 7)
    assert got == [7]


@buses
def test_a_closed_subscription_gets_nothing_more_not_even_the_event_on_its_way(side: Any) -> None:
    bus, got = side(), []
    second: list[Any] = []
    bus.subscribe("a", lambda topic, event: second[0].close())
    second.append(bus.subscribe("a", lambda topic, event: got.append(event)))
    bus.publish("a", 1)
    second[0].close()
    assert got == []


@dataclass(frozen=True)
class Routes:
    """A router of either side, and how its answer tells an error code."""

    router: Any
    message: Any
    code_of: Callable[[Any], str | None]
    error: Any


def chapter_routes() -> Routes:
    message = day1_gateway.parse_frame(frame()).model_copy(update={"source": "ws:1"})
    return Routes(day1_gateway.MessageRouter(), message, _code_of_reply, day1_gateway.ProtocolError)


def _code_of_reply(reply: day1_gateway.GatewayMessage | None) -> str | None:
    assert reply is not None and isinstance(reply.payload, day1_gateway.ErrorPayload)
    assert (reply.target, reply.payload.reply_to) == ("ws:1", "m1")
    return reply.payload.code


def core_routes() -> Routes:
    message = miniclaw.gateway.protocol.Inbound(
        **miniclaw.gateway.protocol.parse_frame(frame()).model_dump(), channel="ws"
    )
    router = miniclaw.gateway.router.MessageRouter()
    return Routes(router, message, lambda receipt: receipt.code, miniclaw.errors.ProtocolError)


@both(chapter_routes, core_routes)
async def test_a_type_that_nobody_takes_is_unsupported(side: Callable[[], Routes]) -> None:
    routes = side()
    assert routes.code_of(await routes.router.route(routes.message)) == "unsupported"


@both(chapter_routes, core_routes)
async def test_a_handler_that_breaks_is_answered_and_never_raises(side: Callable[[], Routes]) -> None:
    routes = side()

    async def broken(inbound: Any) -> Any:
        raise RuntimeError("password=123")

    routes.router.register("text", broken)
    answer = await routes.router.route(routes.message)
    assert routes.code_of(answer) == "internal"
    assert "password" not in repr(answer)


@both(chapter_routes, core_routes)
async def test_a_refusal_of_a_handler_is_passed_on_with_its_code(side: Callable[[], Routes]) -> None:
    routes = side()

    async def refuse(inbound: Any) -> Any:
        raise routes.error("not_found", "There is no order 9999.")

    routes.router.register("text", refuse)
    assert routes.code_of(await routes.router.route(routes.message)) == "not_found"
    with pytest.raises(ValueError, match="has a handler already"):
        routes.router.register("text", refuse)


@dataclass(frozen=True)
class Gateway:
    """A running gateway of either side."""

    server: Any
    bus: Any
    sources: list[str]
    """The source of every message that was taken."""

    def connect(self, **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.server.port}/?token={TOKEN}", **options)


async def _pong(inbound: day1_gateway.GatewayMessage) -> day1_gateway.GatewayMessage:
    return day1_gateway.command_result(inbound.msg_id, "ping", {}, target=inbound.source)


async def _silent(inbound: day1_gateway.GatewayMessage) -> None: ...


@asynccontextmanager
async def chapter_gateway() -> AsyncIterator[Gateway]:
    bus, router = day1_gateway.EventBus(), day1_gateway.MessageRouter()
    router.register(day1_gateway.MessageType.COMMAND, _pong)
    router.register(day1_gateway.MessageType.TEXT, _silent)
    sources: list[str] = []
    bus.subscribe("message.inbound", lambda _, message: sources.append(message.source))
    server = day1_gateway.GatewayServer(router, bus, port=0)
    await server.start()
    try:
        yield Gateway(server, bus, sources)
    finally:
        await server.stop()


@asynccontextmanager
async def core_gateway() -> AsyncIterator[Gateway]:
    with tempfile.TemporaryDirectory() as directory:
        async with running_claw(Path(directory), ScriptedProvider([LLMResponse(text="ok")])) as claw:
            assert claw.gateway is not None
            sources: list[str] = []
            claw.bus.subscribe("message.inbound", lambda _, turn: sources.append(turn.message["source"]))
            yield Gateway(claw.gateway, claw.bus, sources)


Gateways = Callable[[], AbstractAsyncContextManager[Gateway]]


async def payload_of(ws: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(10):
        payload: dict[str, Any] = json.loads(await ws.recv())["payload"]
    return payload


@both(chapter_gateway, core_gateway)
async def test_a_bad_frame_is_answered_and_the_connection_lives(side: Gateways) -> None:
    async with side() as gateway, gateway.connect() as ws:
        for bad, code in (("{", "bad_json"), (frame("m1", "song"), "bad_message")):
            await ws.send(bad)
            assert (await payload_of(ws))["code"] == code
        await ws.send(frame("m2", "command"))
        assert (await payload_of(ws))["data"]["reply_to"] == "m2"


@both(chapter_gateway, core_gateway)
async def test_a_source_that_the_peer_writes_itself_counts_for_nothing(side: Gateways) -> None:
    async with side() as gateway, gateway.connect() as ws:
        await ws.send(frame("m1", source="ws:boss"))
        await ws.send(frame("m2", "command"))
        while (await payload_of(ws)).get("name") != "command.result":
            pass
        assert gateway.sources[0].startswith("ws:") and gateway.sources[0] != "ws:boss"


@both(chapter_gateway, core_gateway)
async def test_the_pool_holds_a_connection_from_opened_to_closed(side: Gateways) -> None:
    events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with side() as gateway, asyncio.timeout(10):
        gateway.bus.subscribe("connection.*", lambda topic, event: events.put_nowait((topic, event)))
        async with gateway.connect():
            topic, connection_id = await events.get()
            assert topic == "connection.opened" and list(gateway.server.connections) == [connection_id]
        assert await events.get() == ("connection.closed", connection_id)
        assert not gateway.server.connections


@both(chapter_gateway, core_gateway)
async def test_a_foreign_web_page_is_refused_before_the_upgrade(side: Gateways) -> None:
    async with side() as gateway:
        with pytest.raises(InvalidStatus):
            await gateway.connect(origin="https://evil.example").__aenter__()


@both(chapter_gateway, core_gateway)
async def test_a_frame_over_the_limit_closes_with_1009(side: Gateways) -> None:
    async with side() as gateway, gateway.connect() as ws:
        with pytest.raises(ConnectionClosed) as caught:
            await ws.send(" " * (1024 * 1024 + 1))
            await payload_of(ws)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009


@both(chapter_gateway, core_gateway)
async def test_stopping_closes_connections_with_1001_and_may_be_done_twice(side: Gateways) -> None:
    async with side() as gateway, gateway.connect() as ws:
        await gateway.server.stop()
        with pytest.raises(ConnectionClosed) as caught:
            await payload_of(ws)
        await gateway.server.stop()
        assert gateway.server.port is None
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1001
