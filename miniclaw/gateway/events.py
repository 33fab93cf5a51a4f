"""The EventBus: live events and observers. Nothing durable hangs on it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

__all__ = ["EventBus", "Subscription"]

logger = logging.getLogger(__name__)

Handler = Callable[[str, Any], None]


class Subscription:
    """A handler's place on the bus; `close()` takes it off and may be called again."""

    __slots__ = ("_bus", "handler", "pattern")

    def __init__(self, bus: EventBus, pattern: str, handler: Handler) -> None:
        self._bus = bus
        self.pattern = pattern
        self.handler = handler

    def close(self) -> None:
        """Stop receiving."""
        self._bus._remove(self)


class EventBus:
    """Publish to a topic, subscribe to a topic or to a prefix ending in `.*`.

    Handlers are plain functions that run at once, in order of subscription, and must not wait: one that
    has slow work puts the event into a bounded queue of its own. A handler that fails is logged and does
    not keep the event from the others.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, list[Subscription]] = {}

    def subscribe(self, pattern: str, handler: Handler) -> Subscription:
        """Call `handler(topic, event)` for each event whose topic matches `pattern`.

        Raises:
            ValueError: `*` stands anywhere but at the end behind a dot.
        """
        if "*" in pattern and (not pattern.endswith(".*") or pattern.count("*") > 1):
            raise ValueError(f"pattern {pattern!r}: `*` may only stand at the end, as in `session.*`")
        subscription = Subscription(self, pattern, handler)
        self._handlers.setdefault(pattern, []).append(subscription)
        return subscription

    def publish(self, topic: str, event: Any) -> None:
        """Hand `event` to every handler of the topic and of the prefixes above it."""
        matched = self._handlers.get(topic)
        if matched:
            self._deliver(matched, topic, event)
        dot = topic.rfind(".")
        while dot > 0:
            matched = self._handlers.get(f"{topic[:dot]}.*")
            if matched:
                self._deliver(matched, topic, event)
            dot = topic.rfind(".", 0, dot)

    def has_subscribers(self, topic: str) -> bool:
        """Whether anybody subscribed to exactly this topic."""
        return topic in self._handlers

    @staticmethod
    def _deliver(subscriptions: list[Subscription], topic: str, event: Any) -> None:
        for subscription in tuple(subscriptions):
            try:
                subscription.handler(topic, event)
            except Exception:  # noqa: BLE001 - boundary: one failing handler never hurts another
                logger.exception("a handler of %s failed", subscription.pattern)

    def _remove(self, subscription: Subscription) -> None:
        remaining = self._handlers.get(subscription.pattern)
        if remaining and subscription in remaining:
            remaining.remove(subscription)
            if not remaining:
                del self._handlers[subscription.pattern]
