"""News that goes to many at once, held back under a storm so that only the latest of it is sent."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from miniclaw.gateway.events import EventBus

__all__ = ["PacedNews"]

BURST: Final = 16
WINDOW_SECONDS: Final = 0.2


class PacedNews:
    """Publishes what replaces what was said before about the same thing.

    Quiet topics get it at once. After 16 events within 0.2 s the rest waits for the end of that time; then only
    the latest of each key is published, one a round of the loop, so that a hundred turns that begin in one
    moment are not a hundred frames to each of a hundred connections before the first of them is answered.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._sent: dict[str, int] = {}
        self._held: dict[str, dict[str, Any]] = {}

    def publish(self, topic: str, key: str, event: Any) -> None:
        """Publish `event` on `topic`, now or later; a later one of the same `key` takes its place."""
        sent = self._sent.get(topic, 0)
        if sent == 0:
            asyncio.get_running_loop().call_later(WINDOW_SECONDS, self._release, topic)
        self._sent[topic] = sent + 1
        if sent < BURST:
            self._bus.publish(topic, event)
        else:
            self._held.setdefault(topic, {})[key] = event

    def _release(self, topic: str) -> None:
        held = self._held.get(topic)
        if not held:
            self._held.pop(topic, None)
            self._sent.pop(topic, None)
            return
        self._bus.publish(topic, held.pop(next(iter(held))))
        asyncio.get_running_loop().call_soon(self._release, topic)
