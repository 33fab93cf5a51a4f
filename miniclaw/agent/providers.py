"""What the agent needs of a model, whoever serves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

from miniclaw.errors import ModelError
from miniclaw.session.models import Usage

__all__ = [
    *("Ask", "MOST_CHARS", "NO_OUTPUT", "Again", "Finish", "LLMChunk", "LLMProvider", "LLMResponse"),
    *("ModelInfo", "Repeats", "ToolCall", "WarmsUp", "unwatched", "whole"),
]

MOST_CHARS: Final = 400_000
"""What an answer may have, thoughts and calls counted; one without an end is broken off there."""
MOST_CALLS: Final = 200
"""Calls of one answer; a turn runs fewer, and further ones are left out."""
NO_OUTPUT: Final = "(no output)"
"""What stands for the blank text of a result, which strict servers refuse for good."""

Finish = Literal["stop", "tool_calls", "length", "content_filter", "error"]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for."""

    id: str
    name: str
    raw: str
    """The arguments as the model wrote them."""
    arguments: dict[str, Any] | None
    """The arguments as an object; `None` when they are not one."""

    @classmethod
    def of(cls, call_id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
        """A sound call."""
        return cls(call_id, name, json.dumps(arguments, ensure_ascii=False), arguments)

    def to_openai(self) -> Message:
        """The call as a Chat Completions message carries it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.raw}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMResponse:
    """A whole answer of the model."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    """`length` with calls: they were cut and none may run."""
    usage: Usage = field(default_factory=Usage)
    provider_data: Message | None = None
    """What only the server that said it understands, and wants back: signatures, sealed thoughts."""
    warning: str = ""
    """What the user should know of how the answer came about."""

    def to_message(self) -> Message:
        """The answer as an assistant message of the history.

        `reasoning_content` and `provider_data` are for the provider alone, which decides what goes on the wire.
        """
        message: Message = {"role": "assistant", "content": self.text if self.text.strip() else None}
        if self.tool_calls:
            message["tool_calls"] = [call.to_openai() for call in self.tool_calls]
            if self.reasoning:
                message["reasoning_content"] = self.reasoning
        if self.provider_data:
            message["provider_data"] = self.provider_data
        return message


@dataclass(frozen=True, slots=True)
class Again:
    """What came of an answer so far is void, and another attempt is about to be made."""

    model: str
    """Who is asked now."""
    failed: str = ""
    failure: ModelError | None = None


@dataclass(slots=True)
class LLMChunk:
    """A piece of a streamed answer; the last one carries the whole `response`."""

    text: str = ""
    reasoning: str = ""
    response: LLMResponse | None = None
    hidden: int = 0
    """Characters that came and are not shown, such as the arguments of calls."""
    again: Again | None = None
    """Stands alone. A reader that must not spend more leaves here: the attempt begins when the next chunk is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Which model answers, for people."""

    name: str
    demo: bool = False
    """The built-in demo: no model at all."""
    where: str = ""
    """The base URL or how it was found."""
    now: str = ""
    """The name of the one that is asked first just now, where there are several."""


@runtime_checkable
class WarmsUp(Protocol):
    """A provider whose first request would wait for libraries to be imported."""

    def warm_up(self) -> None:
        """Import them; takes about a second, in any thread."""
        ...


Ask = Callable[[str, list[Message]], Awaitable[LLMResponse]]
"""Asks the session's model something for a purpose, within the limits of the turn and counted with it."""


@runtime_checkable
class Repeats(Protocol):
    """A provider whose streams can begin anew after something has come."""

    def unwatched(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        """As `stream`, for a reader that shows nobody what comes: it may be void, as a chunk with `again` says."""
        ...


class LLMProvider(Protocol):
    """A model behind whatever API.

    Both methods raise `ModelError` with the `turn.failed` code that fits; a stream that ends without a
    chunk that carries `response` was cut, which is a `ModelError` too.
    """

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""
        ...

    async def chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> LLMResponse:
        """Answer in one piece."""
        ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        """Answer piece by piece."""
        ...

    def with_model(self, name: str) -> Self:
        """The same server with another model."""
        ...

    async def models(self) -> list[str]:
        """The models that the server offers; empty when it does not tell."""
        ...

    async def close(self) -> None:
        """Let go of connections; may be called again."""
        ...


def unwatched(
    provider: LLMProvider, messages: Sequence[Message], tools: Sequence[Message] | None = None
) -> AsyncIterator[LLMChunk]:
    """The stream of an answer of which nobody is shown anything before its end."""
    ask = provider.unwatched if isinstance(provider, Repeats) else provider.stream
    return ask(messages, tools)


async def whole(chunks: AsyncIterator[LLMChunk]) -> LLMResponse:
    """The response at the end of a stream that nobody watches.

    Raises:
        ModelError: it was cut, or went on for more than `MOST_CHARS`.
    """
    size = 0
    async for chunk in chunks:
        size = 0 if chunk.again else size
        size += len(chunk.text) + len(chunk.reasoning) + chunk.hidden
        if chunk.response is not None:
            return chunk.response
        if size > MOST_CHARS:
            raise ModelError("model_error", "The model's answer had no end, so it was broken off.")
    raise ModelError("model_unreachable", "The model's stream was cut.", kind="stream_cut", retryable=True)
