"""The conversation as the model will see it: the legal history, cut to the window at a turn's beginning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from miniclaw.gateway.protocol import encode_json
from miniclaw.memory.compaction import clear_results
from miniclaw.memory.squeeze import squeezed
from miniclaw.memory.tokens import estimate_tokens
from miniclaw.session.history import MESSAGE_TOKENS, HistoryView, message_tokens

__all__ = ["ShortTermMemory"]

logger = logging.getLogger(__name__)

Message = dict[str, Any]

ANSWER_SHARE: Final = 0.2
"""The part of the window kept free for the answer and the tools' schemas."""
TOOLS_SHARE: Final = 0.3
"""The part of the window that the tools' schemas may take; of more, the largest are left out."""
MOST_OFF: Final = 3.0
"""How many times a server may count what is estimated here; beyond, its count is of something else."""
LEAST_TOLD: Final = 500
"""Tokens of a request from which on a server's count says something of the estimate."""
LEAST_NAMED: Final = 512
"""A limit below that is none of a model that works with tools, but another number in the server's sentence."""
LOOKED_AT: Final = 4
"""How many windows of the latest turns are looked at for results to clear."""


class ShortTermMemory:
    """Fits a history into a window of `max_tokens`.

    Whole turns are left out from the oldest on, so the history stays legal; the last turn is always kept,
    with its long results, answers and arguments shortened, and its oldest calls left out, as far as the window demands.
    """

    def __init__(self, max_tokens: int, *, may_clear: Callable[[str, str], bool] = lambda *_: False) -> None:
        """Begin with a window.

        Args:
            max_tokens: of every model, as long as none is found to take less.
            may_clear: whether the result of a call (name, arguments as JSON) can be had again.
        """
        self._max_tokens = max_tokens
        self.may_clear = may_clear
        self._tools: Sequence[Message] | None = None
        self._tools_cost = 0
        self._lowered: dict[str, int] = {}
        """By model: what it was found to take."""
        self._off: dict[str, float] = {}
        """By model: how many tokens it counts for one of ours, at least 1."""
        self._told: dict[str, float] = {}
        """By model: the same by its last count alone."""

    def size(self, model: str = "") -> int:
        """The tokens of this model's window, as they are estimated here."""
        return max(1, int(self._lowered.get(model, self._max_tokens) / self._off.get(model, 1.0)))

    def told(self, model: str, estimated: int, counted: int) -> None:
        """The server counted what was estimated: the window is taken to be smaller where it counts more."""
        before, off = self._off.get(model, 1.0), counted / max(estimated, 1)
        is_sure = estimated >= LEAST_TOLD and off <= MOST_OFF
        steady = min(off, self._told.get(model, 1.0)) if is_sure else 1.0  # one count alone may be wrong
        self._told[model] = off if is_sure else 1.0
        # It sinks slowly: the next text may be like the one before.
        self._off[model] = max(1.0, steady, 0.9 * before + 0.1 * min(off if off <= MOST_OFF else 1.0, before))

    def too_many(self, tools: Sequence[Message], *, model: str = "") -> list[str]:
        """The names of the tools that the window has no room for: the fewest, so those with the largest schemas."""
        over = self.cost_of(tools) - int(self.size(model) * TOOLS_SHARE)
        if over <= 0:
            return []
        costs = {tool["function"]["name"]: estimate_tokens(encode_json(tool).decode()) for tool in tools}
        names: list[str] = []
        for name in sorted(costs, key=lambda name: -costs[name]):
            if over > 0:
                names.append(name)
                over -= costs[name]
        return names

    def room(self, system: str, *, model: str = "", tools: Sequence[Message] | None = None) -> int:
        """The tokens that a history may cost beside this system prompt and these tools."""
        size = self.size(model)
        # Within that share there is room for schemas.
        schemas = max(0, self.cost_of(tools) - int(size * ANSWER_SHARE / 2))
        return max(0, int(size * (1 - ANSWER_SHARE)) - schemas - _system_tokens(system) - MESSAGE_TOKENS)

    def cost_of(self, tools: Sequence[Message] | None) -> int:
        """What the schemas of these tools cost, in tokens."""
        if tools is not self._tools:
            self._tools = tools
            self._tools_cost = estimate_tokens(encode_json(tools).decode()) if tools else 0
        return self._tools_cost

    def fit(
        self, system: str, history: HistoryView, *, model: str = "", tools: Sequence[Message] | None = None
    ) -> list[Message]:
        """System prompt and as many of the latest turns as fit, where they do not with old results cleared."""
        return self.measured(system, history, model=model, tools=tools)[0]

    def measured(
        self, system: str, history: HistoryView, *, model: str = "", tools: Sequence[Message] | None = None
    ) -> tuple[list[Message], int]:
        """What `fit` gives, and what it and the tools are estimated to cost."""
        room = self.room(system, model=model, tools=tools)
        if not history.fits(room):
            latest = history.tail(LOOKED_AT * room)[0]
            cleared = clear_results(latest, may_clear=self.may_clear)
            if any(new is not old for new, old in zip(cleared, latest, strict=True)):
                history = HistoryView()
                history.extend(cleared)
        chosen, cost = history.tail(room)
        if cost > room:
            chosen = squeezed(chosen, room)
            cost = sum(map(message_tokens, chosen))
        cost += _system_tokens(system) + MESSAGE_TOKENS + self.cost_of(tools)
        return [{"role": "system", "content": system}, *chosen], cost

    def lower(
        self,
        model: str,
        named: int | None,
        measure: Callable[[], int],
        sent: int,
        requested: int | None = None,
    ) -> bool:
        """The model refused a request: its window is what it named, or else half of what was sent.

        Args:
            model: whose window it is.
            named: the limit that the server named; it stays known even where this request cannot be shorter.
            measure: estimates the request as it would be now.
            sent: the estimate of the request that was refused.
            requested: what the server counted, if it said so.

        Returns:
            Whether the request is any smaller now.
        """
        before = (self._lowered.get(model, self._max_tokens), self._off.get(model, 1.0))
        named = named if named is not None and named >= LEAST_NAMED else None
        if named is None:
            self._lowered[model] = max(1, min(before[0], int(sent * before[1]) // 2))
        else:
            # It was more than the limit, whatever is estimated here.
            off = max(before[1], (requested or 0) / sent, min(named, before[0]) / (0.95 * sent))
            self._lowered[model], self._off[model] = min(named, before[0]), min(off, MOST_OFF)
        if measure() >= sent:
            if named is None:
                self._lowered[model], self._off[model] = before
            return False
        logger.warning("the window of model %s is taken to be %d tokens from now on", model, self.size(model))
        return True


@lru_cache(maxsize=64)
def _system_tokens(system: str) -> int:
    """What a system prompt costs; it is the same in all requests of a turn."""
    return estimate_tokens(system)
