"""Chat Completions of OpenAI and of the many servers that speak it, through the `openai` client.

The request goes through the client's `post` as a plain dict and chunks come back as plain dicts: pool,
auth, retries, `Retry-After`, time limits and error classes stay the client's; its walk over the whole
history and an object per chunk, which block the loop on long sessions, do not happen.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ModelInfo
from miniclaw.agent.stream import ChatAssembler, response_of
from miniclaw.errors import ModelError

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

__all__ = ["OpenAIProvider"]

MAX_CONNECTIONS: Final = 1000
"""Connections to the model server; more requests wait for a free one."""
SECRET_LENGTH: Final = 8
"""A shorter key is a placeholder for a server on this machine, and may be any word."""
UNREADABLE: Final = (json.JSONDecodeError, UnicodeDecodeError)
"""What the client lets through when a server sends no JSON."""


class OpenAIProvider:
    """A model of an OpenAI-compatible server.

    Args:
        model: its name.
        api_key: the key; servers on this machine take any.
        base_url: the API's root, such as `https://api.openai.com/v1`; `None` = OpenAI's own.
        temperature: left to the server when `None`.
        max_tokens: the longest answer, in tokens; left to the server when `None`.
        connect_timeout: seconds to reach the server.
        read_timeout: seconds without a byte after which a request has failed.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        # Sampling
        temperature: float | None = None,
        max_tokens: int | None = None,
        # Limits
        connect_timeout: float = 10.0,
        read_timeout: float = 120.0,
        max_retries: int = 2,
    ) -> None:
        self._model = model
        self._api_key = api_key
        self._base_url = base_url
        self._timeouts = (connect_timeout, read_timeout)
        self._max_retries = max_retries
        self._parameters: dict[str, Any] = {}
        if temperature is not None:
            self._parameters["temperature"] = temperature
        if max_tokens is not None:
            self._parameters["max_tokens"] = max_tokens
        self._shared: list[AsyncOpenAI] = []
        """The client, made at the first request and shared with `with_model` copies."""

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(name=self._model, where=self._base_url or "https://api.openai.com/v1")

    def with_model(self, name: str) -> Self:
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._model = name
        return copy

    async def close(self) -> None:
        while self._shared:
            await self._shared.pop().close()

    async def models(self) -> list[str]:
        from openai import OpenAIError

        try:
            body = await self._client().get("/models", cast_to=object)
        except (OpenAIError, *UNREADABLE) as error:
            raise self._failure(error) from error
        data = body.get("data") if isinstance(body, dict) else None
        return [str(item["id"]) for item in data or () if isinstance(item, dict) and item.get("id")]

    async def chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> LLMResponse:
        from openai import OpenAIError

        try:
            body = await self._client().post(
                "/chat/completions", cast_to=object, body=self._body(messages, tools)
            )
            return response_of(body, self._model)
        except (OpenAIError, ModelError, *UNREADABLE) as error:
            raise self._failure(error) from error

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        from openai import AsyncStream, OpenAIError

        assembler = ChatAssembler(self._model)
        body = self._body(messages, tools)
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        try:
            stream = await self._client().post(
                "/chat/completions", cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
            )
            try:
                async for raw in stream:
                    if (chunk := assembler.feed(raw)) is not None:
                        yield chunk
            finally:
                await stream.close()
        except (OpenAIError, *UNREADABLE) as error:
            raise self._failure(error, began=assembler.began) from error
        yield LLMChunk(response=assembler.finish())

    def _body(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "messages": messages, **self._parameters}
        if tools:
            body["tools"] = tools
        return body

    def _failure(self, error: Exception, *, began: bool = False) -> ModelError:
        """The client's exception as ours; a server may repeat the key in what it says, the sentence does not."""
        found = error if isinstance(error, ModelError) else _translate(error, self.info, began=began)
        if len(self._api_key) < SECRET_LENGTH or self._api_key not in str(found):
            return found
        text = str(found).replace(self._api_key, "[key]")
        return ModelError(found.code, text, retryable=found.retryable)

    def _client(self) -> AsyncOpenAI:
        if not self._shared:
            import httpx2
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient

            connect, read = self._timeouts
            limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
            self._shared.append(
                AsyncOpenAI(
                    api_key=self._api_key,
                    base_url=self._base_url,
                    max_retries=self._max_retries,
                    timeout=httpx2.Timeout(read, connect=connect),
                    http_client=DefaultAsyncHttpxClient(limits=limits),
                )
            )
        return self._shared[0]


def _translate(error: Exception, info: ModelInfo, *, began: bool = False) -> ModelError:
    """The client's exception as ours; the sentence says what to do."""
    from openai import APIConnectionError, APIStatusError

    if isinstance(error, APIStatusError):
        return _translate_status(error, info)
    if isinstance(error, APIConnectionError):
        what = "broke off its answer" if began else "cannot be reached"
        return ModelError(
            "model_unreachable",
            f"The model server at {info.where} {what}; check that it runs.",
            retryable=True,
        )
    if isinstance(error, UNREADABLE):
        return ModelError("model_error", "The model server sent something that is not JSON.")
    return ModelError("model_error", f"The model server reported: {str(error)[:300].rstrip('.')}.")


def _translate_status(error: APIStatusError, info: ModelInfo) -> ModelError:
    status, text = error.status_code, str(error)[:300].rstrip(".")
    lower = text.lower()
    if status in (401, 403):
        return ModelError("model_auth", f"{info.where} refused the API key; check OPENAI_API_KEY.")
    if status == 402 or "insufficient_quota" in lower:
        return ModelError("model_quota", f"The account at {info.where} has no quota left; top it up.")
    if status == 429:
        return ModelError("model_rate_limited", "The model is rate limited; try again later.", retryable=True)
    if status == 404:
        return ModelError("model_not_found", f"{info.where} has no model `{info.name}`; check OPENAI_MODEL.")
    if status in (400, 413, 422) and "context" in lower and ("length" in lower or "token" in lower):
        return ModelError("context_overflow", "The conversation is too long for the model; start a new one.")
    return ModelError("model_error", f"The model server answered {status}: {text}.", retryable=status >= 500)
