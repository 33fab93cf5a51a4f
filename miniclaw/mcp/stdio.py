"""MCP over standard input and output: one message a line, and nothing else ever on standard output.

Rules are those of https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from miniclaw.errors import MCPError
from miniclaw.mcp.protocol import PARSE_ERROR, decode, encode_error
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.session import Session

__all__ = ["Lines", "serve_stdio", "take_stdio"]

MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one message; a longer line is answered with an error and passed over."""
CHUNK: Final = 65536
EOF_SECONDS: Final = 0.5
"""How long calls that run when standard input ends may take to finish."""
WRITE_BYTES: Final = 64 * 1024 * 1024
"""What waits for a client that does not read; with more, it counts as gone."""
FLUSH_SECONDS: Final = 2.0
"""How long the last answers may take to be read when standard input has ended."""
PIPE: Final = 4096
"""What a pipe that can be written takes at once without waiting (POSIX: `PIPE_BUF`, at least 512)."""


def take_stdio() -> tuple[int, int]:
    """Take standard input and output away from everybody else; returns our own descriptors of them.

    What tools, libraries or child processes print goes to standard error, and what they read is empty.
    """
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if sys.platform == "win32":
        import msvcrt

        for descriptor in (source, target):
            msvcrt.setmode(descriptor, os.O_BINARY)
    return source, target


async def serve_stdio(server: MCPServer, source: int, target: int) -> None:
    """Serve the one client on these descriptors until it closes `source`."""
    gone = asyncio.Event()
    writer = _Writer(target, gone.set)
    session = Session(server, writer.send)
    writer.may_wait = session.has_many
    lines = Lines(MAX_LINE)

    def take(chunk: bytes) -> None:
        if not chunk:
            gone.set()
        for line in lines.feed(chunk or b"\n"):
            try:
                if line is None:
                    raise MCPError(PARSE_ERROR, f"A message has at most {MAX_LINE} bytes.")
                session.receive(decode(line))
            except MCPError as error:
                writer.send(encode_error(None, error))

    stop = _start_reading(source, take)
    try:
        await gone.wait()
    finally:
        stop()
        server.stopping.set()
        await session.close(grace=EOF_SECONDS)
        writer.close()


class Lines:
    """Splits a stream of bytes at line feeds only; blank lines are left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The lines that a chunk ends; `None` stands for one that was over the limit."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | None] = []
        for part in ended:
            self._add(part)
            line = b"".join(self._parts)
            if self._size > self._limit:
                lines.append(None)
            elif line := line.removeprefix(b"\xef\xbb\xbf").strip():
                lines.append(line)
            self._parts, self._size = [], 0
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts = []
        else:
            self._parts.append(part)


class _Writer:
    """Writes messages in order and without waiting: at once where the pipe takes them, else in a thread."""

    def __init__(self, target: int, on_broken: Callable[[], object]) -> None:
        self._target = target
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._ready: list[bytes] = []
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_broken = self._is_closing = False
        self._room = _watch_room(target)
        self.may_wait: Callable[[], bool] = lambda: True
        """Whether others may come in the same round of the loop."""

    def send(self, message: bytes) -> None:
        """Take a message; those of one round of the loop are written together."""
        if self._is_broken:
            return
        self._ready.append(message)
        if len(self._ready) > 1:
            return
        if self.may_wait():
            self._loop.call_soon(self._flush)
        else:
            self._flush()

    def close(self) -> None:
        """Write what is left, as far as the client still reads."""
        self._flush()
        if self._thread is not None:
            with self._more:
                self._is_closing = True
                self._more.notify()
            self._thread.join(FLUSH_SECONDS)

    def _flush(self) -> None:
        if not self._ready or self._is_broken:
            return
        data = b"\n".join(self._ready) + b"\n"
        self._ready = []
        with self._more:
            if not self._bytes and len(data) <= PIPE and self._room():
                self._write(data)
                return
            self._waiting.append(data)
            self._bytes += len(data)
            if self._bytes > WRITE_BYTES:
                self._broken()
            self._more.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="miniclaw-mcp-stdout", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._more:
                while not self._waiting:
                    if self._is_closing:
                        return
                    self._more.wait()
                data = self._waiting.popleft()
            if self._is_broken or not self._write(data):
                return
            with self._more:
                self._bytes -= len(data)  # only now may the loop write by itself again

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._target, view) :]
        except OSError:
            self._loop.call_soon_threadsafe(self._broken)
            return False
        return True

    def _broken(self) -> None:
        """Nobody reads any more; there is nobody to tell either."""
        self._is_broken = True
        self._on_broken()


def _watch_room(descriptor: int) -> Callable[[], bool]:
    """Tells whether a descriptor takes `PIPE` bytes without waiting; where that cannot be known, never."""
    if sys.platform == "win32":
        return lambda: False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return lambda: any(event & select.POLLOUT for _, event in poll.poll(0))


def _start_reading(source: int, take: Callable[[bytes], None]) -> Callable[[], object]:
    """Call `take` with each chunk, and with nothing at the end; returns what stops it.

    By the loop where it can watch the descriptor, else (files, Windows) by a thread, which waits until a
    chunk is taken, so that a client is stopped that writes faster than we read.
    """
    loop = asyncio.get_running_loop()

    def read() -> None:
        chunk = _read(source)
        if not chunk:
            loop.remove_reader(source)
        take(chunk)

    try:
        loop.add_reader(source, read)
    except (OSError, NotImplementedError):
        threading.Thread(target=_read_all, args=(source, take, loop), daemon=True).start()
        return lambda: None
    return lambda: loop.remove_reader(source)


def _read(source: int) -> bytes:
    try:
        return os.read(source, CHUNK)
    except OSError:
        return b""


def _read_all(source: int, take: Callable[[bytes], None], loop: asyncio.AbstractEventLoop) -> None:
    taken = threading.Event()

    def hand_over(chunk: bytes) -> None:
        take(chunk)
        taken.set()

    chunk = b"-"
    while chunk:
        chunk = _read(source)
        taken.clear()
        try:
            loop.call_soon_threadsafe(hand_over, chunk)
        except RuntimeError:  # the loop is closed: we are stopping
            return
        taken.wait()
