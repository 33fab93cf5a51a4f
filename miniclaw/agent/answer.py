"""What all wire formats share: an answer's text and thoughts as they come, and the response at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from miniclaw.agent.arguments import Offered, parse_call, plain_name
from miniclaw.agent.printed import find_calls
from miniclaw.agent.providers import MOST_CALLS, Finish, LLMChunk, LLMResponse, ToolCall
from miniclaw.agent.report import whole_number
from miniclaw.agent.text_calls import CallFilter
from miniclaw.agent.thinking import ThinkSplitter, split_unopened
from miniclaw.errors import ModelError
from miniclaw.gateway.protocol import new_id, plain_text
from miniclaw.session.models import Usage

__all__ = ["AnswerBuilder", "RawCall", "cut_error", "cut_prompt", "usage_of"]

MOST_TOKENS: Final = 1e12
"""A count from which on it is a server's mistake."""
MOST_THOUGHTS: Final = 1_000_000
"""Tokens; a total that would have more of them in one answer is none."""
LEAST_BYTES: Final = 8_000
"""Of a request, from which on it is looked at whether the server read all of it."""
MOST_PER_TOKEN: Final = 7
"""Bytes; what has more of them a token was not read whole."""
RawCall = tuple[str, str, str]
"""Id, name and arguments of a call as they came."""

_FINISHES: Final[dict[str, Finish]] = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), "length"),
    **dict.fromkeys(
        ("content_filter", "sensitive", "safety", "recitation", "prohibited_content", "refusal"),
        "content_filter",
    ),
}
_FAILURES: Final = {
    "insufficient_system_resource": (
        "model_error",
        "overloaded",
        "The model server is overloaded; ask again later.",
    ),
    "network_error": ("model_error", "server", "The model server lost its own connection; ask again."),
    "error": ("model_error", "stream_error", "The model server broke off the answer; ask again."),
    "abort": ("model_unreachable", "stream_cut", "The model server broke off the answer; ask again."),
    "model_context_window_exceeded": (
        "context_overflow",
        "context_overflow",
        "The conversation is too long for the model; start a new one.",
    ),
}
"""Reasons of an end that is none: code, kind and sentence."""


class AnswerBuilder:
    """Collects the pieces of one answer, and takes thoughts and printed calls out of its text.

    Args:
        model: who answers, for the usage.
        offered: the tools that the model may print calls of, by the names that it knows.
        names: our names of those that it knows by another.
        by: marks what only this server understands.
    """

    def __init__(
        self,
        model: str = "",
        *,
        offered: Offered | None = None,
        names: Mapping[str, str] | None = None,
        by: str = "",
    ) -> None:
        self._model = model
        self.offered: Offered = offered or {}
        self._names = names or {}
        self._by = by
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._printed: list[tuple[str, str]] = []
        self._is_untouched = True
        self._splitter = ThinkSplitter()
        self._filter = CallFilter(offered) if offered else None

    @property
    def began(self) -> bool:
        """Whether text or thoughts have come."""
        return self.has_text or self.has_thoughts

    @property
    def has_text(self) -> bool:
        """Whether text has come, shown or held back."""
        return not self._is_untouched

    @property
    def has_thoughts(self) -> bool:
        """Whether thoughts have come."""
        return bool(self._reasoning)

    def take(self, text: str, reasoning: str = "") -> LLMChunk | None:
        """Take a piece; returns what of it can be shown."""
        if text:
            self._is_untouched = False
            text = plain_text(text)
            if not self._splitter.is_done:
                text, thought = self._splitter.feed(text)
                reasoning += thought
            if text and self._filter is not None:
                text = self._filter.feed(text)
        return self._keep(text, reasoning)

    def rest(self) -> LLMChunk | None:
        """The answer has ended: what was held back and can be shown."""
        text, thought = self._splitter.finish() if not self._splitter.is_done else ("", "")
        if self._filter is not None:
            shown = self._filter.feed(text)
            held, printed = self._filter.finish("".join(self._text) + shown)
            self._printed += printed
            text = shown + held
        return self._keep(text, thought)

    def _keep(self, text: str, reasoning: str) -> LLMChunk | None:
        if text:
            self._text.append(text)
        if reasoning:
            reasoning = plain_text(reasoning)
            self._reasoning.append(reasoning)
        return LLMChunk(text, reasoning) if text or reasoning else None

    def finish(
        self, calls: Sequence[RawCall], reason: str, usage: object, data: dict[str, Any] | None = None
    ) -> LLMResponse:
        """The whole answer, after `rest`.

        Raises:
            ModelError: the reason of its end says that it failed.
        """
        if (failure := _FAILURES.get(reason.lower())) is not None:
            code, kind, sentence = failure
            raise ModelError(code, sentence, kind=kind, retryable=code != "context_overflow")
        text, thought = split_unopened("".join(self._text))
        reasoning = thought or "".join(self._reasoning)
        if not calls and not self._printed and not text.strip() and self.offered:
            self._printed, reasoning = find_calls(reasoning, self.offered, is_all=False)
        found = calls or [("", name, raw) for name, raw in self._printed[:MOST_CALLS]]
        finish = _FINISHES.get(reason.lower(), "tool_calls" if found else "stop")
        if finish == "content_filter":
            found = ()
        return LLMResponse(
            text=text,
            reasoning=reasoning,
            tool_calls=self._sound(found, is_cut=finish == "length"),
            finish=finish,
            usage=usage_of(usage if isinstance(usage, dict) else None, self._model),
            provider_data={"by": self._by, **data} if data else None,
        )

    def _sound(self, calls: Sequence[RawCall], *, is_cut: bool) -> tuple[ToolCall, ...]:
        """The calls under our names and with ids of their own; what was cut has no arguments."""
        sound: dict[str, ToolCall] = {}
        for call_id, name, raw in calls:
            name = plain_name(name, self.offered, is_sure=True)
            own_id = call_id if call_id and call_id not in sound else new_id("call")
            call = parse_call(own_id, self._names.get(name, name), plain_text(raw).strip() or "{}")
            sound[own_id] = ToolCall(own_id, call.name, raw, None) if is_cut else call
        return tuple(sound.values())


def cut_error(*, began: bool) -> ModelError:
    """The stream ended without saying that the answer did."""
    if began:
        text = "The model's answer was cut off; ask again."
    else:
        text = "The model server gave no answer; check OPENAI_BASE_URL, which usually ends in /v1."
    return ModelError("model_unreachable", text, kind="stream_cut", retryable=True)


def cut_prompt(usage: Usage, sent_bytes: int) -> str:
    """A warning where a server cannot have read the whole prompt: some cut it and do not tell."""
    is_cut = 0 < usage.input_tokens * MOST_PER_TOKEN < sent_bytes >= LEAST_BYTES
    return _cut_at(usage.model, usage.input_tokens) if is_cut and not usage.cached_tokens else ""


@lru_cache(
    maxsize=8
)  # such a server always cuts at the same place, and each answer of the log keeps the warning
def _cut_at(model: str, tokens: int) -> str:
    return (
        f"{model} read {tokens} tokens of a longer prompt, so it does not know the beginning of "
        "the conversation; raise the context size of its server (for Ollama: OLLAMA_CONTEXT_LENGTH)."
    )


def usage_of(usage: Mapping[str, Any] | None, model: str) -> Usage:
    """Token counts as the server reports them; zero where it does not, and all of them where one is absurd."""
    usage = usage or {}
    if any(isinstance(value, int | float) and value >= MOST_TOKENS for value in usage.values()):
        return Usage(model=model, calls=1)
    details = [usage.get(name) for name in ("prompt_tokens_details", "input_tokens_details")]
    cached = [detail.get("cached_tokens") for detail in details if isinstance(detail, dict)]
    found = Usage(
        model=model,
        input_tokens=_count(usage.get("prompt_tokens"), usage.get("input_tokens")),
        output_tokens=_count(usage.get("completion_tokens"), usage.get("output_tokens")),
        cached_tokens=_count(*cached, usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens")),
        calls=1,
    )
    return replace(found, output_tokens=found.output_tokens + _beside(usage, found))


def _beside(usage: Mapping[str, Any], found: Usage) -> int:
    """Thoughts that xAI and Gemini count beside the answer: what the total has more than its parts.

    More of it than the thoughts that the server names, or as much as was cached, is something else.
    """
    more = _count(usage.get("total_tokens")) - found.tokens
    if not found.input_tokens or not 0 < more < MOST_THOUGHTS:
        return 0
    details = [usage.get(name) for name in ("completion_tokens_details", "output_tokens_details")]
    named = [detail.get("reasoning_tokens") for detail in details if isinstance(detail, dict)]
    if thoughts := _count(*named):
        return min(more, thoughts)
    cached = found.cached_tokens or _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    return 0 if more in {cached, written, cached + written} else more


def _count(*values: object) -> int:
    numbers = (whole_number(value) if isinstance(value, str) else value for value in values)
    return next((int(n) for n in numbers if isinstance(n, int | float) and 0 < n < MOST_TOKENS), 0)
