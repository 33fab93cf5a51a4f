"""Puts a streamed chat completion together: chunks in, pieces and the whole response out. No I/O."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from miniclaw.agent.answer import AnswerBuilder, cut_error
from miniclaw.agent.arguments import parse_call
from miniclaw.agent.details import STRUCTURED, Details
from miniclaw.agent.failures import error_inside
from miniclaw.agent.providers import MOST_CALLS, LLMChunk, LLMResponse
from miniclaw.agent.report import is_error, is_report
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import plain_text
from miniclaw.session.history import parse_arguments

__all__ = ["ChatAssembler", "parse_call"]

_CALL_KEYS: Final = frozenset({"id", "type", "index", "function", "name", "arguments"})


class _Call:
    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}

    def is_repeated(self, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece is the whole call once more."""
        is_same = bool(call_id) and (call_id, name) == (self.id, self.name)
        return is_same and bool(arguments) and arguments == "".join(self.arguments)

    def is_whole(self) -> bool:
        """Whether the arguments are complete; the beginning of an object never is."""
        return parse_arguments("".join(self.arguments)) is not None


class ChatAssembler:
    """Assembles the chunks of one chat completion, streamed or in one piece.

    Servers differ in how they number and name the calls of an answer, or do neither; a call goes on until
    its index, its id, its name or its complete arguments say that another one began.
    """

    def __init__(self, answer: AnswerBuilder | None = None) -> None:
        self._answer = answer or AnswerBuilder()
        self._offered = self._answer.offered
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._details = {key: Details() for key in STRUCTURED}
        self._choice: object = None
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def began(self) -> bool:
        """Whether anything of the answer has come."""
        return bool(self._answer.began or self._calls)

    @property
    def ended(self) -> bool:
        """Whether the server said that the answer is complete."""
        return self._finish is not None

    def feed(self, chunk: Any) -> LLMChunk | None:
        """Take one chunk; returns what it adds to what can be shown.

        Raises:
            ModelError: the chunk is an error report.
        """
        chunk = chunk[0] if isinstance(chunk, list) and chunk else chunk  # Gemini's errors
        if not isinstance(chunk, dict):
            return None
        choices = chunk.get("choices")
        if ("error" in chunk and is_error(chunk["error"])) or (not choices and is_report(chunk)):
            raise error_inside(chunk)
        if isinstance(usage := chunk.get("usage") or ("x_groq" in chunk and _groq_usage(chunk)), dict):
            self._usage = usage
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and self._is_ours(choice):
                for place in (choice, choice.get("delta"), choice.get("message")):
                    if isinstance(place, dict) and "error" in place and is_error(place["error"]):
                        raise error_inside(place)
                if (taken := self._take_choice(choice)) is not None:
                    return taken
        return None

    def end(self) -> None:
        """The server said that nothing more comes, though it gave no reason."""
        self._finish = self._finish or "stop"

    def rest(self) -> LLMChunk | None:
        """The stream has ended: what was held back and can be shown."""
        return self._answer.rest()

    def finish(self) -> LLMResponse:
        """The whole answer, after `rest`.

        Raises:
            ModelError: the stream ended without saying that the answer did, or said that it failed.
        """
        if self._finish is None:
            raise cut_error(began=self.began)
        if self._choice is None:
            text = "The model server answered with something that is no completion; check OPENAI_BASE_URL."
            raise ModelError("model_error", text, kind="bad_stream", retryable=True)
        calls = [call for call in self._calls if call.name]
        data: dict[str, Any] = {}
        if any(call.extra for call in calls):
            data["calls"] = [call.extra for call in calls]
        data |= {key: found for key, details in self._details.items() if (found := details.whole())}
        raw = [(call.id, call.name, "".join(call.arguments)) for call in calls]
        return self._answer.finish(raw, self._finish, self._usage, data)

    def _is_ours(self, choice: dict[str, Any]) -> bool:
        """Of several answers side by side the first one is taken."""
        index = choice.get("index") or 0
        if self._choice is None:
            self._choice = index
        return bool(index == self._choice)

    def _take_choice(self, choice: dict[str, Any]) -> LLMChunk | None:
        self._finish = _word(choice.get("finish_reason")) or self._finish
        if isinstance(usage := choice.get("usage"), dict):
            self._usage = usage
        delta = choice.get("delta")
        if not delta and not self.began:  # a message behind deltas repeats them
            delta = choice.get("message")
        return self._take(delta) if isinstance(delta, dict) else None

    def _take(self, delta: dict[str, Any]) -> LLMChunk | None:
        if len(delta) == 1 and isinstance(piece := delta.get("content"), str):
            # As nearly all tokens come; what is held back counts too.
            return self._answer.take(piece) or (LLMChunk(hidden=len(piece)) if piece else None)
        parts, hidden = delta.get("tool_calls"), 0
        if isinstance(legacy := delta.get("function_call"), dict):
            parts = {"function": legacy}
        parts = [parts] if isinstance(parts, dict) else parts
        if isinstance(parts, list):
            taken: list[_Call] = []
            for part in parts:
                if not isinstance(part, dict):
                    continue
                if (call := self._take_call(part, taken)) is None:
                    hidden += len(str(part))
                else:
                    taken.append(call)
                    hidden += len(call.arguments[-1]) or 1
                    hidden += sum(len(str(part[key])) for key in part.keys() - _CALL_KEYS)
        text, thought = _content(delta.get("content"))
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        for key, name in STRUCTURED.items():
            if isinstance(details := delta.get(name), list):
                details_text, more = self._details[key].take(details)
                reasoning = reasoning or details_text
                hidden += more
        if isinstance(refusal := delta.get("refusal"), str):
            text += refusal
        if not isinstance(reasoning, str) or not reasoning:
            reasoning = thought
        chunk = self._answer.take(text, reasoning) or LLMChunk()
        hidden += max(0, len(text) + len(reasoning) - len(chunk.text) - len(chunk.reasoning))
        return replace(chunk, hidden=hidden) if hidden or chunk.text or chunk.reasoning else None

    def _take_call(self, part: dict[str, Any], taken: list[_Call]) -> _Call | None:
        """Take a piece of a call; `taken` are the calls of which this chunk held a piece before."""
        index, call_id = _number(part.get("index")), _id(part.get("id"))
        function = part.get("function")
        function = function if isinstance(function, dict) else part
        name, arguments = _word(function.get("name")), function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        call = self._known(index, call_id, name)
        is_placed = call is not None and index is not None and call is self._by_index.get(index)
        if call is not None and is_placed and call.is_repeated(call_id, name, arguments):
            return call
        if call is None or (name and (call in taken or self._begins(call, index, call_id, name, arguments))):
            if len(self._calls) >= MOST_CALLS:
                return None
            call = _Call()
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or call_id
        call.name = self._joined(call.name, name)
        call.arguments.append(arguments)
        if extra := {
            key: value for key, value in part.items() if key not in _CALL_KEYS and value is not None
        }:
            call.extra |= extra
        return call

    def _known(self, index: int | None, call_id: str, name: str) -> _Call | None:
        """The call that a piece goes on with, as far as its index and id tell."""
        if index in self._by_index:
            return self._by_index[index]
        same = next((call for call in reversed(self._calls) if call_id and call.id == call_id), None)
        if same is None and self._calls and not (index is not None and (call_id or name)):
            return self._calls[-1]
        return same

    def _begins(self, call: _Call, index: int | None, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece with a name begins another call than the one that its index or id points to."""
        if call_id and call.id and call_id != call.id:
            return True
        is_marked = index in self._by_index if index is not None else bool(call_id)
        if name != call.name and not self._is_offered(call.name + name):
            if not is_marked or {name, call.name} <= self._offered.keys():
                return True
        return arguments.lstrip().startswith("{") and call.is_whole()

    def _joined(self, held: str, piece: str) -> str:
        """A name whose pieces come one by one, or that is repeated in each delta."""
        if not piece or piece == held:
            return held
        if held and not self._is_offered(held + piece):
            if piece in self._offered:
                return piece
            if held in self._offered:
                return held
        return held + piece

    def _is_offered(self, beginning: str) -> bool:
        return any(name.startswith(beginning) for name in self._offered)


def _content(content: object) -> tuple[str, str]:
    """Text and thoughts of a content, which may be a list of parts."""
    if isinstance(content, str):
        return content, ""
    text = thought = ""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict) and part.get("type") in {"thinking", "reasoning"}:
            thought += "".join(_content(part.get("thinking") or part.get("text")))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            text += part["text"]
    return text, thought


def _groq_usage(chunk: dict[str, Any]) -> object:
    inner = chunk.get("x_groq")
    return inner.get("usage") if isinstance(inner, dict) else None


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 5:
        return int(value)
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else None


def _id(value: object) -> str:
    """An id, which some servers count."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _word(value)


def _word(value: object) -> str:
    """A name or reason; anything but a text is none."""
    return plain_text(value) if isinstance(value, str) else ""
