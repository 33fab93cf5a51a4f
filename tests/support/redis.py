"""A real redis-server, started by the tests: on a port of its own, in a directory of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from miniclaw.redis.link import RedisLink

PROGRAM = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(
    "MINICLAW_TEST_STRICT" not in os.environ and (PROGRAM is None or find_spec("redis") is None),
    reason="needs redis-server and redis-py",
)
_numbers = itertools.count()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A server that can be stopped, started again on its data, and paused."""

    def __init__(self, directory: Path, *, fsync: str = "always", more: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = directory
        self._fsync = fsync
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert PROGRAM is not None
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        command += [
            "--appendonly",
            "yes",
            "--appendfsync",
            self._fsync,
            "--save",
            "",
            "--loglevel",
            "warning",
            *self._more,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_for(self.port)

    def ask(self, *commands: str) -> None:
        """Have it carry out some commands."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as one:
            for command in commands:
                one.sendall(command.encode() + b"\r\n")
                assert one.recv(1024).startswith(b"+OK")

    def send_signal(self, number: int) -> None:
        """SIGSTOP pauses it, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(20)
            self._process = None


@contextlib.contextmanager
def sentinel_of(master: int, name: str, directory: Path, *more: str) -> Iterator[int]:
    """A Sentinel that knows the server on a port by a name, with further lines of its configuration; its port."""
    assert PROGRAM is not None
    port, file = free_port(), directory / "sentinel.conf"
    text = f"port {port}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {master} 1\n"
    file.write_text(text + "\n".join(more), encoding="utf-8")
    command = [PROGRAM, str(file), "--sentinel", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(port: int) -> None:
    for _ in range(1000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as one:
            one.sendall(b"PING\r\n")
            if one.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                return
        time.sleep(0.01)
    raise AssertionError("redis-server did not start")


@cache
def shared_server() -> RedisServer:
    """The one of this test process; each test has a prefix of its own on it."""
    import atexit

    directory = Path(tempfile.mkdtemp(prefix="miniclaw-redis-"))
    server = RedisServer(directory, fsync="no")
    server.start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.stop)
    return server


def fresh_prefix() -> str:
    return f"t{os.getpid()}-{next(_numbers)}"


@asynccontextmanager
async def open_link(prefix: str, *, url: str = "", patience: float = 20.0) -> AsyncIterator[RedisLink]:
    """A connection on the shared server, closed again at the end."""
    link = RedisLink(url or shared_server().url, prefix=prefix, timeout=10.0, patience=patience)
    await link.open()
    try:
        yield link
    finally:
        await link.close()


@contextlib.contextmanager
def own_server(directory: Path, *more: str) -> Iterator[RedisServer]:
    """One that a test may stop, with further arguments."""
    server = RedisServer(directory, more=more)
    server.start()
    try:
        yield server
    finally:
        server.stop()
