"""协议：进得来的只有说得清的消息。"""

import json

import pytest

from day1_gateway import (
    EventPayload,
    GatewayMessage,
    MessageType,
    ProtocolError,
    TextPayload,
    command_result,
    error_message,
    event_message,
    now,
    parse_frame,
)

FRAME = {"msg_id": "m1", "msg_type": "text", "payload": {"text": "订单 4471 到哪了？"}}


def frame(**changes: object) -> str:
    return json.dumps({**FRAME, **changes}, ensure_ascii=False)


def test_a_client_needs_to_send_three_fields_only() -> None:
    message = parse_frame(frame())
    assert isinstance(message.payload, TextPayload)
    assert (message.msg_id, message.payload.text, message.target) == ("m1", "订单 4471 到哪了？", "agent")


def test_what_was_written_as_json_is_read_back_the_same() -> None:
    for message in (
        parse_frame(frame()),
        event_message("turn.finished", {"text": "2 天后送达"}, target="ws:1", session_id="ses_1"),
        event_message("pong", {}, target="ws:1"),
        command_result("m1", "ping", {}, target="ws:1"),
        error_message("bad_json", "no", target="ws:1", reply_to="m1"),
    ):
        assert GatewayMessage.model_validate_json(message.to_json()) == message


def test_the_payload_is_read_by_the_type_and_not_guessed() -> None:
    event = GatewayMessage.model_validate_json(event_message("pong", {}, target="ws:1").to_json())
    assert isinstance(event.payload, EventPayload)


@pytest.mark.parametrize("data", ["{", "[1]", "nonsense", b"\xff\xfe", '{"a": NaN}', '"\\ud800"'])
def test_what_is_no_json_object_is_bad_json(data: str | bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_frame(data)
    assert caught.value.code == "bad_json"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"payload": {}}, "^`payload.text`: Field required.$"),
        ({"payload": {"text": "  "}}, "text"),
        ({"payload": {"txt": "hi"}}, "text"),
        ({"payload": 5}, "payload"),
        ({"msg_type": "song"}, "msg_type"),
        ({"msg_type": "command", "payload": {"name": ""}}, "name"),
        ({"msg_type": "event", "payload": {"name": "x"}}, "msg_type"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_field_is_named_and_the_message_can_be_told_by_its_id(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ProtocolError, match=named) as caught:
        parse_frame(frame(**changes))
    assert (caught.value.code, caught.value.reply_to) == ("bad_message", "m1")


def test_an_unusable_id_is_not_repeated() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_frame(frame(msg_id="a b"))
    assert caught.value.reply_to is None


def test_the_types_are_the_four_of_the_protocol() -> None:
    assert [str(one) for one in MessageType] == ["text", "command", "event", "error"]


def test_times_are_utc_with_milliseconds() -> None:
    assert now()[-5] == "." and now().endswith("Z")
