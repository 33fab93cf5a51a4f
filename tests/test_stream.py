"""A streamed answer put together, however a server numbers, names and cuts it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.adapt import fit_tools
from miniclaw.agent.answer import AnswerBuilder, usage_of
from miniclaw.agent.arguments import parse_call
from miniclaw.agent.providers import LLMChunk, LLMResponse
from miniclaw.agent.quirks import Quirks
from miniclaw.agent.responses import ResponsesAssembler
from miniclaw.agent.sse import EventReader
from miniclaw.agent.stream import ChatAssembler
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import has_unreadable

Piece = dict[str, Any]

PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(PLAIN, JSON, max_size=4)


def piece(
    arguments: object = None, *, index: object = None, call_id: object = None, name: object = None
) -> Piece:
    """A piece of a call with only the fields that are given."""
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not None}
    found: Piece = {"function": function} if function else {}
    return {**found, **{k: v for k, v in {"index": index, "id": call_id}.items() if v is not None}}


def chunk(*calls: Piece, finish: str | None = None, **delta: Any) -> Piece:
    if calls:
        delta["tool_calls"] = list(calls)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def assembled(*chunks: object, offered: tuple[str, ...] = ()) -> LLMResponse:
    assembler = ChatAssembler(AnswerBuilder("m", offered={name: {} for name in offered}))
    for each in chunks:
        assembler.feed(each)
    assembler.rest()
    return assembler.finish()


def calls_of(*pieces: Piece) -> list[tuple[str, dict[str, Any] | None]]:
    """Names and arguments that come of pieces in a chunk each."""
    response = assembled(*map(chunk, pieces), chunk(finish="tool_calls"))
    return [(call.name, call.arguments) for call in response.tool_calls]


# --- text -------------------------------------------------------------------------------------------------


def test_text_and_reasoning_are_shown_piece_by_piece_and_joined_at_the_end() -> None:
    assembler = ChatAssembler()
    chunks = [
        chunk(role="assistant", content=""),
        chunk(reasoning_content="hmm"),
        chunk(reasoning=" well"),
        chunk(content="he", reasoning="!"),
        chunk(content="llo"),
        chunk(finish="stop"),
    ]
    shown = [assembler.feed(each) for each in chunks]
    assert [(c.text, c.reasoning) if c else None for c in shown] == [
        None,
        ("", "hmm"),
        ("", " well"),
        ("he", "!"),
        ("llo", ""),
        None,
    ]
    response = assembler.finish()
    assert (response.text, response.reasoning, response.finish) == ("hello", "hmm well!", "stop")


def test_characters_that_no_store_can_take_become_replacement_characters() -> None:
    response = assembled(chunk(content="a\ud83d"), chunk(reasoning="\0b", finish="stop"))
    assert (response.text, response.reasoning) == ("a\ufffd", "\ufffdb")


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        "text",
        {},
        {"choices": None},
        {"choices": []},
        {"choices": {}},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None}}]},
        {"choices": [{"delta": {"content": 5, "reasoning": [], "tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [None, "x", {}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"id": 5, "function": {"name": 7, "arguments": 9}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x", "index": "0"}]}}]},
        {"choices": [{"finish_reason": {"a": 1}}]},
        {"usage": "none", "error": None},
    ],
)
def test_a_chunk_that_says_nothing_changes_nothing(odd: object) -> None:
    response = assembled(chunk(content="be"), odd, chunk(content="fore"), odd, chunk(finish="stop"), odd)
    assert (response.text, response.tool_calls, response.finish) == ("before", (), "stop")


@given(st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "delta"]), JSON) | JSON, max_size=4))
def test_whatever_json_comes_the_answer_is_one_or_a_model_error(chunks: list[object]) -> None:
    try:
        assembled(*chunks, chunk(content="x", finish="stop"))
    except ModelError as error:
        assert error.code == "model_error"


@given(st.dictionaries(st.sampled_from(["content", "tool_calls", "reasoning", "role"]), JSON), JSON, JSON)
def test_whatever_a_delta_holds_the_answer_is_sound(delta: Any, index: object, name: object) -> None:
    call = {"index": index, "id": name, "function": {"name": name, "arguments": index}}
    response = assembled(chunk(call), {"choices": [{"delta": delta}]}, chunk(content="x", finish="stop"))
    for made in response.tool_calls:
        assert made.name and isinstance(made.name, str) and isinstance(made.raw, str)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("eos", "stop")],
)
def test_the_reason_of_the_end_is_told_in_our_words(reason: str, finish: str) -> None:
    assert assembled(chunk(content="x", finish=reason)).finish == finish


# --- how it ends ------------------------------------------------------------------------------------------


def test_a_stream_that_ends_without_anything_is_a_cut_one_and_may_be_tried_again() -> None:
    with pytest.raises(ModelError, match="no answer") as cut:
        assembled(chunk(role="assistant"), {"choices": [], "usage": {"prompt_tokens": 3}})
    assert (cut.value.code, cut.value.retryable) == ("model_unreachable", True)


@pytest.mark.parametrize("half", [chunk(content="half an ans"), chunk(piece("{}", index=0, name="f"))])
def test_a_stream_that_ends_in_the_middle_is_a_cut_one(half: Piece) -> None:
    with pytest.raises(ModelError, match="cut off") as cut:
        assembled(half)
    assert (cut.value.code, cut.value.retryable) == ("model_unreachable", True)


def test_an_empty_answer_that_says_that_it_ended_is_an_empty_answer() -> None:
    assert assembled(chunk(finish="stop")).text == ""


def test_no_call_of_an_answer_that_reached_its_length_can_run_though_it_be_whole() -> None:
    begun = chunk(piece('{"a": ', index=0, call_id="c", name="f"))
    for rest in ("", "1}"):
        response = assembled(begun, chunk(piece(rest, index=0)), chunk(finish="length"))
        assert [call.arguments for call in response.tool_calls] == [None]
        assert response.finish == "length"


@pytest.mark.parametrize("error", [{"message": "no \ud83d credit."}, "no \ufffd credit", {"code": 7}])
def test_an_error_report_inside_the_stream_is_raised_with_its_sentence(error: object) -> None:
    assembler = ChatAssembler()
    assembler.feed(chunk(content="half"))
    assert assembler.began
    with pytest.raises(ModelError) as raised:
        assembler.feed({"error": error})
    assert raised.value.code == "model_error"
    assert "no \ufffd credit." in str(raised.value) or "7" in str(raised.value)


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        ({"code": "Throttling.RateQuota", "message": "too fast"}, "rate_limited"),
        ({"detail": "no such thing"}, "stream_error"),
        ({"base_resp": {"status_code": 1004, "status_msg": "login fail"}}, "auth"),
    ],
)
def test_a_report_without_the_word_error_inside_the_stream_is_one_too(report: Any, kind: str) -> None:
    with pytest.raises(ModelError) as raised:
        ChatAssembler().feed(report)
    assert raised.value.kind == kind


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def call_item(item_id: str, name: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": f"call_{item_id}",
        "name": name,
        "arguments": "",
    }


def test_items_of_the_responses_api_without_ids_keep_their_arguments_apart() -> None:
    assembler = ResponsesAssembler(AnswerBuilder("m"))
    for place, name in enumerate("fg"):
        item = call_item("x", name) | {"id": None}
        assembler.feed(event("output_item.added", item=item, output_index=place))
    for place, name in enumerate("fg"):
        assembler.feed(event("function_call_arguments.delta", delta=f'{{"at":"{name}"}}', output_index=place))
    assembler.feed(event("completed", response={"status": "completed", "output": []}))
    assert [(c.name, c.arguments) for c in assembler.finish().tool_calls] == [
        ("f", {"at": "f"}),
        ("g", {"at": "g"}),
    ]


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("comes", ["in pieces", "whole", "both"])
def test_arguments_of_the_responses_api_belong_to_their_call(is_indexed: bool, comes: str) -> None:
    """Servers leave the index out, or send the arguments only when they are done."""
    assembler = ResponsesAssembler(AnswerBuilder("m"))
    events = []
    for place, (item_id, name) in enumerate([("a", "f"), ("b", "g")]):
        where: dict[str, Any] = {"output_index": place} if is_indexed else {}
        events.append(event("output_item.added", item=call_item(item_id, name), **where))
    for place, item_id in enumerate("ab"):
        where = {"item_id": item_id, **({"output_index": place} if is_indexed else {})}
        arguments = f'{{"x":"{item_id}"}}'
        if comes != "whole":
            events += [event("function_call_arguments.delta", delta=d, **where) for d in arguments]
        if comes != "in pieces":
            events.append(event("function_call_arguments.done", arguments=arguments, **where))
    for one in [*events, event("completed", response={"status": "completed", "output": []})]:
        assembler.feed(one)
    calls = assembler.finish().tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("f", {"x": "a"}), ("g", {"x": "b"})]


def test_a_text_of_the_responses_api_that_comes_only_at_its_end_is_the_answer() -> None:
    assembler = ResponsesAssembler(AnswerBuilder("m"))
    shown = [
        chunk.text
        for one in (
            event("output_text.done", text="hello"),
            event("completed", response={"status": "completed", "output": []}),
        )
        if (chunk := assembler.feed(one))
    ]
    assert (shown, assembler.finish().text) == (["hello"], "hello")


# --- usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(4))
def test_usage_counts_wherever_it_stands(place: int) -> None:
    chunks = [chunk(content="a"), chunk(content="b"), chunk(finish="stop")]
    chunks.insert(place, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    usage = assembled(*chunks).usage
    assert (usage.input_tokens, usage.output_tokens, usage.model, usage.calls) == (7, 3, "m", 1)


def test_usage_beside_a_delta_counts_and_the_last_one_wins() -> None:
    first = {**chunk(content="a"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    last = {**chunk(finish="stop"), "usage": {"input_tokens": 9, "output_tokens": 2}}
    usage = assembled(first, last).usage
    assert (usage.input_tokens, usage.output_tokens) == (9, 2)


@pytest.mark.parametrize("absurd", [float("inf"), 10**30])
def test_an_absurd_count_makes_all_of_them_unknown(absurd: object) -> None:
    usage = usage_of({"prompt_tokens": absurd, "completion_tokens": 2.0}, "m")
    assert (usage.input_tokens, usage.output_tokens) == (0, 0)


@pytest.mark.parametrize("odd", [None, "seven", "-7", -1, [], float("nan")])
def test_a_count_that_is_none_is_zero(odd: object) -> None:
    usage = usage_of({"prompt_tokens": odd, "completion_tokens": 2.0}, "m")
    assert (usage.input_tokens, usage.output_tokens) == (0, 2)


def test_a_count_that_is_written_as_a_text_is_a_count() -> None:
    usage = usage_of({"prompt_tokens": "4000", "completion_tokens": 5}, "m")
    assert (usage.input_tokens, usage.output_tokens) == (4000, 5)


# --- calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        pytest.param(
            [piece('{"a"', index=0, call_id="c1", name="f"), piece(":1}", index=0)],
            [("f", {"a": 1})],
            id="as OpenAI does",
        ),
        pytest.param(
            [
                piece('{"a"', index=0, call_id="c1", name="f"),
                piece('{"b"', index=1, call_id="c2", name="g"),
                piece(":1}", index=0),
                piece(":2}", index=1),
            ],
            [("f", {"a": 1}), ("g", {"b": 2})],
            id="calls interleaved by index",
        ),
        pytest.param(
            [piece('{"a"', call_id="c1", name="f"), piece(":1}"), piece("{}", call_id="c2", name="g")],
            [("f", {"a": 1}), ("g", {})],
            id="no index, then another id",
        ),
        pytest.param(
            [piece('{"a"', call_id="c1", name="f"), piece(":1}", call_id="c1")],
            [("f", {"a": 1})],
            id="no index, the id in every piece",
        ),
        pytest.param(
            [piece('{"a"', name="f"), piece(":1}"), piece('{"a":2}', name="f"), piece("{}", name="g")],
            [("f", {"a": 1}), ("f", {"a": 2}), ("g", {})],
            id="neither index nor id",
        ),
        pytest.param(
            [piece('{"a":1}', index=0, call_id="c1", name="f"), piece("{}", index=0, call_id="c2", name="f")],
            [("f", {"a": 1}), ("f", {})],
            id="the same index for every call",
        ),
        pytest.param(
            [piece('{"a":1}', index=0, name="f"), piece('{"a":2}', index=0, name="f")],
            [("f", {"a": 1}), ("f", {"a": 2})],
            id="the same index and no id",
        ),
        pytest.param(
            [
                piece('{"a":1}', index=0, call_id="", name="f"),
                piece('{"b":1}', index=1, call_id="", name="g"),
            ],
            [("f", {"a": 1}), ("g", {"b": 1})],
            id="empty ids",
        ),
        pytest.param(
            [piece('{"a":1}', call_id="c", name="f"), piece('{"b":1}', call_id="c", name="g")],
            [("f", {"a": 1}), ("g", {"b": 1})],
            id="the same id for two calls",
        ),
        pytest.param(
            [piece(index=0, call_id="c", name="now"), piece(index=1, call_id="c", name="ping")],
            [("now", {}), ("ping", {})],
            id="the same id for two calls without arguments",
        ),
        pytest.param(
            [piece('{"a"', index=0, call_id="c1", name="f"), piece(":1", index=1), piece("}", index=2)],
            [("f", {"a": 1})],
            id="an index that counts pieces",
        ),
        pytest.param(
            [
                piece('{"a"', index=0, call_id="c1", name="f"),
                piece(":1}", index=1, call_id="c1", name="f"),
                piece("{}", index=2, call_id="c2", name="f"),
            ],
            [("f", {"a": 1}), ("f", {})],
            id="an index that counts pieces, id and name in each",
        ),
        pytest.param(
            [piece(index=1, call_id="c1", name="f"), piece('{"a":1}', index=1)],
            [("f", {"a": 1})],
            id="an index from one",
        ),
        pytest.param(
            [piece('{"a"', index=0, call_id="c", name="f"), piece(":1}", index=0, call_id="c", name="f")],
            [("f", {"a": 1})],
            id="id and name in every piece",
        ),
        pytest.param(
            [piece('{"a"', name="f"), piece(":1}", name="f")],
            [("f", {"a": 1})],
            id="only the name in every piece",
        ),
        pytest.param(
            [piece("{}", index=0, call_id="c", name="f"), piece("", index=0, call_id="c", name="f")],
            [("f", {})],
            id="an empty piece at the end",
        ),
        pytest.param(
            [piece(index=0, call_id="c", name="get_"), piece(index=0, name="weather"), piece("{}", index=0)],
            [("get_weather", {})],
            id="a name in two pieces",
        ),
        pytest.param(
            [piece('{"a":1}', name="f"), piece(index=0)],
            [("f", {"a": 1})],
            id="a piece without anything",
        ),
        pytest.param([piece('{"a":1}', index=0, call_id="c")], [], id="a call that never gets a name"),
        pytest.param(
            [
                piece('{"a"', index=0, call_id="c", name="f"),
                piece(":1}", index=0),
                piece('{"a":1}', index=0, call_id="c", name="f"),
            ],
            [("f", {"a": 1})],
            id="pieces and then the whole call once more",
        ),
    ],
)
def test_calls_are_told_apart_however_they_are_numbered(
    pieces: list[Piece], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert calls_of(*pieces) == calls


def test_pieces_of_one_chunk_that_have_names_are_calls_of_their_own() -> None:
    for index in (None, 0):
        for call_id in (None, "", "same"):
            pieces = [piece(index=index, call_id=call_id, name=name) for name in ("f", "f", "g")]
            response = assembled(chunk(*pieces, finish="stop"))
            assert [call.name for call in response.tool_calls] == ["f", "f", "g"]


@pytest.mark.parametrize(
    ("arguments", "read", "raw"),
    [
        ({"a": "湖"}, {"a": "湖"}, '{"a": "湖"}'),
        (None, {}, "{}"),
        ("", {}, "{}"),
        (" \n", {}, "{}"),
        (' {"a": 1}\n', {"a": 1}, '{"a": 1}'),
        ('{"a": ', None, '{"a":'),
        ("[1]", None, "[1]"),
        ("null", {}, "{}"),
        ([1], None, "[1]"),
        (7, None, "7"),
        ({}, {}, "{}"),
        ('{"a": NaN}', None, '{"a": NaN}'),
        ('{"a":' * 300 + "1" + "}" * 300, None, '{"a":' * 300 + "1" + "}" * 300),
        ('{"a":' * 9000 + '"\\ud83d"' + "}" * 9000, None, '{"a":' * 9000 + '"\\ud83d"' + "}" * 9000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments_are_an_object_or_known_not_to_be_one(
    arguments: object, read: dict[str, Any] | None, raw: str
) -> None:
    (call,) = assembled(chunk(piece(arguments, index=0, call_id="c", name="f"), finish="stop")).tool_calls
    assert (call.arguments, call.raw) == (read, raw)


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    response = assembled(chunk(piece(name="f"), piece(name="g"), finish="tool_calls"))
    ids = [call.id for call in response.tool_calls]
    assert all(ids) and len(set(ids)) == 2


@given(ARGUMENTS, st.data())
def test_any_cutting_of_a_calls_arguments_gives_the_same_call(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    raw = json.dumps(
        arguments, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1]))
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=6)) | {0, len(raw)})
    marks: Piece = data.draw(
        st.sampled_from([{"index": 0, "call_id": "c"}, {"call_id": "c"}, {"index": 0}, {"index": 3}, {}])
    )
    named_in_each = data.draw(st.booleans())
    pieces = [
        piece(raw[start:end], **marks, name="f" if named_in_each or not number else None)
        for number, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False))
    ]
    assert calls_of(*pieces) == [("f", arguments)]


@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.data())
def test_calls_whose_pieces_are_mixed_by_index_stay_whole(
    calls: list[dict[str, Any]], data: st.DataObject
) -> None:
    waiting = []
    for index, arguments in enumerate(calls):
        raw = json.dumps(arguments)
        half = data.draw(st.integers(0, len(raw)))
        waiting.append(
            [
                piece(raw[:half], index=index, call_id=f"c{index}", name=f"f{index}"),
                piece(raw[half:], index=index),
            ]
        )
    pieces = []
    while waiting:
        chosen = data.draw(st.sampled_from(waiting))
        pieces.append(chosen.pop(0))
        waiting = [each for each in waiting if each]
    assert sorted(calls_of(*pieces)) == [(f"f{index}", call) for index, call in enumerate(calls)]


@given(
    st.dictionaries(
        st.text(st.characters(categories=["Cs", "Ll"]), max_size=4),
        st.text(st.sampled_from(["\ud83d", "\ude00", "\0", "a", "\\"]), max_size=6)
        | st.lists(st.text(st.sampled_from(["\ud83d", "b"]), max_size=3), max_size=2),
        max_size=3,
    )
)
def test_escapes_never_bring_a_lone_surrogate_or_nul_through(arguments: dict[str, Any]) -> None:
    raw = json.dumps(arguments)
    call = parse_call("c", "f", raw)
    assert call.arguments is not None and not has_unreadable(call.arguments)
    assert not has_unreadable(json.loads(call.raw))
    assert parse_call("c", "f", call.raw) == call
    if not has_unreadable(arguments) and not has_unreadable(json.loads(raw)):
        assert call.arguments == json.loads(raw) and call.raw == raw


def test_a_pair_of_escapes_is_one_character_and_stays() -> None:
    assert parse_call("c", "f", '{"a": "\\ud83d\\ude00"}').arguments == {"a": "😀"}


def test_names_and_ids_hold_nothing_that_no_store_can_take() -> None:
    (call,) = assembled(chunk(piece("{}", index=0, call_id="c\ud83d", name="f\0"), finish="stop")).tool_calls
    assert (call.id, call.name) == ("c\ufffd", "f\ufffd")


# --- answers in one piece ---------------------------------------------------------------------------------


def in_one_piece(body: object) -> LLMResponse:
    assembler = ChatAssembler(AnswerBuilder("m"))
    assembler.feed(body)
    assembler.end()
    assembler.rest()
    return assembler.finish()


def test_an_unstreamed_answer_is_read_the_same_way() -> None:
    message = {
        "content": "hi",
        "reasoning_content": "why",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "f", "arguments": {"a": 2}}},
        ],
    }
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 5}}
    response = in_one_piece(body)
    assert (response.text, response.reasoning, response.usage.input_tokens) == ("hi", "why", 5)
    assert [(call.id, call.arguments) for call in response.tool_calls] == [("c1", {"a": 1}), ("c2", {"a": 2})]
    stored = response.to_message()
    assert stored["tool_calls"][0] == message["tool_calls"][0]
    assert stored["reasoning_content"] == "why"


def test_a_body_that_came_whole_needs_no_reason_of_its_end() -> None:
    assert in_one_piece({"choices": [{"message": {"content": "hi"}}]}).text == "hi"


@pytest.mark.parametrize("body", [None, "x", [], {}, {"choices": []}, {"error": {"message": "broken"}}])
def test_a_body_that_is_no_completion_is_a_model_error(body: object) -> None:
    with pytest.raises(ModelError) as raised:
        in_one_piece(body)
    assert raised.value.code == "model_error"


# --- what goes back to the server that said it ------------------------------------------------------------


def test_what_a_call_carries_beside_its_name_is_kept_in_its_place() -> None:
    signed = {**piece("{}", index=1, call_id="b", name="f"), "extra_content": {"google": {"s": "x"}}}
    response = assembled(chunk(piece("{}", index=0, call_id="a", name="f"), signed), chunk(finish="stop"))
    assert response.provider_data == {"by": "", "calls": [{}, {"extra_content": {"google": {"s": "x"}}}]}
    assert response.to_message()["provider_data"] == response.provider_data


def test_structured_thoughts_are_put_together_by_their_index() -> None:
    def detail(**fields: Any) -> Piece:
        return chunk(reasoning_details=[fields, "odd"])

    response = assembled(
        detail(type="reasoning.text", index=0, text="a", signature=None),
        detail(type="reasoning.text", index=0, text="b", signature="s"),
        detail(type="reasoning.encrypted", index=1, data="x"),
        detail(type="reasoning.summary", summary="c"),
        chunk(content="hi", finish="stop"),
    )
    assert response.reasoning == "abc"
    assert response.provider_data is not None and response.provider_data["details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
        {"type": "reasoning.summary", "summary": "c"},
    ]


def test_a_plain_answer_has_nothing_that_goes_back() -> None:
    response = assembled(chunk(content="hi", reasoning="hm", finish="stop"))
    assert response.to_message() == {"role": "assistant", "content": "hi"}
    assert LLMChunk() == LLMChunk("", "", None)


# --- schemas that every server takes ----------------------------------------------------------------------

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/N"}},
    "$defs": {
        "N": {"type": "object", "properties": {name: {"$ref": "#/$defs/N"} for name in "abc"}},
    },
}


def simple(schema: dict[str, Any]) -> Any:
    (tool,), _, _ = fit_tools(
        [{"type": "function", "function": {"name": "t", "parameters": schema}}], Quirks(schemas="simple")
    )
    return tool["function"]["parameters"]


def test_a_schema_that_refers_to_itself_stays_small_when_its_references_are_put_in() -> None:
    root = simple(TREE)["properties"]["root"]
    assert root["properties"] == {name: {"type": "object"} for name in "abc"}
    chain = {f"D{n}": {"properties": {k: {"$ref": f"#/$defs/D{n + 1}"} for k in "abcd"}} for n in range(15)}
    wide = {"properties": {"x": {"$ref": "#/$defs/D0"}}, "$defs": {**chain, "D15": {"type": "string"}}}
    assert len(json.dumps(simple(wide))) < 200_000


def test_a_reference_to_a_reference_and_one_with_a_slash_in_its_name_are_followed() -> None:
    defs = {"A": {"$ref": "#/$defs/b~1c"}, "b/c": {"type": "integer"}}
    assert simple({"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": defs})["properties"] == {
        "x": {"type": "integer"}
    }


@pytest.mark.parametrize(
    ("given", "fitted"),
    [
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"prefixItems": [{"type": "integer"}]}, {"type": "array", "items": {"type": "integer"}}),
        ({"type": "array", "items": {}}, {"type": "array", "items": {"type": "string"}}),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b"], "type": "string"}),
        ({"const": 3}, {"type": "integer", "description": "One of: 3"}),
        ({"type": "string", "enum": []}, {"type": "string"}),
        ({"enum": ["a", None, ""]}, {"enum": ["a"], "type": "string"}),
        ({"description": "anything"}, {"description": "anything", "type": "string"}),
        (True, {"type": "string"}),
        ({"type": ["null", "number"]}, {"type": "number"}),
        (
            {"properties": {"a": {}}, "required": ["a", "z"], "oneOf": [{"properties": {"b": True}}]},
            {
                "properties": {"b": {"type": "string"}, "a": {"type": "string"}},
                "required": ["a"],
                "type": "object",
            },
        ),
        (
            {"allOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["a"]}]},
            {"properties": {"a": {"type": "string"}}, "type": "object", "required": ["a"]},
        ),
    ],
)
def test_a_simple_schema_says_each_type_and_loses_none_of_its_own_words(given: Any, fitted: Any) -> None:
    assert simple({"properties": {"x": given}})["properties"]["x"] == fitted
    assert simple({}) == {"type": "object"}
    assert simple({"properties": {"me": {"$ref": "#"}}})["properties"]["me"]["properties"] == {
        "me": {"type": "object"}
    }


def test_half_an_event_behind_others_is_none_and_alone_is_no_json() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"a": 1}\n\ndata: {"b": ') == [{"a": 1}]
    assert reader.finish() == []
    alone = EventReader()
    assert alone.feed(b'data: {"b": ') == []
    with pytest.raises(ModelError, match="not JSON"):
        alone.finish()
