"""弄坏它：替模型写四段剧本，每段把这一轮带到一个不同的结局。

这一轮最多问 3 次模型、最多调用 5 次工具。空的剧本会得到 `model_error`（剧本演完了）。
"""

from __future__ import annotations

from day4_agent import LLMResponse, ToolCall


def look(number: int, call_id: str) -> ToolCall:
    """查一个订单的调用。"""
    return ToolCall.of(call_id, "get_order_status", {"order_id": str(number)})


SCRIPTS: dict[str, list[LLMResponse]] = {
    "iterations": [],
    "tool_calls": [],
    "empty_answer": [],
    "not a JSON object": [],
}
