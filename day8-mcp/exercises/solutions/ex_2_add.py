"""加：编号对应任务，任务完了就划掉。"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from day8_mcp.protocol import Message, Notification, Request
from day8_mcp.server import MCPServer, Session


class Cancellable(Session):
    def __init__(self, server: MCPServer, send: Callable[[bytes], None]) -> None:
        super().__init__(server, send)
        self._by_id: dict[str, asyncio.Task[None]] = {}

    def receive(
        self, message: Message, send: Callable[[bytes], None] | None = None
    ) -> asyncio.Task[None] | None:
        if isinstance(message, Notification) and message.method == "notifications/cancelled":
            running = self._by_id.get(repr(message.params.get("requestId")))
            if running is not None:
                running.cancel()
            return None
        task = super().receive(message, send)
        if isinstance(message, Request) and task is not None:
            key = repr(message.id)  # 1 和 "1" 是两个编号
            self._by_id[key] = task
            task.add_done_callback(lambda _: self._by_id.pop(key, None))
        return task
