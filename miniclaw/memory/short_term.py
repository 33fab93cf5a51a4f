"""The conversation as the model will see it: the legal history, cut to the window at a turn's beginning."""

from __future__ import annotations

import json
from typing import Any, Final

from miniclaw.memory.tokens import estimate_tokens

__all__ = ["ShortTermMemory"]

Message = dict[str, Any]

ANSWER_SHARE: Final = 0.2
"""The part of the window kept free for the answer and the tools' schemas."""
MESSAGE_TOKENS: Final = 4
"""What a message costs beside its text."""


class ShortTermMemory:
    """Fits a history into a window of `max_tokens`.

    Whole turns are left out from the oldest on, so the history stays legal; the last turn is always kept,
    with its tool results shortened as far as the window demands.
    """

    def __init__(self, max_tokens: int) -> None:
        self._budget = int(max_tokens * (1 - ANSWER_SHARE))

    def fit(self, system: str, history: list[Message]) -> list[Message]:
        """System prompt and as many of the latest turns as fit."""
        prompt = {"role": "system", "content": system}
        if _characters(history) + len(system) + MESSAGE_TOKENS * len(history) <= self._budget:
            return [prompt, *history]  # no text has more tokens than characters, so nothing need be counted
        room = self._budget - estimate_tokens(system) - MESSAGE_TOKENS
        start, used, kept = 0, 0, 0
        for index in range(len(history) - 1, -1, -1):
            used += _tokens(history[index])
            if used > room and start:
                break
            if history[index]["role"] == "user":
                start, kept = index, used
        chosen = history[start:]
        return [prompt, *(chosen if (kept or used) <= room else self._shorten(chosen, room))]

    def _shorten(self, history: list[Message], room: int) -> list[Message]:
        """Even the last turn is too long: cut long texts to an equal share of what is there."""
        share = max(64, room // max(1, len(history)))
        return [_cut(message, share) for message in history]


def _characters(history: list[Message]) -> int:
    return sum(
        len(message.get("content") or "") + sum(len(str(call)) for call in message.get("tool_calls") or ())
        for message in history
    )


def _tokens(message: Message) -> int:
    calls = message.get("tool_calls")
    text = (message.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")
    return estimate_tokens(text) + MESSAGE_TOKENS


def _cut(message: Message, tokens: int) -> Message:
    content = message.get("content") or ""
    if message["role"] == "user" or estimate_tokens(content) <= tokens:
        return message
    return {**message, "content": content[:tokens] + "\n[… cut to fit the model's window]"}
