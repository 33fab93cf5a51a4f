"""Many conversations through many `kill -9`: who counts what arrives."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.claw import TOKEN, ServerProcess
from tests.support.client import RawClient, raw_client
from tests.support.model import FakeModel, Message, Reply, last_user

PAUSE = (0.2, 2.0)
"""Seconds between the readiness of a server and its kill."""


@dataclass
class Report:
    """What a run came to."""

    sessions: int
    messages: int
    kills: int = 0
    seconds: float = 0.0
    model_requests: int = 0
    wrong: list[str] = field(default_factory=list)
    """What is missing, doubled, out of order or illegal, a sentence each."""


def talker(rng: random.Random) -> Callable[[list[Message], int], Any]:
    """A model that answers with the user's text, after a moment, and sometimes asks for a sum first."""

    async def script(messages: list[Message], number: int) -> Reply:
        await asyncio.sleep(rng.random() * 0.05)
        text = last_user(messages)
        if messages[-1]["role"] == "user" and text.endswith(("1", "3")):
            return {"calls": [("calculator", {"expression": "6*7"})]}
        return {"text": f"answer to {text}"}

    return script


async def run_chaos(
    data_dir: Path,
    *,
    sessions: int,
    messages: int,
    kills: int,
    rng: random.Random,
    pause: tuple[float, float] = PAUSE,
) -> Report:
    """Talk in all sessions at once while the server is killed `kills` times, then count."""
    report = Report(sessions=sessions, messages=messages)
    began = time.monotonic()
    async with FakeModel(talker(rng)) as model:
        env = {
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": "fake-chat",
            "MINICLAW_LIMITS__ATTEMPTS": "50",
            "MINICLAW_LOG__LEVEL": "error",
        }
        server = ServerProcess(data_dir, env=env)
        await server.start()
        try:
            talks = [
                asyncio.create_task(_talk(server, number, messages, report)) for number in range(sessions)
            ]
            for _ in range(kills):
                await asyncio.sleep(rng.uniform(*pause))
                await server.kill()
                report.kills += 1
                await server.start()
            async with asyncio.timeout(300):
                await asyncio.gather(*talks)
        finally:
            await server.kill()
        report.model_requests = len(model.requests)
        report.wrong += [f"illegal history: {problem}" for problem in model.refused]
    report.seconds = time.monotonic() - began
    return report


async def _talk(server: ServerProcess, number: int, messages: int, report: Report) -> None:
    """One person: sends each message until it is acknowledged, asks for its answer until it is there."""
    session_id: str | None = None
    for turn in range(messages):
        text = f"session {number} message {turn}"
        receipt = await until_answered(
            server, partial(send_until_stored, msg_id=f"{number}-{turn}", text=text, session_id=session_id)
        )
        session_id, turn_id = receipt["session_id"], receipt["turn_id"]
        end = await until_answered(server, partial(answer_of, session_id=session_id, turn_id=turn_id))
        if end["data"].get("text") != f"answer to {text}":
            report.wrong.append(f"{text}: got {end['name']} {end['data']}")
    page = await until_answered(
        server, lambda c: c.command("history", {"session_id": session_id, "limit": 200})
    )
    spoken = [
        (m["role"], m["content"])
        for m in page["messages"]
        if m["role"] in ("user", "assistant") and m["content"]
    ]
    expected = []
    for turn in range(messages):
        text = f"session {number} message {turn}"
        expected += [("user", text), ("assistant", f"answer to {text}")]
    if spoken != expected:
        report.wrong.append(f"session {number}: the log holds {spoken}")


async def until_answered(
    server: ServerProcess, step: Callable[[RawClient], Any], *, token: str = TOKEN
) -> Any:
    """Repeat a step on new connections until it comes through."""
    while True:
        try:
            async with raw_client(server.gateway_port, token) as client:
                return await step(client)
        except (OSError, ConnectionClosed, InvalidHandshake, TimeoutError):
            await asyncio.sleep(0.05)


async def send_until_stored(client: RawClient, msg_id: str, text: str, session_id: str | None) -> Any:
    """Send a text under its id; what was not accepted is to be sent again."""
    payload = {"text": text, **({"session_id": session_id} if session_id else {})}
    receipt = await client.receipt(await client.send("text", payload, msg_id=msg_id))
    if receipt.get("name") != "message.accepted":
        raise TimeoutError(f"not accepted: {receipt}")
    return receipt


async def answer_of(client: RawClient, session_id: str, turn_id: str) -> Any:
    """The end of a turn that may be over."""
    await client.command("resume", {"session_id": session_id, "turn_id": turn_id})
    for frame in client.frames:
        payload = frame["payload"]
        if payload.get("turn_id") == turn_id and payload.get("name") in ("turn.finished", "turn.failed"):
            return payload
    return await client.end(turn_id)
