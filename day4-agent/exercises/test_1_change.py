"""运行：pytest exercises/test_1_change.py"""

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    Finished,
    LLMResponse,
    ScriptedProvider,
    SessionTranscript,
    ToolCall,
)
from ex_1_change import OrderBox

HINT = "提示：`ToolResult.failure(…)` 也是结果；第 2 天收到的坏消息是怎么回答的？"


async def test_a_wrong_number_is_told_to_the_model_which_tries_another() -> None:
    calls = [ToolCall.of(f"c{n}", "get_order_status", {"order_id": n}) for n in ("447", "4471")]
    provider = ScriptedProvider(
        [*(LLMResponse(tool_calls=(call,)) for call in calls), LLMResponse(text="已发货")]
    )
    transcript = SessionTranscript([{"role": "user", "content": "447 到哪了"}])
    text = ""
    try:
        async for event in AgentRuntime(provider, AgentConfig()).run(transcript, OrderBox()):
            if isinstance(event, Finished):
                text = event.response.text
    except KeyError:
        text = "（整轮倒下了）"
    assert text == "已发货", HINT
    results = [message["content"] for message in transcript.messages() if message["role"] == "tool"]
    assert "447" in results[0] and results[1] == "已发货", HINT
