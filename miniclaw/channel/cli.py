"""The terminal as a channel inside the process: the same protocol, over memory instead of a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from miniclaw.gateway.connection import Connection, ConnectionChannel, Hub

__all__ = ["CLIChannel", "TerminalLink"]

FRAMES: Final = 10_000
"""Frames that wait for the screen; with more the link counts as not reading."""


class CLIChannel(ConnectionChannel):
    """Connections of terminals, or of others who are in this process under a name of their own."""

    name = "terminal"

    def __init__(self, hub: Hub, name: str = "terminal") -> None:
        super().__init__(hub)
        self.name = name

    async def start(self) -> None:
        """Nothing to open."""

    async def stop(self) -> None:
        """Close the links that are open."""
        for connection in tuple(self.connections.values()):
            connection.close(1001, "the gateway is stopping")

    def link(self, user_id: str) -> TerminalLink:
        """A connection of a user of this machine."""
        return TerminalLink(self, user_id)


class TerminalLink:
    """The client's end of an in-process connection; frames as a WebSocket client would see them."""

    def __init__(self, channel: CLIChannel, user_id: str) -> None:
        self._channel = channel
        self._frames: asyncio.Queue[str | None] = asyncio.Queue(FRAMES)
        self._buffered = 0
        self._closed = False
        self._connection: Connection = channel.open(self, user_id)

    async def send(self, frame: dict[str, Any]) -> None:
        """Send one frame to the gateway."""
        await self._connection.handle(json.dumps(frame))

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Frames of the gateway until the link is closed."""
        while (frame := await self._frames.get()) is not None:
            self._buffered -= len(frame)
            yield json.loads(frame)

    async def aclose(self) -> None:
        """End the connection; turns go on."""
        self.close(1000, "")

    def write(self, frame: str) -> None:
        """Take a frame of the gateway."""
        if self._frames.full():
            self.close(1013, "the terminal does not read")
        elif not self._closed:
            self._buffered += len(frame)
            self._frames.put_nowait(frame)

    def backlog(self) -> int:
        """Characters that the terminal has not shown yet."""
        return self._buffered

    def close(self, code: int, reason: str) -> None:
        """End of frames."""
        if not self._closed:
            self._closed = True
            self._channel.closed(self._connection)
            if self._frames.full():
                self._frames.get_nowait()
            self._frames.put_nowait(None)
