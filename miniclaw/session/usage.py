"""Tokens and calls, counted by user, day and model."""

from __future__ import annotations

import sqlite3
from typing import Any

from miniclaw.db import Database
from miniclaw.session.models import Usage

__all__ = ["count_usage", "usage_of"]


def count_usage(connection: sqlite3.Connection, user_id: str, usage: Usage, *, at: float) -> None:
    """Add to the counts of the day (UTC), inside the caller's transaction."""
    connection.execute(
        "INSERT INTO usage VALUES (?, date(?, 'unixepoch'), ?, ?, ?, ?) "
        "ON CONFLICT (user_id, day, model) DO UPDATE SET "
        "input_tokens = input_tokens + excluded.input_tokens, "
        "output_tokens = output_tokens + excluded.output_tokens, calls = calls + excluded.calls",
        (user_id, at, usage.model, usage.input_tokens, usage.output_tokens, usage.calls),
    )


def usage_of(database: Database, user_id: str) -> list[dict[str, Any]]:
    """Tokens and calls by day and model, the latest day first."""
    rows = database.read(
        "SELECT day, model, input_tokens, output_tokens, calls FROM usage WHERE user_id = ? "
        "ORDER BY day DESC, model LIMIT 200",
        (user_id,),
    )
    names = ("day", "model", "input_tokens", "output_tokens", "calls")
    return [dict(zip(names, row, strict=True)) for row in rows]
