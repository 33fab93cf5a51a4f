"""The message protocol: what is taken from a peer, how a refusal is said, what goes over the wire."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import ProtocolError
from miniclaw.gateway.events import event_frame
from miniclaw.gateway.protocol import (
    ERROR_CODES,
    CommandPayload,
    ErrorPayload,
    EventPayload,
    GatewayMessage,
    Inbound,
    MessageType,
    ReplyTarget,
    TextPayload,
    command_result,
    encode_json,
    error_message,
    format_time,
    has_unreadable,
    new_id,
    now,
    parse_frame,
    plain_text,
)
from tests.support.core import text_message

SIX = {"msg_id", "msg_type", "source", "target", "payload", "timestamp"}

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
"""Any text that can be stored and sent."""
WILD = st.text(st.characters() | st.characters(categories=["Cs"]) | st.just("\0"))
"""Any `str`, also with lone surrogates."""
IDS = st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)
FIELDS = st.sampled_from(
    [
        "msg_id",
        "msg_type",
        "source",
        "target",
        "payload",
        "timestamp",
        "text",
        "name",
        "args",
        "session_id",
        "x",
    ]
)
NEARLY = st.dictionaries(
    FIELDS,
    JSON | st.sampled_from(["text", "command", "event"]) | st.dictionaries(FIELDS, JSON, max_size=4),
    max_size=7,
)
"""Objects that look like frames."""


def frame(msg_type: str = "text", payload: object = None, **more: object) -> str:
    fields = {"msg_id": "m1", "msg_type": msg_type, "payload": payload or {"text": "hi"}, **more}
    return json.dumps(fields)


def refusal(data: str | bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse_frame(data)
    return caught.value


# --- inbound ----------------------------------------------------------------------------------------------


def test_a_text_needs_only_id_type_and_payload() -> None:
    message = parse_frame(frame(payload={"text": "你好 👋"}))
    assert message.payload == TextPayload(text="你好 👋")
    assert (message.msg_id, message.msg_type) == ("m1", "text")


def test_a_command_has_a_name_and_may_have_arguments() -> None:
    message = parse_frame(frame("command", {"name": "history", "args": {"limit": 3, "deep": [{"a": None}]}}))
    assert message.payload == CommandPayload(name="history", args={"limit": 3, "deep": [{"a": None}]})
    assert parse_frame(frame("command", {"name": "ping"})).payload == CommandPayload(name="ping")


def test_bytes_and_text_are_read_the_same() -> None:
    data = frame(payload={"text": "喂", "attachments": [{"id": "upl_1"}], "session_id": "ses_1"})
    assert parse_frame(data) == parse_frame(data.encode())


@given(st.binary(max_size=200) | WILD | JSON.map(json.dumps) | NEARLY.map(json.dumps))
def test_whatever_a_peer_sends_is_a_message_or_a_protocol_error_with_a_code(data: str | bytes) -> None:
    try:
        message = parse_frame(data)
    except ProtocolError as error:
        assert error.code in ("bad_json", "bad_message")
        assert str(error)
    else:
        assert not has_unreadable(message.payload.model_dump())


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_a_text_of_blanks_alone_says_nothing_and_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="payload.text"):
        parse_frame(encode_json({"msg_id": "a", "msg_type": "text", "payload": {"text": text}}))


@given(
    IDS,
    TEXT.filter(str.strip),
    st.none() | TEXT.filter(lambda text: len(text) <= 128),
    st.lists(IDS, max_size=3),
)
def test_every_sound_text_is_taken_as_it_was_sent(
    msg_id: str, text: str, session_id: str | None, files: list[str]
) -> None:
    payload: dict[str, Any] = {"text": text, "attachments": [{"id": file} for file in files]}
    if session_id is not None:
        payload["session_id"] = session_id
    message = parse_frame(json.dumps({"msg_id": msg_id, "msg_type": "text", "payload": payload}))
    assert message.msg_id == msg_id
    assert isinstance(message.payload, TextPayload)
    assert message.payload.text == text
    assert message.payload.session_id == session_id
    assert [attachment.id for attachment in message.payload.attachments] == files


@pytest.mark.parametrize(
    "data",
    ["", "{", "[]", "null", '"text"', "5", "{}x", '{"a":NaN}', '{"a":1', b"\xff", b"\xef\xbb", "[" * 100_000]
    + ['{"a":"\\ud800"}', "\ud800", b'{"a":"\xed\xa0\x80"}'],
)
def test_what_is_no_json_object_is_bad_json(data: str | bytes) -> None:
    assert refusal(data).code == "bad_json"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ('{"msg_type": "text", "payload": {"text": "a"}}', "msg_id"),
        (frame(extra=1), "extra"),
        (frame(payload={"text": "a", "extra": 1}), "payload.extra"),
        (frame(payload={"text": 5}), "payload.text"),
        (frame(payload={"text": ""}), "payload.text"),
        (frame(payload={"nothing": 1}), "payload.text"),
        (frame(payload="text"), "payload"),
        (frame(payload={"text": "a", "session_id": 5}), "payload.session_id"),
        (frame(payload={"text": "a", "attachments": [{"id": "a b"}]}), "payload.attachments.0.id"),
        (frame(channel="system"), "channel"),
        (frame(target="somebody"), "target"),
        (frame(timestamp=5), "timestamp"),
        (frame("command", {"name": ""}), "payload.name"),
        (frame("command", {"name": "x" * 65}), "payload.name"),
        (frame("command", {"name": "ping", "args": []}), "payload.args"),
        (frame("command", {"name": "ping", "text": "a"}), "payload.text"),
    ],
)
def test_a_field_that_is_missing_unknown_or_of_the_wrong_type_is_named(data: str, field: str) -> None:
    error = refusal(data)
    assert error.code == "bad_message"
    assert f"`{field}`" in str(error)


@pytest.mark.parametrize("msg_type", ["event", "error", "nope", "", 5, None, ["text"]])
def test_a_client_sends_texts_and_commands_only(msg_type: Any) -> None:
    assert refusal(frame(msg_type)).code == "bad_message"
    assert refusal('{"msg_id": "m1", "payload": {"text": "a"}}').code == "bad_message"


@pytest.mark.parametrize("msg_id", ["", "a b", "x" * 129, "ü", "a\n", "a/b", 5, None, ["a"]])
def test_an_id_of_another_form_is_refused_and_not_repeated(msg_id: Any) -> None:
    error = refusal(frame(msg_id=msg_id))
    assert error.code == "bad_message"
    assert error.reply_to is None


def test_a_refusal_names_the_message_it_answers_where_its_id_is_sound() -> None:
    assert refusal(frame(payload={"text": 5})).reply_to == "m1"
    assert refusal(frame(msg_id="x" * 128, extra=1)).reply_to == "x" * 128


@pytest.mark.parametrize(
    ("msg_type", "payload"),
    [
        ("text", {"text": "a\x00b"}),
        ("text", {"text": "a", "session_id": "\x00"}),
        ("command", {"name": "a\x00"}),
        ("command", {"name": "remember", "args": {"content": "\x00"}}),
        ("command", {"name": "remember", "args": {"a": [{"b\x00": 1}]}}),
    ],
)
def test_a_nul_character_anywhere_in_the_payload_is_refused(msg_type: str, payload: dict[str, Any]) -> None:
    error = refusal(frame(msg_type, payload))
    assert (error.code, error.reply_to) == ("bad_message", "m1")


def test_the_source_that_a_peer_claims_is_no_part_of_what_it_may_not_send() -> None:
    assert parse_frame(frame(source="admin")).payload == TextPayload(text="hi")


# --- outbound ---------------------------------------------------------------------------------------------


def parsed(message: GatewayMessage) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(message.to_json())
    return fields


@given(
    IDS,
    TEXT,
    st.builds(
        TextPayload,
        text=TEXT.filter(lambda text: text.strip()),
        session_id=st.none() | TEXT.map(lambda text: text[:128]),
    )
    | st.builds(CommandPayload, name=TEXT.map(lambda text: text[:64]).filter(bool), args=OBJECTS)
    | st.builds(
        EventPayload, name=TEXT, session_id=st.none() | TEXT, seq=st.none() | st.integers(0, 99), data=OBJECTS
    )
    | st.builds(
        ErrorPayload, code=st.sampled_from(sorted(ERROR_CODES)), message=TEXT, reply_to=st.none() | IDS
    ),
)
def test_a_message_comes_back_from_the_wire_as_it_went(msg_id: str, source: str, payload: Any) -> None:
    types: dict[type[Any], str] = {
        TextPayload: "text",
        CommandPayload: "command",
        EventPayload: "event",
        ErrorPayload: "error",
    }
    message = GatewayMessage(
        msg_id=msg_id,
        msg_type=MessageType(types[type(payload)]),
        source=source,
        target="web:ses_1",
        payload=payload,
        timestamp=now(),
    )
    assert set(parsed(message)) == SIX
    assert GatewayMessage.model_validate_json(message.to_json()) == message


def test_the_envelope_of_an_inbound_message_does_not_go_over_the_wire() -> None:
    inbound = text_message(
        sender="U1",
        account="T1",
        conversation="C1",
        dedupe=("a", "b"),
        reply_to=ReplyTarget(conversation="C1"),
    )
    assert set(parsed(inbound)) == SIX


def test_a_stored_inbound_message_comes_back_as_it_was_and_ignores_what_it_does_not_know() -> None:
    inbound = text_message(
        "你好", sender="U1", thread="t", dedupe=("a",), reply_to=ReplyTarget(url="https://a.example/")
    )
    stored = inbound.model_dump(mode="json", exclude_none=True)
    assert Inbound.model_validate(json.loads(json.dumps(stored))) == inbound
    assert ReplyTarget.model_validate({"conversation": "C1", "of_a_later_version": 1}).conversation == "C1"


def test_nulls_and_odd_numbers_in_an_events_data_are_json_on_the_wire() -> None:
    frame = event_frame(
        "x", {"none": None, "nan": float("nan"), "big": 1e999, "inner": {"none": None}}, target="t"
    )
    data = json.loads(frame)["payload"]["data"]
    assert data == {"none": None, "nan": None, "big": None, "inner": {"none": None}}


def test_a_command_result_answers_its_command() -> None:
    payload = parsed(command_result("m1", "ping", {"pong": True}, target="web:c1"))["payload"]
    assert payload == {
        "name": "command.result",
        "data": {"reply_to": "m1", "name": "ping", "ok": True, "result": {"pong": True}},
    }


def test_a_message_made_of_valid_fields_is_the_same_as_a_validated_one() -> None:
    fields: dict[str, Any] = {
        "msg_id": "m1",
        "msg_type": MessageType.TEXT,
        "source": "ws:ada",
        "payload": TextPayload(text="hi"),
        "timestamp": now(),
        "channel": "ws",
        "session_id": None,
    }
    made, validated = Inbound.of_valid(**fields), Inbound(**fields)
    assert made == validated
    assert made.model_dump(exclude_unset=True) == validated.model_dump(exclude_unset=True)
    assert made.model_copy(update={"sender": "ada"}) == validated.model_copy(update={"sender": "ada"})
    assert Inbound.of_valid(**fields).files == () and Inbound(**fields) == made  # nothing is shared


def test_an_error_says_code_sentence_and_what_it_answers() -> None:
    message = parsed(error_message("bad_json", "No.", target="web:c1", reply_to="m1"))
    assert message["payload"] == {"code": "bad_json", "message": "No.", "reply_to": "m1"}
    assert (message["msg_type"], message["source"], message["target"]) == ("error", "gateway", "web:c1")
    assert "reply_to" not in parsed(error_message("bad_json", "No.", target="t"))["payload"]


# --- texts, ids, time -------------------------------------------------------------------------------------


@given(WILD)
def test_plain_text_can_be_encoded_and_changes_only_what_cannot_be_read(text: str) -> None:
    plain = plain_text(text)
    plain.encode()
    assert len(plain) == len(text)
    assert not has_unreadable(plain)
    for before, after in zip(text, plain, strict=True):
        assert after == ("\ufffd" if before == "\0" or "\ud800" <= before <= "\udfff" else before)


@pytest.mark.parametrize("value", ["\ud800", "a\x00", ["\udfff"], {"\x00": 1}, {"a": [({"b": "\x00"},)]}])
def test_what_cannot_be_read_is_found_in_texts_lists_keys_and_values(value: object) -> None:
    assert has_unreadable(value)


@pytest.mark.parametrize("value", ["", "😀", "\n\t\x01", [1, None, 2.5, True], {"a": ["b"]}, None, 5])
def test_what_can_be_read_is_let_through(value: object) -> None:
    assert not has_unreadable(value)


@given(JSON)
def test_encoded_json_is_compact_readable_and_means_the_same(value: Any) -> None:
    encoded = encode_json(value)
    assert json.loads(encoded) == value
    assert b"\n" not in encoded


def test_encoded_json_keeps_unicode_readable_and_is_json_whatever_a_tool_put_into_it() -> None:
    assert encode_json({"text": "你好 😀"}) == '{"text":"你好 😀"}'.encode()
    assert encode_json({"a": [float("nan"), float("inf"), 1.5]}) == b'{"a":[null,null,1.5]}'
    assert encode_json({"a": "x\ud800y"}) == '{"a":"x\ufffdy"}'.encode()


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_is_the_same_when_it_is_read_and_written_again(milliseconds: int) -> None:
    text = format_time(milliseconds / 1000)
    moment = datetime.fromisoformat(text)
    assert moment == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    assert format_time(moment.timestamp()) == text


def test_ids_have_their_prefix_are_unique_and_can_be_message_ids() -> None:
    ids = {new_id("turn") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"turn_[0-9a-f]{24}", id) for id in ids)


@given(st.floats(min_value=0, max_value=4e9))
def test_times_are_rfc_3339_in_utc_with_milliseconds(seconds: float) -> None:
    text = format_time(seconds)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert abs(datetime.fromisoformat(text).timestamp() - seconds) < 0.002
    assert datetime.fromisoformat(text).tzinfo == UTC
