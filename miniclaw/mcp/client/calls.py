"""Our requests that wait for an answer, and the server's questions and notifications meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.link import Link
from miniclaw.mcp.protocol import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    META_CAPABILITIES,
    META_CLIENT,
    META_LOG_LEVEL,
    META_VERSION,
    MODERN,
    PROGRESS,
    MessageId,
    Notification,
    Request,
    encode_error,
    encode_notification,
    encode_result,
)
from miniclaw.mcp.rounds import ASKING

__all__ = ["Calls", "Progress"]

logger = logging.getLogger(__name__)

Progress = Callable[[float, float | None, str], None]
"""How far a call is, of how much (where that is known), and a word on it."""

MOST_SECONDS: Final = 3600.0
"""How long a call may take that shows progress again and again."""
MAX_ASKED: Final = 16
"""Questions of a server that are open at once; a further one is refused."""
MOST_NUMBER, MAX_BACKOFF = 2**53, 60.0
END_SECONDS: Final = 5.0  # that a call which is over waits for its questions to end
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO}
_LISTEN: Final = "subscriptions/listen"


@dataclass(slots=True)
class _Call:
    method: str
    host: Host
    progress: Progress | None
    clock: asyncio.Timeout
    deadline: float
    asked: dict[MessageId, asyncio.Task[None]] = field(default_factory=dict)
    is_over: bool = False

    def extend(self, seconds: float) -> None:
        """Let it take so long from now on, unless it is over or waits for us."""
        if not (self.asked or self.is_over or self.clock.expired()):
            self.clock.reschedule(min(asyncio.get_running_loop().time() + seconds, self.deadline))

    def forget(self, question: MessageId, seconds: float) -> None:
        self.asked.pop(question, None)
        self.extend(seconds)


class Calls:
    """Everything that is under way on one connection.

    Attributes:
        version: the agreed revision, empty before.
        logs: whether the server sends what it logs.
    """

    def __init__(self, name: str, host: Host, *, seconds: float, changed: Callable[[str], None]) -> None:
        self.name = name or "MCP server"
        self.host = host
        self.version = ""
        self.logs = False
        self._seconds = seconds
        self._changed = changed
        self._link: Link | None = None
        self._ids = itertools.count(1)
        self._running: dict[str, _Call] = {}
        self._asked: dict[MessageId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def client_info(self) -> dict[str, str]:
        """Who we are."""
        from importlib.metadata import version

        return {"name": "miniclaw", "version": version("miniclaw")}

    def attach(self, link: Link) -> None:
        """Use this link from now on."""
        self._link = link
        link.take = self._take

    async def close(self) -> None:
        """End what is under way."""
        tasks = [*self._tasks, *self._asked.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def once(
        self,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        progress: Progress | None = None,
        host: Host | None = None,
    ) -> dict[str, Any]:
        """Send one request and wait for its answer; given up, the server is told so.

        Raises:
            MCPError: it was refused.
            MCPUnavailable: there is no answer.
        """
        assert self._link is not None
        number = next(self._ids)
        request = Request(number, method, self._with_meta(params, number if progress else None))
        deadline = asyncio.get_running_loop().time() + MOST_SECONDS
        seconds = None if method in (_LISTEN, "initialize") else self._seconds  # who connects has a limit
        try:
            async with asyncio.timeout(seconds) as clock:
                self._running[str(number)] = _Call(method, host or self.host, progress, clock, deadline)
                return await self._link.exchange(request, headers)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._give_up(request)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise MCPUnavailable(f"No answer to `{method}` within {self._seconds:g} s.") from None
        finally:
            await self._end(self._running.pop(str(number)))

    async def _end(self, call: _Call) -> None:
        """End the open questions of a call that is over: what they cost is its turn's, which ends next."""
        call.is_over = True
        for number, task in call.asked.items():
            task.cancel()
            self._spawn(self._reply(encode_error(number, MCPError(INVALID_REQUEST, "The call is over."))))
        if call.asked:
            await asyncio.wait([*call.asked.values()], timeout=END_SECONDS)

    async def answer_all(self, questions: object, host: Host | None) -> dict[str, Any]:
        """The answers to the questions of a modern call."""
        answers = {}
        for key, asked in (questions if isinstance(questions, dict) else {}).items():
            params = asked.get("params") if isinstance(asked, dict) else None
            method = str(asked.get("method")) if isinstance(asked, dict) else ""
            answers[key] = await (host or self.host).answer(
                method, params if isinstance(params, dict) else {}
            )
        return answers

    def watch(self, capabilities: Mapping[str, Any]) -> None:
        """Be told on the modern wire when lists change, where the server can."""
        wanted = {
            f"{what}ListChanged": True
            for what in ("tools", "prompts", "resources")
            if isinstance(offer := capabilities.get(what), dict) and offer.get("listChanged")
        }
        if wanted:
            self._spawn(self._listen({"notifications": wanted}))

    async def _listen(self, params: dict[str, Any]) -> None:
        """Hold the subscription for as long as the link lives."""
        assert self._link is not None
        wait = 1.0
        while not self._link.closed.done():
            began = asyncio.get_running_loop().time()
            try:
                await self.once(_LISTEN, params, {"Mcp-Method": _LISTEN})
            except MCPUnavailable as error:
                logger.debug("%s: the subscription broke: %s", self.name, error)
            except MCPError as error:
                logger.info("%s: no subscription: %s", self.name, error)
                return
            held = asyncio.get_running_loop().time() - began
            wait = 1.0 if held > MAX_BACKOFF else min(wait * 2, MAX_BACKOFF)
            await asyncio.sleep(wait)
            for what in ("tools", "prompts", "resources"):  # something may have changed meanwhile
                if f"{what}ListChanged" in params["notifications"]:
                    self._changed(what)

    def _with_meta(self, params: Mapping[str, Any], token: int | None) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        if self.version == MODERN:
            meta = {
                META_VERSION: MODERN,
                META_CAPABILITIES: self.host.capabilities,
                META_CLIENT: self.client_info,
            }
            if self.logs:
                meta[META_LOG_LEVEL] = "info"
        if token is not None:
            meta["progressToken"] = token
        return {**params, "_meta": meta} if meta else dict(params)

    def _give_up(self, request: Request) -> None:
        """Tell the server, where it is not told by the end of the stream."""
        link = self._link
        by_stream = self.version == MODERN and link is not None and link.has_headers
        if link is None or request.method == "initialize" or by_stream or link.closed.done():
            return
        self._spawn(self._tell(link, encode_notification(CANCELLED, {"requestId": request.id})))

    @staticmethod
    async def _tell(link: Link, message: bytes) -> None:
        with contextlib.suppress(MCPError, TimeoutError):
            async with asyncio.timeout(5.0):
                await link.send(message)

    # --- what the server sends by itself ------------------------------------------------------------------

    def _take(self, message: Request | Notification, related: MessageId | None) -> None:
        if isinstance(message, Request):
            self._question(message, related)
        elif message.method == PROGRESS:
            self._progress(message.params)
        elif message.method == CANCELLED:
            number = message.params.get("requestId")
            if isinstance(number, str | int) and number in self._asked:
                self._asked[number].cancel()
        elif message.method == "notifications/message":
            level = _LEVELS.get(str(message.params.get("level")), logging.WARNING)
            logger.log(level, "%s: %.2000s", self.name, message.params.get("data"))
        elif message.method.endswith("/list_changed"):
            self._changed(message.method.split("/")[1])
        else:
            logger.debug("%s: ignored: %.100s", self.name, message.method)

    def _progress(self, params: Mapping[str, Any]) -> None:
        call = self._running.get(str(params.get("progressToken")))
        done, total = _number(params.get("progress")), _number(params.get("total"))
        if call is None or call.progress is None or done is None:
            return
        call.extend(self._seconds)
        call.progress(done, total, str(params.get("message") or ""))

    def _question(self, request: Request, related: MessageId | None) -> None:
        if request.method == "ping":
            self._spawn(self._reply(encode_result(request.id, {})))
        elif self.version == MODERN or len(self._asked) >= MAX_ASKED or request.id in self._asked:
            refusal = MCPError(INVALID_REQUEST, "This is no time for a question.")
            self._spawn(self._reply(encode_error(request.id, refusal)))
        else:
            call = self._call_of(related)
            task = asyncio.get_running_loop().create_task(self._answer(request, call))
            self._asked[request.id] = task
            if call is not None:
                call.extend(MOST_SECONDS)
                call.asked[request.id] = task
                task.add_done_callback(lambda _: call.forget(request.id, self._seconds))
            task.add_done_callback(lambda _: self._asked.pop(request.id, None))

    async def _answer(self, request: Request, call: _Call | None) -> None:
        """Answer a question; the time that a person thinks is not the call's."""
        host = call.host if call is not None else self.host
        try:
            reply = encode_result(request.id, await host.answer(request.method, request.params))
        except MCPError as error:
            reply = encode_error(request.id, error)
        except Exception:  # boundary: a question that breaks who answers it is refused, and the call goes on
            logger.exception("%s: a question broke: %s", self.name, request.method)
            reply = encode_error(request.id, MCPError(INTERNAL_ERROR, "Something broke inside miniclaw."))
        finally:
            if call is not None:
                call.forget(request.id, self._seconds)
        await self._reply(reply)

    def _call_of(self, related: MessageId | None) -> _Call | None:
        """The call that a question belongs to; on a shared channel only where there is no doubt."""
        if related is not None:
            return self._running.get(str(related))
        calls = [call for call in self._running.values() if call.method in ASKING]
        return calls[0] if len({call.host.who for call in calls}) == 1 else None

    async def _reply(self, message: bytes) -> None:
        assert self._link is not None
        with contextlib.suppress(MCPError):
            await self._link.send(message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _number(value: object) -> float | None:
    """A number that can be written; no other is one."""
    return value if isinstance(value, int | float) and abs(value) < MOST_NUMBER else None
