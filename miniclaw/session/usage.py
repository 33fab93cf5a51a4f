"""Tokens, calls and money, counted by user, day (UTC) and model."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.session.models import Usage
from miniclaw.settings import Price

__all__ = ["UsageLedger", "count_usage", "price_of", "priced", "told"]

_NAMES: Final = ("day", "model", "input_tokens", "output_tokens", "cached_tokens", "calls", "ms", "cost")


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of a model: of its own name, else of the first pattern that fits."""
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)


def priced(usage: Usage, prices: Mapping[str, Price]) -> Usage:
    """The usage of one model with what it costs; `None` where the model has no price."""
    price = price_of(usage.model, prices)
    if price is None:
        return replace(usage, cost=None if usage.calls else usage.cost)
    cached = min(usage.cached_tokens, usage.input_tokens)
    rate = price.input if price.cached is None else price.cached
    dollars = (usage.input_tokens - cached) * price.input + cached * rate + usage.output_tokens * price.output
    return replace(usage, cost=dollars / 1e6)


def count_usage(connection: sqlite3.Connection, user_id: str, usage: Usage, *, at: float) -> None:
    """Add to the counts of the day, inside the caller's transaction."""
    columns = _NAMES[2:]
    sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in columns)
    connection.execute(
        f"INSERT INTO usage (user_id, day, model, {', '.join(columns)}) "
        "VALUES (?, date(?, 'unixepoch'), ?, ?, ?, ?, ?, ?, ?) "
        f"ON CONFLICT (user_id, day, model) DO UPDATE SET {sums}",
        (user_id, at, usage.model, *(getattr(usage, name) for name in columns)),
    )


def told(used: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the turns of a session used: the last one that called a model, and all together."""
    turns = [turn for turn in map(Usage.from_dict, used) if turn.calls]
    total = Usage()
    for turn in turns:
        total = total.plus(turn)
    return {"turn": [turn.to_dict() for turn in turns[-1:]], "session": [total.to_dict()] if turns else []}


class UsageLedger:
    """What users have used; of today also what running turns have used and not stored yet."""

    is_shared = False
    """Whether what crashed attempts used is counted already."""

    def __init__(self, database: Database, prices: Mapping[str, Price], *, clock: Clock) -> None:
        self._db = database
        self._clock = clock
        self._day = ""
        self._today: dict[str, dict[str, Usage]] = {}
        self._held: dict[str, list[Usage]] = {}
        self._let_go = asyncio.Event()
        self.prices = prices

    async def rows(self, user_id: str) -> list[dict[str, Any]]:
        """Tokens, calls and cost (or "unknown") by day and model, the latest day first."""
        return self._rows(user_id)

    async def look(self, user_id: str) -> None:
        """Learn what the user's turns used today in other processes; here there is none."""

    def _rows(self, user_id: str) -> list[dict[str, Any]]:
        rows = self._db.read(
            f"SELECT {', '.join(_NAMES)} FROM usage WHERE user_id = ? ORDER BY day DESC, model LIMIT 200",
            (user_id,),
        )
        return [
            {"day": row[0], **Usage(**dict(zip(_NAMES[1:], row[1:], strict=True))).to_dict()} for row in rows
        ]

    async def report(self, user_id: str, session_id: str | None) -> dict[str, list[dict[str, Any]]]:
        """`usage` is what `rows` gives; `session` what the user's turns that were answered there used together.

        `turn` is the last of these that used anything.
        """
        query = "SELECT json_extract(outcome, '$.data.usage') FROM turns WHERE session_id = ? AND user_id = ?"
        found = await self._db.read_many(f"{query} ORDER BY n", (session_id, user_id))
        return told([json.loads(used) for (used,) in found if used]) | {"usage": await self.rows(user_id)}

    def today(self, user_id: str) -> Iterable[Usage]:
        """What the user has used today, by model; what had no price then is priced as it would be now."""
        day = f"{datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%d}"
        if day != self._day:
            self._day, self._today = day, {}
        if user_id not in self._today:
            rows = [Usage.from_dict(row) for row in self._rows(user_id) if row["day"] == day]
            self._today[user_id] = {
                used.model: priced(used, self.prices) if used.cost is None else used for used in rows
            }
        return self._today[user_id].values()

    def spend(self, user_id: str, usage: Usage) -> None:
        """Count what a running turn used; it is stored when the turn ends."""
        self.today(user_id)
        models = self._today[user_id]
        models[usage.model] = models.get(usage.model, Usage()).plus(usage)

    async def store(self, user_id: str, used: Iterable[Usage]) -> None:
        """Commit what was used beside turns, whose ends store theirs."""
        rows, moment = list(used), self._clock()

        def operation(connection: sqlite3.Connection) -> None:
            for usage in rows:
                count_usage(connection, user_id, usage, at=moment)

        await self._db.write(operation)

    def hold(self, user_id: str, usage: Usage) -> Callable[[], None]:
        """Set aside what a call is expected to use, priced; what is returned ends that."""
        held = priced(usage, self.prices)
        mine = self._held.setdefault(user_id, [])
        mine.append(held)

        def let_go() -> None:
            mine.remove(held)
            self._let_go.set()
            self._let_go = asyncio.Event()

        return let_go

    def held(self, user_id: str) -> Sequence[Usage]:
        """What is set aside for the user's running calls."""
        return self._held.get(user_id, ())

    async def let_go_next(self) -> None:
        """Wait for the end of a reservation."""
        await self._let_go.wait()
