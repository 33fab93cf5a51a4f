"""第 5 天接第 4 天：注册表就是循环要的 `ToolBox`。"""

import asyncio
from typing import Any

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    Finished,
    LLMResponse,
    ScriptedProvider,
    SessionTranscript,
    ToolBox,
    ToolCall,
)
from day5_tools import ApprovalTools, ToolRegistry, calculator_tool, get_order_status, tool


@tool
async def refund(order_id: str) -> str:
    return f"退了 {order_id}"


async def run(box: ToolBox, *script: LLMResponse) -> tuple[str, list[str], ScriptedProvider]:
    provider = ScriptedProvider(script)
    history: list[dict[str, Any]] = [{"role": "user", "content": "4471 到哪了？"}]
    text = ""
    async with asyncio.timeout(5):
        async for event in AgentRuntime(provider, AgentConfig()).run(SessionTranscript(history), box):
            if isinstance(event, Finished):
                text = event.response.text
    return text, [message["content"] for message in history if message["role"] == "tool"], provider


def wants(name: str, call_id: str = "c1", **arguments: Any) -> LLMResponse:
    return LLMResponse(tool_calls=(ToolCall.of(call_id, name, arguments),), finish="tool_calls")


async def test_the_agent_looks_an_order_up_and_answers() -> None:
    box = ToolRegistry([get_order_status, calculator_tool()])
    text, results, _ = await run(
        box,
        wants("get_order_status", order_id="4471"),
        wants("calculator", "c2", expression="24*2"),
        LLMResponse(text="已发货，48 小时内到"),
    )
    assert text == "已发货，48 小时内到"
    assert results == ["订单 4471：已发货，顺丰速运，2 天后送达。", "48"]


async def test_a_wrong_argument_is_mended_by_the_model() -> None:
    box = ToolRegistry([get_order_status])
    _, results, provider = await run(
        box,
        wants("get_order_status", id="4471"),
        wants("get_order_status", "c2", order_id="4471"),
        LLMResponse(text="好"),
    )
    assert "`order_id`" in results[0] and "顺丰" in results[1]
    assert "`order_id`" in provider.requests[1][-1]["content"]


async def test_a_refused_write_is_told_to_the_model() -> None:
    async def ask(*_: object) -> str | None:
        return "the owner is asleep"

    box = ApprovalTools(ToolRegistry([refund]), ask)
    text, results, _ = await run(box, wants("refund", order_id="4471"), LLMResponse(text="明天再退"))
    assert text == "明天再退" and "asleep" in results[0]
