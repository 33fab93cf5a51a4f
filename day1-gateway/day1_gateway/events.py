"""事件总线：谁想知道就订阅，发布的人不认识他们。总线上没有任何丢了会出事的东西。"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

__all__ = ["EventBus", "Subscription"]

logger = logging.getLogger(__name__)

Handler = Callable[[str, Any], None]


class Subscription:
    """处理函数在总线上的位置；`close()` 把它拿下来，可以多次调用。"""

    def __init__(self, bus: EventBus, pattern: str, handler: Handler) -> None:
        self._bus = bus
        self.pattern = pattern
        self.handler = handler
        self.is_open = True

    def close(self) -> None:
        """不再接收，正在分发的这一个也不再给它。"""
        self.is_open = False
        self._bus._remove(self)


class EventBus:
    """发布到一个主题；订阅一个主题，或者以 `.*` 结尾的前缀。

    处理函数是普通函数，当场按订阅的顺序调用，不许等待：活儿慢的把事件放进自己的有界队列。
    """

    def __init__(self) -> None:
        self._handlers: dict[str, list[Subscription]] = {}

    def subscribe(self, pattern: str, handler: Handler) -> Subscription:
        """让 `handler(topic, event)` 收到 `pattern` 的事件。

        Raises:
            ValueError: `*` 没有单独站在最后。
        """
        if "*" in pattern and (not pattern.endswith(".*") or pattern.count("*") > 1):
            raise ValueError(f"pattern {pattern!r}: `*` may only stand at the end, as in `session.*`")
        subscription = Subscription(self, pattern, handler)
        self._handlers.setdefault(pattern, []).append(subscription)
        return subscription

    # region publish
    def publish(self, topic: str, event: Any) -> None:
        """交给这个主题和它上面各级前缀的每个处理函数。"""
        self._deliver(topic, topic, event)
        parts = topic.split(".")
        for length in range(len(parts) - 1, 0, -1):
            self._deliver(".".join(parts[:length]) + ".*", topic, event)

    def _deliver(self, pattern: str, topic: str, event: Any) -> None:
        # 复制一份再遍历：处理函数可能正好在退订。
        for subscription in tuple(self._handlers.get(pattern, ())):
            if not subscription.is_open:
                continue
            try:
                subscription.handler(topic, event)
            except Exception:  # 边界：一个处理函数坏了，不许伤到别的
                logger.exception("a handler of %s failed", pattern)

    # endregion

    def _remove(self, subscription: Subscription) -> None:
        remaining = self._handlers.get(subscription.pattern, [])
        if subscription in remaining:
            remaining.remove(subscription)
            if not remaining:
                del self._handlers[subscription.pattern]
