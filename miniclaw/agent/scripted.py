"""A provider that says what it was told to: for tests, the course, and demonstrations without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Self

from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ModelInfo
from miniclaw.errors import ModelError

__all__ = ["ScriptedProvider"]

Script = LLMResponse | ModelError | Callable[[list[Message]], Awaitable[LLMResponse]]


class ScriptedProvider:
    """Answers each request with the next line of a script and keeps the requests.

    A line is a response, an error to raise, or an async function of the messages that returns a response
    (in which a test can wait for an event). Streams come in pieces of `piece` characters.

    Attributes:
        requests: the messages of each request, oldest first.
    """

    def __init__(self, script: Iterable[Script], *, piece: int = 4, model: str = "scripted") -> None:
        self._script = list(script)
        self._piece = piece
        self._model = model
        self.requests: list[list[Message]] = []

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(name=self._model, where="script")

    def with_model(self, name: str) -> Self:
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._model = name
        return copy

    async def models(self) -> list[str]:
        return [self._model]

    async def close(self) -> None:
        return None

    async def chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> LLMResponse:
        self.requests.append([dict(message) for message in messages])
        if not self._script:
            raise ModelError("model_error", "The script has ended.")
        line = self._script.pop(0)
        if isinstance(line, ModelError):
            raise line
        return line if isinstance(line, LLMResponse) else await line(list(messages))

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        response = await self.chat(messages, tools)
        for start in range(0, len(response.text), self._piece):
            yield LLMChunk(response.text[start : start + self._piece])
        yield LLMChunk(response=response)
