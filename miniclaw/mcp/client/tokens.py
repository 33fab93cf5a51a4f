"""Keeps what logins gave, in one file that only this user can read, and shows the login page."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import IO, Any, Final

from miniclaw.errors import ConfigError, MCPUnavailable
from miniclaw.rundir import try_lock
from miniclaw.whole_file import whole_file

__all__ = ["FILE", "BrowserConsent", "KeptTokens"]

logger = logging.getLogger(__name__)

FILE: Final = "mcp-tokens.json"
PORT: Final = 8977
"""Where the browser comes back to; fixed, since authorization servers compare the whole address."""
LOGIN_SECONDS: Final = 300.0
WRITE_SECONDS: Final = 1.0
RENEW_TRIES: Final = 3000
"""How long another process is waited for, which may hang: a minute."""
_PAGE: Final = "<!doctype html><title>miniclaw</title><p>You can close this page and go back to miniclaw."


class KeptTokens(MutableMapping[str, Any]):
    """What is kept for one server; another process may write the same file meanwhile.

    Args:
        path: the file, for all servers.
        url: the server.
    """

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url
        self._seen: tuple[int, int] | None = None
        self._all: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        return self._mine()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        with self._changing() as mine:
            mine[key] = value

    def __delitem__(self, key: str) -> None:
        with self._changing() as mine:
            del mine[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())

    def _mine(self) -> dict[str, Any]:
        try:
            found = self._path.stat()
            if self._seen != (found.st_mtime_ns, found.st_ino):
                self._all = json.loads(self._path.read_text(encoding="utf-8"))
                self._seen = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            self._all, self._seen = {}, None
        except OSError as error:
            raise ConfigError(f"`{self._path}` cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError):
            self._all, self._seen = {}, None
            aside = self._path.with_suffix(".broken")
            self._path.replace(aside)
            logger.error("`%s` is not JSON; it was moved to `%s`. Log in again.", self._path, aside.name)
        mine = self._all.get(self._url) if isinstance(self._all, dict) else None
        return mine if isinstance(mine, dict) else {}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """What is kept, to be changed in the block and then written; others wait so long."""
        try:
            with self._lock_file("") as lock:
                end = time.monotonic() + WRITE_SECONDS
                while not try_lock(lock) and time.monotonic() < end:
                    time.sleep(0.002)
                yield (mine := dict(self._mine()))
                with whole_file(self._path) as file:
                    file.write(json.dumps({**self._all, self._url: mine}).encode())
        except OSError as error:
            raise ConfigError(f"`{self._path}` cannot be written: {error.strerror}.") from error

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep others from renewing the tokens of this server, whose refresh token may be good for one use only.

        Raises:
            ConfigError: the directory cannot be written.
        """
        try:
            file = self._lock_file("." + hashlib.sha256(self._url.encode()).hexdigest()[:8])
        except OSError as error:
            raise ConfigError(f"`{self._path}` cannot be locked: {error.strerror}.") from error
        with file:
            for _ in range(RENEW_TRIES):
                if try_lock(file):
                    break
                await asyncio.sleep(0.02)
            yield

    def _lock_file(self, which: str) -> IO[bytes]:
        return open(self._path.with_suffix(f"{which}.lock"), "ab")


class BrowserConsent:
    """Opens the login page in a browser and waits on a port of this machine for its way back.

    Args:
        show: tells the user the address, for a browser on another machine or none that opens.
    """

    redirect_uri = f"http://127.0.0.1:{PORT}/callback"

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show

    async def ask(self, url: str) -> str:
        """Wait until the browser comes back."""
        came: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                target = head.split(b" ", 2)[1].decode("latin-1")
                is_ours = target.startswith("/callback?")
                body = _PAGE.encode() if is_ours else b""
                status = b"200 OK" if is_ours else b"404 Not Found"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Type: text/html\r\nConnection: close\r\n")
                writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
                if is_ours and not came.done():
                    came.set_result(f"http://127.0.0.1:{PORT}{target}")
            writer.close()

        try:
            server = await asyncio.start_server(answer, "127.0.0.1", PORT)
        except OSError as error:
            raise MCPUnavailable(f"Port {PORT}, where the browser comes back to, is in use.") from error
        async with server:
            self._show(url)
            await asyncio.to_thread(webbrowser.open, url)
            try:
                return await asyncio.wait_for(came, LOGIN_SECONDS)
            except TimeoutError:
                raise MCPUnavailable(f"Nobody logged in within {LOGIN_SECONDS:g} s.") from None
