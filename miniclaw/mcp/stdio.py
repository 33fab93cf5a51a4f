"""MCP over standard input and output: one message a line, and nothing else ever on standard output.

Rules are those of https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from miniclaw.mcp.server import MCPServer, OffersTools

__all__ = ["serve_stdio"]

MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one message; a longer line is answered with an error and passed over."""
CHUNK: Final = 65536
EOF_SECONDS: Final = 0.5
"""How long calls that run when standard input ends may take to finish."""
WRITE_QUEUE: Final = 1000
"""Lines that wait for a client that does not read; with more, it counts as gone."""


async def serve_stdio(tools: OffersTools) -> int:
    """Serve until standard input ends; returns the exit code.

    Standard output is taken away from everybody else first: what tools, libraries or child processes
    print goes to standard error.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(WRITE_QUEUE)
    server = MCPServer(tools, lambda line: _offer(lines, line + b"\n"))
    incoming = _start_reader(asyncio.get_running_loop())
    writer = asyncio.get_running_loop().create_task(_write(output, lines))
    try:
        while (line := await incoming.get()) is not None:
            if line.strip():
                server.receive(line)
    finally:
        await server.close(grace=EOF_SECONDS)
        _offer(lines, None)
        await asyncio.wait([writer], timeout=2.0)
        os.close(output)
    return 0


def _offer(lines: asyncio.Queue[bytes | None], line: bytes | None) -> None:
    if lines.full():
        os._exit(1)  # the client has stopped reading for good; there is nobody to tell
    lines.put_nowait(line)


async def _write(output: int, lines: asyncio.Queue[bytes | None]) -> None:
    while (line := await lines.get()) is not None:
        try:
            await asyncio.to_thread(_write_all, output, line)
        except OSError:
            return  # the client is gone; its end of standard input tells the reader too


def _write_all(output: int, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(output, view) :]


def _start_reader(loop: asyncio.AbstractEventLoop) -> asyncio.Queue[bytes | None]:
    """Lines of standard input, read by a thread: pipes, files and terminals alike work on all platforms."""
    incoming: asyncio.Queue[bytes | None] = asyncio.Queue(WRITE_QUEUE)

    def put(line: bytes | None) -> None:
        # Waits in this thread while the queue is full, which stops the client's writing in turn.
        asyncio.run_coroutine_threadsafe(incoming.put(line), loop).result()

    def read() -> None:
        for line in _lines(lambda size: os.read(0, size)):
            put(line)
        put(None)

    threading.Thread(target=read, name="miniclaw-mcp-stdin", daemon=True).start()
    return incoming


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Split at line feeds only; of a line over the limit nothing but a parse error is left."""
    buffer = bytearray()
    dropping = False
    while chunk := read(CHUNK):
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            if not dropping:
                yield bytes(buffer + line)
            buffer.clear()
            dropping = False
        if not dropping:
            buffer += rest
        if len(buffer) > MAX_LINE:
            yield b"{"  # answered as a parse error
            buffer.clear()
            dropping = True
    if buffer:
        yield bytes(buffer)
