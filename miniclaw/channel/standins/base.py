"""What the stand-ins have in common: a server on this machine, faults on demand, and a log of what came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

from aiohttp import web

__all__ = ["Event", "Fault", "Shown", "Standin"]

MAX_BYTES: Final = 4 * 1024 * 1024
HANG_SECONDS: Final = 60.0

Kind = Literal["status", "error", "cut", "hang"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A request as the platform sends it, signed."""

    path: str
    """Below `/webhooks/`."""
    headers: dict[str, str]
    body: bytes
    query: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call of a method; `stored` = only after the platform has done what was asked."""

    method: str
    kind: Kind
    value: Any = None
    """A status, or the platform's error code."""
    stored: bool = False
    retry_after: int | None = None


@dataclass(slots=True)
class Shown:
    """A message as people see it."""

    id: str
    conversation: str
    thread: str | None
    text: str
    is_open: bool = False
    """A stream that has not ended."""
    raw: dict[str, Any] = field(default_factory=dict)


class Standin:
    """A platform's API on a free port.

    Attributes:
        shown: the messages that people see, in order.
        calls: method and body of every call that came, also of those that failed.
        faults: each is used for the next call of its method, once.
    """

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.faults: deque[Fault] = deque()
        self.on_show: Callable[[Shown], None] | None = None
        self._news = asyncio.Event()
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        """The API."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def start(self, port: int = 0) -> None:
        """Listen on this machine."""
        app = web.Application(client_max_size=MAX_BYTES)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()

    async def stop(self) -> None:
        """Stop listening; what was shown stays to be looked at."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def show(self, message: Shown) -> None:
        """Let people see a message, or what it says now."""
        if message not in self.shown:
            self.shown.append(message)
        if self.on_show is not None:
            self.on_show(message)
        self.news()

    def news(self) -> None:
        """Something came."""
        self._news.set()

    async def until(self, claim: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait until what came makes something true."""
        async with asyncio.timeout(seconds):
            while not claim():
                self._news.clear()
                await self._news.wait()

    def fault_of(self, method: str) -> Fault | None:
        """The fault of this call, taken off the list."""
        for fault in self.faults:
            if fault.method == method:
                self.faults.remove(fault)
                return fault
        return None

    @staticmethod
    async def fail(request: web.Request, fault: Fault) -> web.Response:
        """Answer as the fault says; codes of a platform are the caller's to answer."""
        if fault.kind == "hang":
            await asyncio.sleep(HANG_SECONDS)
        if fault.kind in ("cut", "hang"):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else {}
        return web.Response(status=int(fault.value), headers=headers)
