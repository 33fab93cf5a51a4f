"""The conversation as the model will see it: the legal history, cut to the window at a turn's beginning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from miniclaw.memory.tokens import estimate_tokens
from miniclaw.session.history import MESSAGE_TOKENS, HistoryView, message_tokens

__all__ = ["ShortTermMemory"]

logger = logging.getLogger(__name__)

Message = dict[str, Any]

ANSWER_SHARE: Final = 0.2
"""The part of the window kept free for the answer and the tools' schemas."""
LEAST_SHARE: Final = 64
"""Tokens that the text of a message keeps, however long its turn is."""
CUT: Final = "\n[… cut to fit the window]"


class ShortTermMemory:
    """Fits a history into a window of `max_tokens`.

    Whole turns are left out from the oldest on, so the history stays legal; the last turn is always kept,
    with its long results and answers shortened as far as the window demands.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._lowered: dict[str, int] = {}
        """By model: what it was found to take."""

    def size(self, model: str = "") -> int:
        """The tokens of this model's window."""
        return self._lowered.get(model, self._max_tokens)

    def fit(self, system: str, history: HistoryView, *, model: str = "") -> list[Message]:
        """System prompt and as many of the latest turns as fit."""
        budget = int(self.size(model) * (1 - ANSWER_SHARE))
        room = max(0, budget - _system_tokens(system) - MESSAGE_TOKENS)
        chosen, cost = history.tail(room)
        if cost > room:
            chosen = _squeeze(chosen, room)
        return [{"role": "system", "content": system}, *chosen]

    def lower(self, model: str, named: int | None, messages: Callable[[], list[Message]]) -> bool:
        """The model refused `messages()`: its window is what it named, and at most half of what was sent.

        Returns:
            Whether that makes `messages()` any smaller.
        """
        sent, before = sum(map(message_tokens, messages())), self.size(model)
        self._lowered[model] = max(1, min(named or before, before, sent // 2))
        if sum(map(message_tokens, messages())) >= sent:
            self._lowered[model] = before
            return False
        logger.warning("the window of model %s is taken to be %d tokens from now on", model, self.size(model))
        return True


@lru_cache(maxsize=64)
def _system_tokens(system: str) -> int:
    """What a system prompt costs; it is the same in all requests of a turn."""
    return estimate_tokens(system)


def _squeeze(messages: list[Message], room: int) -> list[Message]:
    """One turn that is too long: its results and answers share what the user's text and the calls leave."""
    fixed = sum(message_tokens(m if m["role"] == "user" else {**m, "content": None}) for m in messages)
    others = sum(message["role"] != "user" for message in messages)
    share = max(LEAST_SHARE, (room - fixed) // max(1, others))
    return [m if m["role"] == "user" else _cut(m, share) for m in messages]


def _cut(message: Message, tokens: int) -> Message:
    """A message whose text is shortened to at most so many tokens."""
    text = message.get("content") or ""
    if estimate_tokens(text) <= tokens:
        return message
    length = tokens  # a token is seldom less than a character
    while estimate_tokens(text[:length] + CUT) > tokens and length > 1:
        length = length * 3 // 4
    return {**message, "content": text[:length] + CUT}
