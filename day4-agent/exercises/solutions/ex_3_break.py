"""弄坏它：四段剧本，四个结局。

这一轮最多问 3 次模型、最多调用 5 次工具。空的剧本会得到 `model_error`（剧本演完了）。
"""

from __future__ import annotations

from day4_agent import LLMResponse, ToolCall


def look(number: int, call_id: str) -> ToolCall:
    """查一个订单的调用。"""
    return ToolCall.of(call_id, "get_order_status", {"order_id": str(number)})


SCRIPTS: dict[str, list[LLMResponse]] = {
    # 问了三次，次次都要工具，一直不回答。
    "iterations": [LLMResponse(tool_calls=(look(4471 + n, f"c{n}"),)) for n in range(3)],
    # 一口气要六个。
    "tool_calls": [LLMResponse(tool_calls=tuple(look(4471 + n, f"c{n}") for n in range(6)))],
    # 只有空白，不算回答。
    "empty_answer": [LLMResponse(text=" \n")],
    # 参数断在半句；模型看见以后认错，这一轮照样走完。
    "not a JSON object": [
        LLMResponse(tool_calls=(ToolCall("c1", "get_order_status", '{"order_id": "44', None),)),
        LLMResponse(text="刚才没写完。"),
    ],
}
