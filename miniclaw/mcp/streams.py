"""Messages of one HTTP answer as server-sent events, kept for a client that comes back with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["EventStream"]

MAX_EVENTS: Final = 1000
MAX_BYTES: Final = 16 * 1024 * 1024
"""What is kept of a stream that nobody reads; with more, the oldest messages are lost."""


class EventStream:
    """One stream; an event's id is `<name>.<number>`.

    Args:
        name: unique in its session.
        keeps: whether read messages are kept for a client whose connection broke.
    """

    def __init__(self, name: str = "", *, keeps: bool = True) -> None:
        self.name = name
        self.is_ended = False
        self.sent = 0
        """The number of the last message that a reader got."""
        self._keeps = keeps
        self._events: deque[tuple[int, bytes]] = deque()
        self._last = 0
        self._bytes = 0
        self._reader = 0
        self._more: asyncio.Future[None] | None = None

    def put(self, message: bytes) -> None:
        """Add a message."""
        self._last += 1
        self._events.append((self._last, message))
        self._bytes += len(message)
        while len(self._events) > 1 and (len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES):
            self._bytes -= len(self._events.popleft()[1])
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.is_ended = True
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Wait until there is a message or the end, at most so long."""
        if self._events or self.is_ended:
            return
        self._more = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._more
                await asyncio.sleep(0)  # the last message comes right before the end
        except TimeoutError:
            return

    @property
    def is_empty(self) -> bool:
        """Whether nothing is here to be read."""
        return not self._events

    def only(self) -> bytes | None:
        """The message, where there is just one and no more will come."""
        return self._events[0][1] if self.is_ended and self._last == 1 else None

    async def read(self, after: int, *, idle: float) -> AsyncIterator[bytes]:
        """The events after a number as bytes for the wire, and a comment whenever `idle` seconds are quiet.

        Ends with the stream, or when another reader comes.
        """
        self._reader += 1
        reader = self._reader
        self._wake()
        while reader == self._reader:
            fresh = [event for event in self._events if event[0] > after]
            for number, message in fresh:
                after = number
                mark = f"id: {self.name}.{number}\n".encode() if self._keeps else b""
                yield mark + b"event: message\ndata: " + message + b"\n\n"
                self.sent = number
            while not self._keeps and self._events and self._events[0][0] <= after:
                self._bytes -= len(self._events.popleft()[1])
            if fresh:
                continue
            if self.is_ended:
                return
            self._more = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(idle):
                    await self._more
            except TimeoutError:
                yield b": alive\n\n"

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
