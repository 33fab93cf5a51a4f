"""Reads the events of a model server from bytes, wherever they are cut. No I/O.

More lenient than the standard, since servers are: an event counts as soon as its JSON is whole, lines that
are no field are read as one JSON body at the end, and keep-alives of any form are passed over.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic_core import from_json

from miniclaw.errors import ModelError

__all__ = ["EventReader", "read_json"]

MOST_BYTES: Final = 8 * 1024 * 1024
"""What a server may send without saying anything: a line, or an event that is not whole."""
SHORT: Final = 4096
"""Bytes of an event that are read again at each of its lines, since not every server marks its end."""


class EventReader:
    """Bytes in, JSON values out.

    Attributes:
        is_done: the server said `[DONE]`.
        is_one_body: there were no events, but one JSON body.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.is_one_body = False
        self._line = b""
        self._data: list[bytes] = []
        """The lines of an event that is not whole."""
        self._size = 0
        self._next_try = 0
        """How long they must be before it is tried again whether they are."""
        self._event = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._is_start = True
        self._is_half_break = False
        self._has_events = False
        self._fault: ModelError | None = None
        """Of an event in a piece whose first events were sound; raised behind them."""

    def feed(self, data: bytes) -> list[Any]:
        """Take bytes; returns the values that they complete.

        Raises:
            ModelError: an event is no JSON.
        """
        if self._fault is not None:
            raise self._fault
        is_plain = self._has_events and not (self._line or self._data or self._event or self._is_half_break)
        if is_plain and data.endswith(b"}\n\n") and (values := _plain(data)) is not None:
            return values
        if self._is_half_break and data.startswith(b"\n"):
            data = data[1:]
        self._is_half_break = data.endswith(b"\r")
        lines = (self._line + data if self._line else data).splitlines()
        self._line = b"" if data.endswith((b"\n", b"\r")) or not lines else lines.pop()
        if len(self._line) + self._size + self._body_size > MOST_BYTES:
            raise ModelError(
                "model_error", "The model server sent an event without an end.", kind="bad_stream"
            )
        found: list[Any] = []
        for line in lines:
            if not self.is_done and self._fault is None:
                try:
                    self._take(line, found)
                except ModelError as error:
                    if not found:
                        raise
                    self._fault = error
        return found

    def finish(self) -> list[Any]:
        """The values in what is left when the connection has ended; the half of an event behind others is none.

        Raises:
            ModelError: it is no JSON.
        """
        if self._fault is not None:
            raise self._fault
        found: list[Any] = []
        try:
            if self._line:
                line, self._line = self._line, b""
                self._take(line, found)
            self._take(b"", found)
        except ModelError:
            if not self._has_events:
                raise
        if not self._has_events and (body := b"\n".join(self._body).strip()):
            self.is_one_body = True
            found.append(read_json(body, "; check OPENAI_BASE_URL, which usually ends in /v1"))
        return found

    def _take(self, line: bytes, found: list[Any]) -> None:
        if self._is_start:
            self._is_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"data:"):
            self._take_data(line[5:].lstrip(), found)
        elif not line:
            if self._data:
                self._take_value(read_json(b"\n".join(self._data)), found)
            self._event = b""
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()
        elif not self._has_events and not line.startswith((b":", b"id:", b"retry:")):
            self._body.append(line)
            self._body_size += len(line) + 1

    def _take_data(self, data: bytes, found: list[Any]) -> None:
        if data[:6].upper() == b"[DONE]":
            self.is_done = True
        if not data or self.is_done or data.startswith(b":") or data == b"null":
            return
        self._data.append(data)
        self._size += len(data)
        if self._size < self._next_try:
            return
        if (value := _whole(b"\n".join(self._data))) is not None:
            self._take_value(value, found)
        else:
            # Not at each line of a long one: an event may have very many.
            self._next_try = 2 * self._size if self._size > SHORT else 0

    def _take_value(self, value: Any, found: list[Any]) -> None:
        self._data, self._size, self._next_try, self._has_events = [], 0, 0, True
        if self._event and isinstance(value, dict):
            if self._event == b"error" and not value.get("error"):
                value = {"error": value}
            elif self._event.startswith(b"response."):  # some servers name the kind only here
                value.setdefault("type", self._event.decode("utf-8", "replace"))
        found.append(value)


def _plain(data: bytes) -> list[Any] | None:
    """The values of whole events of one line, as nearly all tokens come: a short way to what the long one gives."""
    values = []
    for event in data[:-2].split(b"\n\n"):
        if not event.startswith(b"data: {") or b"\n" in event or (value := _whole(event[6:])) is None:
            return None
        values.append(value)
    return values


def read_json(data: bytes, advice: str = "") -> Any:
    """The value of a JSON text.

    Raises:
        ModelError: it is none.
    """
    if (value := _whole(data)) is None:
        text = f"The model server sent something that is not JSON{advice}."
        raise ModelError("model_error", text, kind="bad_stream", retryable=True)
    return value


def _whole(data: bytes) -> Any:
    """The value, `None` where there is none (yet)."""
    try:
        return from_json(data)
    except ValueError:
        pass
    try:
        # Takes lone surrogates and broken UTF-8, which the other does not.
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
