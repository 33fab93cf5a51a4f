"""The legal view of a log: whatever happened to a conversation, a model is sent something that it can take."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from miniclaw.session.history import INTERRUPTED, HistoryView, legal, message_tokens, parse_arguments
from miniclaw.session.models import Entry, Session, title_of

Message = dict[str, Any]

# --- any log ----------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "好" * 40, "a b " * 30, "\n\n", "😀😀"]
)
CALL_IDS = st.sampled_from(["a", "b", "c", "a_1", "", "call_0", "call_1"])
ARGUMENTS: st.SearchStrategy[Any] = st.sampled_from(
    [
        "{}",
        '{"x": 1}',
        "",
        "[]",
        "nonsense",
        '{"x":',
        '{"x": NaN}',
        '"{}"',
        "[" * 5000,
        '{"s": "\\ud800"}',
        None,
        {},
        5,
    ]
)
CALLS: st.SearchStrategy[Any] = (
    st.fixed_dictionaries(
        {},
        optional={
            "id": CALL_IDS | st.none() | st.integers(0, 3),
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {}, optional={"name": st.sampled_from(["f", "g", "", None, 5]), "arguments": ARGUMENTS}
            )
            | st.none(),
            "index": st.integers(0, 3),
        },
    )
    | st.none()
    | st.just("call")
)
SOUND_CALLS = st.builds(
    lambda id, name, arguments: {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(["f", "g"]),
    st.sampled_from(["{}", '{"x": 1}']),
)
ODD_CALLS = st.builds(
    lambda id, name, arguments: {"id": id, "function": {"name": name, "arguments": arguments}},
    CALL_IDS | st.none() | st.integers(0, 3),
    st.sampled_from(["f", "g"]),
    ARGUMENTS,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}),
    st.fixed_dictionaries({"role": st.just("system"), "content": TEXT}),
    st.fixed_dictionaries(
        {"role": st.just("assistant")},
        optional={
            "content": TEXT | st.none(),
            "tool_calls": st.lists(SOUND_CALLS | ODD_CALLS | CALLS, max_size=4)
            | st.none()
            | st.just("calls"),
        },
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "tool_calls": st.lists(SOUND_CALLS | ODD_CALLS, min_size=1, max_size=3),
        },
        optional={"content": TEXT | st.none()},
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool")},
        optional={
            "tool_call_id": CALL_IDS | st.none() | st.integers(0, 3) | st.sampled_from(["a", "b", "c", "d"]),
            "content": TEXT | st.none() | st.lists(TEXT, max_size=2) | st.integers(),
        },
    ),
    st.fixed_dictionaries({}, optional={"role": st.sampled_from(["function", "", None, 5]), "content": TEXT}),
)
LOGS = st.lists(MESSAGES, max_size=14)


def call(id: str, name: str = "f", arguments: str = "{}") -> Message:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: str = "hi") -> Message:
    return {"role": "user", "content": text}


def says(text: str = "ok") -> Message:
    return {"role": "assistant", "content": text}


def calls(*ids: str, content: str | None = None) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": [call(id) for id in ids]}


def result(id: str, content: str = "done") -> Message:
    return {"role": "tool", "tool_call_id": id, "content": content}


# --- an independent judge ---------------------------------------------------------------------------------


def refuse_constant(name: str) -> None:
    raise ValueError(name)


def problem_of_call(sent: Any) -> str | None:
    if set(sent) != {"id", "type", "function"} or sent["type"] != "function":
        return f"shape of {sent}"
    if not isinstance(sent["id"], str) or not sent["id"]:
        return f"id of {sent}"
    function = sent["function"]
    if (
        set(function) != {"name", "arguments"}
        or not isinstance(function["name"], str)
        or not function["name"]
    ):
        return f"function of {sent}"
    try:
        arguments = json.loads(function["arguments"], parse_constant=refuse_constant)
    except (ValueError, TypeError) as error:
        return f"arguments of {sent}: {error}"
    return None if isinstance(arguments, dict) else f"arguments of {sent}"


def problem_of_assistant(message: Message) -> str | None:
    if "tool_calls" not in message:
        return None if message.get("content") else "an empty assistant message"
    sent = message["tool_calls"]
    if not sent:
        return "an empty list of calls"
    if len({one["id"] for one in sent}) != len(sent):
        return "two calls of one id"
    return next(filter(None, map(problem_of_call, sent)), None)


def problem(history: list[Message]) -> str | None:
    """What a strict server would refuse about a history, or `None`."""
    expected: set[str] = set()
    for place, message in enumerate(history):
        role = message.get("role")
        if role == "tool":
            if message["tool_call_id"] not in expected or not isinstance(message["content"], str):
                return f"{place}: a result without its call, or that is no text"
            expected.remove(message["tool_call_id"])
        elif expected:
            return f"{place}: calls without results before it: {expected}"
        elif role == "assistant":
            if found := problem_of_assistant(message):
                return f"{place}: {found}"
            expected = {one["id"] for one in message.get("tool_calls", ())}
        elif role not in ("user", "system"):
            return f"{place}: role {role!r}"
    return f"end: calls without results: {expected}" if expected else None


def of_role(messages: list[Message], role: str) -> list[Message]:
    return [message for message in messages if message.get("role") == role]


@pytest.mark.parametrize(
    "history",
    [
        [result("a")],
        [user(), calls("a")],
        [user(), calls("a"), user(), result("a")],
        [user(), calls("a"), result("a"), result("a")],
        [user(), calls("a"), result("b")],
        [user(), calls("a", "a"), result("a"), result("a")],
        [user(), says("")],
        [user(), {"role": "assistant", "content": "x", "tool_calls": []}],
        [user(), {"role": "assistant", "tool_calls": [call("a", arguments="[]")]}, result("a")],
        [user(), {"role": "assistant", "tool_calls": [call("a", arguments='{"x": NaN}')]}, result("a")],
    ],
)
def test_the_judge_of_these_tests_does_refuse_and_the_view_of_it_is_legal(history: list[Message]) -> None:
    assert problem(history) is not None
    assert problem(legal(history)) is None


# --- properties -------------------------------------------------------------------------------------------


@given(LOGS)
@settings(max_examples=150)
def test_the_view_of_any_log_is_legal_and_loses_no_user_message(log: list[Message]) -> None:
    view = legal(log)
    assert problem(view) is None
    for role in ("user", "system"):
        assert of_role(view, role) == of_role(log, role)


@given(LOGS)
def test_the_view_of_a_legal_history_is_that_history(log: list[Message]) -> None:
    view = legal(log)
    assert legal(view) == view


@given(LOGS)
def test_deriving_a_view_changes_nothing_in_the_log(log: list[Message]) -> None:
    before = copy.deepcopy(log)
    view = HistoryView()
    view.extend(log)
    view.messages().append(user("of the caller"))
    view.tail(5)[0].append(user("of the caller"))
    assert log == before
    assert view.messages() == legal(before)


@given(LOGS, st.lists(st.integers(0, 14), max_size=4), st.integers(0, 200))
@settings(max_examples=150)
def test_a_view_that_grew_with_the_log_is_the_view_of_the_whole(
    log: list[Message], cuts: list[int], limit: int
) -> None:
    view, taken = HistoryView(), 0
    for cut in [*sorted(cuts), len(log)]:
        view.extend(log[taken:cut])
        taken = max(taken, cut)
        assert view.messages() == legal(log[:taken])
        view.tail(limit)
    whole = HistoryView()
    whole.extend(log)
    assert view.messages() == whole.messages()
    assert view.tail(limit)[0] == whole.tail(limit)[0]


@given(LOGS, LOGS)
def test_going_on_changes_nothing_before_but_results_that_were_made_up(
    log: list[Message], more: list[Message]
) -> None:
    view = HistoryView()
    view.extend([*log, user()])
    before = view.messages()
    view.extend(more)
    after = view.messages()
    for was, now in zip(before, after, strict=False):
        if was != now:
            assert was["role"] == now["role"] == "tool"
            assert was["content"] == INTERRUPTED
            assert was["tool_call_id"] == now["tool_call_id"]


def expected_tail(history: list[Message], limit: int) -> list[Message]:
    """The longest end that fits and begins with a user message or is everything; else the last turn."""
    starts = [0] + [place for place, message in enumerate(history) if message["role"] == "user"]
    for start in sorted(starts):
        if sum(map(message_tokens, history[start:])) <= limit:
            return history[start:]
    return history[starts[-1] :]


@given(LOGS)
@example([user(), calls("a")])
@example([says(), user(), says("x" * 100)])
@example([says("x" * 100), says("y")])
@example([user(), says("x" * 100), user(), says("y"), user()])
def test_the_tail_is_as_many_whole_turns_as_fit_or_the_last_one_alone(log: list[Message]) -> None:
    view = HistoryView()
    view.extend(log)
    history = view.messages()
    costs = list(map(message_tokens, history))
    edges = {sum(costs[start:]) + more for start in range(len(costs) + 1) for more in (-1, 0, 1)}
    for limit in edges:
        chosen, cost = view.tail(limit)
        assert chosen == expected_tail(history, limit)
        assert problem(chosen) is None
        assert sum(map(message_tokens, chosen)) <= cost
        if cost > limit:
            assert len(of_role(chosen, "user")) <= 1
            assert chosen == history or chosen[0]["role"] == "user"


@given(st.lists(MESSAGES, max_size=4), TEXT, st.sampled_from(["a", "b", "c", "d"]))
@settings(max_examples=200)
def test_messages_never_cost_more_than_they_are_counted_as_together(
    log: list[Message], text: str, id: str
) -> None:
    history = legal(
        [
            *log,
            {
                **calls(id, content=text * 20),
                "tool_calls": [call(id, text[:9] or "f", '{"é\\"": 1}')],
                "reasoning_content": text * 30,
            },
        ]
    )
    view = HistoryView()
    view.extend(history)
    whole, cost = view.tail(10**9)
    assert whole == history
    assert sum(map(message_tokens, history)) <= cost


# --- examples ---------------------------------------------------------------------------------------------


def test_an_unanswered_call_is_answered_as_interrupted_until_its_result_comes() -> None:
    view = HistoryView()
    view.extend([user(), calls("a", "b"), result("b")])
    assert view.messages() == [user(), calls("a", "b"), result("b"), result("a", INTERRUPTED)]
    view.extend([result("a")])
    assert view.messages() == [user(), calls("a", "b"), result("b"), result("a")]


def test_a_result_that_comes_after_the_next_message_takes_its_place() -> None:
    view = HistoryView()
    view.extend([user("1"), calls("a", "b"), user("2")])
    view.tail(1)
    view.extend([result("b", "late b"), says(), result("a", "late a" * 100)])
    assert view.messages() == [
        *(user("1"), calls("a", "b"), result("a", "late a" * 100), result("b", "late b")),
        *(user("2"), says()),
    ]
    counted = sum(map(message_tokens, view.messages()))
    assert view.tail(counted)[0] == view.messages()
    assert view.tail(counted - 1)[0] == [user("2"), says()]


def test_late_results_of_calls_with_one_id_are_taken_in_order() -> None:
    log = [user("1"), calls("a", "a"), user("2"), result("a", "first"), result("a", "second")]
    assert [message["content"] for message in of_role(legal(log), "tool")] == ["first", "second"]


def test_a_late_result_never_goes_to_an_older_call_of_the_same_id() -> None:
    log = [user("1"), calls("a"), user("2"), calls("a"), result("a", "new"), result("a", "again")]
    assert [message["content"] for message in of_role(legal(log), "tool")] == [INTERRUPTED, "new"]


def test_results_without_a_call_and_repeated_results_are_left_out() -> None:
    log = [result("x"), user(), calls("a"), result("a", "1"), result("a", "2"), result("y"), says()]
    assert legal(log) == [user(), calls("a"), result("a", "1"), says()]


def test_ids_are_made_unique_and_results_follow_them() -> None:
    log = [user(), calls("a", "a", ""), result("a", "1"), result("", "3"), result("a", "2")]
    view = legal(log)
    assert problem(view) is None
    ids = [one["id"] for one in view[1]["tool_calls"]]
    assert {message["tool_call_id"]: message["content"] for message in of_role(view, "tool")} == dict(
        zip(ids, ["1", "2", "3"], strict=True)
    )


def test_ids_that_are_numbers_become_texts_on_both_sides() -> None:
    log = [
        user(),
        {"role": "assistant", "tool_calls": [{**call("a"), "id": 7}]},
        {**result("a"), "tool_call_id": 7},
    ]
    assert legal(log) == [user(), {"role": "assistant", "tool_calls": [call("7")]}, result("7")]


def test_arguments_that_are_no_json_object_become_an_empty_one() -> None:
    for bad in ("", "[1]", "nonsense", '{"x": NaN}', "[" * 100_000, '{"a":' * 100_000):
        log = [user(), {"role": "assistant", "tool_calls": [call("a", arguments=bad)]}, result("a")]
        assert legal(log)[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("{}", {}),
        (" {} ", {}),
        ("", None),
        ("[]", None),
        ("1", None),
        ('{"a": NaN}', None),
        ('{"a": Infinity}', None),
        ('{"a": "\\ud800"}', None),
        ("[" * 100_000, None),
        (None, None),
        ({}, None),
    ],
)
def test_arguments_are_read_as_a_json_object_or_not_at_all(raw: object, parsed: object) -> None:
    assert parse_arguments(raw) == parsed


def test_what_only_a_provider_sees_stays_with_its_message_and_its_thoughts_count() -> None:
    private = {"reasoning_content": "hm " * 50, "provider_data": {"by": "x", "calls": [{"s": 1}]}}
    log = [user(), {**calls("a"), **private}, result("a")]
    view = legal(log)
    assert view == log and view[1] is log[1]
    broken = legal([user(), {**calls("a"), **private, "tool_calls": [call("a", "f", "{broken")]}])
    assert {key: broken[1][key] for key in private} == private
    assert message_tokens(log[1]) >= message_tokens(calls("a")) + 50
    assert message_tokens({**calls("a"), "reasoning_content": None}) == message_tokens(calls("a"))


def test_an_empty_assistant_message_is_left_out_and_does_not_end_a_group() -> None:
    log = [user(), calls("a"), says(""), result("a"), {"role": "assistant", "content": "x", "tool_calls": []}]
    assert legal(log) == [user(), calls("a"), result("a"), says("x")]


def test_a_tail_that_cannot_fit_is_the_last_turn_alone_with_its_calls() -> None:
    view = HistoryView()
    view.extend([user("1"), says(), user("2" * 100), calls("a")])
    chosen, cost = view.tail(1)
    assert chosen == [user("2" * 100), calls("a"), result("a", INTERRUPTED)]
    assert cost > 1


def test_the_tail_of_nothing_is_nothing() -> None:
    assert HistoryView().tail(0) == ([], 0)


# --- a session's history ----------------------------------------------------------------------------------


def session_of(*messages: Message) -> Session:
    session = Session(session_id="ses_1", user_id="ann", channel="web")
    session.extend([Entry(f"t{number}", 0, message) for number, message in enumerate(messages)])
    return session


def test_a_sessions_history_follows_its_log() -> None:
    session = session_of(user("1"))
    assert session.history().messages() == [user("1")]
    session.extend([Entry("t1", 0, says())])
    assert session.history().messages() == [user("1"), says()]
    assert session.history() is session.history()


def test_after_a_clear_or_behind_a_summary_the_model_sees_only_what_came_since() -> None:
    session = session_of(user("1"), calls("a"), result("a"), user("2"))
    session.history()
    session.metadata["cleared"] = 2
    assert session.history().messages() == [user("2")]
    session.metadata["summary"] = {"text": "…", "position": 4}
    session.extend([Entry("t9", 0, user("3"))])
    assert session.history().messages() == [user("3")]
    del session.metadata["summary"], session.metadata["cleared"]
    assert len(session.history().messages()) == 5


def test_where_entries_are_missing_from_the_log_a_clear_hides_what_it_hid_before() -> None:
    """A damaged entry is passed over when a session is loaded; positions of the others stay."""
    session = Session(session_id="ses_1", user_id="ann", channel="web", metadata={"cleared": 3})
    session.messages = [Entry(f"t{n}", 0, user(str(n)), position=n) for n in (0, 2, 3, 4)]
    assert session.history().messages() == [user("3"), user("4")]
    assert session.next_position == 5


def test_a_stored_entry_keeps_its_position_and_a_repeat_is_passed_over() -> None:
    session = session_of(user("1"))
    session.messages[0].position = 6
    session.extend(
        [Entry("t1", 0, user("2"), position=9), Entry("t0", 0, user("1")), Entry("t2", 0, user("3"))]
    )
    assert [(entry.turn_id, entry.position) for entry in session.messages] == [
        ("t0", 6),
        ("t1", 9),
        ("t2", 10),
    ]


def test_the_steps_of_a_turn_are_found_in_order_also_with_another_between() -> None:
    session = Session(session_id="ses_1", user_id="ann", channel="web")
    session.extend([Entry("t1", 0, user("1")), Entry("t2", 0, user("2")), Entry("t3", 0, user("3"))])
    session.extend([Entry("t2", 1, says()), Entry("t3", 1, says()), Entry("t2", 2, says())])
    assert [entry.step for entry in session.steps_of("t2")] == [0, 1, 2]
    assert [entry.step for entry in session.steps_of("t3")] == [0, 1]
    assert session.steps_of("t4") == []


def test_a_repeat_is_passed_over_however_many_steps_the_turn_has() -> None:
    session = Session(session_id="ses_1", user_id="ann", channel="web")
    steps = [Entry("t1", step, says(str(step))) for step in range(150)]
    session.extend(steps)
    session.extend([Entry("t1", 3, says("again")), Entry("t1", 150, says("new"))])
    assert [entry.step for entry in session.messages] == list(range(151))
    assert session.messages[3].message == says("3")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", ""),
        ("\n \n", ""),
        ("\n  hello\nworld", "hello"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_a_title_is_the_first_line_that_says_something(text: str, title: str) -> None:
    assert title_of(text) == title
