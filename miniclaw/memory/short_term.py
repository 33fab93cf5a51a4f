"""The conversation as the model will see it: the legal history, cut to the window at a turn's beginning."""

from __future__ import annotations

from typing import Any, Final

from miniclaw.memory.tokens import estimate_tokens
from miniclaw.session.history import MESSAGE_TOKENS, HistoryView, message_tokens

__all__ = ["ShortTermMemory"]

Message = dict[str, Any]

ANSWER_SHARE: Final = 0.2
"""The part of the window kept free for the answer and the tools' schemas."""
LEAST_SHARE: Final = 64
"""Tokens that every message of a turn too long for the window keeps."""


class ShortTermMemory:
    """Fits a history into a window of `max_tokens`.

    Whole turns are left out from the oldest on, so the history stays legal; the last turn is always kept,
    with its long results and answers shortened as far as the window demands.
    """

    def __init__(self, max_tokens: int) -> None:
        self._budget = int(max_tokens * (1 - ANSWER_SHARE))

    def fit(self, system: str, history: HistoryView) -> list[Message]:
        """System prompt and as many of the latest turns as fit."""
        room = max(0, self._budget - estimate_tokens(system) - MESSAGE_TOKENS)
        chosen, cost = history.tail(room)
        if cost > room:
            share = max(LEAST_SHARE, room // max(1, len(chosen)))
            chosen = [_cut(message, share) for message in chosen]
        return [{"role": "system", "content": system}, *chosen]


def _cut(message: Message, tokens: int) -> Message:
    """A message shortened to about `tokens`, which is at least as many characters; a user's stays whole."""
    if message["role"] == "user" or message_tokens(message) <= tokens:
        return message
    return {**message, "content": (message.get("content") or "")[:tokens] + "\n[… cut to fit the window]"}
