"""`/v1/chat/completions` and `/v1/models`: the agent, for any client of OpenAI's API.

The shapes are those of https://platform.openai.com/docs/api-reference/chat. Only the last user message is
taken; tools, temperature and whatever else a client sends are the gateway's own affair and are passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from miniclaw.channel.cli import CLIChannel
from miniclaw.config import Clock
from miniclaw.errors import ProtocolError, StorageError
from miniclaw.gateway.connection import Hub
from miniclaw.gateway.events import LiveEvent
from miniclaw.gateway.http import STATUS, Route, error_response, json_response, read_json, user_of
from miniclaw.gateway.protocol import Inbound, MessageType, Receipt, TextPayload, encode_json, new_id, now
from miniclaw.gateway.reader import TurnReader
from miniclaw.mcp.http import is_gone
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import PASSING, Entry

__all__ = ["OpenAIChannel"]

logger = logging.getLogger(__name__)

MODEL: Final = "miniclaw"
"""The one model that is listed; any other name that a client sends is answered by it too."""
SESSION_HEADER: Final = "X-Session-Id"
SEED: Final = "seed"
"""Stands for the turn of messages that came before."""
WATCH_SECONDS: Final = 0.5
"""How often it is looked whether the client is still there."""
FAILED: Final = {"model_rate_limited": 429, "context_overflow": 400, "internal": 500}
"""Statuses of turns that failed; 502 for all else that a model may do."""

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

    async def start(self) -> None:
        """Remove the throw-away sessions of a former process: nobody waits for their answers."""
        for session in await self._sessions.list():
            if session.metadata.get(PASSING):
                await self._sessions.delete(session.session_id)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}
        return json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body: _Body = await read_json(request, _Body)
        user_id = user_of(request)
        *earlier, said = _up_to_last_user(body.messages)
        named = request.headers.get(SESSION_HEADER) or None
        thrown = None
        if named is None and body.user is None:
            thrown = await self._seeded(user_id, earlier)
        try:
            receipt = await self.submit(_inbound(said, user_id, named or thrown, body.user))
            if not receipt.stored:
                raise ProtocolError(receipt.code or "internal", receipt.message)
            answer = _Answer(receipt, self._clock(), is_thrown=thrown is not None)
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

    async def _seeded(self, user_id: str, earlier: list[_Message]) -> str:
        """A session for one answer, which begins with what was said before."""
        session = await self._sessions.get_or_create(user_id, self.name)
        await self._sessions.update(session, **{PASSING: True})
        moment = self._clock()
        entries = [
            Entry(SEED, step, {"role": _role(message), "content": message.text}, moment)
            for step, message in enumerate(one for one in earlier if one.text and one.role != "tool")
        ]
        if entries:
            await self._sessions.append(session, entries)
        return session.session_id

    async def _stream(
        self, request: web.Request, answer: _Answer, reader: TurnReader, options: _StreamOptions | None
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", **answer.headers}
        response = web.StreamResponse(headers=headers)
        with_usage = options is not None and options.include_usage

        async def write() -> None:
            await response.prepare(request)
            async for chunk in answer.chunks(reader, with_usage=with_usage):
                await response.write(b"data: " + encode_json(chunk) + b"\n\n")
            await response.write(b"data: [DONE]\n\n")

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


class _Answer:
    """One turn in the shapes of the API."""

    def __init__(self, receipt: Receipt, moment: float, *, is_thrown: bool) -> None:
        self.session_id, self.turn_id = receipt.session_id or "", receipt.turn_id or ""
        self._created = int(moment)
        self.headers = {} if is_thrown else {SESSION_HEADER: self.session_id}

    def whole(self, end: LiveEvent) -> web.Response:
        """The answer in one piece, or the error that the turn ended with."""
        if end.name == "turn.failed":
            code = end.data["code"]
            response = error_response(ProtocolError(code, end.data["message"]))
            response.set_status(FAILED.get(code, STATUS.get(code, 502)))
            # The agent has tried again as often as it helps; a client's retry would be a second message.
            response.headers["x-should-retry"] = "false"
        else:
            message = {"role": "assistant", "content": end.data.get("text", "")}
            choice = {"index": 0, "message": message, "finish_reason": _finish(end), "logprobs": None}
            response = json_response(self._shape("chat.completion", [choice], usage=_usage(end)))
        response.headers.update(self.headers)
        return response

    async def chunks(self, reader: TurnReader, *, with_usage: bool) -> AsyncIterator[dict[str, Any]]:
        """The answer as it grows; what was said behind a tool call stands below what was said before."""
        yield self._delta({"role": "assistant", "content": ""})
        shown = segment = ""
        async for event in self._events(reader):
            if event.name == "tool.started":
                segment = ""
            elif event.name == "text.delta":
                text = event.data["text"]
                yield self._delta({"content": text if segment or not shown else f"\n\n{text}"})
                shown, segment = shown + text, segment + text
            elif event.name == "turn.failed":
                yield {"error": {**event.data, "type": event.data["code"]}}
            elif event.name in ("turn.finished", "turn.cancelled"):
                if rest := _rest(event.data.get("text", ""), segment):
                    yield self._delta({"content": rest if segment or not shown else f"\n\n{rest}"})
                yield self._delta({}, _finish(event))
                if with_usage:
                    yield self._shape("chat.completion.chunk", [], usage=_usage(event))

    async def _events(self, reader: TurnReader) -> AsyncIterator[LiveEvent]:
        try:
            async for event in reader.events():
                yield event
        except ProtocolError as error:  # the gateway stops
            data = {"code": error.code, "message": str(error)}
            ids = {"session_id": self.session_id, "turn_id": self.turn_id, "target": ""}
            yield LiveEvent("turn.failed", data, attempt=0, seq=0, **ids)

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._shape("chat.completion.chunk", [choice])

    def _shape(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        name = f"chatcmpl-{self.turn_id}"
        return {
            "id": name,
            "object": kind,
            "created": self._created,
            "model": MODEL,
            "choices": choices,
            **more,
        }


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


def _inbound(said: _Message, user_id: str, session_id: str | None, thread: str | None) -> Inbound:
    return Inbound(
        msg_id=new_id("msg"),
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
    )


def _role(message: _Message) -> str:
    """A client's own system prompt is something that its user said; ours stands alone before all."""
    return "assistant" if message.role == "assistant" else "user"


def _rest(text: str, segment: str) -> str:
    """What of the final text was not shown."""
    shown = segment.strip()
    return text.removeprefix(shown) if text.startswith(shown) else f"\n\n{text}"


def _finish(end: LiveEvent) -> str:
    return "length" if end.data.get("stopped_by") else "stop"


def _usage(end: LiveEvent) -> dict[str, Any]:
    used = end.data.get("usage") or {}
    sent, got = used.get("input_tokens", 0), used.get("output_tokens", 0)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}
