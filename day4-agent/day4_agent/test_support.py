"""测试共用：一组查订单的工具，和把一轮跑完的函数。"""

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
    ToolResult,
)
from day4_agent.scripted import Script

ORDERS = {"4471": "已发货，顺丰速运，2 天后送达", "4472": "处理中"}


class OrderBox:
    """一个工具的 `ToolBox`，记着执行过什么。"""

    def __init__(self) -> None:
        self.ran: list[dict[str, Any]] = []

    def get_openai_tools(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"order_id": {"type": "string"}}}
        return [{"type": "function", "function": {"name": "get_order_status", "parameters": schema}}]

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name == "hang":
            await asyncio.Event().wait()
        if name != "get_order_status":
            return ToolResult.failure(f"There is no tool `{name}`.")
        self.ran.append(dict(arguments))
        return ToolResult(content=ORDERS[arguments["order_id"]])


def call(order_id: str = "4471", call_id: str = "c1", name: str = "get_order_status") -> ToolCall:
    return ToolCall.of(call_id, name, {"order_id": order_id})


def says(text: str) -> LLMResponse:
    return LLMResponse(text=text)


def wants(*calls: ToolCall, **more: Any) -> LLMResponse:
    return LLMResponse(tool_calls=calls, finish=more.pop("finish", "tool_calls"), **more)


class Turn:
    """一轮：剧本、历史、工具，和发生过的事件。"""

    def __init__(self, *script: Script, **config: Any) -> None:
        self.provider = ScriptedProvider(script)
        self.history: list[dict[str, Any]] = [{"role": "user", "content": "订单 4471 到哪了？"}]
        self.box = OrderBox()
        self.runtime = AgentRuntime(self.provider, AgentConfig(**config))
        self.events: list[Any] = []

    async def run(self) -> Finished:
        async with asyncio.timeout(5):
            async for event in self.runtime.run(SessionTranscript(self.history, system="短"), self.box):
                self.events.append(event)
        assert isinstance(self.events[-1], Finished)
        return self.events[-1]

    def results(self) -> list[str]:
        return [message["content"] for message in self.history if message["role"] == "tool"]
