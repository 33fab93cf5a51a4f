"""Puts a streamed answer together: chunks in, pieces and the whole response out. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

from miniclaw.agent.providers import Finish, LLMChunk, LLMResponse, ToolCall
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import has_unreadable, new_id, plain_text
from miniclaw.session.models import Usage

__all__ = ["ChatAssembler", "parse_call", "response_of", "usage_of"]

_FINISHES: Final[dict[str, Finish]] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class ChatAssembler:
    """Assembles the chunks of one streamed chat completion.

    Servers differ in how they number and name the calls of an answer; a call goes on while neither its
    index nor its id says that another one began.
    """

    def __init__(self, model: str = "") -> None:
        self._model = model
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def began(self) -> bool:
        """Whether anything of the answer has come."""
        return bool(self._text or self._reasoning or self._calls)

    def feed(self, chunk: Any) -> LLMChunk | None:
        """Take one chunk; returns what it adds to what can be shown.

        Raises:
            ModelError: the chunk is an error report.
        """
        if not isinstance(chunk, dict):
            return None
        if chunk.get("error"):
            raise ModelError("model_error", f"The model server reported: {_error_text(chunk['error'])}.")
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        choices = chunk.get("choices")
        if not choices:
            return None
        choice = choices[0]
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
        delta = choice.get("delta") or choice.get("message")
        return self._take(delta) if delta else None

    def finish(self) -> LLMResponse:
        """The whole answer.

        Raises:
            ModelError: the stream ended before it said so and holds nothing that could be used.
        """
        calls = tuple(_sound(call) for call in self._calls if call.name)
        text = "".join(self._text)
        if self._finish is None and not calls and not text:
            raise ModelError("model_unreachable", "The model's stream was cut.", retryable=True)
        if self._finish == "length" and calls and calls[-1].arguments is None:
            raise ModelError("model_error", "The model's answer was cut inside a tool call.")
        return LLMResponse(
            text=text,
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish="tool_calls" if calls else _FINISHES.get(self._finish or "", "stop"),
            usage=usage_of(self._usage, self._model),
        )

    def _take(self, delta: dict[str, Any]) -> LLMChunk | None:
        for part in delta.get("tool_calls") or ():
            self._take_call(part)
        text = delta.get("content")
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        chunk = None
        if isinstance(text, str) and text:
            text = plain_text(text)
            self._text.append(text)
            chunk = LLMChunk(text)
        if isinstance(reasoning, str) and reasoning:
            reasoning = plain_text(reasoning)
            self._reasoning.append(reasoning)
            chunk = LLMChunk(chunk.text if chunk else "", reasoning)
        return chunk

    def _take_call(self, part: dict[str, Any]) -> None:
        index, call_id = part.get("index"), part.get("id") or ""
        function = part.get("function") or {}
        name = function.get("name") or ""
        call = self._by_index.get(index) if isinstance(index, int) else None
        if call is None and not isinstance(index, int) and self._calls and not (call_id or name):
            call = self._calls[-1]
        if call is None or (call_id and call.id and call_id != call.id and name):
            call = _Call()
            self._calls.append(call)
            if isinstance(index, int):
                self._by_index[index] = call
        call.id = call.id or call_id
        if name and name != call.name:
            call.name += name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif isinstance(arguments, dict):
            call.arguments = [json.dumps(arguments, ensure_ascii=False)]


def response_of(body: Any, model: str = "") -> LLMResponse:
    """The response of an unstreamed chat completion.

    Raises:
        ModelError: the body is none, or is an error report.
    """
    assembler = ChatAssembler(model)
    if not isinstance(body, dict) or not (body.get("choices") or body.get("error")):
        raise ModelError("model_error", "The model server answered with something that is no completion.")
    assembler.feed(body)
    return assembler.finish()


def usage_of(usage: dict[str, Any] | None, model: str) -> Usage:
    """Token counts as the server reports them; zero where it does not."""
    usage = usage or {}
    return Usage(
        model=model,
        input_tokens=int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or usage.get("output_tokens") or 0),
        calls=1,
    )


def _sound(call: _Call) -> ToolCall:
    raw = plain_text("".join(call.arguments)).strip()
    return parse_call(call.id or new_id("call"), call.name, raw or "{}")


def parse_call(call_id: str, name: str, raw: str) -> ToolCall:
    """A call with its arguments read; JSON escapes may hide characters that no store can take."""
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError):
        arguments = None
    if has_unreadable(arguments):
        arguments = _readable(arguments)
        raw = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call_id, name, raw, arguments if isinstance(arguments, dict) else None)


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {plain_text(key): _readable(item) for key, item in value.items()}
    return value


def _error_text(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return plain_text(str(text))[:300].rstrip(".")
