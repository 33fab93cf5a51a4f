"""The `datetime` tool: what time it is, here or in any time zone."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field

from miniclaw.errors import ToolError
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.function import tool

__all__ = ["datetime_tool"]

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def datetime_tool(*, clock: Callable[[], float] = time.time) -> Tool:
    """The tool, telling the time of `clock` (seconds since the epoch)."""

    @tool(name="datetime", risk="read", idempotent=True)
    async def current_datetime(
        timezone: Annotated[
            str, Field(description="`local`, or an IANA name such as `Asia/Shanghai` or `UTC`")
        ] = "local",
    ) -> ToolResult:
        """Tell the current date, time and weekday in a time zone."""
        moment = datetime.fromtimestamp(clock(), UTC).astimezone(_zone(timezone))
        iso = moment.isoformat(timespec="seconds")
        data = {
            "date": iso[:10],
            "time": iso[11:19],
            "weekday": _WEEKDAYS[moment.weekday()],
            "timezone": timezone if timezone != "local" else moment.tzname() or "local",
            "iso": iso,
        }
        content = "{date} {time}, {weekday} (time zone {timezone}; ISO 8601: {iso})".format(**data)
        return ToolResult(content=content, data=data)

    return current_datetime


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
