"""When timers run: a moment, an interval or a cron expression, each in a time zone; and their settings. No I/O."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from miniclaw.channel_settings import Section
from miniclaw.errors import ConfigError

__all__ = ["Kind", "Missed", "Schedule", "TimerSettings", "UserSettings", "local_zone", "zone_of"]

Kind = Literal["at", "every", "cron"]
Missed = Literal["once", "skip"]

SHORTEST: Final = 60
LONGEST: Final = 366 * 24 * 3600
FARTHEST: Final = 100 * LONGEST
"""Seconds ahead, beyond which no moment of a timer lies."""
"""Seconds between two runs of an interval."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_SPAN: Final = re.compile(r"(\d{1,9})\s*([smhd])")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The moments of one timer, in seconds since the epoch; `at` has one, the others go on."""

    kind: Kind
    value: str
    """An ISO 8601 time; a span such as `90m`; five fields of cron."""
    zone: str

    @classmethod
    def of(cls, *, at: str | None, every: str | None, cron: str | None, zone: str, now: float) -> Self:
        """The schedule that exactly one of the three describes; `at` may be a span from `now` on: `+10m`.

        Raises:
            ConfigError: none or several are given, or what is given cannot be read.
        """
        given = [
            (kind, value.strip()) for kind, value in (("at", at), ("every", every), ("cron", cron)) if value
        ]
        if len(given) != 1:
            raise ConfigError("A timer has exactly one of `at`, `every` and `cron`.")
        ((kind, value),) = given
        known = zone_of(zone)
        if kind == "at" and value.startswith("+"):
            span = min(_span(value[1:]), FARTHEST + 1)
            value = datetime.fromtimestamp(now + span, known).isoformat(timespec="seconds")
        schedule = cls(kind, value, zone)  # type: ignore[arg-type]
        planned = schedule.after(now, anchor=now)
        if planned is not None and planned > now + FARTHEST:
            raise ConfigError("A timer runs within the next hundred years; give an earlier time.")
        return schedule

    def after(self, moment: float, *, anchor: float) -> float | None:
        """The first of its moments behind `moment`; `None` when there is none. Intervals count from `anchor`.

        A clock that is set forward passes over no daily run, and one that is set back repeats none; what
        runs by the hour or more often goes on as the clock on the wall shows it (Debian's cron).

        Raises:
            ConfigError: the value or the zone cannot be read.
        """
        if self.kind == "at":
            planned = self._at()
            return planned if planned > moment else None
        if self.kind == "every":
            span = _span(self.value)
            if not SHORTEST <= span <= LONGEST:
                raise ConfigError(f"`every` must be from {SHORTEST} seconds to 366 days.")
            return anchor + span * (max(0, math.floor((moment - anchor) / span)) + 1)
        return self._next_of_cron(moment)

    def _at(self) -> float:
        zone = zone_of(self.zone)
        try:
            read = datetime.fromisoformat(self.value)
            return (read if read.tzinfo else read.replace(tzinfo=zone)).timestamp()
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"`at` must be a time such as 2027-03-28T09:00, not `{self.value}`.") from error

    def _next_of_cron(self, moment: float) -> float | None:
        from cronsim import CronSim, CronSimError

        if len(self.value.split()) != 5:
            raise ConfigError(f"`cron` has five fields, such as `0 9 * * MON-FRI`, not `{self.value}`.")
        zone = zone_of(self.zone)
        try:
            runs = (found.timestamp() for found in CronSim(self.value, datetime.fromtimestamp(moment, zone)))
            # In an hour that comes twice it names the first one's moment also when the second one goes on.
            return next((found for found in runs if found > moment), None)
        except (CronSimError, OverflowError, ValueError) as error:
            raise ConfigError(f"The cron expression `{self.value}` is not valid: {error}.") from error

    def local(self, moment: float) -> str:
        """A moment as the clock on the wall of its zone shows it."""
        return f"{datetime.fromtimestamp(moment, zone_of(self.zone)):%Y-%m-%d %H:%M} {self.zone}"

    def __str__(self) -> str:
        return f"{self.kind} {self.value} ({self.zone})"


def _span(text: str) -> int:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"`{text}` is no span of time such as 90m, 2h or 1d.")
    return int(found[1]) * _UNITS[found[2]]


def zone_of(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"There is no time zone `{name}`; use a name such as Asia/Shanghai.") from error


@lru_cache(maxsize=1)
def local_zone() -> str:
    """The IANA name of this machine's zone; UTC where it cannot be told."""
    for name in (os.environ.get("TZ", "").lstrip(":"), str(Path("/etc/localtime").resolve())):
        name = name.rpartition("zoneinfo/")[2]
        try:
            return zone_of(name).key if name else "UTC"
        except ConfigError:
            continue
    return "UTC"


class UserSettings(Section):
    """What is known of a user before they say it."""

    zone: str | None = None
    """The time zone that their timers are meant in; `None` = this machine's."""
    workspace: Path | None = None
    """The directory of their file tools, which has to exist; `None` = one in the data directory."""

    @field_validator("workspace")
    @classmethod
    def _is_directory(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        path = value.expanduser().absolute()
        if not path.is_dir():
            raise ValueError(f"there is no directory `{path}`")
        return path

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, value: str | None) -> str | None:
        return value if value is None else _checked(lambda: zone_of(value).key)


class TimerSettings(Section):
    """A message that is said to the agent at a time, in a session of its own."""

    text: str = Field(min_length=1, max_length=4000)
    """What is said."""
    user: str = "owner"
    """Whose session it is."""
    at: str | None = None
    """Once, such as `2027-03-28T09:00`."""
    every: str | None = None
    """A span such as `30m`, `2h` or `1d`."""
    cron: str | None = None
    """Five fields, such as `0 9 * * MON-FRI`."""
    zone: str | None = None
    """`None` = the user's."""
    missed: Missed = "once"
    """What becomes of runs whose time passed while the gateway was down or the last one still ran."""

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.at and self.at.startswith("+"):
            raise ValueError("`at` must name a moment; a span would begin anew at each start")
        _checked(lambda: self.schedule("UTC").value)
        return self

    def schedule(self, zone: str, now: float = 0.0) -> Schedule:
        """When it runs; `zone` is the user's. Raises as `Schedule.of` does."""
        given = {"at": self.at, "every": self.every, "cron": self.cron}
        return Schedule.of(**given, zone=self.zone or zone, now=now)


def _checked(read: Callable[[], str]) -> str:
    """For validators, which must raise a `ValueError`."""
    try:
        return read()
    except ConfigError as error:
        raise ValueError(str(error)) from error
