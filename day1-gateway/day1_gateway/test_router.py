"""路由：每条消息都有结果，从不抛出。"""

import logging

import pytest

from day1_gateway import (
    ErrorPayload,
    GatewayMessage,
    MessageRouter,
    MessageType,
    ProtocolError,
    TextPayload,
    event_message,
)

MESSAGE = GatewayMessage(
    msg_id="m1", msg_type=MessageType.TEXT, source="ws:con_1", payload=TextPayload(text="4471")
)


async def answer(inbound: GatewayMessage) -> GatewayMessage:
    return event_message("turn.finished", {"text": "已发货"}, target=inbound.source)


async def refuse(inbound: GatewayMessage) -> GatewayMessage:
    raise ProtocolError("not_found", "There is no order 9999.")


async def break_down(inbound: GatewayMessage) -> GatewayMessage:
    raise RuntimeError("password=123")


def refusal_of(reply: GatewayMessage | None) -> ErrorPayload:
    assert reply is not None and isinstance(reply.payload, ErrorPayload)
    assert (reply.target, reply.payload.reply_to) == ("ws:con_1", "m1")
    return reply.payload


async def test_the_handler_of_the_type_answers() -> None:
    router = MessageRouter()
    router.register(MessageType.TEXT, answer)
    reply = await router.route(MESSAGE)
    assert reply is not None and reply.target == "ws:con_1"


async def test_a_type_without_a_handler_is_refused() -> None:
    assert refusal_of(await MessageRouter().route(MESSAGE)).code == "unsupported"


async def test_a_refusal_of_the_handler_is_passed_on() -> None:
    router = MessageRouter()
    router.register(MessageType.TEXT, refuse)
    payload = refusal_of(await router.route(MESSAGE))
    assert (payload.code, payload.message) == ("not_found", "There is no order 9999.")


async def test_a_refusal_with_half_a_character_can_be_sent() -> None:
    async def refuse_oddly(inbound: GatewayMessage) -> GatewayMessage:
        raise ProtocolError("not_found", "There is no order \ud800.")

    router = MessageRouter()
    router.register(MessageType.TEXT, refuse_oddly)
    assert refusal_of(await router.route(MESSAGE)).message == "There is no order ?."


async def test_a_broken_handler_is_answered_without_telling_why(caplog: pytest.LogCaptureFixture) -> None:
    router = MessageRouter()
    router.register(MessageType.TEXT, break_down)
    with caplog.at_level(logging.ERROR):
        payload = refusal_of(await router.route(MESSAGE))
    assert payload.code == "internal"
    assert "password" not in payload.message and "password" in caplog.text


def test_a_type_has_one_handler() -> None:
    router = MessageRouter()
    router.register(MessageType.TEXT, answer)
    with pytest.raises(ValueError, match="has a handler already"):
        router.register(MessageType.TEXT, answer)
