"""A server as a program of ours: one message a line on its standard input and output.

Rules are those of https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio. It may
print what it likes on standard error, and rubbish on standard output is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client.link import Link
from miniclaw.mcp.client.spawn import Guard, clean_environment, end_group, find_program
from miniclaw.mcp.protocol import Request, encode_request
from miniclaw.mcp.stdio import Lines

__all__ = ["StdioLink"]

logger = logging.getLogger(__name__)

MAX_LINE: Final = 32 * 1024 * 1024
"""Bytes of one message of a server; a longer one fails the calls that wait."""
KEPT_STDERR: Final = 16 * 1024
"""Bytes of the newest errors that are kept, and named when the server dies."""
TOLD_RUBBISH: Final = 100
"""Lines that are no messages after which it is no accident."""
EOF_SECONDS: Final = 2.0
"""How long a server may take to end when its input ends."""
TERM_SECONDS: Final = 2.0
"""How long it may take when it is asked by a signal."""
LAST_WORDS: Final = 0.2
"""Seconds for what a program wrote before it ended; who inherited its output may hold it open for ever."""

_guard = Guard()


class StdioLink(Link):
    """Runs a server.

    Args:
        command: the program and its arguments; no shell reads them.
        env: what it gets beside the few names that are passed on.
        cwd: where it runs; our own directory when left out.
        name: what it is called in the log.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, name: str = ""
    ) -> None:
        super().__init__()
        self._command = list(command)
        self._env = clean_environment(env)
        self._cwd = cwd
        self._name = name or command[0]
        self._transport: asyncio.SubprocessTransport | None = None
        self._pid = 0
        self._input: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._ended = asyncio.Event()
        self._lines = Lines(MAX_LINE)
        self._errors = bytearray()
        self._rubbish = 0
        self._is_silent = False

    async def start(self) -> None:
        """Start the program."""
        command = find_program(self._command, self._env, self._cwd)
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(
                lambda: _Pipes(self), *command, env=self._env, cwd=self._cwd, start_new_session=True
            )
        )
        try:
            self._transport, _ = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._transport, _ = await starting
            self._started()
            raise
        except (OSError, ValueError) as error:
            raise MCPUnavailable(f"`{self._command[0]}` cannot be started: {error}.") from error
        self._started()

    def _started(self) -> None:
        assert self._transport is not None
        self._pid = self._transport.get_pid()
        _guard.add(self._pid)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self._writable.set()

    async def exchange(self, request: Request, headers: Mapping[str, str]) -> dict[str, Any]:
        """Send a request and return its result."""
        future = self.expect(request.id)
        try:
            await self.send(encode_request(request.id, request.method, request.params))
            return await future
        finally:
            self.forget(request.id)

    async def send(self, message: bytes) -> None:
        """Write a line; waits while the server reads nothing."""
        await self._writable.wait()
        if self.closed.done() or self._input is None or self._input.is_closing():
            raise await asyncio.shield(self.closed)  # it ends now, and is about to say why
        self._input.write(message + b"\n")

    async def close(self) -> None:
        """End the program: first its input, then by signals, with all that it started."""
        if self._transport is None:
            return
        transport, self._transport = self._transport, None
        if self._input is not None:
            self._input.close()
        try:
            await asyncio.wait_for(self._ended.wait(), EOF_SECONDS)
        except TimeoutError:
            logger.info("the server %s did not end with its input", self._name)
        finally:
            await asyncio.shield(self._end(transport))

    async def _end(self, transport: asyncio.SubprocessTransport) -> None:
        await end_group(self._pid, self._ended, grace=TERM_SECONDS)
        transport.close()
        _guard.remove(self._pid)
        self.end(MCPUnavailable("The server was ended."))

    def received(self, descriptor: int, data: bytes) -> None:
        """Take what the program wrote."""
        if descriptor == 2:
            self._errors += data
            del self._errors[:-KEPT_STDERR]
            for text in data.decode("utf-8", "replace").splitlines()[-20:]:
                logger.debug("%s: %.500s", self._name, text)
            return
        for line in self._lines.feed(data):
            if line is None:
                self.fail(MCPUnavailable(f"The server sent a message of more than {MAX_LINE:,} bytes."))
                continue
            try:
                self.receive(line)
            except MCPUnavailable as error:
                self.fail(error)
            except MCPError as error:
                self._rubbish += 1
                if self._rubbish in (1, TOLD_RUBBISH):
                    logger.warning("%s prints what is no message: %.200s", self._name, error)

    def paused(self, is_paused: bool) -> None:
        """The pipe to the program is full, or has room again."""
        if is_paused:
            self._writable.clear()
        else:
            self._writable.set()

    def exited(self) -> None:
        """The program has ended."""
        self._ended.set()
        self._conclude()

    def lost(self, descriptor: int) -> None:
        """One of the pipes was closed; without its input or output a server is of no more use."""
        if descriptor != 2:
            self._is_silent = self._is_silent or descriptor == 1
            self._conclude()

    def _conclude(self) -> None:
        """End the link, but read first what was written before the end, and wait for the exit code."""
        if self._ended.is_set() and self._is_silent:
            self._conclude_now()
        else:
            asyncio.get_running_loop().call_later(LAST_WORDS, self._conclude_now)

    def _conclude_now(self) -> None:
        self._writable.set()
        code = self._transport.get_returncode() if self._transport is not None else None
        how = f"ended ({_how(code)})" if self._ended.is_set() else "closed its input or output"
        self.end(MCPUnavailable(f"The server {how}{self._last_words()}."))

    def _last_words(self) -> str:
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return f": {' / '.join(line.strip()[:200] for line in lines[-3:])}" if lines else ""


def _how(code: int | None) -> str:
    if code is None:
        return "exit code unknown"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


class _Pipes(asyncio.SubprocessProtocol):
    """Passes on what happens on the pipes, with no buffer of its own that could be too small."""

    def __init__(self, link: StdioLink) -> None:
        self._link = link

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._link.received(fd, data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._link.lost(fd)

    def process_exited(self) -> None:
        self._link.exited()

    def pause_writing(self) -> None:
        self._link.paused(True)

    def resume_writing(self) -> None:
        self._link.paused(False)
