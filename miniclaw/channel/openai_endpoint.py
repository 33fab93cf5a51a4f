"""`/v1/chat/completions` and `/v1/models`: the agent, for any client of OpenAI's API.

The shapes are those of https://platform.openai.com/docs/api-reference/chat. Only the last user message is
taken; tools, temperature and whatever else a client sends are the gateway's own affair and are passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from miniclaw.agent.patience import refuse_at_once
from miniclaw.channel.cli import CLIChannel
from miniclaw.channel.openai_shapes import MODEL, SESSION_HEADER, Answer
from miniclaw.config import Clock
from miniclaw.errors import ProtocolError, StorageError
from miniclaw.gateway.connection import Hub
from miniclaw.gateway.http import Route, json_response, read_json, user_of
from miniclaw.gateway.protocol import Inbound, MessageType, TextPayload, encode_json, new_id, now
from miniclaw.gateway.reader import TurnReader
from miniclaw.logs import request_id
from miniclaw.mcp.http import is_gone
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import PASSING, Entry

__all__ = ["OpenAIChannel"]

logger = logging.getLogger(__name__)

SEED: Final = "seed"
"""Stands for the turn of messages that came before."""
WATCH_SECONDS: Final = 0.5
"""How often it is looked whether the client is still there."""
SEND_SECONDS: Final = 30.0
"""For which a client may stop reading."""
ALIVE_SECONDS: Final = 15.0
"""Between two signs of life of a stream."""

Cancel = Callable[[str, str], Awaitable[bool]]


class _Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """What is said in it; parts of other kinds are left out."""
        if isinstance(self.content, list):
            return "\n".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")
        return self.content or ""


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(BaseModel):
    """The fields that mean something here."""

    messages: list[_Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = Field(default=None, max_length=256)
    n: int | None = Field(default=None, ge=1, le=1)


class OpenAIChannel(CLIChannel):
    """Each request is a message of its user; nobody is there to approve, and leaving cancels the turn."""

    def __init__(self, hub: Hub, sessions: SessionManager, cancel: Cancel, *, clock: Clock) -> None:
        super().__init__(hub, "openai")
        self._sessions = sessions
        self._cancel = cancel
        self._clock = clock

    def routes(self) -> list[Route]:
        """The two that every client asks for."""
        return [
            Route(method="POST", path="/v1/chat/completions", handler=self._complete),
            Route(method="GET", path="/v1/models", handler=self._models),
        ]

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}
        return json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body: _Body = await read_json(request, _Body)
        user_id = user_of(request)
        *earlier, said = _up_to_last_user(body.messages)
        named = request.headers.get(SESSION_HEADER) or None
        thrown, msg_id = None, new_id("msg")
        if named is None and body.user is None:
            thrown = await self._seeded(user_id, earlier, msg_id)
        try:
            receipt = await self.submit(_inbound(said, user_id, named or thrown, body.user, msg_id))
            if not receipt.stored:
                raise ProtocolError(receipt.code or "internal", receipt.message)
            refuse_at_once(False)  # a client that leaves cancels, also while storage is away
            answer = Answer(receipt, self._clock(), is_thrown=thrown is not None)
            # No await since the receipt: the turn cannot have published anything yet.
            with TurnReader(self.hub.bus, answer.session_id, answer.turn_id) as reader:
                if body.stream:
                    return await self._stream(request, answer, reader, body.stream_options)
                end = await self._watched(request, reader, answer.turn_id, reader.end())
                return web.Response() if end is None else answer.whole(end)
        finally:
            if thrown is not None:
                with contextlib.suppress(StorageError):  # else the next start removes it
                    await self._sessions.delete(thrown, unless="open")

    async def _seeded(self, user_id: str, earlier: list[_Message], msg_id: str) -> str:
        """A session for the answer to one message, which begins with what was said before."""
        session = await self._sessions.get_or_create(user_id, self.name, **{PASSING: msg_id})
        moment = self._clock()
        entries = [
            Entry(SEED, step, {"role": _role(message), "content": message.text}, moment)
            for step, message in enumerate(one for one in earlier if one.text and one.role != "tool")
        ]
        if entries:
            await self._sessions.append(session, entries)
        return session.session_id

    async def _stream(
        self, request: web.Request, answer: Answer, reader: TurnReader, options: _StreamOptions | None
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", **answer.headers}
        response = web.StreamResponse(headers=headers)
        with_usage = options is not None and options.include_usage

        async def write() -> None:
            await response.prepare(request)
            alive = asyncio.get_running_loop().create_task(_keep_alive(response))
            try:
                async for chunk in answer.chunks(reader, with_usage=with_usage):
                    await _send(response, b"data: " + encode_json(chunk) + b"\n\n")
            finally:
                alive.cancel()
            await _send(response, b"data: [DONE]\n\n")
            await response.write_eof()  # the client need not wait for what is cleaned up

        await self._watched(request, reader, answer.turn_id, write())
        return response

    async def _watched(
        self, request: web.Request, reader: TurnReader, turn_id: str, work: Coroutine[Any, Any, Any]
    ) -> Any:
        """What the work comes to; `None`, and the turn was cancelled, when the client leaves before."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=WATCH_SECONDS))[0] and not is_gone(request):
                pass
            if task.done():
                return task.result()
        except ConnectionError:
            pass
        finally:
            task.cancel()
        logger.info("turn %s: its client has gone", turn_id)
        if await self._cancel(turn_id, user_of(request)):
            await reader.end()
        return None


async def _keep_alive(response: web.StreamResponse) -> None:
    """Comments that keep proxies from closing a stream while a tool works."""
    with contextlib.suppress(ConnectionError):  # whoever writes the answer finds out too
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await response.write(b": keep-alive\n\n")


async def _send(response: web.StreamResponse, line: bytes) -> None:
    """Write a line; a client that has stopped reading counts as gone."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await response.write(line)
    except TimeoutError as error:
        raise ConnectionError("the client does not read") from error


def _up_to_last_user(messages: list[_Message]) -> list[_Message]:
    """The messages up to the last one of the user, which is the one that is said now.

    Raises:
        ProtocolError: there is none, or it holds something else than text.
    """
    places = [place for place, message in enumerate(messages) if message.role == "user"]
    if not places or not (said := messages[places[-1]]).text.strip():
        raise ProtocolError("bad_message", "`messages` must hold a message of the user with some text.")
    if isinstance(said.content, list) and any(part.get("type") != "text" for part in said.content):
        raise ProtocolError("unsupported", "This gateway takes text only: no images, audio or files.")
    return messages[: places[-1] + 1]


def _inbound(
    said: _Message, user_id: str, session_id: str | None, thread: str | None, msg_id: str
) -> Inbound:
    return Inbound(
        msg_id=msg_id,
        msg_type=MessageType.TEXT,
        source=f"openai:{user_id}",
        payload=TextPayload(text=said.text),
        timestamp=now(),
        channel="openai",
        sender=user_id,
        user_id=user_id,
        session_id=session_id,
        conversation="" if session_id is None else None,
        thread=thread if session_id is None else None,
        asks=False,
        request_id=request_id(),
    )


def _role(message: _Message) -> str:
    """A client's own system prompt is something that its user said; ours stands alone before all."""
    return "assistant" if message.role == "assistant" else "user"
