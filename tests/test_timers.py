"""Timers: each run is an ordinary message, exactly once, at the right time of its zone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.cli import main
from miniclaw.config import load_settings
from miniclaw.errors import ConfigError
from miniclaw.schedules import Schedule
from tests.support.agent import DictatedProvider, eventually, outcome, question, say, send
from tests.support.claw import TOKEN, running_claw
from tests.support.core import FakeClock
from tests.support.inside import database_of
from tests.support.model import last_user
from tests.support.receiver import SECRET
from tests.support.webhooks import call

MINUTE, HOUR = 60.0, 3600.0


def at(text: str) -> float:
    """A time in UTC as seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


async def answer(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"done: {last_user(messages)}")


@asynccontextmanager
async def timed(
    tmp_path: Path, clock: FakeClock, timers: dict[str, Any] | None = None, model: Any = None
) -> AsyncIterator[MiniClaw]:
    """A gateway on a clock set by hand."""
    provider = model or ScriptedProvider([answer] * 1000)
    given = {"timers": timers or {}, "users": {"owner": {"zone": "UTC"}}}
    async with running_claw(tmp_path, provider, web=True, clock=clock, arguments=given) as claw:
        yield claw


async def pass_to(claw: MiniClaw, clock: FakeClock, moment: float) -> None:
    """Let it be that moment, and all that is due then be done."""
    clock.now = moment
    claw.timers.wake()
    await eventually(lambda: claw.timers.is_idle and not sum(claw.mailbox.load.values()))


def runs(claw: MiniClaw) -> list[str]:
    """What was said by timers, oldest first: `name local-time`."""
    rows = database_of(claw).read(
        "SELECT message FROM turns WHERE message LIKE '%timer:%' ORDER BY n LIMIT 200"
    )
    texts = [json.loads(row[0])["payload"]["text"].rpartition("(⏰ ")[2].rstrip(")") for row in rows]
    return [text.replace(",", "") for text in texts]


# --- when they run ----------------------------------------------------------------------------------------

SPRING, AUTUMN = "2027-03-28T01:00", "2027-10-31T01:00"
"""Berlin and London set their clocks at these moments of UTC, one hour forward and one back."""


@pytest.mark.parametrize(
    ("kind", "value", "zone", "start", "expected"),
    [
        ("cron", "30 2 * * *", "Europe/Berlin", SPRING, ["01:00", "03-29 00:30"]),  # 02:30 was left out
        ("cron", "30 2 * * *", "Europe/Berlin", AUTUMN, ["11-01 01:30", "11-02 01:30"]),  # had run at 00:30
        ("cron", "30 * * * *", "Europe/London", AUTUMN, ["01:30", "02:30"]),
        ("cron", "0 9 * * MON-FRI", "Asia/Shanghai", "2027-01-01T02:00", ["01-04 01:00", "01-05 01:00"]),
        ("every", "90m", "Europe/Berlin", SPRING, ["02:30", "04:00"]),
        ("at", "2027-03-28T09:00", "Europe/Berlin", SPRING, ["07:00"]),
        ("at", "2027-03-28T09:00+00:00", "Europe/Berlin", SPRING, ["09:00"]),
        ("at", "2027-03-28T00:00", "UTC", SPRING, []),
    ],
)
def test_a_schedule_keeps_to_the_clock_on_the_wall(
    kind: Any, value: str, zone: str, start: str, expected: list[str]
) -> None:
    schedule, moment, found = Schedule(kind, value, zone), at(start), []
    if expected == ["01:00", "03-29 00:30"]:
        moment -= 30 * MINUTE
    for _ in range(2):
        following = schedule.after(moment, anchor=at(start))
        if following is None:
            break
        shown = f"{datetime.fromtimestamp(following, UTC):%m-%d %H:%M}"
        found.append(shown.removeprefix(start[5:10] + " "))
        moment = following
    assert found == expected


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
async def test_twelve_hours_over_a_change_of_the_clocks_in_two_zones_and_three_restarts(
    tmp_path: Path, change: str
) -> None:
    """Each run exactly once, at the right local time; the hours are told without the code under test."""
    shift = {SPRING: (1, 2, 0, 1), AUTUMN: (2, 1, 1, 0)}[change]  # hours from UTC, before and after
    offsets = {"Europe/Berlin": shift[:2], "Europe/London": shift[2:]}
    crons = {"half": "30 * * * *", "daily": "15 7 * * *", "early": "45 0 * * *"}
    timers: dict[str, Any] = {"often": {"text": "x", "every": "100m"}}
    for zone in offsets:
        for name, cron in crons.items():
            timers[f"{name}_{zone[-6:]}"] = {"text": "x", "cron": cron, "zone": zone}
    start, steps = at(change) - 6 * HOUR, 12 * 4
    expected = []
    for minute in range(1, 12 * 60 + 1):
        moment = start + minute * MINUTE
        if minute % 100 == 0:
            expected.append(f"often {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC")
        for zone, (before, after) in offsets.items():
            wall = moment + HOUR * (before if moment < at(change) else after)
            local = f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M}"
            for name, due in (("half", ":30"), ("daily", " 07:15"), ("early", " 00:45")):
                if local.endswith(due):
                    expected.append(f"{name}_{zone[-6:]} {local} {zone}")
    clock, step = FakeClock(start), 0
    for part in range(4):
        async with timed(tmp_path, clock, timers) as claw:
            await pass_to(claw, clock, clock.now)
            while step < steps * (part + 1) // 4:
                step += 1
                await pass_to(claw, clock, start + step * 15 * MINUTE)
            done = runs(claw)
    assert sorted(done) == sorted(expected)
    assert len(done) > 30


# --- once, and never beside itself ------------------------------------------------------------------------


async def test_a_run_that_was_stored_before_a_crash_is_not_stored_again(tmp_path: Path) -> None:
    """The process ended between the message and the timer's next time."""
    clock, timers = FakeClock(at("2027-01-01T08:59")), {"t": {"text": "x", "cron": "0 9 * * *"}}
    async with timed(tmp_path, clock, timers) as claw:
        ((planned,),) = database_of(claw).read("SELECT next_at FROM timers")
        await pass_to(claw, clock, planned)
        await database_of(claw).write(
            lambda c: c.execute("UPDATE timers SET next_at = ?", (planned,)).rowcount
        )
    async with timed(tmp_path, clock, timers) as claw:
        await pass_to(claw, clock, planned + 1)
        assert runs(claw) == ["t 2027-01-01 09:00 UTC"]
        assert claw.timers.list("owner")[0].next_at == planned + 24 * HOUR


@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [("once", 3 * 24 * HOUR + 1, 1), ("skip", 3 * 24 * HOUR + 1, 0), ("skip", 30.0, 1)],
)
async def test_missed_runs_are_made_up_for_once_or_left_out(
    tmp_path: Path, missed: str, late: float, expected: int
) -> None:
    clock = FakeClock(at("2027-01-01T08:00"))
    timers = {"t": {"text": "x", "cron": "0 9 * * *", "missed": missed}}
    async with timed(tmp_path, clock, timers):
        pass
    clock.now = at("2027-01-01T09:00") + late
    async with timed(tmp_path, clock, timers) as claw:
        await pass_to(claw, clock, clock.now)
        assert len(runs(claw)) == expected
        following = claw.timers.list("owner")[0].next_at
        assert following is not None and clock.now < following <= clock.now + 24 * HOUR


async def test_a_timer_never_runs_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniclaw.timers.BUSY_SECONDS", 0.01)
    clock, model = FakeClock(at("2027-01-01T08:00")), DictatedProvider()
    timers = {"t": {"text": "x", "every": "60s"}}
    async with timed(tmp_path, clock, timers, model) as claw:
        clock.advance(60)
        claw.timers.wake()
        await eventually(lambda: len(model.requests) == 1)
        for _ in range(3):
            clock.advance(60)
            claw.timers.wake()
            await asyncio.sleep(0.02)  # it must look and leave it
        assert claw.mailbox.load == {"running": 1, "waiting": 0}
        model.end("one")
        await eventually(lambda: len(model.requests) == 2)
        model.end("two")
        await pass_to(claw, clock, clock.now)
        assert [run[-9:-4] for run in runs(claw)] == ["08:01", "08:02"]
        assert len(await claw.sessions.list("owner")) == 1


async def test_a_run_that_a_full_gateway_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.timers.RETRY_SECONDS", 0.01)
    clock = FakeClock(at("2027-01-01T08:00"))
    async with timed(tmp_path, clock, {"t": {"text": "x", "at": "2027-01-01T09:00"}}) as claw:
        monkeypatch.setattr(claw.mailbox, "_max_waiting", 0)
        clock.now = at("2027-01-01T09:00")
        claw.timers.wake()
        await eventually(lambda: claw.timers._at_work)
        monkeypatch.setattr(claw.mailbox, "_max_waiting", 10)
        await pass_to(claw, clock, clock.now)
        assert len(runs(claw)) == 1
        assert claw.timers.list("owner")[0].next_at is None


# --- the tool ---------------------------------------------------------------------------------------------


async def test_the_model_makes_a_reminder_when_a_person_agrees_and_nobody_is_asked_when_it_runs(
    tmp_path: Path,
) -> None:
    clock, seen = FakeClock(at("2027-01-01T08:00")), []

    async def told(messages: list[Message]) -> LLMResponse:
        seen.append(str(messages[-1]["content"]))
        return LLMResponse(text="ok")

    again = call("schedule", text="y", at="+10m")
    script: list[Any] = [
        call("schedule", text="say hello", at="+10m", zone="Asia/Shanghai"),
        told,
        again,
        told,
    ]
    async with timed(tmp_path, clock, model=ScriptedProvider(script)) as claw:
        receipt = await send(claw, "remind me in ten minutes")
        asked = await question(claw)
        assert "2027-01-01 16:10 Asia/Shanghai" in str(asked.to_dict())
        await claw.desk.decide(asked.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
        assert "runs next at 2027-01-01 16:10 Asia/Shanghai" in seen[0]
        await pass_to(claw, clock, at("2027-01-01T08:10"))
        (run,) = runs(claw)
        assert run.endswith("2027-01-01 16:10 Asia/Shanghai")
        assert "nobody is there to approve" in seen[1]
        assert claw.timers.list("owner") == []
        assert {session.channel for session in await claw.sessions.list("owner")} == {"library", "timer"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": "x"}, "exactly one"),
        ({"text": "x", "at": "+10m", "cron": "0 9 * * *"}, "exactly one"),
        ({"text": "x", "at": "tomorrow"}, "2027-03-28T09:00"),
        ({"text": "x", "at": "2020-01-01T00:00"}, "is over"),
        ({"text": "x", "every": "10s"}, "60 seconds"),
        ({"text": "x", "every": "often"}, "no span"),
        ({"text": "x", "cron": "* * * *"}, "five fields"),
        ({"text": "x", "cron": "99 * * * *"}, "not valid"),
        ({"text": "x", "at": "+10m", "zone": "Mars/Base"}, "no time zone"),
        ({"text": " ", "at": "+10m"}, "`text`"),
        ({"text": "x", "at": "9999-12-31T23:59", "zone": "America/New_York"}, "hundred years"),
        ({"text": "x", "at": "+999999999d"}, "hundred years"),
        ({"action": "cancel", "timer_id": "tmr_none"}, "no such timer"),
    ],
)
async def test_a_timer_that_cannot_be_is_refused_with_a_sentence_and_not_kept(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    async def told(messages: list[Message]) -> LLMResponse:
        return LLMResponse(text=str(messages[-1]["content"]))

    model = ScriptedProvider([call("schedule", **arguments), told])
    given = {"approval.allow": ("schedule",)}
    clock = FakeClock(at("2027-01-01T08:00"))
    async with running_claw(tmp_path, model, web=True, arguments=given, clock=clock) as claw:
        assert words in await say(claw)
        assert claw.timers.list("owner") == []


async def test_a_turn_that_goes_on_when_its_user_is_removed_makes_no_timer(tmp_path: Path) -> None:
    asked, removed, seen = asyncio.Event(), asyncio.Event(), []

    async def remind(messages: list[Message]) -> LLMResponse:
        asked.set()
        await removed.wait()
        return call("schedule", text="x", every="60s")

    async def told(messages: list[Message]) -> LLMResponse:
        seen.append(str(messages[-1]["content"]))
        return LLMResponse(text="ok")

    given = {"approval.allow": ("schedule",)}
    async with running_claw(tmp_path, ScriptedProvider([remind, told]), arguments=given) as claw:
        await claw.identities.ensure("bob")
        receipt = await send(claw, "remind me", user_id="bob")
        await asked.wait()
        await claw.identities.remove("bob")
        removed.set()
        await outcome(claw, receipt.turn_id)
        assert "was removed" in seen[0] and claw.timers.list("bob") == []


@pytest.mark.parametrize(
    ("reply_to", "channel"),
    [
        ({"url": "http://127.0.0.1:1/x"}, "generic"),
        ({"url": "http://127.0.0.1:1/x", "expires_at": 1.0}, "timer"),
        (None, "timer"),
    ],
)
async def test_an_answer_goes_to_where_the_timer_was_made_while_it_is_taken_there(
    tmp_path: Path, reply_to: dict[str, Any] | None, channel: str
) -> None:
    clock, message = FakeClock(), {"channel": "generic", "account": "", "reply_to": reply_to}
    given = {"channels.generic.secret": SECRET, "channels.generic.user": "monitor"}
    model = ScriptedProvider([answer])
    async with running_claw(tmp_path, model, web=True, clock=clock, arguments=given) as claw:
        hourly = Schedule("every", "1h", "UTC")
        await claw.timers.add("owner", "owner", hourly, "x", missed="once", message=message)
        await pass_to(claw, clock, clock.now + HOUR)
        assert database_of(claw).read("SELECT channel FROM turns") == [(channel,)]


async def test_there_is_an_end_to_how_many_timers_somebody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.timers.MOST", 1)
    clock = FakeClock()
    async with timed(tmp_path, clock) as claw:
        daily = Schedule("every", "1d", "UTC")
        await claw.timers.add("owner", "owner", daily, "x", missed="once", message={})
        with pytest.raises(ConfigError, match="cancel one first"):
            await claw.timers.add("owner", "owner", daily, "y", missed="once", message={})


# --- seen and ended ---------------------------------------------------------------------------------------


async def test_timers_are_listed_and_cancelled_by_command_api_and_tool_each_by_its_own_user(
    tmp_path: Path,
) -> None:
    clock = FakeClock(at("2027-01-01T08:00"))
    listed: list[Any] = [call("schedule", action="list"), answer]
    async with timed(tmp_path, clock, model=ScriptedProvider(listed)) as claw:
        daily = Schedule("cron", "0 9 * * *", "UTC")
        first, second, third = [
            await claw.timers.add("owner", "owner", daily, text, missed="once", message={}) for text in "abc"
        ]
        theirs = await claw.identities.add("ann")
        assert await say(claw, user_id="owner")  # a list asks nobody
        receipt = await send(claw, "/timers", typed=True)
        assert receipt.result is not None and len(receipt.result["timers"]) == 3
        receipt = await send(claw, f"/timers cancel {first.timer_id}", typed=True)
        assert receipt.result is not None and len(receipt.result["timers"]) == 2
        refused = await send(claw, f"/timers cancel {second.timer_id}", user_id="ann", typed=True)
        assert refused.code == "not_found"
        assert claw.web is not None
        url = f"http://127.0.0.1:{claw.web.port}/api/timers"
        async with aiohttp.ClientSession() as http:
            for token, status in ((theirs, 404), (TOKEN, 200), (TOKEN, 404)):
                headers = {"Authorization": f"Bearer {token}"}
                async with http.delete(f"{url}/{second.timer_id}", headers=headers) as response:
                    assert response.status == status
            async with http.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
                (row,) = (await response.json())["timers"]
        assert (row["timer_id"], row["next_local"]) == (third.timer_id, "2027-01-01 09:00 UTC")
        await claw.identities.ensure("bob")
        await claw.timers.add("bob", "bob", daily, "x", missed="once", message={})
        await claw.identities.remove("bob")
        assert claw.timers.list("bob") == []


async def test_a_configured_timer_that_was_cancelled_stays_so_until_it_is_changed(tmp_path: Path) -> None:
    clock, settings = FakeClock(at("2027-01-01T08:00")), {"text": "x", "every": "1h", "user": "ann"}
    async with timed(tmp_path, clock, {"t": settings, "gone": settings}) as claw:
        await claw.timers.cancel("t", "ann", "ann")
    clock.advance(HOUR / 2)
    async with timed(tmp_path, clock, {"t": {**settings, "missed": "skip"}}) as claw:
        ((only),) = claw.timers.list("ann")
        assert (only.timer_id, only.next_at, only.missed) == ("t", None, "skip")
    async with timed(tmp_path, clock, {"t": {**settings, "text": "y"}}) as claw:
        (only,) = claw.timers.list("ann")
        assert only.next_at == clock.now + HOUR


def test_the_command_line_lists_and_cancels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "miniclaw.toml").write_text(
        '[timers.morning]\ntext = "news"\ncron = "0 9 * * *"\nzone = "Asia/Shanghai"\n', encoding="utf-8"
    )
    (tmp_path / ".env").write_text("MINICLAW_MODEL__PROBE_LOCAL=false\n", encoding="utf-8")

    common = ["--data-dir", str(tmp_path)]
    assert main(["timers", "list", *common]) == 0
    assert "morning cron 0 9 * * * (Asia/Shanghai)" in capsys.readouterr().out
    assert main(["timers", "cancel", "morning", *common]) == 0
    assert "→ -: news" in capsys.readouterr().out
    assert main(["timers", "cancel", "none", *common]) == 1
    assert "no such timer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"text": "x"}, "exactly one"),
        ({"text": "x", "at": "+10m"}, "must name a moment"),
        ({"text": "x", "every": "1h", "zone": "Mars/Base"}, "no time zone"),
        ({"text": "x", "every": "1h", "tekst": "y"}, "no such setting"),
    ],
)
def test_a_wrong_timer_in_the_settings_is_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings(env={}, data_dir=str(tmp_path), arguments={"timers": {"t": settings}})
    assert "timers.t" in str(caught.value)


async def test_the_hundredth_run_of_a_timer_costs_what_the_tenth_did(tmp_path: Path) -> None:
    """HKUDS/nanobot#2375: a heartbeat kept its whole session, 560,000 tokens a tick."""
    runs = 30

    async def answer(messages: list[Message]) -> LLMResponse:
        return LLMResponse(text=f"run {len(model.requests)}: nothing new")

    model = ScriptedProvider([answer] * runs)
    async with running_claw(tmp_path, model) as claw:
        for number in range(runs):
            given = {"channel": "timer", "conversation": "timer:tick", "msg_id": f"tick-{number}"}
            receipt = await send(claw, "is there anything new?", **given)
            await outcome(claw, receipt.turn_id)
    sizes = [len(request) for request in model.requests]
    assert sizes[9] == sizes[-1] == 1 + 2 * 4 + 1
    assert "run 29" in str(model.requests[-1])
