"""The `datetime` tool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.tools import ToolRegistry, ToolResult
from miniclaw.tools.builtins import datetime_tool

MOMENT = 1_772_323_200.0  # 2026-03-01T00:00:00Z, a Sunday

registry = ToolRegistry([datetime_tool(clock=lambda: MOMENT)])


async def ask(timezone: str) -> ToolResult:
    return await registry.execute("datetime", {"timezone": timezone})


@pytest.mark.parametrize(
    ("timezone", "iso", "weekday"),
    [
        ("UTC", "2026-03-01T00:00:00+00:00", "Sunday"),
        ("Asia/Shanghai", "2026-03-01T08:00:00+08:00", "Sunday"),
        ("America/New_York", "2026-02-28T19:00:00-05:00", "Saturday"),
        ("Asia/Kathmandu", "2026-03-01T05:45:00+05:45", "Sunday"),
    ],
)
async def test_the_time_of_any_zone_is_told(timezone: str, iso: str, weekday: str) -> None:
    result = await ask(timezone)
    assert result.data == {
        "date": iso[:10],
        "time": iso[11:19],
        "weekday": weekday,
        "timezone": timezone,
        "iso": iso,
    }
    assert f"{iso[:10]} {iso[11:19]}, {weekday}" in result.content
    assert iso in result.content


async def test_the_time_of_this_machine_is_told_with_its_offset() -> None:
    from datetime import datetime

    result = await registry.execute("datetime", {})
    assert datetime.fromisoformat(result.data["iso"]).timestamp() == MOMENT
    assert "timezone" in result.data


@pytest.mark.parametrize(
    "timezone", ["Mars/Olympus", "", "America", "../../etc/passwd", "/etc/localtime", "a\x00b", "x" * 5000]
)
async def test_an_unknown_zone_is_told_how_zones_are_named(timezone: str) -> None:
    result = await ask(timezone)
    assert not result.ok
    assert "IANA name of the form Area/City" in result.content


@given(st.text(max_size=40))
async def test_any_text_is_a_zone_or_a_failed_result(timezone: str) -> None:
    result = await ask(timezone)
    assert result.ok or "There is no time zone" in result.content


def test_asking_for_the_time_changes_nothing() -> None:
    tool = datetime_tool()
    assert (tool.risk, tool.idempotent) == ("read", True)
