"""改：查不到的订单让整轮倒下。

`execute` 遇到不认识的订单号会抛 `KeyError`。改成一个失败的 `ToolResult`，说清楚哪个号不对，让模型自己换一个再查。
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from day4_agent import ToolResult

ORDERS = {"4471": "已发货", "4472": "处理中"}


class OrderBox:
    def get_openai_tools(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "get_order_status", "parameters": {}}}]

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(content=ORDERS[arguments["order_id"]])
