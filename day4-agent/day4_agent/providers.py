"""智能体需要模型做什么，不管背后是谁家的接口：线上的 JSON 到这里为止。"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from day1_gateway import MiniClawError

__all__ = ["LLMChunk", "LLMProvider", "LLMResponse", "ModelError", "ToolCall", "whole"]

Message = dict[str, Any]
Messages = Sequence[Message]


class ModelError(MiniClawError):
    """模型没有给出能用的回答；`retryable` 说同样的请求再发一次有没有用，`retry_after` 说要等几秒。"""

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ToolCall:
    """模型想调用一个工具。只是想：执行不执行，由程序决定。"""

    id: str
    name: str
    raw: str
    """模型写的参数，一个字也没动。"""
    arguments: dict[str, Any] | None
    """读成字典；读不成就是 `None`。"""

    @classmethod
    def of(cls, call_id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
        return cls(call_id, name, json.dumps(arguments, ensure_ascii=False), arguments)

    def to_openai(self) -> Message:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.raw}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMResponse:
    """一个完整的回答：要么是话，要么是一批调用，也可能都有。"""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Literal["stop", "tool_calls", "length", "content_filter", "error"] = "stop"
    """`length` 又带着调用：参数可能断在半句，一个都不能执行。"""

    def to_message(self) -> Message:
        """写进历史的 assistant 消息。"""
        calls = [call.to_openai() for call in self.tool_calls]
        message: Message = {"role": "assistant", "content": self.text or None}
        return {**message, "tool_calls": calls} if calls else message


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMChunk:
    """流里的一小块；最后一块带着完整的 `response`，没有它就是断了。"""

    text: str = ""
    response: LLMResponse | None = None


Chunks = AsyncGenerator[LLMChunk, None]


class LLMProvider(Protocol):
    """一个模型：一次答完，或者边想边说；除了取消，只抛 `ModelError`。"""

    async def chat(self, messages: Messages, tools: Messages | None = None) -> LLMResponse: ...

    def stream(self, messages: Messages, tools: Messages | None = None) -> Chunks: ...

    async def close(self) -> None: ...


async def whole(chunks: Chunks) -> LLMResponse:
    """没有人在看的流：只要最后那个完整的回答。"""
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.response is not None:
                return chunk.response
    raise ModelError("model_unreachable", "The model's stream was cut.", retryable=True)
