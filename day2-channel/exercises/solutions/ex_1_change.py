"""改：终端把拒绝吞掉了（答案）。"""

from __future__ import annotations

from day1_gateway import ErrorPayload, EventPayload, GatewayMessage


def line_of(message: GatewayMessage) -> str:
    match message.payload:
        case EventPayload(data={"text": str(text)}):
            return text
        case ErrorPayload(code=code, message=text):
            return f"抱歉：{text}（{code}）"
    return ""
