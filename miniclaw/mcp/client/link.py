"""What carries messages to one server and back; `StdioLink` and `HttpLink` are the two there are."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.protocol import (
    INTERNAL_ERROR,
    Message,
    MessageId,
    Notification,
    Request,
    Response,
    read_message,
)

__all__ = ["Link", "Take", "error_of"]

logger = logging.getLogger(__name__)

MAX_VALUES: Final = 1_000_000
"""Parts of one message: more would hold the loop for seconds while they are read."""
FEW_MARKS: Final = 1_000_000
"""Quotes and backslashes of a message whose texts can be told from its values in no time."""
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)', re.DOTALL)

Take = Callable[[Request | Notification, MessageId | None], None]
"""Takes what the server sends by itself, and the request of ours that it came with, where that is known."""


class Link(ABC):
    """A connection to a server, used once: what was closed is not started again.

    Attributes:
        take: takes what the server sends by itself; it never waits.
        version: the agreed revision, empty before.
        closed: done when the link is of no more use; its result says why.
        has_headers: whether the modern wire repeats parameters beside the messages.
    """

    has_headers = False

    def __init__(self) -> None:
        self.take: Take = lambda message, related: None
        self.version = ""
        self.closed: asyncio.Future[MCPUnavailable] = asyncio.get_running_loop().create_future()
        self._pending: dict[str, asyncio.Future[dict[str, Any]]] = {}

    @abstractmethod
    async def start(self) -> None:
        """Connect.

        Raises:
            MCPUnavailable: it cannot be.
        """

    @abstractmethod
    async def exchange(self, request: Request, headers: Mapping[str, str]) -> dict[str, Any]:
        """Send a request and return its result; cancelled, nobody waits for the answer any more.

        Raises:
            MCPError: the server refused.
            MCPUnavailable: it gave no answer and will not.
        """

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Send what is not answered.

        Raises:
            MCPUnavailable: it cannot be sent.
        """

    async def listen(self) -> None:  # noqa: B027 - most have nothing to do
        """Be ready for what the server sends without being asked; called after the handshake."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection and all that belongs to it; may be called again."""

    def expect(self, request_id: MessageId) -> asyncio.Future[dict[str, Any]]:
        """The future of an answer."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[str(request_id)] = future
        return future

    def forget(self, request_id: MessageId) -> None:
        """Nobody waits for this answer any more."""
        future = self._pending.pop(str(request_id), None)
        if future is not None and not future.cancel():
            future.exception()  # it was read by nobody, which is no fault

    def receive(self, data: bytes, related: MessageId | None = None) -> None:
        """Hand on the message in some bytes, or those of a batch, which revision 2025-03-26 may send.

        Raises:
            MCPError: it is no JSON, or no message.
            MCPUnavailable: it is too large to be read.
        """
        if _parts(data) > MAX_VALUES and (
            data.count(b'"') + data.count(b"\\") > FEW_MARKS or _parts(_TEXT.sub(b"", data)) > MAX_VALUES
        ):
            raise MCPUnavailable(f"The server sent a message of more than {MAX_VALUES:,} values.")
        try:
            value = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise MCPError(INTERNAL_ERROR, f"This is no message: {data[:200]!r}") from error
        if not isinstance(value, list):
            self.dispatch(read_message(value), related)
            return
        for one in value:
            try:
                self.dispatch(read_message(one), related)
            except MCPError as error:
                logger.warning("a part of a batch that is no message: %.200s", error)

    def dispatch(self, message: Message, related: MessageId | None = None) -> None:
        """Hand a message of the server to whom it belongs; an answer to nothing is passed over."""
        try:
            self._dispatch(message, related)
        except Exception:  # boundary: one message's fault is not that of those that came with it
            logger.exception("a message of the server could not be taken")

    def _dispatch(self, message: Message, related: MessageId | None) -> None:
        if not isinstance(message, Response):
            self.take(message, related)
            return
        future = self._pending.get(str(message.id))
        if future is None or future.done():
            logger.debug("an answer to nothing: %.100r", message.id)
        elif message.error is None and isinstance(message.result, dict):
            future.set_result(message.result)
        else:
            future.set_exception(error_of(message.error))

    def fail(self, error: MCPUnavailable) -> None:
        """Fail every request that waits."""
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error)

    def end(self, error: MCPUnavailable) -> None:
        """Say that the link is of no more use."""
        self.fail(error)
        if not self.closed.done():
            self.closed.set_result(error)


def error_of(error: object) -> MCPError:
    """The error of an answer, whatever shape it has."""
    error = error if isinstance(error, dict) else {}
    code, text, data = error.get("code"), error.get("message"), error.get("data")
    return MCPError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        str(text or "The server refused without a reason.")[:2000],
        data if isinstance(data, dict) else None,
    )


def _parts(data: bytes) -> int:
    return sum(map(data.count, (b"[", b"{", b",")))
