"""改：选项写进类型，说明写进 docstring，别的都是自动的。"""

from __future__ import annotations

from typing import Literal

from day5_tools import tool


@tool
async def cancel_order(order_id: str, reason: Literal["太慢", "买错了", "不想要了"]) -> str:
    """Cancel an order that is not sent yet.

    Args:
        order_id: The order's number, such as 4472.
        reason: Why the customer does not want it.
    """
    return f"订单 {order_id} 取消了：{reason}"
