"""小店的客服第一次自己想：剧本当模型，真的循环，不要密钥，不联网。"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    FallbackProvider,
    Finished,
    LLMChunk,
    LLMResponse,
    ModelError,
    ScriptedProvider,
    SessionTranscript,
    ToolCall,
    ToolFinished,
    ToolResult,
    ToolStarted,
)

ORDERS = {"4471": "已发货，顺丰速运，2 天后送达", "4472": "处理中"}


class OrderBox:
    """手写的一个工具：第 5 天用一行 `@tool` 就能换掉它。"""

    def get_openai_tools(self) -> list[dict[str, Any]]:
        schema = {
            "type": "object",
            "properties": {"order_id": {"type": "string"}},
            "required": ["order_id"],
        }
        function = {"name": "get_order_status", "description": "查订单", "parameters": schema}
        return [{"type": "function", "function": function}]

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        number = str(arguments.get("order_id"))
        if name != "get_order_status" or number not in ORDERS:
            return ToolResult.failure(f"there is no tool `{name}` or no order `{number}`")
        return ToolResult(content=ORDERS[number])


def script() -> list[LLMResponse | ModelError]:
    """一个模型会怎么说：先查，再答；第二轮查错了一次，自己改过来。"""
    return [
        LLMResponse(tool_calls=(ToolCall.of("c1", "get_order_status", {"order_id": "4471"}),)),
        LLMResponse(text="订单 4471 已发货，顺丰速运，2 天后送达。"),
        LLMResponse(tool_calls=(ToolCall.of("c2", "get_order_status", {"order_id": "447"}),)),
        LLMResponse(tool_calls=(ToolCall.of("c3", "get_order_status", {"order_id": "4472"}),)),
        LLMResponse(text="4472 还在处理中。"),
    ]


async def ask(runtime: AgentRuntime, history: list[dict[str, Any]], text: str) -> None:
    """一轮：把话写进历史，看着它走完，再把回答写进历史。"""
    print(f"你：{text}")
    transcript = SessionTranscript(history, system=runtime.config.system_prompt)
    await transcript.append({"role": "user", "content": text})
    said = 0
    async for event in runtime.run(transcript, OrderBox()):
        match event:
            case ToolStarted(call):
                print(f"  [要] {call.name} {call.raw}")
            case ToolFinished(_, result):
                print(f"  [得] {result.content}")
            case LLMChunk():
                said += 1
            case Finished(response, stop):
                text = response.text if stop is None else f"（到了上限：{stop.limit}）"
                await transcript.append({"role": "assistant", "content": text})
                print(f"店：{text}（分 {said} 块说完）")


async def main() -> None:
    """首选的模型连不上，备用的接过去；两轮共用一份历史。"""
    logging.basicConfig(format="  [日志] %(message)s", level=logging.ERROR)
    down = ScriptedProvider([ModelError("model_unreachable", "The model server cannot be reached.")] * 20)
    provider = FallbackProvider([down, ScriptedProvider(script(), piece=8)])
    runtime = AgentRuntime(provider, AgentConfig(system_prompt="你是一家小店的客服。", max_iterations=5))
    history: list[dict[str, Any]] = []
    await ask(runtime, history, "订单 4471 到哪了？")
    await ask(runtime, history, "那 4472 呢？")
    await provider.close()
    print(f"首选的模型被问了 {len(down.requests)} 次，一次也没答上。")
    print("历史：" + " ".join(str(message["role"]) for message in history))


if __name__ == "__main__":
    asyncio.run(main())
