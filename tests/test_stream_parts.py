"""Events, thoughts, printed calls and arguments: whatever the pieces of the same bytes, the same comes out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw.agent import arguments, call_forms
from miniclaw.agent import printed as printed_calls
from miniclaw.agent.arguments import parse_call, read_arguments
from miniclaw.agent.call_forms import Form
from miniclaw.agent.printed import find_calls
from miniclaw.agent.sse import MOST_BYTES, EventReader, read_json
from miniclaw.agent.text_calls import CallFilter
from miniclaw.agent.thinking import ThinkSplitter, split_unopened
from miniclaw.errors import ModelError
from miniclaw.session.history import parse_arguments

OFFERED: dict[str, dict[str, Any]] = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {},
}


def cut(text: Any, places: set[int]) -> list[Any]:
    """A text or bytes in pieces."""
    marks = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in zip(marks, marks[1:], strict=False)]


PLACES = st.sets(st.integers(0, 200), max_size=12)

# --- events -----------------------------------------------------------------------------------------------

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
VALUES = st.recursive(
    st.integers(-9, 9) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=3,
)
NOISE = st.sampled_from(
    [": ping", "event: message", "id: 7", "retry: 3", "data: null", "data:", "data: : ping"]
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """The bytes of a stream, and the values in it."""
    values = draw(st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=2), max_size=4))
    lines: list[str] = []
    for value in values:
        lines += draw(st.lists(NOISE, max_size=2))
        text = json.dumps(value, indent=draw(st.sampled_from([None, 1])), ensure_ascii=draw(st.booleans()))
        lines += [f"data: {line}" for line in text.split("\n")]
        lines += [""] * draw(st.integers(1, 2))
    end = draw(LINE_ENDS)
    mark = "\ufeff" if draw(st.booleans()) else ""
    return (mark + "".join(line + end for line in lines)).encode(), values


@given(streams(), PLACES)
def test_events_are_the_same_however_their_bytes_are_cut(
    stream: tuple[bytes, list[Any]], places: set[int]
) -> None:
    raw, values = stream
    reader = EventReader()
    found = [value for piece in cut(raw, places) for value in reader.feed(piece)]
    assert found + reader.finish() == values
    assert not reader.is_one_body


@given(VALUES.filter(lambda value: isinstance(value, dict)), PLACES, st.sampled_from([None, 2]))
def test_a_body_that_is_no_stream_is_one_value(value: Any, places: set[int], indent: int | None) -> None:
    reader = EventReader()
    found = [
        each
        for piece in cut(json.dumps(value, indent=indent).encode(), places)
        for each in reader.feed(piece)
    ]
    assert (found, reader.finish(), reader.is_one_body) == ([], [value], True)


@given(st.binary(max_size=60), PLACES)
def test_whatever_bytes_come_there_are_values_or_a_model_error(raw: bytes, places: set[int]) -> None:
    reader = EventReader()
    try:
        for piece in cut(raw, places):
            reader.feed(piece)
        reader.finish()
    except ModelError as error:
        assert (error.code, error.kind) == ("model_error", "bad_stream")


def test_the_end_is_known_and_an_error_event_is_an_error() -> None:
    reader = EventReader()
    assert reader.feed(b'event: error\ndata: {"message": "m"}\n\nevent: error\ndata: {"error": 1}\n\n') == [
        {"error": {"message": "m"}},
        {"error": 1},
    ]
    assert reader.feed(b'data: {"message": "m"}\n') == [{"message": "m"}]
    assert not reader.is_done
    assert reader.feed(b"data: [DONE]\n\n") == [] and reader.is_done


def test_broken_utf8_and_half_surrogates_are_read() -> None:
    assert read_json(b'{"a": "x\xffy"}') == {"a": "x\ufffdy"}
    assert read_json(b'{"a": "\\ud83d"}') == {"a": "\ud83d"}


def test_an_event_without_an_end_is_given_up() -> None:
    reader = EventReader()
    with pytest.raises(ModelError, match="without an end"):
        for _ in range(3):
            reader.feed(b"data: " + b"x" * (MOST_BYTES // 2))


def test_what_is_behind_the_end_of_a_stream_is_not_read() -> None:
    reader = EventReader()
    assert reader.feed(b'data: 1\n\ndata: [done]\n\ndata: {"error": "late"}\n\n') == [1]
    assert reader.is_done and reader.finish() == []


# --- thoughts ---------------------------------------------------------------------------------------------


def split(pieces: list[str]) -> tuple[str, str]:
    splitter = ThinkSplitter()
    text = thoughts = ""
    for piece in pieces:
        shown, thought = splitter.feed(piece)
        text, thoughts = text + shown, thoughts + thought
    shown, thought = splitter.finish()
    return text + shown, thoughts + thought


@pytest.mark.parametrize(
    ("answer", "text", "thoughts"),
    [
        ("<think>\nhm\n</think>\n\nHi", "Hi", "hm"),
        ("\n <think>a b</think>c", "c", "a b"),
        ("<think>\n\n</think>\n\nHi", "Hi", ""),
        ("<think></think>", "", ""),
        ("<think>never ends </thi", "", "never ends </thi"),
        ("<thinking>a</think></thinking>b", "b", "a</think>"),
        ("[THINK]a[/THINK]b", "b", "a"),
        ("Use <think> here </think>", "Use <think> here </think>", ""),
        ("<think>a</think>b <think>c</think>", "b <think>c</think>", "a"),
        ("<think>\n\n</think>\n\n<think>\na\n</think>\n<thinking>b</thinking>\nHi", "Hi", "a\n\nb"),
        ("<think>a</think>\n<", "<", "a"),
        ("<thin", "<thin", ""),
        ("<b>bold</b>", "<b>bold</b>", ""),
        (" \n", " \n", ""),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi  I<|return|>",
            "Hi  I",
            "hm",
        ),
        ("<|channel|>final<|message|>Hi\n", "Hi\n", ""),
        (
            "<|channel|>commentary<|message|>So.<|end|><|start|>assistant to=functions.x",
            "So.<|start|>assistant to=functions.x",
            "",
        ),
        ("<|channel|>", "<|channel|>", ""),
        ("", "", ""),
    ],
)
def test_thoughts_stand_only_at_the_beginning(answer: str, text: str, thoughts: str) -> None:
    assert split([answer]) == split(list(answer)) == (text, thoughts)


TAGGED = st.lists(
    st.sampled_from(
        [
            *("<think>", "</think>", "<thought>", "</thought>", "<thi", " ", "\n", "a", "<", "湖"),
            *("<|channel|>", "analysis<|message|>", "final<|message|>", "<|end|>", "<|start|>assistant"),
        ]
    ),
    max_size=9,
).map("".join)


@given(TAGGED, PLACES)
def test_thoughts_are_the_same_however_the_text_is_cut(text: str, places: set[int]) -> None:
    assert split(cut(text, places)) == split([text])


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("so\n</think>\n\nHi", ("Hi", "so")),
        ("</think>\nHi", ("Hi", "")),
        ("so </think> Hi", ("so </think> Hi", "")),
        ("17*23. Be brief.</think>391", ("391", "17*23. Be brief.")),
        ("That is 42.</think>\n\n42", ("42", "That is 42.")),
        ('they said "hi"</think>**Hi**', ("**Hi**", 'they said "hi"')),
        ("so I answer. </think>\n\nHi", ("Hi", "so I answer.")),
        ("a `tag`\nand ``` x ```, weather.</think>", ("", "a `tag`\nand ``` x ```, weather.")),
        *(
            (text, (text, ""))
            for text in (
                *(
                    "Use `</think>` here",
                    "a `b </think>c` d",
                    "```\nso</think>Hi\n```",
                    "so</think>Hi</think>",
                ),
                *(
                    "It ends at </think>.",
                    'Write "</think>" then',
                    "模型用</think>标签结束思考",
                    "(as </think>)",
                ),
                "It ends at </think>\nas you see",
            )
        ),
        ("<think>a\n</think>\nb", ("<think>a\n</think>\nb", "")),
        ("```\n</think>\n```", ("```\n</think>\n```", "")),
        ("Hi", ("Hi", "")),
    ],
)
def test_a_block_that_the_server_opened_ends_at_a_tag_that_no_sentence_is_about(
    answer: str, parts: tuple[str, str]
) -> None:
    assert split_unopened(answer) == parts


# --- printed calls ----------------------------------------------------------------------------------------


def filtered(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    found = CallFilter(OFFERED)
    shown = "".join(found.feed(piece) for piece in pieces)
    rest, calls = found.finish()
    return shown + rest, calls


SCRAPS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "<function=now>",
            "</function>",
            "```json\n",
        ),
        *(
            '{"name": "now", "arguments": {}}',
            '{"name": "rm", "arguments": {}}',
            '{"name": "',
            "now",
            "```",
            "{",
            "[",
        ),
        *(
            "<invoke name=",
            '"now">',
            "</invoke>",
            "<tool",
            "a",
            " ",
            "\n",
            "<",
            "湖",
            "functions.",
            "[now()]",
        ),
        *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "{}", "<｜tool▁call▁end｜>", "<|tool_call_begin|>", "'"),
    ]
)


@given(st.lists(SCRAPS, max_size=9).map("".join), PLACES)
@example('<tool_call>```json\n{"name": "now", "arguments": {}}', {15})
def test_printed_calls_are_the_same_however_the_text_is_cut(text: str, places: set[int]) -> None:
    assert filtered(cut(text, places)) == filtered([text])


@given(st.lists(SCRAPS, max_size=9).map("".join), PLACES)
def test_what_is_no_call_comes_out_as_it_went_in(text: str, places: set[int]) -> None:
    shown, calls = filtered(cut(text, places))
    assert all(name in OFFERED for name, _ in calls)
    if not calls:
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Hi there", "Hi there"),
        ("a < b", "a < b"),
        ("see <tool_", "see "),
        ("see <tool_box>", "see <tool_box>"),
        ("see <tool_call> tags", "see <tool_call> tags"),
        ("see <tool_call> n", "see "),
        ("see <tool_call>\n{", "see "),
        ('{"name": "get_', ""),
        ('{"name": "get_x', '{"name": "get_x'),
        ('{"title": "x"}', '{"title": "x"}'),
        ("{1", "{1"),
        ("``", ""),
        ("```json\n{", ""),
        ("```json\nx", "```json\nx"),
        ("```rust", "```rust"),
        ("[get_w", ""),
        ("[link](x)", "[link](x)"),
        ('[{"na', ""),
        ("[TOOL_C", ""),
    ],
)
def test_only_what_may_still_become_a_call_is_held_back(text: str, shown: str) -> None:
    assert CallFilter(OFFERED).feed(text) == shown


class Counting:
    """A pattern that counts the characters that it goes over."""

    steps = 0

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def match(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.match(text, start)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        found = self._pattern.search(text, start)
        Counting.steps += (found.end() if found else len(text)) - start
        return found


STALLING = [
    '<invoke name="now">',
    "<function=now>",
    "<tool_call> now <arg_key>",
    '<invoke name="now"><parameter name="a">',
    "<|python_tag|>now(",
    "<tool_call>{'a': ",
    "<|tool_call_begin|>now<|tool_call_argument_begin|>",
    '<tool_call>{"name": "now", "arguments": {}}',
]


@pytest.mark.parametrize("part", STALLING)
def test_the_work_grows_no_faster_than_the_text(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    counting: Any = Counting
    counted = [
        Form(counting(head), counting(close), each and (counting(each[0]), counting(each[1])))
        for head, close, each in call_forms.FORMS
    ]
    monkeypatch.setattr(printed_calls, "FORMS", counted)
    monkeypatch.setattr(printed_calls, "MOST_LOOKED", 10**9)

    def counted_reader(real: Any) -> Any:
        def read(text: str, *more: Any) -> Any:
            Counting.steps += len(text)
            return real(text, *more)

        return read

    for name in ("python_dict", "code_calls"):
        monkeypatch.setattr(printed_calls, name, counted_reader(getattr(arguments, name)))
    for text in (part * 1_000, f'<invoke name="now">{part * 1_000}</invoke>'):
        Counting.steps = 0
        find_calls(text, OFFERED)
        assert Counting.steps <= 4 * len(text)


def test_of_many_printed_calls_only_the_first_are_looked_at() -> None:
    printed = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert len(find_calls(printed * 500, OFFERED)[0]) == printed_calls.MOST_LOOKED


def test_of_a_long_text_only_the_end_is_searched() -> None:
    printed, long = "<function=now></function>", "x" * printed_calls.LONGEST
    assert find_calls(f"{printed}{long}", OFFERED) == ([], f"{printed}{long}")
    assert find_calls(f"{long}{printed}", OFFERED) == ([("now", "{}")], long)


@pytest.mark.parametrize("part", [*STALLING, "[", "<", "{ ", " ", '{"name": "now", "arguments": {"a": "x'])
@pytest.mark.parametrize("size", [4, 200_000])
def test_holding_back_looks_at_each_character_a_few_times_and_ends(
    monkeypatch: pytest.MonkeyPatch, part: str, size: int
) -> None:
    judged = 0
    real = CallFilter._judge

    def judge(self: CallFilter) -> str:
        nonlocal judged
        judged += len(self._held)
        return real(self)

    monkeypatch.setattr(CallFilter, "_judge", judge)
    text = (part * 200_000)[:200_000]
    found = CallFilter(OFFERED)
    shown = "".join(found.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert judged <= 10 * len(text)
    assert shown == text or text.isspace() or len(text) - len(shown) < 200
    assert (shown + found.finish()[0]) == text


def test_values_of_printed_arguments_have_the_type_of_the_schema() -> None:
    def element(key: str, value: str) -> str:
        return f"<parameter={key}>{value}</parameter>"

    parts = (
        element("city", "12")
        + element("days", "3")
        + element("more", '{"a": [1]}')
        + element("free", "so so")
    )
    calls, text = find_calls(f"<function=get_weather>{parts}</function>", OFFERED)
    assert [json.loads(raw) for _, raw in calls] == [
        {"city": "12", "days": 3, "more": {"a": [1]}, "free": "so so"}
    ]
    assert text == ""


@pytest.mark.parametrize(
    "text",
    [
        "[now(1)]",
        "[other()]",
        "[now(a=b)]",
        "[now(",
        '{"name": "now"}',
        '{"name": "now", "arguments": 5}',
        '{"name": "now", "arguments": {}} and more',
        '[{"name": "now", "arguments": {}}, 7]',
        "<tool_call>[1]</tool_call>",
        "<tool_call>{'name': </tool_call>",
        "<function=other>{}</function>",
    ],
)
def test_what_is_nearly_a_call_is_text(text: str) -> None:
    assert find_calls(text, OFFERED) == ([], text)


# --- arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ("{}", {}),
        ('{"a":1}\n</tool_call>', {"a": 1}),
        ('{"a":1}}', {"a": 1}),
        ('{"a":1} as you asked', {"a": 1}),
        ('{"a":1}<|im_end|>', {"a": 1}),
        ('```json\n{"a":1}\n```', {"a": 1}),
        ('```\n{"a":1}```', {"a": 1}),
        ('"{\\"a\\":1}"', {"a": 1}),
        ('"```json\\n{\\"a\\":1}\\n```"', {"a": 1}),
        ('{"a":1}{"a":1}', {"a": 1}),
        ('{}{"a":1}', {"a": 1}),
        ('{"a":"x\ny"}', {"a": "x\ny"}),
        ("{'a': True, 'b': None,}", {"a": True, "b": None}),
        ("{'a': true, \"b\": null}", {"a": True, "b": None}),
        ("{'a': '\\d'}", {"a": "\\d"}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a":1}{"b":2}', None),
        ('{"a":1}{"b":', None),
        ('{"a": ', None),
        ('{"a": "x', None),
        ('{"city": Paris"}', None),
        ("{'a': Paris}", None),
        ("{'a': {1, 2}}", None),
        ("{'a': b'x'}", None),
        ("{'a': open('x')}", None),
        ("{'a': 1j}", None),
        ("[1, 2]", None),
        ('"str"', None),
        ('"', None),
        ("7", None),
        ("true", None),
        ('{"a": NaN}', None),
        ("{'a': 1e999}", None),
        ("so: {}", None),
        ("{" * 400, None),
        ('{"a":' * 9000 + "1" + "}" * 9000, None),
        ("{'a': " + "'x' " * 9000 + "}", None),
    ],
    ids=lambda value: str(value)[:24],
)
def test_arguments_are_what_is_certainly_meant_and_nothing_else(
    raw: str, arguments: dict[str, Any] | None
) -> None:
    assert read_arguments(raw) == arguments


@given(st.text(st.sampled_from("{}[]\"':,ab1\\ \nTrueNonull`"), max_size=24))
def test_arguments_that_were_read_are_sound_json_from_then_on(raw: str) -> None:
    call = parse_call("c", "f", raw)
    if call.arguments is None:
        assert call.raw == raw
    else:
        assert parse_arguments(call.raw) == call.arguments
        assert parse_call("c", "f", call.raw) == call


@given(st.dictionaries(st.text("abc", max_size=3), st.integers() | st.text(max_size=4), max_size=3))
def test_sound_json_is_left_as_it_is(arguments: dict[str, Any]) -> None:
    raw = json.dumps(arguments, ensure_ascii=False)
    if "\\u" not in raw and parse_arguments(raw) is not None:
        assert parse_call("c", "f", raw).raw == raw
        assert read_arguments(raw + "}") == read_arguments(f"```\n{raw}\n```") == arguments
