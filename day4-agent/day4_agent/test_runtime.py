"""循环：什么时候问、什么时候做、什么时候停。"""

import asyncio
from typing import Any

import pytest

from day4_agent import (
    AgentConfig,
    LLMChunk,
    LLMResponse,
    ModelError,
    SessionTranscript,
    Stop,
    ToolCall,
    ToolFinished,
    ToolStarted,
)
from day4_agent.test_support import Turn, call, says, wants


async def test_an_answer_ends_the_turn_and_its_words_come_as_they_are_said() -> None:
    turn = Turn(says("已发货，2 天后送达"))
    end = await turn.run()
    assert (end.response.text, end.stop) == ("已发货，2 天后送达", None)
    pieces = [event.text for event in turn.events if isinstance(event, LLMChunk)]
    assert len(pieces) > 1 and "".join(pieces) == end.response.text


async def test_a_call_is_run_and_the_model_sees_its_result_before_it_answers() -> None:
    turn = Turn(wants(call()), says("在路上"))
    await turn.run()
    assert [type(event) for event in turn.events[:2]] == [ToolStarted, ToolFinished]
    seen = turn.provider.requests[1]
    assert [message["role"] for message in seen] == ["system", "user", "assistant", "tool"]
    assert "顺丰" in seen[-1]["content"] and seen[-1]["tool_call_id"] == "c1"


async def test_every_call_of_an_answer_gets_its_result_in_order() -> None:
    turn = Turn(wants(call("4471", "a"), call("4472", "b")), says("好"))
    await turn.run()
    assert turn.box.ran == [{"order_id": "4471"}, {"order_id": "4472"}]
    assert [m["tool_call_id"] for m in turn.history if m["role"] == "tool"] == ["a", "b"]


async def test_what_the_model_wants_is_stored_before_the_tool_runs() -> None:
    stored: list[str] = []

    async def store(message: dict[str, Any]) -> None:
        stored.append(f"{message['role']}, {len(turn.box.ran)} ran")

    turn = Turn(wants(call()), says("好"))
    async for _ in turn.runtime.run(SessionTranscript(turn.history, store=store), turn.box):
        pass
    assert stored == ["assistant, 0 ran", "tool, 1 ran"]


@pytest.mark.parametrize(
    ("broken", "finish", "reason"),
    [
        (ToolCall("c1", "get_order_status", "{oops", None), "tool_calls", "not a JSON object"),
        (call(), "length", "cut off"),
    ],
)
async def test_a_call_that_cannot_be_read_or_was_cut_is_not_run(
    broken: ToolCall, finish: Any, reason: str
) -> None:
    turn = Turn(wants(broken, finish=finish), says("再来"))
    await turn.run()
    assert turn.box.ran == []
    assert reason in turn.results()[0]


async def test_an_unknown_tool_is_told_to_the_model() -> None:
    turn = Turn(wants(call(name="fly")), says("我不会飞"))
    await turn.run()
    assert turn.results() == ["Error: There is no tool `fly`."]


async def test_a_tool_that_hangs_is_stopped_and_the_turn_goes_on() -> None:
    turn = Turn(wants(call(name="hang")), says("查不到"), tool_timeout=0.01)
    end = await turn.run()
    assert end.response.text == "查不到"
    assert "did not finish in time" in turn.results()[0]


async def test_the_same_call_again_and_again_is_refused() -> None:
    turn = Turn(*(wants(call(call_id=f"c{number}")) for number in range(4)), says("好"))
    await turn.run()
    assert len(turn.box.ran) == 3
    assert "do something else" in turn.results()[-1]


async def test_iterations_are_limited() -> None:
    turn = Turn(*(wants(call(str(4471 + n), f"c{n}")) for n in range(2)), max_iterations=2)
    assert (await turn.run()).stop == Stop("iterations")


async def test_tool_calls_are_limited_and_each_still_has_a_result() -> None:
    turn = Turn(wants(call("4471", "a"), call("4472", "b")), max_tool_calls=1)
    assert (await turn.run()).stop == Stop("tool_calls")
    assert len(turn.box.ran) == 1 and len(turn.results()) == 2


async def test_an_empty_answer_is_no_answer() -> None:
    with pytest.raises(ModelError) as caught:
        await Turn(says(" \n")).run()
    assert caught.value.code == "empty_answer" and "other words" in str(caught.value)
    with pytest.raises(ModelError, match="raise `max_tokens`"):
        await Turn(LLMResponse(finish="length")).run()


async def test_a_cancelled_turn_ends_its_tool_and_the_next_one_has_a_legal_history() -> None:
    began = asyncio.Event()

    async def start_hanging(_: object) -> LLMResponse:
        asyncio.get_running_loop().call_soon(began.set)
        return wants(call(name="hang"))

    turn = Turn(start_hanging, says("刚才断了，再查一次？"))
    task = asyncio.create_task(turn.run())
    async with asyncio.timeout(5):
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    turn.history.append({"role": "user", "content": "还在吗？"})
    await turn.run()
    roles = [message["role"] for message in turn.provider.requests[-1]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_iteration"):
        AgentConfig.model_validate({"max_iteration": 3})
