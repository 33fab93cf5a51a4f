"""改：查不到的订单让整轮倒下。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from day4_agent import ToolResult

ORDERS = {"4471": "已发货", "4472": "处理中"}


class OrderBox:
    def get_openai_tools(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "get_order_status", "parameters": {}}}]

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        number = arguments["order_id"]
        if number not in ORDERS:
            return ToolResult.failure(f"there is no order `{number}`; check the number")
        return ToolResult(content=ORDERS[number])
