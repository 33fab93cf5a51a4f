"""What a turn may use and what it has used: model calls, tool calls, tokens, seconds, money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from miniclaw.agent.config import AgentConfig
from miniclaw.session.models import Entry, Usage
from miniclaw.session.usage import UsageLedger, price_of, priced
from miniclaw.settings import LimitSettings, Price

__all__ = ["Budget", "DayBudget", "Limit", "Stop", "StoppedBy"]

StoppedBy = Literal["iterations", "tool_calls", "tokens", "seconds", "money"]
Limit = Literal[StoppedBy, "tokens_today", "money_today", "unpriced"]

USUAL_ANSWER: Final = 1_000
"""Tokens that a call is expected to answer with, as long as the user's calls of today have shown no more."""

_ENDS: Final[dict[Limit, StoppedBy]] = {
    **{"iterations": "iterations", "tool_calls": "tool_calls", "seconds": "seconds"},
    **{"tokens": "tokens", "tokens_today": "tokens"},
    **{"money": "money", "money_today": "money", "unpriced": "money"},
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A limit that was reached; `model` is the one without a price where that is the reason."""

    limit: Limit
    model: str = ""

    @property
    def by(self) -> StoppedBy:
        """The kind of limit, as `turn.finished` tells it."""
        return _ENDS[self.limit]


class DayBudget:
    """What one user may use in a day, all turns together."""

    def __init__(self, ledger: UsageLedger, user_id: str, limits: LimitSettings) -> None:
        self._ledger = ledger
        self._user_id = user_id
        self.max_tokens = limits.user_tokens_per_day
        self.max_cost = limits.user_cost_usd_per_day

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return self.max_tokens is not None or self.max_cost is not None

    def spend(self, usage: Usage) -> None:
        """Count it, if anything is limited."""
        if self.is_limited:
            self._ledger.spend(self._user_id, usage)

    def hold(self, model: str, tokens: int) -> Callable[[], None]:
        """Set aside what a call with a history of so many tokens may use; what is returned lets it go."""
        used = list(self._ledger.today(self._user_id))
        calls = sum(usage.calls for usage in used) or 1
        expected = Usage(
            model=model,
            input_tokens=max(tokens, sum(usage.input_tokens for usage in used) // calls),
            output_tokens=max(USUAL_ANSWER, sum(usage.output_tokens for usage in used) // calls),
            calls=1,
        )
        return self._ledger.hold(self._user_id, expected)

    async def look(self) -> None:
        """Learn what other processes used, if anything is limited."""
        if self.is_limited:
            await self._ledger.look(self._user_id)

    @property
    def is_shared(self) -> bool:
        """Whether what crashed attempts used is counted already."""
        return self._ledger.is_shared

    @property
    def is_held(self) -> bool:
        """Whether the user's running calls may use up what is left of the day."""
        return self._stop_at(self._ledger.held(self._user_id)) is not None

    async def let_go_next(self) -> None:
        """Wait until a running call has ended."""
        await self._ledger.let_go_next()

    def stop(self) -> Stop | None:
        """The limit that the user has reached today."""
        return self._stop_at(())

    def _stop_at(self, held: Iterable[Usage]) -> Stop | None:
        if not self.is_limited:
            return None
        used = [*self._ledger.today(self._user_id), *held]
        if self.max_tokens is not None and sum(usage.tokens for usage in used) >= self.max_tokens:
            return Stop("tokens_today")
        if self.max_cost is None:
            return None
        unknown = next((usage.model for usage in used if usage.cost is None), None)
        if unknown is not None:
            return Stop("unpriced", unknown)
        return Stop("money_today") if sum(usage.cost or 0 for usage in used) >= self.max_cost else None


class Budget:
    """The counters of a turn, over all its attempts and the sub-tasks in it.

    Args:
        config: the limits of the turn.
        prices: of the models.
        day: the limits of the user's day.
        parent: the budget that this one is a share of; what is spent here is spent there too.
    """

    def __init__(
        self,
        config: AgentConfig,
        prices: Mapping[str, Price] | None = None,
        *,
        day: DayBudget | None = None,
        parent: Budget | None = None,
    ) -> None:
        self.config = config
        self.prices = prices or {}
        self.day: DayBudget | None = parent.day if parent is not None else day
        self._parent = parent
        self.by_model: dict[str, Usage] = {}
        self.iterations = 0
        self.tool_calls = 0
        self.spent: Callable[[], float] = lambda: 0.0
        """Seconds that the turn has taken, earlier attempts counted and waiting for people not."""
        self.seen: Counter[tuple[str, str]] = Counter()
        """How often each call was asked for."""
        self.call_ids: set[str] = parent.call_ids if parent else set()
        """Ids of the turn's calls, those of sub-tasks too."""
        self._unstored: list[Usage] = []

    @property
    def usage(self) -> Usage:
        """What all model calls used."""
        total = Usage()
        for usage in self.by_model.values():
            total = total.plus(usage)
        return total

    def spend(self, usage: Usage) -> Usage:
        """Count a model call; returns the usage with its price."""
        usage = priced(usage, self.prices)
        self.by_model[usage.model] = self.by_model.get(usage.model, Usage()).plus(usage)
        self._unstored.append(usage)
        if self._parent is not None:
            self._parent.spend(usage)
        elif self.day is not None:
            self.day.spend(usage)
        return usage

    def count(self, *, iterations: int = 0, tool_calls: int = 0) -> None:
        """Count calls that begin."""
        self.iterations += iterations
        self.tool_calls += tool_calls
        if self._parent is not None:
            self._parent.count(iterations=iterations, tool_calls=tool_calls)

    async def admit(self, model: str) -> Stop | None:
        """As `stop`; waits for running calls that may use up the user's day. The call must begin at once."""
        if self.day is not None:
            await self.day.look()
        while (stop := self.stop(model)) is None and self.day is not None and self.day.is_held:
            await self.day.let_go_next()
        return stop

    def stop(self, model: str) -> Stop | None:
        """The limit that forbids another call of this model."""
        config, usage = self.config, self.usage
        if self.iterations >= config.max_iterations:
            return Stop("iterations")
        if config.max_tokens_per_turn is not None and usage.tokens >= config.max_tokens_per_turn:
            return Stop("tokens")
        by_day = self.day is not None and self.day.max_cost is not None
        if config.max_cost_usd is not None or by_day:
            unknown = next((used.model for used in self.by_model.values() if used.cost is None), None)
            if unknown is not None or price_of(model, self.prices) is None:
                return Stop("unpriced", unknown or model)
        if config.max_cost_usd is not None and (usage.cost or 0) >= config.max_cost_usd:
            return Stop("money")
        if self._parent is not None:
            return self._parent.stop(model)
        return self.day.stop() if self.day is not None else None

    def mark(self) -> dict[str, Any]:
        """What the next stored step keeps, so that a later attempt does not begin at zero."""
        kept: dict[str, Any] = {"spent": round(self.spent(), 1)}
        if self._unstored:
            # Without zeros: it stays in memory and on disk with each step.
            kept["usage"] = [{k: v for k, v in usage.to_dict().items() if v} for usage in self._unstored]
            self._unstored = []
        return kept

    def restore(self, steps: Iterable[Entry]) -> float:
        """Go on from what the stored steps of earlier attempts used; returns the seconds."""
        seconds = 0.0
        day = self.day
        if day is not None and day.is_shared:
            self.day = None
        for entry in steps:
            meta = entry.meta or {}
            seconds = max(seconds, float(meta.get("spent") or 0))
            for used in map(Usage.from_dict, meta.get("usage") or ()):
                self.iterations += used.calls
                self.spend(used)
            self.tool_calls += entry.message["role"] == "tool"
            for call in entry.message.get("tool_calls") or ():
                self.call_ids.add(call["id"])
        self._unstored, self.day = [], day
        return seconds

    def share(self, part: float, *, iterations: int, tool_calls: int) -> Budget:
        """A part of what is left, and no more model calls and tool calls than named."""
        config, usage = self.config, self.usage
        changes: dict[str, Any] = {
            "max_iterations": max(1, min(iterations, int((config.max_iterations - self.iterations) * part))),
            "max_tool_calls": max(0, min(tool_calls, int((config.max_tool_calls - self.tool_calls) * part))),
        }
        if config.max_tokens_per_turn is not None:
            changes["max_tokens_per_turn"] = max(1, int((config.max_tokens_per_turn - usage.tokens) * part))
        if config.max_cost_usd is not None:
            changes["max_cost_usd"] = max(1e-9, (config.max_cost_usd - (usage.cost or 0)) * part)
        changes["turn_timeout"] = max(0.001, (config.turn_timeout - self.spent()) * part)
        return Budget(config.model_copy(update=changes), self.prices, parent=self)
