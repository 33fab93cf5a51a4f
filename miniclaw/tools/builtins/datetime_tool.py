"""The `datetime` tool: what time it is in any time zone, and arithmetic on dates."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import Field

from miniclaw.errors import ToolError
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.function import tool

__all__ = ["datetime_tool"]

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = {"month": 1, "year": 12}
_DAYS: Final = {"day": 1, "week": 7}
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600}
_STEP: Final = re.compile(
    r"\s*([+-]?\d{1,9})\s*(second|minute|hour|day|week|month|year)s?\b[\s,]*", re.IGNORECASE
)


def datetime_tool(*, clock: Callable[[], float] = time.time) -> Tool:
    """The tool, telling the time of `clock` (seconds since the epoch)."""

    @tool(name="datetime", risk="read", idempotent=True)
    async def current_datetime(
        timezone: Annotated[
            str, Field(description="`local`, or an IANA name such as `Asia/Shanghai` or `UTC`")
        ] = "local",
        at: Annotated[
            str, Field(description="another moment than now, such as `2026-03-01` or `2026-03-01T08:30`")
        ] = "",
        add: Annotated[
            str, Field(description="what to add to it, such as `3 weeks` or `-1 month 2 days`")
        ] = "",
        until: Annotated[str, Field(description="a moment; the time from the first one to it is told")] = "",
    ) -> ToolResult:
        """Tell the date, time and weekday in a time zone: now, at another moment, or so much later or earlier."""
        zone = _zone(timezone)
        try:
            now = datetime.fromtimestamp(clock(), UTC).astimezone(zone)
            moment = _add(_read(at, zone, now), add)
            data = _told(moment, timezone)
            content = "{date} {time}, {weekday} (time zone {timezone}; ISO 8601: {iso})".format(**data)
            if until:
                end = _read(until, zone, now)
                between = end - moment
                data["days"] = (end.date() - moment.date()).days
                data["seconds"] = between.total_seconds()
                content += (
                    f"; until {end.isoformat(timespec='seconds')}: {data['days']} calendar days ({between})"
                )
        except (OverflowError, OSError, ValueError) as error:
            raise ToolError("That is beyond the years 1 to 9999.") from error
        return ToolResult(content=content, data=data)

    return current_datetime


def _told(moment: datetime, timezone: str) -> dict[str, object]:
    iso = moment.isoformat(timespec="seconds")
    return {
        "date": iso[:10],
        "time": iso[11:19],
        "weekday": _WEEKDAYS[moment.weekday()],
        "timezone": timezone if timezone != "local" else moment.tzname() or "local",
        "iso": iso,
    }


def _read(text: str, zone: tzinfo | None, now: datetime) -> datetime:
    """A moment; one without an offset is meant in `zone`."""
    if text.strip().casefold() in ("", "now", "现在"):
        return now
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ToolError(
            f"{text[:64]!r} is no moment. Write it as `2026-03-01`, `2026-03-01T08:30` or with an offset."
        ) from error
    return moment.astimezone(zone) if moment.tzinfo or zone is None else moment.replace(tzinfo=zone)


def _add(moment: datetime, text: str) -> datetime:
    """Years, months and days keep the time of the clock; hours and less are real time, across any change of it."""
    months = days = seconds = 0
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise ToolError(f"{text[position : position + 40]!r} is no span. Write it as `3 weeks 2 days`.")
        count, unit = int(step[1]), step[2].lower()
        months += count * _MONTHS.get(unit, 0)
        days += count * _DAYS.get(unit, 0)
        seconds += count * _SECONDS.get(unit, 0)
        position = step.end()
    years, month = divmod(moment.month - 1 + months, 12)
    if not 1 <= moment.year + years <= 9999:
        raise OverflowError
    last = calendar.monthrange(moment.year + years, month + 1)[1]
    moved = moment.replace(year=moment.year + years, month=month + 1, day=min(moment.day, last))
    moved += timedelta(days=days)
    return (moved.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(moved.tzinfo) if seconds else moved


def _zone(name: str) -> tzinfo | None:
    if name == "local":
        return None
    if name.upper() in ("UTC", "GMT", "Z"):  # known without any time zone database
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: a directory such as `America`
        raise ToolError(
            f"There is no time zone {name[:64]!r}. Use `local`, `UTC` or an IANA name of the form"
            " Area/City, such as `Asia/Shanghai` or `America/New_York`."
        ) from error
