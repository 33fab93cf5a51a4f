"""Reads server-sent events from bytes, wherever they are cut. No I/O.

Rules are those of https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from miniclaw.errors import MCPUnavailable

__all__ = ["MOST_BYTES", "Event", "EventReader"]

MOST_BYTES: Final = 32 * 1024 * 1024
"""What one event may have."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `data` is empty in one that only names where the stream stands."""

    name: str
    data: bytes


class EventReader:
    """Bytes in, events out.

    Attributes:
        last_id: the id of the newest event, empty before the first.
        retry: seconds to wait before the stream is asked for again; `None` = the server named none.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self.retry: float | None = None
        self._rest: list[bytes] = []
        self._size = 0
        self._skips_feed = False
        self._name = ""
        self._data: list[bytes] = []
        self._is_start = True

    def again(self) -> EventReader:
        """A reader for a new connection of the same stream."""
        fresh = EventReader()
        fresh.last_id, fresh.retry = self.last_id, self.retry
        return fresh

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that a chunk completes.

        Raises:
            MCPUnavailable: an event is over the limit.
        """
        if not chunk:
            return []
        if self._is_start:
            self._is_start = False
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if self._skips_feed:
            chunk = chunk.removeprefix(b"\n")
        self._skips_feed = chunk.endswith(b"\r")
        if b"\n" not in chunk and b"\r" not in chunk:
            self._add(chunk)
            return []
        text = b"".join([*self._rest, chunk])
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest, self._size = [], sum(map(len, self._data))
        self._add(lines.pop())
        return [event for line in lines if (event := self._line(line)) is not None]

    def _add(self, part: bytes) -> None:
        self._rest.append(part)
        self._size += len(part)
        if self._size > MOST_BYTES:
            raise MCPUnavailable(f"The server sent an event of more than {MOST_BYTES:,} bytes.")

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name or "message", b"\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self.last_id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self.retry = int(value[:9]) / 1000
        return None
