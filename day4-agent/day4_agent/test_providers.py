"""模型的边界：小对象、剧本、换下一个模型。"""

import json

import pytest

from day4_agent import FallbackProvider, LLMChunk, LLMResponse, ModelError, ScriptedProvider, ToolCall
from day4_agent.providers import Chunks, whole
from day4_agent.test_support import says, wants

USER = [{"role": "user", "content": "你好"}]


def test_a_response_is_written_as_the_api_wants_it_back() -> None:
    message = wants(ToolCall.of("c1", "t", {"城市": "杭州"})).to_message()
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"城市": "杭州"}
    assert (message["content"], call["id"], call["type"]) == (None, "c1", "function")
    assert says("好").to_message() == {"role": "assistant", "content": "好"}


async def test_a_script_is_said_line_by_line_and_then_it_has_ended() -> None:
    provider = ScriptedProvider([says("一"), ModelError("model_auth", "no")])
    assert (await provider.chat(USER)).text == "一"
    with pytest.raises(ModelError, match="no"):
        await provider.chat(USER)
    with pytest.raises(ModelError, match="ended"):
        await provider.chat(USER)
    assert provider.requests == [USER, USER, USER]


async def test_a_stream_without_its_end_was_cut() -> None:
    async def cut() -> Chunks:
        yield LLMChunk(text="半句")

    with pytest.raises(ModelError) as caught:
        await whole(cut())
    assert caught.value.retryable


async def test_the_next_model_is_asked_when_the_first_cannot_answer() -> None:
    down = ScriptedProvider([ModelError("model_unreachable", "down")])
    provider = FallbackProvider([down, ScriptedProvider([says("备用的在")])])
    assert (await provider.chat(USER)).text == "备用的在"
    await provider.close()


async def test_a_request_that_is_wrong_everywhere_is_not_sent_again() -> None:
    second = ScriptedProvider([says("不该问我")])
    provider = FallbackProvider([ScriptedProvider([ModelError("model_error", "bad request")]), second])
    with pytest.raises(ModelError, match="bad request"):
        await provider.chat(USER)
    assert second.requests == []


async def test_nobody_takes_over_in_the_middle_of_a_sentence() -> None:
    class Cut(ScriptedProvider):
        async def stream(self, messages: object, tools: object = None) -> Chunks:
            yield LLMChunk(text="已发")
            raise ModelError("model_unreachable", "cut", retryable=True)

    second = ScriptedProvider([says("已发货")])
    chunks = FallbackProvider([Cut([]), second]).stream(USER)
    assert (await anext(chunks)).text == "已发"
    with pytest.raises(ModelError, match="cut"):
        await anext(chunks)
    assert second.requests == []


async def test_when_all_fail_the_preferred_model_says_why() -> None:
    failing = [ScriptedProvider([ModelError("model_auth", text)]) for text in ("first", "second")]
    with pytest.raises(ModelError, match="first"):
        await FallbackProvider(failing).chat(USER)
    with pytest.raises(ModelError, match="no model"):
        await FallbackProvider([]).chat(USER)


async def test_a_line_of_the_script_may_look_at_the_messages() -> None:
    async def repeat(messages: list[dict[str, object]]) -> LLMResponse:
        return says(str(messages[-1]["content"]))

    assert (await ScriptedProvider([repeat]).chat(USER)).text == "你好"
