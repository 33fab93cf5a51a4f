"""Models of OpenAI and of the many servers that speak its APIs, through the `openai` client.

Pool, auth, time limits and error classes are the client's. Its walk over the whole history and its object per
chunk would block the loop on long sessions: requests are plain dicts, and the bytes of answers are read here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from miniclaw.agent.adapt import fit_messages, fit_parameters, fit_tools, short_names
from miniclaw.agent.answer import AnswerBuilder, cut_prompt
from miniclaw.agent.client import new_client, not_loaded, warm_up
from miniclaw.agent.failures import read_failure
from miniclaw.agent.patience import Patience
from miniclaw.agent.providers import Again, LLMChunk, LLMResponse, Message, ModelInfo, whole
from miniclaw.agent.quirks import Quirks, images_in
from miniclaw.agent.report import Report
from miniclaw.agent.responses import ResponsesAssembler, responses_body
from miniclaw.agent.sse import EventReader, read_json
from miniclaw.agent.stream import ChatAssembler
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import encode_json

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIProvider"]

logger = logging.getLogger(__name__)

JSON: Final = {"Content-Type": "application/json"}
SECRET_LENGTH: Final = 8
"""A shorter key is a placeholder for a server on this machine, and may be any word."""
DRAIN_SECONDS: Final = 0.1
"""How long the end of a body is waited for, so that its connection can be used again."""
LIST_SECONDS: Final = 5.0
"""How long a server may take to list its models for a sentence."""
MOST_CHANGES: Final = 12


@dataclass(slots=True)
class _Request:
    path: str
    body: dict[str, Any]
    assembler: ChatAssembler | ResponsesAssembler
    sent_bytes: int = 0


class OpenAIProvider:
    """A model of an OpenAI-compatible server.

    Args:
        model: its name.
        api_key: the key; servers on this machine take any.
        base_url: the API's root, such as `https://api.openai.com/v1`; `None` = OpenAI's own.
        api: Chat Completions, or the Responses API.
        temperature: left to the server when `None`.
        max_tokens: the longest answer, in tokens; left to the server when `None`.
        parameters: whatever else goes into each request.
        connect_timeout: seconds to reach the server.
        read_timeout: seconds without a byte after which a request has failed.
        max_retries: how often a request is sent again when that may help.
        max_wait: seconds that are waited between tries, in all.
        sleep, clock, jitter: what waiting depends on; tests bring their own.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        # What is asked for
        temperature: float | None = None,
        max_tokens: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        # Limits
        connect_timeout: float = 10.0,
        read_timeout: float = 120.0,
        max_retries: int = 2,
        max_wait: float = 30.0,
        # For tests
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._api_key = api_key
        self._base_url = base_url
        self._api = api
        self._timeouts = (connect_timeout, read_timeout)
        self._clock = clock
        self._patience = partial(Patience, max_retries, max_wait, sleep=sleep, clock=clock, jitter=jitter)
        self._parameters: dict[str, Any] = {"stream": True, **(parameters or {})}
        if api == "chat":
            self._parameters.setdefault("stream_options", {"include_usage": True})
        if temperature is not None:
            self._parameters["temperature"] = temperature
        if max_tokens is not None:
            self._parameters["max_tokens" if api == "chat" else "max_output_tokens"] = max_tokens
        self._shared: list[AsyncOpenAI] = []
        """The client, made at the first request and shared with `with_model` copies."""
        self._quirks: dict[str, Quirks] = {}
        """By model, shared with `with_model` copies."""

    @property
    def info(self) -> ModelInfo:
        where = re.sub(r"(?<=//)[^/@]*@|[?#].*", "", self._base_url or "")
        return ModelInfo(name=self._model, where=where or "https://api.openai.com/v1")

    def with_model(self, name: str) -> Self:
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._model = name
        return copy

    async def close(self) -> None:
        while self._shared:
            await self._shared.pop().close()

    async def models(self) -> list[str]:
        if (failure := not_loaded()) is not None:
            raise failure
        import httpx2
        from openai import OpenAIError

        try:
            response = await self._client().get("/models", cast_to=httpx2.Response)
            body = read_json(response.content)
        except (OpenAIError, ModelError, httpx2.InvalidURL) as error:
            raise self._failure(error)[0] from error
        data = body.get("data") if isinstance(body, dict) else None
        return [str(item["id"]) for item in data or () if isinstance(item, dict) and item.get("id")]

    async def chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> LLMResponse:
        # Streamed as well: some models think only so, and no proxy takes a long answer for a dead one.
        async with aclosing(self.unwatched(messages, tools)) as chunks:
            return await whole(chunks)

    def unwatched(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        return self._ask(messages, tools or (), shows=False)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        return self._ask(messages, tools or (), shows=True)

    async def _ask(
        self, messages: Sequence[Message], tools: Sequence[Message], *, shows: bool
    ) -> AsyncGenerator[LLMChunk, None]:
        """Send the request until there is an answer; again only while nothing of one was shown."""
        patience, changes, is_shown = self._patience(), 0, False
        while (failure := not_loaded()) is not None:
            if not await patience.wait(failure):
                raise failure
        import httpx2
        from openai import OpenAIError

        quirks, has_come = self._quirks.setdefault(self._model, Quirks()), False
        while True:
            request = self._request(messages, tools, quirks)
            try:
                async with aclosing(self._receive(request)) as chunks:
                    async for chunk in chunks:
                        is_shown = is_shown or (shows and bool(chunk.text or chunk.reasoning))
                        has_come = True
                        yield chunk
                response = request.assembler.finish()
            except (OpenAIError, ModelError, httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure, report = self._failure(error)
                if not (is_shown or request.assembler.began) and changes < MOST_CHANGES:
                    if (taught := quirks.taught(failure.kind, report, request.body)) is not None:
                        quirks, changes = taught, changes + 1
                        continue
                if is_shown or not await patience.wait(failure):
                    raise await self._with_models(failure) from error
                if has_come:
                    yield LLMChunk(again=Again(self._model, self._model, failure))
                    has_come = False
            else:
                if changes:  # only now: the refusals of a request that never succeeds are its own
                    quirks.forget_passing()
                    self._quirks[self._model] = quirks
                yield LLMChunk(response=self._checked(response, request, quirks))
                return

    def _request(self, messages: Sequence[Message], tools: Sequence[Message], quirks: Quirks) -> _Request:
        fitted, schemas, names = fit_tools(tools, quirks)
        by = hashlib.sha256(f"{self._base_url} {self._model}".encode()).hexdigest()[:12]
        shorts = short_names(schemas)
        answer = AnswerBuilder(
            self._model,
            offered=schemas | {short: schemas[name] for short, name in shorts.items()},
            names={short: names.get(name, name) for short, name in shorts.items()} | names,
            by=by,
        )
        parameters = fit_parameters(self._parameters, quirks, has_tools=bool(fitted))
        if self._api == "responses":
            body = responses_body(messages, fitted, parameters, quirks, by=by)
            return _Request("/responses", {"model": self._model, **body}, ResponsesAssembler(answer))
        history = fit_messages(messages, quirks, by=by, renamed=bool(names))
        body = {"model": self._model, "messages": history, **parameters}
        if fitted:
            body["tools"] = fitted
        return _Request("/chat/completions", body, ChatAssembler(answer))

    async def _receive(self, request: _Request) -> AsyncGenerator[LLMChunk, None]:
        """Send one request and read its answer to the end."""
        import httpx2
        from openai import AsyncStream

        content = encode_json(request.body)
        request.sent_bytes = len(content) - sum(map(len, images_in(request.body)))
        given: Any = {"cast_to": object, "options": {"headers": JSON}, "content": content}
        stream = await self._client().post(request.path, stream=True, stream_cls=AsyncStream[object], **given)
        reader, assembler = EventReader(), request.assembler
        body = stream.response  # straight from the connection, where nothing is compressed
        data = body.aiter_bytes() if "content-encoding" in body.headers else aiter(body.stream)
        try:
            async for piece in data:
                for event in reader.feed(piece):
                    if (chunk := assembler.feed(event)) is not None:
                        yield chunk
                if reader.is_done:
                    await _drain(data)
                    break
            for event in reader.finish():
                if (chunk := assembler.feed(event)) is not None:
                    yield chunk
        except (httpx2.HTTPError, ModelError):
            if not assembler.ended:
                raise
        finally:
            await stream.close()
        if reader.is_done or reader.is_one_body:
            assembler.end()
        if assembler.ended and (chunk := assembler.rest()) is not None:
            yield chunk

    def _failure(self, error: Exception) -> tuple[ModelError, Report]:
        """The client's exception as ours; a server may repeat the key in what it says, the sentence does not."""
        found, report = read_failure(error, self.info, self._clock)
        if len(self._api_key) >= SECRET_LENGTH and self._api_key in str(found):
            found.args = (str(found).replace(self._api_key, "[key]"),)
        return found, report

    async def _with_models(self, failure: ModelError) -> ModelError:
        """The failure; of a model that the server does not have, with those that it has."""
        if failure.kind != "model_not_found":
            return failure
        try:
            async with asyncio.timeout(LIST_SECONDS):
                names = await self.models()
        except (ModelError, TimeoutError):
            return failure
        has = f" It has: {', '.join(names[:8])}." if names else ""
        failure.args = (f"{str(failure).rstrip('.')}.{has}",)
        return failure

    def _checked(self, response: LLMResponse, request: _Request, quirks: Quirks) -> LLMResponse:
        """The response, with a warning where the server cannot have read the whole prompt."""
        warning = cut_prompt(response.usage, request.sent_bytes)
        if warning and quirks.is_new("cut prompt"):
            logger.warning("%s", warning)
        return replace(response, warning=warning) if warning else response

    def warm_up(self) -> None:
        """Import what requests need, which would keep the first one, and everybody else, waiting."""
        warm_up()

    def _client(self) -> AsyncOpenAI:
        if not self._shared:
            self._shared.append(new_client(self._base_url, self._api_key, *self._timeouts))
        return self._shared[0]


async def _drain(data: AsyncIterator[bytes]) -> None:
    """Read what is behind the end of an answer, which is nothing but the end of its body."""
    with suppress(TimeoutError):  # the connection is closed instead of kept
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in data:
                pass
