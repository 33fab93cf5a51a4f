"""The stored timers: what they say, when they run next, and where their answers go."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.errors import ConfigError
from miniclaw.gateway.protocol import ReplyTarget, encode_json, format_time
from miniclaw.schedules import Missed, Schedule

__all__ = ["COLUMNS", "Timer", "TimerStore", "row_of", "timer_of"]

logger = logging.getLogger(__name__)

COLUMNS: Final = "timer_id, user_id, scope, kind, value, zone, missed, text, origin, anchor, next_at, session_id, configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """One timer as it is stored."""

    timer_id: str
    """That of a configured one is its name."""
    user_id: str
    """Who made it: budget and memories are theirs."""
    scope: str
    """Whose session it runs in: the user's, or the group's (`grp_…`) where it was made."""
    schedule: Schedule
    missed: Missed
    text: str
    origin: Mapping[str, Any]
    """Channel, account and reply target of the message that made it, where answers can be sent there."""
    anchor: float
    """What an interval counts from, in seconds since the epoch."""
    next_at: float | None
    """`None`: it was cancelled or has no further run."""
    session_id: str | None = None
    configured: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As lists show it."""
        following = self.next_at
        return {
            "timer_id": self.timer_id,
            "text": self.text,
            "schedule": str(self.schedule),
            "missed": self.missed,
            "next_at": None if following is None else format_time(following),
            "next_local": "-" if following is None else self.schedule.local(following),
            "session_id": self.session_id,
            "configured": self.configured,
        }


class TimerStore:
    """Timers as rows of the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    def due(self, moment: float) -> list[Timer]:
        """Those whose time has come, the first one first."""
        return self._read("next_at <= ?", moment)

    def next_at(self) -> float | None:
        """When the next one is due, in seconds since the epoch."""
        following: float | None = self._db.read("SELECT min(next_at) FROM timers")[0][0]
        return following

    def of(self, scope: str) -> list[Timer]:
        """The timers of a user or group."""
        return self._read("scope = ?", scope)

    def configured(self) -> list[Timer]:
        """Those of the settings."""
        return self._read("configured = ?", 1)

    async def save(self, timer: Timer) -> bool:
        """Store a timer in the place of what has its id; `False`: its user was removed, and nothing is stored."""
        row = row_of(timer)
        marks = ", ".join("?" * len(row))
        statement = (
            f"INSERT OR REPLACE INTO timers ({COLUMNS}) SELECT {marks} "
            "WHERE EXISTS (SELECT 1 FROM users WHERE user_id = ?)"
        )
        return await self._execute(statement, (*row, timer.user_id)) > 0

    async def forget_left(self) -> None:
        """Remove the timers of users who are not there, which former versions let them make."""
        await self._execute("DELETE FROM timers WHERE user_id NOT IN (SELECT user_id FROM users)", ())

    async def delete(self, timer_id: str) -> None:
        """Remove a timer; its session stays."""
        await self._execute("DELETE FROM timers WHERE timer_id = ?", (timer_id,))

    async def end(self, timer_id: str) -> None:
        """Let a timer of the settings have no further run."""
        await self._execute("UPDATE timers SET next_at = NULL WHERE timer_id = ?", (timer_id,))

    async def move_on(self, timer: Timer, planned: float, session_id: str | None) -> None:
        """Let a timer run next behind its planned time and behind now; one without a further run is gone."""
        following = timer.schedule.after(max(planned, self._clock()), anchor=timer.anchor)
        if following is None and not timer.configured:
            await self.delete(timer.timer_id)
            return
        await self._execute(
            "UPDATE timers SET next_at = ?, session_id = coalesce(?, session_id) "
            "WHERE timer_id = ? AND next_at = ?",
            (following, session_id, timer.timer_id, planned),
        )

    async def _execute(self, statement: str, values: tuple[Any, ...]) -> int:
        return await self._db.write(lambda connection: connection.execute(statement, values).rowcount)

    def _read(self, where: str, value: object) -> list[Timer]:
        query = f"SELECT {COLUMNS} FROM timers WHERE {where} ORDER BY next_at IS NULL, next_at LIMIT 200"
        return [timer for row in self._db.read(query, (value,)) if (timer := timer_of(row)) is not None]


def row_of(timer: Timer) -> tuple[Any, ...]:
    """The columns of a timer."""
    schedule = timer.schedule
    return (
        *(timer.timer_id, timer.user_id, timer.scope, schedule.kind, schedule.value, schedule.zone),
        *(timer.missed, timer.text, encode_json(timer.origin).decode(), timer.anchor, timer.next_at),
        *(timer.session_id, int(timer.configured)),
    )


def timer_of(row: tuple[Any, ...]) -> Timer | None:
    """The timer of a row, or `None`: a damaged one must not keep the others from running."""
    try:
        schedule = Schedule(row[3], row[4], row[5])
        schedule.after(row[9], anchor=row[9])
        origin = json.loads(row[8])
        if origin:
            ReplyTarget.model_validate(origin["reply_to"])
            origin["channel"] = str(origin["channel"])
        return Timer(
            timer_id=row[0],
            user_id=row[1],
            scope=row[2],
            schedule=schedule,
            missed=row[6],
            text=row[7],
            origin=origin,
            anchor=row[9],
            next_at=row[10],
            session_id=row[11],
            configured=bool(row[12]),
        )
    except (ConfigError, ValueError, TypeError, KeyError) as error:
        logger.error("timer %s cannot be read and is passed over: %s", row[0], error)
        return None
