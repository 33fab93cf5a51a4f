"""历史：日志从不改写，模型看到的总是合法的。"""

from typing import Any

from day4_agent import SessionTranscript, ToolCall, legal
from day4_agent.test_support import wants

ASKED = wants(ToolCall.of("a", "t", {}), ToolCall.of("b", "t", {})).to_message()


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def test_a_legal_history_comes_out_as_it_went_in() -> None:
    history = [{"role": "user", "content": "?"}, ASKED, result("b"), result("a")]
    assert legal(history) == history
    assert legal(legal(history)) == legal(history)


def test_a_call_without_a_result_gets_one_right_behind_it() -> None:
    user = {"role": "user", "content": "还在吗"}
    view = legal([ASKED, result("a"), user])
    assert [message.get("tool_call_id") for message in view] == [None, "a", "b", None]
    assert "not known whether" in view[2]["content"]
    assert view[-1] == user


def test_a_result_that_nobody_waits_for_is_left_out() -> None:
    assert legal([result("x"), ASKED, result("a"), result("a"), result("b")]) == [
        ASKED,
        result("a"),
        result("b"),
    ]


async def test_the_log_keeps_what_happened_and_never_the_system_prompt() -> None:
    history: list[dict[str, Any]] = []
    transcript = SessionTranscript(history, system="你是客服")
    await transcript.append(ASKED)
    assert [message["role"] for message in transcript.messages()] == ["system", "assistant", "tool", "tool"]
    assert history == [ASKED]
