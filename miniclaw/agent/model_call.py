"""One call of a model as the turn sees it: heard to its end, counted and recorded attempt by attempt."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from miniclaw.agent.budget import Budget, Stop
from miniclaw.agent.providers import MOST_CHARS, Again, LLMChunk, LLMResponse, Message
from miniclaw.agent.trace import TurnTrace
from miniclaw.errors import ModelError
from miniclaw.session.history import content_text
from miniclaw.session.models import Usage

__all__ = ["ModelCall"]


class ModelCall:
    """One request to a model: counted, priced, recorded, however it ends.

    A call that told no usage, or was interrupted, is counted by an estimate; so is each attempt of it that failed
    when something had come.

    Attributes:
        response: the answer, once there is one.
        size: characters that came so far.
        stop: the limit that ended the call without an answer.
    """

    __slots__ = (
        *("_began", "_budget", "_is_open", "_let_go", "_messages", "_model", "_trace"),
        *("response", "size", "stop"),
    )

    def __init__(self, budget: Budget, trace: TurnTrace, model: str, messages: Sequence[Message]) -> None:
        self._budget = budget
        self._trace = trace
        self._model = model
        self._messages = messages
        self.response: LLMResponse | None = None
        self.size = 0
        self.stop: Stop | None = None

    def __enter__(self) -> Self:
        self._budget.count(iterations=1)
        day = self._budget.day
        self._let_go: Callable[[], None] | None = None
        if day is not None and day.is_limited:
            self._let_go = day.hold(self._model, rough_tokens(self._messages))
        self._began = time.perf_counter()
        self._is_open = True
        return self

    async def hear(self, stream: AsyncIterator[LLMChunk]) -> AsyncGenerator[LLMChunk]:
        """What can be shown of a stream, which is closed at the end; ends early where a limit forbids more of it.

        Raises:
            ModelError: it was cut, or as the provider says.
        """
        try:
            async for chunk in stream:
                if chunk.again is not None:
                    self._repeat(chunk.again)
                else:
                    self.size += len(chunk.text) + len(chunk.reasoning) + chunk.hidden
                    self.response = chunk.response
                    yield chunk
                    if self.size > MOST_CHARS:
                        self.stop = Stop("tokens")
                if self.stop is not None:
                    return
            if self.response is None:
                raise ModelError("model_unreachable", "The model's stream was cut.", retryable=True)
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _repeat(self, again: Again) -> None:
        """Count an attempt that failed when something had come, and begin the next one unless a limit forbids it."""
        if self.size:
            self._end(again.failure, again.failed)
        else:
            self._budget.count(iterations=-1)  # the same attempt, of another model
        self.size, self.stop = 0, self._budget.stop(again.model)
        self._model = again.failed if self.stop else again.model
        if self.stop is None and not self._is_open:
            self.__enter__()
        elif self._is_open and self.stop is not None and again.failure is None:  # nobody was asked
            self._is_open = False
            if self._let_go is not None:
                self._let_go()
        elif self._is_open:
            self._budget.count(iterations=1)
            if self.stop is not None:
                self._end(again.failure, again.failed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_open:
            self._end(error, self._model)

    def _end(self, error: BaseException | None, model: str) -> None:
        response, self._is_open = self.response or LLMResponse(), False
        usage, more = response.usage, dict[str, Any]()
        is_heard = self.response or self.size or not (self.stop or isinstance(error, ModelError))
        if is_heard and not (usage.input_tokens and usage.output_tokens):
            answer = rough_tokens([response.to_message()]) if self.response else self.size // 3
            usage = replace(
                usage,
                input_tokens=usage.input_tokens or rough_tokens(self._messages),
                output_tokens=usage.output_tokens or answer,
            )
            more["estimated"] = True
        spent = self._budget.spend(
            Usage(
                model=response.usage.model or model,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                calls=max(1, usage.calls),
                ms=round((time.perf_counter() - self._began) * 1000),
            )
        )
        if self._let_go is not None:
            self._let_go()
        if response.tool_calls:
            more["asked_for"] = [call.name for call in response.tool_calls]
        self._trace.model(spent, error=_reason(error, self.response), finish=response.finish, **more)


def _reason(error: BaseException | None, response: LLMResponse | None) -> str | None:
    if isinstance(error, ModelError):
        return error.code
    if error is not None:
        return "interrupted"
    return None if response is not None else "cut"


def rough_tokens(messages: Sequence[Message]) -> int:
    """A quick estimate: four bytes a token, which is about right for English and for Chinese."""
    size = 0
    for message in messages:
        size += len(content_text(message.get("content")).encode("utf-8", "replace"))
        if calls := message.get("tool_calls"):
            size += sum(len(call["function"]["arguments"]) for call in calls)
    return size // 4
