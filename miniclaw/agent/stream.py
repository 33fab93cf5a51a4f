"""Puts a streamed answer together: chunks in, pieces and the whole response out. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

from miniclaw.agent.providers import Finish, LLMChunk, LLMResponse, ToolCall
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import has_unreadable, new_id, plain_text
from miniclaw.session.history import parse_arguments
from miniclaw.session.models import Usage

__all__ = ["ChatAssembler", "parse_call", "response_of", "usage_of"]

MOST_TOKENS: Final = 1e12
"""A count from which on it is a server's mistake."""

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

    def is_whole(self) -> bool:
        """Whether the arguments are complete; the beginning of an object never is."""
        return parse_arguments("".join(self.arguments)) is not None


class ChatAssembler:
    """Assembles the chunks of one streamed chat completion.

    Servers differ in how they number and name the calls of an answer, or do neither; a call goes on until
    its index, its id, its name or its complete arguments say that another one began.
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

    @property
    def ended(self) -> bool:
        """Whether the server said that the answer is complete."""
        return self._finish is not None

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
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return None
        self._finish = _word(choice.get("finish_reason")) or self._finish
        delta = choice.get("delta") or choice.get("message")
        return self._take(delta) if isinstance(delta, dict) else None

    def finish(self) -> LLMResponse:
        """The whole answer.

        Raises:
            ModelError: the stream ended without saying that the answer did: it was cut.
        """
        if self._finish is None and not self.began:
            text = "The model server gave no answer; check OPENAI_BASE_URL, which usually ends in /v1."
            raise ModelError("model_unreachable", text, retryable=True)
        if self._finish is None:
            raise ModelError(
                "model_unreachable", "The model's answer was cut off; ask again.", retryable=True
            )
        calls = tuple(_sound(call) for call in self._calls if call.name)
        text = "".join(self._text)
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
        parts, taken = delta.get("tool_calls"), list[_Call]()
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                taken.append(self._take_call(part, taken))
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

    def _take_call(self, part: dict[str, Any], taken: list[_Call]) -> _Call:
        """Take a piece of a call; `taken` are the calls of which this chunk held a piece before."""
        index, call_id = part.get("index"), _word(part.get("id"))
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments = _word(function.get("name")), function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif not isinstance(arguments, str):
            arguments = ""
        call = self._known(index, call_id, name)
        if call is None or (name and (call in taken or self._begins(call, index, call_id, name, arguments))):
            call = _Call()
            self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        call.id = call.id or call_id
        if name != call.name:
            call.name += name
        call.arguments.append(arguments)
        return call

    def _known(self, index: object, call_id: str, name: str) -> _Call | None:
        """The call that a piece goes on with, as far as its index and id tell."""
        if isinstance(index, int) and index in self._by_index:
            return self._by_index[index]
        same = next((call for call in reversed(self._calls) if call_id and call.id == call_id), None)
        if same is None and self._calls and not (isinstance(index, int) and (call_id or name)):
            return self._calls[-1]
        return same

    def _begins(self, call: _Call, index: object, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece with a name begins another call than the one that its index or id points to."""
        if call_id and call.id and call_id != call.id:
            return True
        is_marked = index in self._by_index if isinstance(index, int) else bool(call_id)
        if not is_marked and name != call.name:
            return True
        return bool(arguments.strip()) and call.is_whole()


def response_of(body: Any, model: str = "") -> LLMResponse:
    """The response of an unstreamed chat completion.

    Raises:
        ModelError: the body is none, or is an error report.
    """
    assembler = ChatAssembler(model)
    if not isinstance(body, dict) or not (body.get("choices") or body.get("error")):
        raise ModelError("model_error", "The model server answered with something that is no completion.")
    assembler.feed(body)
    assembler.feed({"choices": [{"finish_reason": "stop"}]} if not assembler.ended else {})
    return assembler.finish()


def usage_of(usage: dict[str, Any] | None, model: str) -> Usage:
    """Token counts as the server reports them; zero where it does not."""

    def count(*names: str) -> int:
        found = (usage.get(name) for name in names) if usage else ()
        return next((int(n) for n in found if isinstance(n, int | float) and 0 < n < MOST_TOKENS), 0)

    return Usage(
        model=model,
        input_tokens=count("prompt_tokens", "input_tokens"),
        output_tokens=count("completion_tokens", "output_tokens"),
        calls=1,
    )


def _sound(call: _Call) -> ToolCall:
    raw = plain_text("".join(call.arguments)).strip()
    return parse_call(call.id or new_id("call"), call.name, raw or "{}")


def parse_call(call_id: str, name: str, raw: str) -> ToolCall:
    """A call with its arguments read; JSON escapes may hide characters that no store can take."""
    if "\\u" in raw:
        raw = _without_unreadable(raw)
    return ToolCall(call_id, name, raw, parse_arguments(raw))


def _without_unreadable(raw: str) -> str:
    try:
        value = json.loads(raw)
        return json.dumps(_readable(value), ensure_ascii=False) if has_unreadable(value) else raw
    except (ValueError, RecursionError):
        return raw  # broken, and so nobody reads what the escapes hide


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {plain_text(key): _readable(item) for key, item in value.items()}
    return value


def _word(value: object) -> str:
    """A name, id or reason; anything but a text is none."""
    return plain_text(value) if isinstance(value, str) else ""


def _error_text(error: Any) -> str:
    text = (error.get("message") if isinstance(error, dict) else None) or error
    return plain_text(str(text))[:300].rstrip(".")
