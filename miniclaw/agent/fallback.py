"""A provider that goes to the next model when one cannot answer."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Self

from miniclaw.agent.providers import (
    Again,
    LLMChunk,
    LLMProvider,
    LLMResponse,
    Message,
    ModelInfo,
    WarmsUp,
    unwatched,
    whole,
)
from miniclaw.errors import ModelError

__all__ = ["FallbackProvider"]

logger = logging.getLogger(__name__)

COOL_DOWN: Final = {
    "rate_limited": 60.0,
    "overloaded": 30.0,
    "server": 30.0,
    "stream_error": 30.0,
    "bad_stream": 30.0,
    "stream_cut": 30.0,
    "unreachable": 30.0,
    "quota": 600.0,
    "auth": 600.0,
    "model_not_found": 600.0,
    "endpoint_missing": 600.0,
}
"""The failures that another model may not have, and the seconds for which the one that failed is left alone."""


class FallbackProvider:
    """Asks the first of several models that can answer; never a second one once something was shown.

    Args:
        providers: the models, the preferred one first.
        clock: seconds since the epoch.
    """

    def __init__(self, providers: Sequence[LLMProvider], *, clock: Callable[[], float] = time.time) -> None:
        self._providers = tuple(providers)
        self._clock = clock
        self._free_at: dict[tuple[str, str], float] = {}
        """By server and model; shared with `with_model` copies."""

    @property
    def info(self) -> ModelInfo:
        return replace(self._providers[0].info, now=self._in_order()[0].info.name)

    def with_model(self, name: str) -> Self:
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._providers = (self._providers[0].with_model(name), *self._providers[1:])
        return copy

    async def models(self) -> list[str]:
        return await self._providers[0].models()

    def warm_up(self) -> None:
        """Let the first provider import what it needs, and so the others."""
        if isinstance(self._providers[0], WarmsUp):
            self._providers[0].warm_up()

    async def close(self) -> None:
        for provider in self._providers:
            await provider.close()

    async def chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> LLMResponse:
        async with aclosing(self.unwatched(messages, tools)) as chunks:
            return await whole(chunks)

    def unwatched(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        return self._ask(messages, tools, shows=False)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        return self._ask(messages, tools, shows=True)

    async def _ask(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, *, shows: bool
    ) -> AsyncGenerator[LLMChunk, None]:
        failures: list[ModelError] = []
        last = self._providers[0].info.name
        for provider in self._in_order():
            is_shown, name = False, provider.info.name
            if name != last or failures:
                yield LLMChunk(again=Again(name, last, failures[-1] if failures else None))
            last = name
            stream = provider.stream(messages, tools) if shows else unwatched(provider, messages, tools)
            try:
                async for chunk in stream:
                    is_shown = is_shown or (shows and bool(chunk.text or chunk.reasoning))
                    yield chunk
                return
            except ModelError as error:
                error.model = name
                if error.kind not in COOL_DOWN:
                    raise
                self._leave_alone(provider, error)
                if is_shown:
                    raise _cut_short(error) from error
                failures.append(error)
                logger.warning("model %s cannot answer (%s)", name, error)
            finally:
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()
        raise _together(failures)

    def _in_order(self) -> Sequence[LLMProvider]:
        """The models that are not left alone; if that leaves none, all."""
        now = self._clock()
        free = [each for each in self._providers if self._free_at.get(_key(each), 0.0) <= now]
        return free or self._providers

    def _leave_alone(self, provider: LLMProvider, error: ModelError) -> None:
        seconds = COOL_DOWN[error.kind] if error.retry_after is None else error.retry_after
        self._free_at[_key(provider)] = self._clock() + seconds


def _key(provider: LLMProvider) -> tuple[str, str]:
    return provider.info.where, provider.info.name


def _cut_short(error: ModelError) -> ModelError:
    text = f"{error} What was shown is unfinished; no other model was asked, since it would begin anew."
    return ModelError(
        error.code, text, kind=error.kind, retryable=error.retryable, retry_after=error.retry_after
    )


def _together(failures: Sequence[ModelError]) -> ModelError:
    """The failure of the preferred model, and what kept the others from answering."""
    first, *others = failures
    text = " ".join([str(first), *(f"Instead: {error}" for error in others)])
    waits = [error.retry_after for error in failures if error.retry_after is not None]
    is_retryable = any(error.retryable for error in failures)
    wait = min(waits) if waits else None
    return ModelError(first.code, text, kind=first.kind, retryable=is_retryable, retry_after=wait)
