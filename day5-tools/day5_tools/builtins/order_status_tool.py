"""`get_order_status`：小店的两张订单。"""

from typing import Final

from day4_agent import ToolResult
from day5_tools.base import ToolError
from day5_tools.function import tool

ORDERS: Final = {
    "4471": {"status": "已发货", "carrier": "顺丰速运", "arrives": "2 天后送达"},
    "4472": {"status": "处理中"},
}


@tool(risk="read")
async def get_order_status(order_id: str) -> ToolResult:
    """Look up an order of the shop.

    Args:
        order_id: The number as the customer gave it, such as 4471.
    """
    number = order_id.strip().lstrip("#＃")
    order = ORDERS.get(number)
    if order is None:
        raise ToolError(f"There is no order `{number[:40]}`; ask the customer to check the number.")
    return ToolResult(content=f"订单 {number}：{'，'.join(order.values())}。", data=order)
