"""The `datetime` tool."""

from __future__ import annotations

import time

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


# --- arithmetic -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "add", "iso"),
    [
        ("2026-03-01", "", "2026-03-01T00:00:00+01:00"),
        ("2024-01-31", "1 month", "2024-02-29T00:00:00+01:00"),
        ("2024-02-29", "1 year", "2025-02-28T00:00:00+01:00"),
        ("2026-01-15", "-1 month", "2025-12-15T00:00:00+01:00"),
        ("2026-12-31", "+1 day, 2 weeks", "2027-01-15T00:00:00+01:00"),
        # The clock is put forward on 2026-03-29 in Berlin: a day later is the same time, 24 hours later is not.
        ("2026-03-28T12:00", "1 day", "2026-03-29T12:00:00+02:00"),
        ("2026-03-28T12:00", "24 hours", "2026-03-29T13:00:00+02:00"),
        ("2026-03-01T00:30Z", "90 minutes 30 seconds", "2026-03-01T03:00:30+01:00"),
    ],
)
async def test_dates_can_be_added_to(at: str, add: str, iso: str) -> None:
    result = await registry.execute("datetime", {"timezone": "Europe/Berlin", "at": at, "add": add})
    assert result.data["iso"] == iso, result.content


@pytest.mark.parametrize("word", ["now", " Now", "现在"])
async def test_a_model_may_say_now(word: str) -> None:
    arguments = {"timezone": "UTC", "at": word, "until": word, "add": "1 day"}
    data = (await registry.execute("datetime", arguments)).data
    assert (data["iso"], data["days"]) == ("2026-03-02T00:00:00+00:00", -1)


async def test_the_time_between_two_moments_is_told() -> None:
    arguments = {"timezone": "UTC", "until": "2026-12-25", "add": "1 day"}
    result = await registry.execute("datetime", arguments)
    assert (result.data["iso"], result.data["days"]) == ("2026-03-02T00:00:00+00:00", 298)
    assert result.data["seconds"] == 298 * 86_400
    assert "298 calendar days" in result.content


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"at": "tomorrow"}, "is no moment"),
        ({"at": "2026-02-30"}, "is no moment"),
        ({"until": "x" * 999}, "is no moment"),
        ({"add": "a while"}, "is no span"),
        ({"add": "3"}, "is no span"),
        ({"add": "9999 years"}, "beyond the years 1 to 9999"),
        ({"add": "-999999999 days"}, "beyond the years 1 to 9999"),
        ({"at": "9999-12-31T23:00", "add": "2 hours"}, "beyond the years 1 to 9999"),
        ({"add": "9999999999 days"}, "is no span"),
    ],
)
async def test_what_is_no_date_is_told(arguments: dict[str, str], reason: str) -> None:
    result = await registry.execute("datetime", {"timezone": "Asia/Shanghai", **arguments})
    assert not result.ok
    assert reason in result.content


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of the machine cannot be set there")
async def test_the_first_day_of_all_is_told_too_early_where_the_clock_is_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        result = await registry.execute("datetime", {"timezone": "local", "at": "0001-01-01"})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "beyond the years 1 to 9999" in result.content


@given(
    st.text(max_size=20) | st.datetimes().map(str),
    st.text(max_size=20) | st.from_regex(r"[+-]?[0-9]{1,9} (second|day|month|year)s?", fullmatch=True),
    st.sampled_from(["local", "UTC", "America/New_York", "Pacific/Apia"]),
)
async def test_any_date_has_an_answer_or_is_refused(at: str, add: str, timezone: str) -> None:
    result = await registry.execute("datetime", {"timezone": timezone, "at": at, "add": add, "until": at})
    assert result.ok or "failed inside" not in result.content
