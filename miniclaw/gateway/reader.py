"""Reads the events of one turn, for those who asked inside this process: `ask` and `?wait=`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from miniclaw.errors import ProtocolError
from miniclaw.gateway.events import EventBus, LiveEvent, Subscription
from miniclaw.gateway.protocol import TERMINAL_EVENTS

__all__ = ["TurnReader"]

EVENTS: Final = 10_000
"""Events that wait for the reader; with more it loses deltas, never the end."""


class TurnReader:
    """A context in which the events of a turn are collected, from its opening on."""

    def __init__(self, bus: EventBus, session_id: str, turn_id: str) -> None:
        self._turn_id = turn_id
        self._events: deque[LiveEvent | None] = deque()
        self._more: asyncio.Future[None] | None = None
        self._subscriptions: tuple[Subscription, ...] = (
            bus.subscribe(f"session.{session_id}", self._take),
            bus.subscribe("system.stopping", lambda topic, event: self._put(None)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions = ()  # they hold this reader

    async def events(self) -> AsyncIterator[LiveEvent]:
        """The turn's events up to its end.

        Raises:
            ProtocolError: `draining`: the gateway stopped before the end.
        """
        while True:
            # A queue of asyncio's costs as much as all else that is done with a token.
            if not self._events:
                self._more = asyncio.get_running_loop().create_future()
                await self._more
            event = self._events.popleft()
            if event is None:
                raise ProtocolError("draining", "The gateway stopped; the turn goes on at its next start.")
            yield event
            if event.name in TERMINAL_EVENTS:
                return

    async def end(self) -> LiveEvent:
        """The turn's end."""
        async for event in self.events():
            if event.name in TERMINAL_EVENTS:
                return event
        raise AssertionError("events() ends with a terminal event")

    def _take(self, topic: str, event: LiveEvent) -> None:
        has_room = len(self._events) < EVENTS or event.name in TERMINAL_EVENTS
        if event.turn_id == self._turn_id and has_room:
            self._put(event)

    def _put(self, event: LiveEvent | None) -> None:
        self._events.append(event)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
