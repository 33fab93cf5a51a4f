"""整个课程的异常树从这里开始：后面每一天的异常都继承 `MiniClawError`。

MiniClawError
└── ProtocolError   对方发来的东西不能收；`code` 是线上协议里的错误码
"""

from __future__ import annotations

__all__ = ["MiniClawError", "ProtocolError"]


class MiniClawError(Exception):
    """树根。文字是一句话：哪里不对，该怎么办。"""


class ProtocolError(MiniClawError):
    """对方的消息被拒绝。

    Attributes:
        code: 错误码，例如 `bad_json`。
        reply_to: 被拒绝的那条消息的 `msg_id`，读得出来才有。
    """

    def __init__(self, code: str, message: str, *, reply_to: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reply_to = reply_to
