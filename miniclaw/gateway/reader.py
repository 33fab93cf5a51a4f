"""Reads the events of one turn, for those who asked inside this process: `ask` and `?wait=`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from miniclaw.errors import ProtocolError
from miniclaw.gateway.events import EventBus, LiveEvent
from miniclaw.gateway.protocol import TERMINAL_EVENTS

__all__ = ["TurnReader"]

EVENTS: Final = 10_000
"""Events that wait for the reader; with more it loses deltas, never the end."""


class TurnReader:
    """A context in which the events of a turn are collected, from its opening on."""

    def __init__(self, bus: EventBus, session_id: str, turn_id: str) -> None:
        self._turn_id = turn_id
        self._events: asyncio.Queue[LiveEvent | None] = asyncio.Queue()
        self._subscriptions = (
            bus.subscribe(f"session.{session_id}", self._take),
            bus.subscribe("system.stopping", lambda topic, event: self._events.put_nowait(None)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    async def events(self) -> AsyncIterator[LiveEvent]:
        """The turn's events up to its end.

        Raises:
            ProtocolError: `draining`: the gateway stopped before the end.
        """
        while True:
            event = await self._events.get()
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
        has_room = self._events.qsize() < EVENTS or event.name in TERMINAL_EVENTS
        if event.turn_id == self._turn_id and has_room:
            self._events.put_nowait(event)
