"""News that goes to many at once, held back under a storm so that only the latest of it is sent."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from miniclaw.gateway.events import EventBus

__all__ = ["PacedNews"]

WINDOW_SECONDS: Final = 0.2
SPENT_SECONDS: Final = 0.005
"""What the news of a topic may take of the event loop in a window."""


class PacedNews:
    """Publishes what replaces what was said before about the same thing.

    Quiet topics get it at once. When a topic has taken 5 ms of a window of 0.2 s, the rest waits for the next; of
    each key only the latest is published then. So a hundred turns that begin in one moment are not a hundred
    frames to each of a hundred connections before the first of them is answered.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._spent: dict[str, float] = {}
        self._held: dict[str, dict[str, Any]] = {}

    def publish(self, topic: str, key: str, event: Any) -> None:
        """Publish `event` on `topic`, now or later; a later one of the same `key` takes its place."""
        if topic not in self._spent:
            self._open(topic)
        if topic in self._held or self._spent[topic] >= SPENT_SECONDS:
            self._held.setdefault(topic, {})[key] = event
        else:
            self._say(topic, event)

    def follow(self, topic: str, key: str, event: Any) -> None:
        """Publish `event` now, behind what is held of its key: it adds to that, and does not take its place."""
        if (held := self._held.get(topic, {}).pop(key, None)) is not None:
            self._bus.publish(topic, held)
        self._bus.publish(topic, event)

    def _open(self, topic: str) -> None:
        self._spent[topic] = 0.0
        asyncio.get_running_loop().call_later(WINDOW_SECONDS, self._next, topic)

    def _next(self, topic: str) -> None:
        held = self._held.pop(topic, None)
        if held is None:
            del self._spent[topic]
            return
        self._open(topic)
        while held and self._spent[topic] < SPENT_SECONDS:
            self._say(topic, held.pop(next(iter(held))))
        if held:
            self._held[topic] = held

    def _say(self, topic: str, event: Any) -> None:
        began = perf_counter()
        self._bus.publish(topic, event)
        self._spent[topic] += perf_counter() - began
