"""What is cleared, summarised and kept when a conversation outgrows the window."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import Message, ToolCall
from miniclaw.memory.compaction import (
    KEPT_RESULTS,
    STUB,
    clear_results,
    compact,
    oldest_turns,
    summary_request,
    summary_tokens,
)
from miniclaw.session.history import legal, message_tokens
from tests.support.model import illegal


def again(name: str, arguments: str) -> bool:
    """Reading can be done again, and writing cannot."""
    return name == "read_file"


def turn(number: int, *results: tuple[str, str]) -> list[Message]:
    """A question, a call and its result for each of `results` as (tool, text), and an answer."""
    messages: list[Message] = [{"role": "user", "content": f"question {number}"}]
    for place, (name, text) in enumerate(results):
        call = ToolCall.of(f"c{place}", name, {"path": f"notes/{number}-{place}.md"})
        messages.append({"role": "assistant", "content": None, "tool_calls": [call.to_openai()]})
        messages.append({"role": "tool", "tool_call_id": f"c{place}", "content": text})
    return [*messages, {"role": "assistant", "content": f"answer {number}"}]


def results_in(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def test_old_results_that_can_be_had_again_become_stubs_that_say_how() -> None:
    messages = [message for number in range(8) for message in turn(number, ("read_file", "long text " * 100))]
    cleared = clear_results(messages, may_clear=again)
    found = results_in(cleared)
    assert [text.startswith(STUB) for text in found] == [True] * 3 + [False] * KEPT_RESULTS
    assert 'read_file({"path": "notes/1-0.md"})' in found[1].replace('":"', '": "')
    assert "1000 characters" in found[1] and "long text" in found[1] and "same call again" in found[1]
    assert clear_results(cleared, may_clear=again) == cleared, "a stub is not cleared again"
    assert results_in(messages)[0].startswith("long"), "what was given is unchanged"


def test_errors_results_of_writes_and_short_ones_stay() -> None:
    stay = [("write_file", "w" * 900), ("read_file", "Error: " + "e" * 900), ("read_file", "short")]
    messages = [*turn(0, *stay), *turn(1, *[("read_file", "r" * 900)] * KEPT_RESULTS)]
    assert clear_results(messages, may_clear=again) == messages


def test_nothing_happens_while_all_fits() -> None:
    messages = [message for number in range(9) for message in turn(number, ("read_file", "x " * 400))]
    done = compact(messages, 100_000, may_clear=again)
    assert (done.messages, done.older, done.turns) == (messages, [], 0)


def test_clearing_is_tried_before_a_summary() -> None:
    messages = [message for number in range(9) for message in turn(number, ("read_file", "x " * 4000))]
    room = sum(map(message_tokens, clear_results(messages, may_clear=again)))
    done = compact(messages, room, may_clear=again)
    assert done.older == [] and results_in(done.messages)[0].startswith(STUB)
    smaller = compact(messages, room - 1, may_clear=again)
    assert smaller.turns > 0 and smaller.older[-1]["content"] == f"answer {smaller.turns - 1}"
    assert smaller.messages[len(smaller.older)]["content"] == f"question {smaller.turns}"


TEXTS = st.builds(
    lambda unit, count: unit * count, st.sampled_from(["word ", "汉字", "😀"]), st.integers(1, 300)
)
TURNS = st.lists(
    st.lists(st.tuples(st.sampled_from(["read_file", "write_file"]), TEXTS), max_size=4),
    min_size=1,
    max_size=6,
)


@given(TURNS, st.integers(0, 4000))
def test_what_is_left_is_legal_cut_at_a_turn_and_never_without_the_last_one(
    texts: list[list[tuple[str, str]]], room: int
) -> None:
    messages = legal(m for number, results in enumerate(texts) for m in turn(number, *results))
    done = compact(messages, room, may_clear=again)
    rest = done.messages[len(done.older) :]
    assert not illegal(rest) and not illegal(done.older or rest)
    assert [m["content"] for m in rest if m["role"] == "user"][-1] == f"question {len(texts) - 1}"
    assert done.turns == sum(m["role"] == "user" for m in done.older)
    before, after = sum(map(message_tokens, messages)), sum(map(message_tokens, rest))
    assert after <= before
    assert after <= room or done.turns == len(texts) - 1, "all but the last turn went before it is too much"


def test_a_history_without_a_user_message_is_not_cut() -> None:
    assert oldest_turns([{"role": "assistant", "content": "hello"}], 0) == 0


def test_the_summariser_learns_what_was_called_and_not_what_came_of_it() -> None:
    messages = turn(1, ("read_file", "secret of the page"))
    text = summary_request(messages, window=8000)[0][1]["content"]
    assert "question 1" in text and "answer 1" in text and "notes/1-0.md" in text
    assert "secret" not in text


@given(st.lists(TEXTS, max_size=8), st.integers(2000, 40_000))
def test_the_request_for_a_summary_fits_the_window_and_shows_the_user_first(
    texts: list[str], window: int
) -> None:
    call = ToolCall.of("c", "f", {"a": "x" * 3000}).to_openai()
    messages = [{"role": "assistant", "content": text * 9, "tool_calls": [call]} for text in texts]
    request, shown = summary_request(
        [{"role": "user", "content": "KESTREL"}, *messages],
        window=window,
        earlier="y " * 9000,
        focus="z" * 900,
    )
    assert sum(map(message_tokens, request)) <= 0.75 * window, json.dumps(request)[:200]
    assert "user: KESTREL\n" in request[1]["content"] + "\n" and shown == 1 + len(messages)


@given(st.lists(TEXTS, min_size=1, max_size=12), st.integers(1000, 4000))
def test_a_history_too_long_for_one_request_is_shown_in_several_from_the_oldest_on(
    texts: list[str], window: int
) -> None:
    messages: list[Message] = []
    for number, text in enumerate(texts):
        messages += [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": f"{number}: {text}"},
        ]
    shown, rest, requests = 0, messages, 0
    while rest:
        request, count = summary_request(rest, window=window)
        said = request[1]["content"]
        assert count > 0 and sum(map(message_tokens, request)) <= 0.75 * window
        assert all(m["content"][:100] in said for m in rest[:count])
        shown, rest, requests = shown + count, rest[count:], requests + 1
        assert not rest or rest[0]["role"] == "user", "a turn was cut in half"
    assert shown == len(messages)
    assert sum(map(message_tokens, messages)) > 0.4 * window or requests == 1


def test_a_summariser_is_told_how_long_its_summary_may_be_which_small_windows_have_room_for() -> None:
    long, short = (summary_request([], window=window)[0][0]["content"] for window in (128_000, 4096))
    assert "At most 1200 words" in long and "At most 300 words in all, or 400 characters" in short
    assert [summary_tokens(window) for window in (None, 128_000, 8192, 4096, 1000)] == [
        2000,
        2000,
        655,
        500,
        200,
    ]
