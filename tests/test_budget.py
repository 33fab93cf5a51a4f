"""Counting: what a turn and a day may use, prices, shares, and what stored steps bring back."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.budget import Budget, DayBudget, Stop
from miniclaw.agent.config import AgentConfig
from miniclaw.db import Database
from miniclaw.session.models import Entry, Usage
from miniclaw.session.usage import UsageLedger, price_of, priced
from miniclaw.settings import LimitSettings, Price
from tests.support.core import FakeClock, open_database

PRICES = {"m": Price(input=1, output=2, cached=0.5), "big-*": Price(input=10, output=20)}
USAGE = st.builds(
    Usage,
    model=st.sampled_from(["m", "big-1", "free"]),
    input_tokens=st.integers(0, 10_000),
    output_tokens=st.integers(0, 10_000),
    cached_tokens=st.integers(0, 12_000),
    calls=st.just(1),
)


def test_an_exact_name_has_its_price_before_a_pattern_and_what_has_none_has_none() -> None:
    prices = {"m*": Price(input=9, output=9), **PRICES}
    assert price_of("m", prices) == PRICES["m"]
    assert price_of("mm", prices) == prices["m*"]
    assert price_of("big-2", PRICES) == PRICES["big-*"]
    assert price_of("other", PRICES) is None


def test_cached_input_has_its_own_price_where_there_is_one() -> None:
    usage = Usage(model="m", input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000, calls=1)
    assert priced(usage, PRICES).cost == pytest.approx(0.6 + 0.2 + 1.0)
    assert (
        priced(Usage(model="big-1", input_tokens=100_000, cached_tokens=90_000, calls=1), PRICES).cost == 1.0
    )
    assert priced(Usage(model="x", calls=1), PRICES).cost is None
    assert priced(Usage(model="x"), PRICES).cost == 0, "no call costs nothing, whatever the model"


@given(st.lists(USAGE, max_size=8), st.integers(0, 8))
def test_what_a_turn_used_is_the_same_however_often_it_was_interrupted(used: list[Usage], cut: int) -> None:
    def step(budget: Budget, number: int) -> Entry:
        return Entry("t", number, {"role": "assistant", "content": "x"}, 0.0, budget.mark())

    whole, first = Budget(AgentConfig(), PRICES), Budget(AgentConfig(), PRICES)
    steps = []
    for number, usage in enumerate(used):
        whole.count(iterations=1)
        whole.spend(usage)
        if number < cut:
            first.count(iterations=1)
            first.spend(usage)
            steps.append(step(first, number))
    second = Budget(AgentConfig(), PRICES)
    second.restore(steps)
    for usage in used[cut:]:
        second.count(iterations=1)
        second.spend(usage)
    assert second.usage.to_dict() == whole.usage.to_dict()
    assert second.iterations == whole.iterations
    assert {model: u.tokens for model, u in second.by_model.items()} == {
        model: u.tokens for model, u in whole.by_model.items()
    }


def test_the_seconds_of_the_last_stored_step_count_and_calls_and_ids_too() -> None:
    budget = Budget(AgentConfig())
    calls = [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]
    steps = [
        Entry("t", 0, {"role": "user", "content": "x"}),
        Entry("t", 1, {"role": "assistant", "content": None, "tool_calls": calls}, 0.0, {"spent": 12.5}),
        Entry("t", 2, {"role": "tool", "tool_call_id": "c1", "content": "x"}, 0.0, {"spent": 31.0}),
    ]
    assert budget.restore(steps) == 31.0
    assert (budget.tool_calls, budget.call_ids) == (1, {"c1"})


def test_a_share_is_a_part_of_what_is_left_and_what_is_spent_of_it_is_the_parents() -> None:
    config = AgentConfig(max_iterations=10, max_tokens_per_turn=1000, max_cost_usd=1.0, turn_timeout=100)
    parent = Budget(config, PRICES)
    parent.count(iterations=2, tool_calls=10)
    parent.spend(Usage(model="m", input_tokens=200, calls=1))
    parent.spent = lambda: 40.0
    child = parent.share(0.5, iterations=9, tool_calls=5)
    limits = child.config
    assert (limits.max_iterations, limits.max_tool_calls, limits.max_tokens_per_turn) == (4, 5, 400)
    assert limits.turn_timeout == 30 and limits.max_cost_usd == pytest.approx(0.5, abs=1e-3)
    child.count(iterations=1, tool_calls=1)
    child.spend(Usage(model="m", input_tokens=400, calls=1))
    assert child.stop("m") == Stop("tokens")
    assert parent.usage.input_tokens == 600 and (parent.iterations, parent.tool_calls) == (3, 11)
    assert parent.stop("m") is None
    parent.iterations = 10
    child.by_model.clear()
    assert child.stop("m") == Stop("iterations"), "the turn's own limit ends its sub-task too"


def test_a_model_without_a_price_stops_a_turn_with_a_money_limit_before_and_after_it_was_used() -> None:
    budget = Budget(AgentConfig(max_cost_usd=1.0), PRICES)
    assert budget.stop("m") is None
    assert budget.stop("free") == Stop("unpriced", "free")
    budget.spend(Usage(model="free", input_tokens=1, calls=1))
    assert budget.stop("m") == Stop("unpriced", "free"), "a fallback answered that has no price"
    assert Budget(AgentConfig(), PRICES).stop("free") is None


# --- the day ----------------------------------------------------------------------------------------------


async def test_the_day_of_a_user_begins_with_what_is_stored_and_ends_at_midnight(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_database(tmp_path) as database:
        insert = "INSERT INTO usage VALUES ('ann', date(?, 'unixepoch'), ?, 900, 0, 1, 0, ?, 0)"
        rows = [(clock.now, "m", 0.5), (clock.now - 86_400, "m", 9.0)]
        await database.write(lambda c: c.executemany(insert, rows))
        ledger = UsageLedger(database, PRICES, clock=clock)
        limits = LimitSettings(user_tokens_per_day=1000, user_cost_usd_per_day=0.6)
        day, other = DayBudget(ledger, "ann", limits), DayBudget(ledger, "bob", limits)
        assert day.stop() is None
        day.spend(Usage(model="m", input_tokens=50, calls=1, cost=0.2))
        assert day.stop() == Stop("money_today") and other.stop() is None
        day.spend(Usage(model="m", input_tokens=50, calls=1, cost=0.0))
        assert day.stop() == Stop("tokens_today")
        clock.advance(86_400)
        assert day.stop() is None


async def test_what_had_no_price_today_is_counted_as_soon_as_it_has_one(tmp_path: Path) -> None:
    clock, limits = FakeClock(), LimitSettings(user_cost_usd_per_day=0.5)
    async with open_database(tmp_path) as database:
        row = "INSERT INTO usage VALUES ('ann', date(?, 'unixepoch'), 'm', 1000000, 0, 1, 0, NULL, 0)"
        await database.write(lambda c: c.execute(row, (clock.now,)))
        before = DayBudget(UsageLedger(database, {}, clock=clock), "ann", limits)
        assert before.stop() == Stop("unpriced", "m")
        after = DayBudget(UsageLedger(database, PRICES, clock=clock), "ann", limits)
        assert after.stop() == Stop("money_today")


async def test_a_database_of_the_first_schema_is_brought_up_to_date_and_its_costs_are_unknown(
    tmp_path: Path,
) -> None:
    path = tmp_path / "miniclaw.db"
    old = sqlite3.connect(path)
    old.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
    old.execute(
        "CREATE TABLE usage (user_id TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, input_tokens INTEGER "
        "NOT NULL, output_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, PRIMARY KEY (user_id, day, model))"
    )
    old.execute("INSERT INTO usage VALUES ('ann', '2027-01-15', 'm', 5, 6, 1)")
    old.execute("PRAGMA user_version=1")
    old.commit()
    old.close()
    for _ in range(2):
        database = Database(path)
        await database.open()
        (row,) = await UsageLedger(database, {}, clock=FakeClock()).rows("ann")
        await database.close()
    assert (row["input_tokens"], row["cached_tokens"], row["ms"], row["cost"]) == (5, 0, 0, "unknown")
    with contextlib.closing(sqlite3.connect(tmp_path / "miniclaw.db.schema1")) as kept:
        assert kept.execute("PRAGMA user_version").fetchone() == (1,)
        assert kept.execute("SELECT * FROM usage").fetchall() == [("ann", "2027-01-15", "m", 5, 6, 1)]
