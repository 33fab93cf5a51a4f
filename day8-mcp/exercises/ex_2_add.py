"""加：客户端不要了，就别白忙。

客户端等不及，会发 `notifications/cancelled`，`params` 里是 `{"requestId": …}`。
让 `Cancellable` 认得它：取消正在回答那个请求的任务，被取消的请求不再回答；不认识的编号、已经答完的，什么也不做。
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from day8_mcp.protocol import Message
from day8_mcp.server import Session


class Cancellable(Session):
    def receive(
        self, message: Message, send: Callable[[bytes], None] | None = None
    ) -> asyncio.Task[None] | None:
        # 在这里记住谁在跑，认出取消。
        return super().receive(message, send)
