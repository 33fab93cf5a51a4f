"""改：终端把拒绝吞掉了。

`line_of` 决定终端显示什么。现在只有带文字的事件看得见，被拒绝时屏幕上什么也没有，客人以为店里没人。
改到拒绝显示成 `抱歉：<原因>（<错误码>）`；别的事件照旧不显示（空字符串）。
"""

from __future__ import annotations

from day1_gateway import EventPayload, GatewayMessage


def line_of(message: GatewayMessage) -> str:
    match message.payload:
        case EventPayload(data={"text": str(text)}):
            return text
    return ""
