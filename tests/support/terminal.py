"""A program in a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

GUARD = 30.0


class Terminal:
    """Starts `miniclaw` in a pseudo-terminal, types into it, and reads what it shows."""

    def __init__(self, *arguments: str, env: Mapping[str, str], columns: int = 80) -> None:
        self.output = ""
        self._cursor = 0
        self._code: int | None = None
        self._pid, self._fd = pty.fork()
        if self._pid == 0:  # pragma: no cover - the child
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execve(sys.executable, [sys.executable, "-m", "miniclaw", *arguments], {**os.environ, **env})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._code is None:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def type(self, text: str) -> None:
        """Type a text; Enter is `\\r`, Ctrl+C is `\\x03`."""
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` is shown behind what was waited for before."""
        begin = time.monotonic()
        while (found := self.output.find(text, self._cursor)) < 0:
            assert time.monotonic() - begin < GUARD, (
                f"{text!r} was not shown: {self.output[self._cursor :]!r}"
            )
            self._read()
        self._cursor = found + len(text)

    def exit_code(self, *, press: str = "") -> int:
        """Wait for the end; `press` is typed about every three seconds until then."""
        begin = time.monotonic()
        pressed = 0
        while self._code is None:
            if press and time.monotonic() - begin >= 3 * pressed:
                pressed += 1
                self.type(press)
            assert time.monotonic() - begin < GUARD, f"the program did not end: {self.output[-500:]!r}"
            self._read()
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def _read(self) -> None:
        ready, _, _ = select.select([self._fd], [], [], 0.1)
        if ready:
            with contextlib.suppress(OSError):  # the other end is closed
                shown = os.read(self._fd, 65536).decode("utf-8", "replace")
                self.output += shown
                if "\x1b[6n" in shown:  # a terminal tells where the cursor is when it is asked
                    os.write(self._fd, b"\x1b[1;1R")
