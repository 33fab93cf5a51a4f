"""运行：pytest exercises/test_2_add.py"""

from typing import Any

import pytest

from day1_gateway import (
    CommandPayload,
    ErrorPayload,
    EventPayload,
    GatewayMessage,
    MessageRouter,
    MessageType,
)
from ex_2_add import command

HINT = "提示：先看 args 里有没有 id，再查 ORDERS；拒绝用 ProtocolError，回答用 command_result。"


async def payload_of(args: dict[str, Any], name: str = "order") -> object:
    router = MessageRouter()
    router.register(MessageType.COMMAND, command)
    payload = CommandPayload(name=name, args=args)
    message = GatewayMessage(msg_id="m1", msg_type=MessageType.COMMAND, source="ws:con_1", payload=payload)
    reply = await router.route(message)
    assert reply is not None and reply.target == "ws:con_1"
    return reply.payload


async def test_an_order_is_told() -> None:
    payload = await payload_of({"id": "4471"})
    assert isinstance(payload, EventPayload), HINT
    assert payload.data["result"] == {"state": "已发货"}, HINT


@pytest.mark.parametrize(("args", "code"), [({"id": "9999"}, "not_found"), ({}, "bad_arguments")])
async def test_what_cannot_be_told_is_refused(args: dict[str, Any], code: str) -> None:
    payload = await payload_of(args)
    assert isinstance(payload, ErrorPayload) and payload.code == code, HINT


async def test_other_commands_are_still_unknown() -> None:
    payload = await payload_of({}, "dance")
    assert isinstance(payload, ErrorPayload) and payload.code == "unknown_command"
