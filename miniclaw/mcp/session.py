"""One client's connection to our server, whatever carries its messages: what was agreed, runs and is asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from miniclaw.errors import MCPError, MiniClawError
from miniclaw.mcp.call import Call, Send
from miniclaw.mcp.protocol import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META_SUBSCRIPTION,
    Message,
    MessageId,
    Notification,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
)

if TYPE_CHECKING:
    from miniclaw.mcp.server import MCPServer

__all__ = ["Session"]

logger = logging.getLogger(__name__)

MAX_CALLS: Final = 64
"""Requests of one client that run at once; a further one waits."""
MAX_REQUESTS: Final = 4096
"""Requests of one client that run or wait; a further one is refused."""
ASK_SECONDS: Final = 600.0
"""How long the person at the client may take to answer a question."""

_LISTEN: Final = "subscriptions/listen"


class Session:
    """Answers one client's messages.

    Requests run side by side, so that a slow tool keeps neither `ping` nor a cancellation waiting. A
    cancelled request is not answered.

    Args:
        server: what is offered.
        send: takes what belongs to no request.
        user: whose session it is.
        is_modern: all requests are taken as made without a handshake.
    """

    def __init__(
        self, server: MCPServer, send: Send, *, user: str = "owner", is_modern: bool = False
    ) -> None:
        self.server = server
        self.user = user
        self.is_modern = is_modern
        self.version: str | None = None
        """What `initialize` agreed upon."""
        self.capabilities: Mapping[str, Any] = {}
        self.log_level = "info"
        self.watched: set[str] = set()
        """Resources of which the client wants to know when they change."""
        self._send = send
        self._running: dict[MessageId, tuple[Call, asyncio.Task[int | None]]] = {}
        self._places = asyncio.Semaphore(MAX_CALLS)
        self._asked: dict[MessageId, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 1
        self._listening: dict[MessageId, tuple[dict[str, Any], Send]] = {}
        server.sessions.add(self)

    def receive(self, message: Message, send: Send | None = None) -> asyncio.Task[int | None] | None:
        """Take one message of the client; what belongs to it goes to `send`, where one is given.

        Returns the task that answers a request; its result is the code of a refusal.
        """
        send = send or self._send
        match message:
            case Request() if len(self._running) >= MAX_REQUESTS or message.id in self._running:
                refusal = MCPError(INVALID_REQUEST, "Too many requests at once, or an id that is in use.")
                send(encode_error(message.id, refusal))
            case Request():
                call = Call(self, message, send)
                task = asyncio.get_running_loop().create_task(self._answer(call, send))
                self._running[message.id] = call, task
                # Not in the task itself: one that is cancelled before it begins never runs.
                task.add_done_callback(lambda _: self._running.pop(message.id, None))
                return task
            case Notification(method=method) if method == CANCELLED:
                self.cancel(message.params.get("requestId"))
            case Notification():
                logger.debug("ignored: %s", message.method)
            case Response():
                self._take_answer(message)
        return None

    def has_many(self) -> bool:
        """Whether more than one request is being answered."""
        return len(self._running) > 1

    def cancel(self, request_id: object) -> None:
        """Stop a request; one that is unknown or finished is no error."""
        running = self._running.get(request_id) if isinstance(request_id, str | int) else None
        if running is not None:
            call, task = running
            call.is_cancelled = True
            task.cancel()

    async def request(self, method: str, params: dict[str, Any], *, send: Send) -> dict[str, Any]:
        """Ask the client something in the middle of a call and return its result.

        Raises:
            MCPError: it refused, or did not answer in time.
        """
        request_id, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = future
        try:
            send(encode_request(request_id, method, params))
            async with asyncio.timeout(ASK_SECONDS):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            send(encode_notification(CANCELLED, {"requestId": request_id}))
            if isinstance(error, TimeoutError):
                raise MCPError(INTERNAL_ERROR, f"The client did not answer `{method}` in time.") from error
            raise
        finally:
            del self._asked[request_id]

    async def listen(self, call: Call, send: Send) -> dict[str, Any]:
        """Serve `subscriptions/listen` until it is cancelled or the server stops."""
        wanted = call.request.params.get("notifications")
        wanted = wanted if isinstance(wanted, dict) else {}
        readable = await self.server.readable(wanted.get("resourceSubscriptions"), call)
        granted = self.server.grant(wanted, readable)
        request_id = call.request.id
        self._listening[request_id] = (granted, send)
        tagged = {META_SUBSCRIPTION: request_id}
        try:
            acknowledged = {"notifications": granted, "_meta": tagged}
            send(encode_notification("notifications/subscriptions/acknowledged", acknowledged))
            await self.server.stopping.wait()
        finally:
            del self._listening[request_id]
        return {"_meta": tagged}

    def changed(self, what: str) -> None:
        """Tell the client that a list (`tools`, `prompts`, `resources`) is another one now."""
        method = f"notifications/{what}/list_changed"
        if self.version is not None:
            self._send(encode_notification(method))
        self._tell(method, {}, lambda granted: granted.get(f"{what}ListChanged") is True)

    def updated(self, uri: str) -> None:
        """Tell the client, if it watches the resource, that its content is another one now."""
        method = "notifications/resources/updated"
        if uri in self.watched:
            self._send(encode_notification(method, {"uri": uri}))
        self._tell(method, {"uri": uri}, lambda granted: uri in granted.get("resourceSubscriptions", ()))

    async def close(self, *, grace: float = 0.0) -> None:
        """Let what runs finish for `grace` seconds, then cancel it."""
        self.server.sessions.discard(self)
        tasks = [task for _, task in self._running.values()]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _answer(self, call: Call, send: Send) -> int | None:
        code, request = None, call.request
        # A subscription lasts as long as the client wants, so it may not keep calls from running.
        place = contextlib.nullcontext() if request.method == _LISTEN else self._places
        try:
            async with place:
                if request.method == _LISTEN and call.is_modern:
                    self.server.check_meta(call)
                    self.server.check_version(call)
                    result = self.server.modern(call, await self.listen(call, send))
                else:
                    result = await self.server.handle(call)
                reply = encode_result(request.id, result)
        except MCPError as error:
            code, reply = error.code, encode_error(request.id, error)
        except MiniClawError as error:  # such as storage that cannot be read
            code = INTERNAL_ERROR
            reply = encode_error(request.id, MCPError(code, str(error)))
        except UnicodeEncodeError:
            code = INVALID_PARAMS
            reply = encode_error(request.id, MCPError(code, "A text ends in half a character (a surrogate)."))
        except Exception:  # boundary: a request that breaks its handler is answered, and the next one served
            logger.exception("request %s broke", request.method)
            code = INTERNAL_ERROR
            reply = encode_error(request.id, MCPError(code, "Something broke inside miniclaw."))
        send(reply)
        return code

    def _take_answer(self, response: Response) -> None:
        future = self._asked.get(response.id) if isinstance(response.id, str | int) else None
        if future is None and isinstance(response.id, str) and response.id.isdigit():
            future = self._asked.get(int(response.id))
        if future is None or future.done():
            logger.debug("an answer to nothing: %s", response.id)
        elif isinstance(response.result, dict):
            future.set_result(response.result)
        else:
            error = response.error if isinstance(response.error, dict) else {}
            code, text = error.get("code"), error.get("message")
            known = code if isinstance(code, int) else INTERNAL_ERROR
            future.set_exception(MCPError(known, f"The client refused: {text}"))

    def _tell(self, method: str, params: dict[str, Any], wants: Any) -> None:
        for request_id, (granted, send) in self._listening.items():
            if wants(granted):
                tagged = {**params, "_meta": {META_SUBSCRIPTION: request_id}}
                send(encode_notification(method, tagged))
