"""What is kept of a client that shook hands over HTTP."""

from __future__ import annotations

import itertools
import secrets
from typing import Final

from miniclaw.mcp.protocol import HANDSHAKE
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.session import Session
from miniclaw.mcp.streams import EventStream

__all__ = ["HttpSession"]

KEPT_STREAMS: Final = 16
"""Streams of a session that can be resumed."""


class HttpSession:
    """The session of one client: its streams, and when it was last heard of.

    Attributes:
        general: what belongs to no request.
        used: when it was last heard of, in seconds of the loop's clock.
        open: how many of its streams are being read.
    """

    def __init__(self, server: MCPServer, user: str) -> None:
        self.id = secrets.token_urlsafe(24)
        self.user = user
        self.general = EventStream("g")
        self.session = Session(server, self.general.put, user=user)
        self.streams: dict[str, EventStream] = {"g": self.general}
        self.used = 0.0
        self.open = 0
        self._names = (f"p{number}" for number in itertools.count(1))

    def keep(self, stream: EventStream) -> None:
        """Give a stream its name, and forget the oldest that have ended."""
        stream.name = next(self._names)
        self.streams[stream.name] = stream
        ended = [name for name, one in self.streams.items() if one.is_ended]
        for name in ended[: max(len(self.streams) - KEPT_STREAMS, 0)]:
            del self.streams[name]

    @property
    def primes(self) -> bool:
        """Whether the client takes an event without data (2025-11-25)."""
        return self.session.version == HANDSHAKE[0]
