"""运行：pytest exercises/test_1_change.py"""

from day5_tools import ToolRegistry
from ex_1_change import cancel_order

HINT = "提示：`Literal[…]` 会变成 schema 里的 `enum`；docstring 里 `Args:` 下面一行一个参数。"


def test_the_model_sees_the_three_reasons_and_what_the_number_is() -> None:
    properties = cancel_order.parameters["properties"]
    assert properties["reason"].get("enum") == ["太慢", "买错了", "不想要了"], HINT
    assert properties["order_id"].get("description"), HINT


async def test_another_reason_is_sent_back() -> None:
    box = ToolRegistry([cancel_order])
    assert not (await box.execute("cancel_order", {"order_id": "4472", "reason": "外星人"})).ok, HINT
    assert (await box.execute("cancel_order", {"order_id": "4472", "reason": "太慢"})).ok
