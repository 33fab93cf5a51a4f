"""会查订单的客服：四样工具，会改变东西的先问店主。剧本当模型，不要密钥，不联网。"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    Finished,
    LLMResponse,
    ScriptedProvider,
    SessionTranscript,
    ToolCall,
    ToolFinished,
    ToolStarted,
)
from day5_tools import (
    ApprovalTools,
    Tool,
    ToolRegistry,
    calculator_tool,
    datetime_tool,
    get_order_status,
    http_request_tool,
    tool,
)

MORNING = 1_767_229_200.0  # 2026-01-01 09:00，上海


# region refund
@tool
async def refund(order_id: str, amount: float) -> str:
    """Give money back for an order.

    Args:
        order_id: The order's number.
        amount: How much, in yuan.
    """
    return f"订单 {order_id} 退款 {amount:.2f} 元"


# endregion


async def ask_owner(tool: Tool, arguments: Mapping[str, Any], _: object) -> str | None:
    """店主的规矩：十块钱以内随便退。真的程序在这里问人。"""
    amount = float(arguments.get("amount", 0))
    answer = None if amount <= 10 else "the owner allows 10 yuan at most"
    print(f"  [问店主] {tool.name} {amount:g} 元 → {'行' if answer is None else '不行'}")
    return answer


def calls(*wanted: tuple[str, dict[str, Any]]) -> LLMResponse:
    """模型要的一批调用。"""
    made = [ToolCall.of(f"{name}-{number}", name, given) for number, (name, given) in enumerate(wanted)]
    return LLMResponse(tool_calls=tuple(made), finish="tool_calls")


SCRIPT = [
    calls(("get_order_status", {"order_id": "4471"}), ("datetime", {"timezone": "Asia/Shanghai"})),
    LLMResponse(text="订单 4471 已发货，顺丰速运，2 天后送达，也就是 1 月 3 日。"),
    calls(("calculator", {"expression": "129.9 * 0.15"})),
    calls(("refund", {"order_id": "4472", "amount": 19.485})),
    calls(("refund", {"order": "4472", "amount": 10})),
    calls(("refund", {"order_id": "4472", "amount": 10})),
    LLMResponse(text="给您退了 10 元，再多要等店主上班。"),
    calls(("http_request", {"url": "http://169.254.169.254/latest/meta-data"})),
    LLMResponse(text="那个地址我进不去。"),
]


async def ask(runtime: AgentRuntime, box: ApprovalTools, history: list[dict[str, Any]], text: str) -> None:
    """一轮：说一句，看它做什么，听它回答。"""
    print(f"你：{text}")
    transcript = SessionTranscript(history, system=runtime.config.system_prompt)
    await transcript.append({"role": "user", "content": text})
    async for event in runtime.run(transcript, box):
        match event:
            case ToolStarted(call):
                print(f"  [要] {call.name} {call.raw}")
            case ToolFinished(_, result):
                print(f"  [得] {result.content}")
            case Finished(response):
                await transcript.append(response.to_message())
                print(f"店：{response.text}")


async def main() -> None:
    """三句话：查、退、和一个不该去的地址。"""
    registry = ToolRegistry(
        [
            get_order_status,
            datetime_tool(clock=lambda: MORNING),
            calculator_tool(),
            http_request_tool(),
            refund,
        ]
    )
    box = ApprovalTools(registry, ask_owner)
    runtime = AgentRuntime(ScriptedProvider(SCRIPT), AgentConfig(system_prompt="你是一家小店的客服。"))
    history: list[dict[str, Any]] = []
    print("工具：" + " ".join(registry.names()))
    await ask(runtime, box, history, "订单 4471 到哪了？")
    await ask(runtime, box, history, "4472 一直不发货，129.9 元退我一成半。")
    await ask(runtime, box, history, "帮我看看 http://169.254.169.254 上有什么。")


if __name__ == "__main__":
    asyncio.run(main())
