"""A gateway under everyday load for a long time: who looks at its memory, its descriptors and its answers."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.chaos import answer_of, send_until_stored, talker, until_answered
from tests.support.claw import ServerProcess
from tests.support.client import RawClient
from tests.support.model import FakeModel

MESSAGES_A_SESSION = 20
LEAVES = 0.2
"""How often a person goes away in the middle of an answer and comes back for it."""
SETTLED = 60.0
"""Seconds after the last kill from which on memory has to stay where it is."""


@dataclass
class SoakReport:
    """What a run came to."""

    users: int
    seconds: float
    kills: int = 0
    answers: int = 0
    timers: int = 0
    megabytes: tuple[float, float] = (0.0, 0.0)
    """Resident memory a while after the last kill, and at the end (medians of a minute)."""
    descriptors: tuple[float, float] = (0.0, 0.0)
    """Open ones, at the same times."""
    wrong: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Of the memory, as a part of what it was."""
        return self.megabytes[1] / self.megabytes[0] - 1 if self.megabytes[0] else 0.0


async def run_soak(
    data_dir: Path,
    *,
    users: int,
    seconds: float,
    kills: int,
    rng: random.Random,
    pause: float = 2.0,
    settled: float = SETTLED,
) -> SoakReport:
    """Talk for so long; the kills come in the first third, what is measured after them."""
    report = SoakReport(users=users, seconds=seconds)
    async with FakeModel(talker(rng)) as model:
        env = {
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": "fake-chat",
            "MINICLAW_LIMITS__ATTEMPTS": "50",
            "MINICLAW_LOG__LEVEL": "error",
            # Else the first hour is spent on filling the store of loaded sessions, which has a limit.
            "MINICLAW_STORAGE__LOADED_SESSIONS": "64",
        }
        data_dir.mkdir(exist_ok=True)
        timer = '[timers.tick]\nevery = "60s"\ntext = "session timer message 0"\n'
        (data_dir / "miniclaw.toml").write_text(timer, encoding="utf-8")
        server = ServerProcess(data_dir, env=env)
        await server.start()
        try:
            await _soak(server, model, report, kills, rng, pause, settled)
        finally:
            await server.kill()
        report.wrong += [f"illegal history: {problem}" for problem in model.refused]
    return report


async def _soak(
    server: ServerProcess,
    model: FakeModel,
    report: SoakReport,
    kills: int,
    rng: random.Random,
    pause: float,
    settled: float,
) -> None:
    began = time.monotonic()
    end = began + report.seconds
    tokens = [
        (await until_answered(server, partial(_new_user, number=number)))["token"]
        for number in range(report.users)
    ]
    people = [
        asyncio.create_task(_person(server, number, token, end, pause, random.Random(rng.random()), report))
        for number, token in enumerate(tokens)
    ]
    for number in range(kills):
        await asyncio.sleep(max(0.0, began + report.seconds / 3 * (number + 1) / kills - time.monotonic()))
        await server.kill()
        report.kills += 1
        await server.start()
    samples: list[tuple[float, float, int]] = []
    while time.monotonic() < end:
        await asyncio.sleep(min(1.0, settled / 10))
        samples.append((time.monotonic(), _resident(server.pid), len(os.listdir(f"/proc/{server.pid}/fd"))))
        model.requests.clear()
    async with asyncio.timeout(120):
        await asyncio.gather(*people)
    begin = samples[0][0] + settled
    early = [sample for sample in samples if begin <= sample[0] < begin + settled]
    late = [sample for sample in samples if sample[0] >= samples[-1][0] - settled]
    report.megabytes = _medians(early, late, 1)
    report.descriptors = _medians(early, late, 2)
    await _look_at_timers(server, report)


def _medians(early: list[Any], late: list[Any], place: int) -> tuple[float, float]:
    first, last = (
        statistics.median(sample[place] for sample in part) if part else 0.0 for part in (early, late)
    )
    return first, last


async def _new_user(client: RawClient, number: int) -> Any:
    return await client.command("users", {"action": "add", "user_id": f"user{number}"})


async def _history(client: RawClient, session_id: str) -> Any:
    return await client.command("history", {"session_id": session_id, "limit": 1000})


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _person(
    server: ServerProcess,
    number: int,
    token: str,
    end: float,
    pause: float,
    rng: random.Random,
    report: SoakReport,
) -> None:
    """Says something, waits for the answer or comes back for it, and begins a new session now and then."""
    session_id: str | None = None
    turn = 0
    while time.monotonic() < end:
        await asyncio.sleep(rng.random() * 2 * pause)
        if turn % MESSAGES_A_SESSION == 0:
            session_id = None
        text = f"session {number} message {turn}"
        step = partial(
            _say, msg_id=f"{number}-{turn}", text=text, session_id=session_id, leaves=rng.random() < LEAVES
        )
        got = await until_answered(server, step, token=token)
        session_id = got["session_id"]
        said = got.get("end") or await until_answered(
            server, partial(answer_of, session_id=session_id, turn_id=got["turn_id"]), token=token
        )
        if said["data"].get("text") == f"answer to {text}":
            report.answers += 1
        else:
            report.wrong.append(f"{text}: got {said['name']} {said['data']}")
        turn += 1


async def _say(client: RawClient, msg_id: str, text: str, session_id: str | None, leaves: bool) -> Any:
    receipt = await send_until_stored(client, msg_id, text, session_id)
    if leaves or receipt["data"]["status"] == "duplicate":
        return receipt
    return {**receipt, "end": await client.end(receipt["turn_id"])}


async def _look_at_timers(server: ServerProcess, report: SoakReport) -> None:
    """Each planned time ran once, and was answered."""
    rows = (await until_answered(server, lambda c: c.command("sessions")))["sessions"]
    for row in rows:
        if row["channel"] == "timer":
            page = await until_answered(server, partial(_history, session_id=row["session_id"]))
            answers = [m for m in page["messages"] if m["role"] == "assistant" and m["content"]]
            report.timers += len(answers)
    most = int(report.seconds // 60) + 1
    if not most - 1 - report.kills <= report.timers <= most:
        report.wrong.append(f"the timer ran {report.timers} times in {report.seconds:.0f} s")
