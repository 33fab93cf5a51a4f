"""Conversations with many gateways on one Redis, while processes are killed and Redis goes away."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.chaos import Report, answer_of, send_until_stored, until_answered
from tests.support.claw import ServerProcess
from tests.support.model import FakeModel, Message, Reply, last_user
from tests.support.redis import RedisServer

LEASE = 4.0
TOOL = '''
from pathlib import Path

from miniclaw.tools import tool


@tool(risk="write")
def note(text: str) -> str:
    """Write a line down."""
    with Path({path!r}).open("a", encoding="utf-8") as file:
        file.write(text + "\\n")
    return "noted"
'''


@dataclass
class RedisReport(Report):
    """Beside what every run says: what was done to it."""

    pauses: int = 0
    restarts: int = 0
    stops: int = 0
    """Nodes that were stopped past their lease, and went on."""
    writes: int = 0


def worker(rng: random.Random, quickest: float, slowest: float) -> Callable[[list[Message], int], Any]:
    """A model that takes its time, and asks for a sum or for a write before some answers."""

    async def script(messages: list[Message], number: int) -> Reply:
        await asyncio.sleep(rng.uniform(quickest, slowest))
        text = last_user(messages)
        if messages[-1]["role"] == "user" and text.endswith(("1", "3")):
            return {"calls": [("calculator", {"expression": "6*7"})]}
        if messages[-1]["role"] == "user" and text.endswith(("2", "7")):
            return {"calls": [("note", {"text": text})]}
        return {"text": f"answer to {text}"}

    return script


class _Nodes:
    """All gateways; a client talks to any of them."""

    def __init__(self, servers: list[ServerProcess], rng: random.Random) -> None:
        self.servers = servers
        self._rng = rng
        self.down: set[int] = set()
        self.is_over = False
        self.doing: dict[int, str] = {}

    @property
    def gateway_port(self) -> int:
        up = [s for number, s in enumerate(self.servers) if number not in self.down]
        return self._rng.choice(up or self.servers).gateway_port


async def run_redis_chaos(
    directory: Path,
    *,
    nodes: int,
    sessions: int,
    messages: int,
    every: float,
    pauses: int,
    pause: float,
    restarts: int,
    stops: int,
    rng: random.Random,
    model_seconds: tuple[float, float] = (0.05, 0.5),
    limit: float = 900,
) -> RedisReport:
    """Talk in all sessions; kill a node every `every` seconds as long as somebody talks; then count."""
    report, began = RedisReport(sessions=sessions, messages=messages), time.monotonic()
    (directory / "redis").mkdir()
    redis = RedisServer(directory / "redis")
    redis.start()
    notes = directory / "notes.txt"
    notes.touch()
    async with FakeModel(worker(rng, *model_seconds)) as model:
        env = {
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": "fake-chat",
            "MINICLAW_REDIS_URL": redis.url,
            "MINICLAW_REDIS__LEASE": str(LEASE),
            "MINICLAW_LIMITS__ATTEMPTS": "50",
            "MINICLAW_APPROVAL__ALLOW": "note",
            "MINICLAW_LOG__LEVEL": os.environ.get("CHAOS_LOG", "error"),
        }
        servers = []
        for number in range(nodes):
            home = directory / f"node{number}"
            (home / "tools").mkdir(parents=True)
            (home / "tools" / "note.py").write_text(TOOL.format(path=str(notes)), encoding="utf-8")
            servers.append(ServerProcess(home, env=env))
        everyone = _Nodes(servers, rng)
        await asyncio.gather(*(server.start() for server in servers))
        try:
            talks = [asyncio.create_task(_talk(everyone, n, messages, report)) for n in range(sessions)]
            harm = asyncio.create_task(
                _harm(everyone, redis, report, every, pauses, pause, restarts, stops, rng)
            )
            _, stuck = await asyncio.wait(talks, timeout=limit)
            report.wrong += [
                f"{everyone.doing[n]} has no end" for n, talk in enumerate(talks) if talk in stuck
            ]
            for talk in stuck:
                talk.cancel()
            await asyncio.gather(*(set(talks) - stuck))
            everyone.is_over = True
            await harm
        finally:
            for server in servers:
                if server._process is not None and server._process.returncode is None:
                    await server.kill()
            redis.stop()
        report.model_requests = len(model.requests)
        report.wrong += [f"illegal history: {problem}" for problem in model.refused]
    written = Counter(notes.read_text(encoding="utf-8").split("\n")[:-1])
    report.writes = sum(written.values())
    report.wrong += [f"written {count} times: {line}" for line, count in written.items() if count > 1]
    report.seconds = time.monotonic() - began
    return report


async def _harm(
    everyone: _Nodes,
    redis: RedisServer,
    report: RedisReport,
    every: float,
    pauses: int,
    pause: float,
    restarts: int,
    stops: int,
    rng: random.Random,
) -> None:
    """Kill a node each time, and in between pause Redis, restart it, or stop a node past its lease."""
    more = ["pause"] * pauses + ["restart"] * restarts + ["stop"] * stops
    rng.shuffle(more)
    while not everyone.is_over:
        await asyncio.sleep(every)
        number = rng.randrange(len(everyone.servers))
        server = everyone.servers[number]
        everyone.down.add(number)
        await server.kill()
        report.kills += 1
        try:
            await server.start()
        except TimeoutError:  # a machine that is busy with other things; the node is started at its next kill
            continue
        everyone.down.discard(number)
        match more.pop() if more else "":
            case "pause":
                redis.send_signal(signal.SIGSTOP)
                await asyncio.sleep(pause)
                redis.send_signal(signal.SIGCONT)
                report.pauses += 1
            case "restart":
                await asyncio.to_thread(redis.stop)
                await asyncio.to_thread(redis.start)
                report.restarts += 1
            case "stop":
                number = rng.randrange(len(everyone.servers))
                everyone.down.add(number)
                everyone.servers[number].send_signal(signal.SIGSTOP)
                await asyncio.sleep(3 * LEASE)
                everyone.servers[number].send_signal(signal.SIGCONT)
                everyone.down.discard(number)
                report.stops += 1


async def _talk(everyone: _Nodes, number: int, messages: int, report: Report) -> None:
    """One person, who is connected to one node after another."""
    session_id: str | None = None
    for turn in range(messages):
        text = f"session {number} message {turn}"
        receipt = await _on_any(
            everyone, partial(send_until_stored, msg_id=f"{number}-{turn}", text=text, session_id=session_id)
        )
        session_id, turn_id = receipt["session_id"], receipt["turn_id"]
        everyone.doing[number] = f"{text} ({session_id} {turn_id})"
        end = await _on_any(everyone, partial(answer_of, session_id=session_id, turn_id=turn_id))
        if end["data"].get("text") != f"answer to {text}":
            report.wrong.append(f"{text}: got {end['name']} {end['data']}")
    page = await _on_any(everyone, lambda c: c.command("history", {"session_id": session_id, "limit": 200}))
    spoken = [
        (m["role"], m["content"])
        for m in page["messages"]
        if m["role"] in ("user", "assistant") and m["content"]
    ]
    texts = [f"session {number} message {turn}" for turn in range(messages)]
    expected = [said for text in texts for said in (("user", text), ("assistant", f"answer to {text}"))]
    if spoken != expected:
        report.wrong.append(f"session {number}: the log holds {spoken}")


async def _on_any(everyone: _Nodes, step: Callable[[Any], Any]) -> Any:
    """As on one server; a node that shows no life for long is left for another one."""
    while True:
        try:
            async with asyncio.timeout(20):
                return await until_answered(everyone, step)  # type: ignore[arg-type]  # it has a port too
        except (TimeoutError, KeyError):  # an error has no `messages`
            await asyncio.sleep(0.1)
