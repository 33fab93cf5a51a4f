"""What a turn costs: CPU of one tool round and 50 streamed tokens, against the bare `openai` client.

    python bench/turn.py [--turns 100] [--rounds 3]

Each loop runs in a process of its own against the same fake model; the table shows the median of the
rounds and its ratio to the bare client of the same round. `lean` is the least that still uses the client.
The second table is one session of 1,000 turns: what the lean loop's turn grows by is what the model's own
request needs, and the last column is what a late turn costs over an early one with that added.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate arithmetic.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


class Loop(Protocol):
    """What is measured."""

    async def setup(self, base_url: str, model: str) -> None: ...
    async def seed(self, sid: str, messages: list[dict[str, Any]]) -> None: ...
    async def turn(self, sid: str, text: str) -> tuple[str, int]: ...
    async def close(self) -> None: ...


class Bare:
    """The client's own `create`, a list, and a loop by hand."""

    lean = False

    async def setup(self, base_url: str, model: str) -> None:
        from openai import AsyncOpenAI

        self._client = AsyncOpenAI(api_key="x", base_url=base_url)
        self._model = model
        self._histories: dict[str, list[Any]] = {}

    async def seed(self, sid: str, messages: list[dict[str, Any]]) -> None:
        self._histories[sid] = [*messages]

    async def close(self) -> None:
        await self._client.close()

    async def _stream(self, history: list[Any]) -> Any:
        stream = await self._client.chat.completions.create(
            model=self._model, messages=history, tools=[TOOL], stream=True
        )
        async for chunk in stream:
            if chunk.choices:
                yield chunk.choices[0].delta.model_dump(exclude_none=True)

    async def turn(self, sid: str, text: str) -> tuple[str, int]:
        history = self._histories.setdefault(sid, [])
        history.append({"role": "user", "content": text})
        deltas = 0
        while True:
            parts: list[str] = []
            calls: list[Any] = []
            async for delta in self._stream(history):
                if delta.get("content"):
                    parts.append(delta["content"])
                    deltas += 1
                calls += delta.get("tool_calls") or ()
            message: dict[str, Any] = {"role": "assistant", "content": "".join(parts) or None}
            if not calls:
                history.append(message)
                return "".join(parts), deltas
            history.append({**message, "tool_calls": calls})
            for call in calls:
                json.loads(call["function"]["arguments"])
                history.append({"role": "tool", "tool_call_id": call["id"], "content": "14"})


class Lean(Bare):
    """The same loop, with plain dicts through the client's `post`."""

    async def _stream(self, history: list[Any]) -> Any:
        from openai import AsyncStream

        body = {"model": self._model, "messages": history, "tools": [TOOL], "stream": True}
        stream = await self._client.post(
            "/chat/completions", cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
        )
        async for chunk in stream:
            yield chunk["choices"][0]["delta"]  # type: ignore[index]  # the fake sends nothing else


def loop_of(name: str) -> Loop:
    """The loop of a name of the table."""
    if name == "miniclaw":
        from bench.adapters.agent_miniclaw import Target

        return Target()
    return Lean() if name == "lean" else Bare()


def cpu() -> float:
    """User and system seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(name: str, base_url: str, turns: int, history: int) -> float:
    """Milliseconds of CPU a turn, ten turns a session, after a warm-up."""
    loop = loop_of(name)
    await loop.setup(base_url, "fake")
    try:
        for number in range(5):
            await loop.turn("warm", f"question {number}")
        seed = [
            {"role": "user" if i % 2 == 0 else "assistant", "content": f"message {i}: " + "lorem ipsum " * 15}
            for i in range(history)
        ]
        if history:
            await loop.seed("s0", seed)
            await loop.turn("s0", "the first one loads the session")
        began = cpu()
        for number in range(turns):
            text, deltas = await loop.turn("s0" if history else f"s{number // 10}", f"question {number}")
            assert deltas == 50 and text.startswith("tok0 "), (deltas, text)
        return (cpu() - began) / turns * 1000
    finally:
        await loop.close()


async def grow(name: str, base_url: str) -> tuple[float, float]:
    """Milliseconds of CPU of a turn around turn 10 and around turn 1,000 of one session (medians of 16)."""
    loop = loop_of(name)
    await loop.setup(base_url, "fake")
    costs = []
    try:
        for number in range(1000 + 8):
            began = cpu()
            await loop.turn("s0", f"question {number}")
            costs.append((cpu() - began) * 1000)
        return statistics.median(costs[2:18]), statistics.median(costs[-16:])
    finally:
        await loop.close()


def run(name: str, base_url: str, *size: int) -> tuple[float, ...]:
    """Measure in a fresh process: a turn's milliseconds by turns and history, or a session's growth."""
    arguments = [sys.executable, __file__, "--measure", name, base_url, *map(str, size)]
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", check=True, timeout=300)
    return tuple(map(float, done.stdout.split()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="CPU of a turn against the bare openai client")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, base_url, *size = args.measure
        if size:
            print(asyncio.run(measure(name, base_url, *map(int, size))))
        else:
            print(*asyncio.run(grow(name, base_url)))
        return
    model = subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / "fake_model.py")], stdout=subprocess.PIPE, text=True
    )
    assert model.stdout is not None
    base_url = f"http://127.0.0.1:{model.stdout.readline().strip()}/v1"
    names = ("bare", "lean", "miniclaw")
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    print(f"{'loop':10} {'history':>8} {'ms CPU a turn':>14} {'x bare':>7} {'x lean':>7}")
    try:
        for history, turns in ((0, args.turns), (1000, max(5, args.turns // 10))):
            rounds = [
                {name: run(name, base_url, turns, history)[0] for name in names} for _ in range(args.rounds)
            ]
            for name in names:
                ms = statistics.median(row[name] for row in rounds)
                ratios = [
                    statistics.median(row[name] / row[other] for row in rounds) for other in ("bare", "lean")
                ]
                print(f"{name:10} {history:8} {ms:14.2f} {ratios[0]:7.2f} {ratios[1]:7.2f}")
        print(f"\n{'loop':10} {'turn 10':>8} {'turn 1000':>10} {'x turn 10 + request':>20}")
        grown = [(run("lean", base_url), run("miniclaw", base_url)) for _ in range(-(-args.rounds // 3))]
        for place, name in enumerate(("lean", "miniclaw")):
            early, late = (statistics.median(row[place][when] for row in grown) for when in (0, 1))
            over = statistics.median(row[place][1] / (row[place][0] + row[0][1] - row[0][0]) for row in grown)
            print(f"{name:10} {early:8.2f} {late:10.2f} {over:20.2f}")
    finally:
        model.terminate()
        model.wait()


if __name__ == "__main__":
    main()
