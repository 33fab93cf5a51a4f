"""运行：pytest exercises/test_1_change.py"""

from day1_gateway import error_message, event_message
from ex_1_change import line_of

HINT = "提示：再加一个 case，匹配 ErrorPayload(code=…, message=…)。"


def test_a_refusal_is_shown() -> None:
    refusal = error_message("not_found", "没有订单 9999", target="cli:guest")
    assert line_of(refusal) == "抱歉：没有订单 9999（not_found）", HINT


def test_the_rest_is_as_before() -> None:
    assert line_of(event_message("turn.finished", {"text": "已发货"}, target="cli:guest")) == "已发货"
    assert line_of(event_message("typing", {}, target="cli:guest")) == ""
