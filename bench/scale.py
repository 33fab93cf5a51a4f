"""What many gateways on one Redis cost: CPU of a turn against SQLite, and many sockets on two processes.

    python bench/scale.py [--turns 300] [--sockets 2000] [--running 500]

Each gateway is a process of its own with a model that only waits. A stall is how late a timer of 5 ms comes in
the event loop of a gateway; busy is the CPU that the loop used between two of these timers, which other work on the
machine does not lengthen. The Redis is started here, with `appendfsync always`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from miniclaw.agent.providers import LLMChunk, LLMResponse, Message  # noqa: E402 - behind the path
from miniclaw.agent.scripted import ScriptedProvider  # noqa: E402
from miniclaw.collector import small_collections  # noqa: E402
from tests.support.claw import port_of, running_claw  # noqa: E402
from tests.support.client import RawClient, raw_client  # noqa: E402
from tests.support.redis import own_server  # noqa: E402

WORDS = 20
AT_ONCE = 20
"""People with a turn at the same time, for each process."""
SOCKETS_EACH = 5
"""Of one person, where there are many."""


class Waiting(ScriptedProvider):
    """A model that waits, from three to five quarters of `seconds`, and says some words."""

    def __init__(self, seconds: float) -> None:
        super().__init__([])
        self._seconds = seconds

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        half = self._seconds * random.uniform(0.75, 1.25) / 2
        await asyncio.sleep(half)
        for number in range(WORDS):
            yield LLMChunk(f"word{number} ")
            if number == WORDS // 2:
                await asyncio.sleep(half)
        yield LLMChunk(response=LLMResponse(text="".join(f"word{number} " for number in range(WORDS))))


async def serve(directory: Path, url: str, seconds: float, tick: float, users: int) -> None:
    """A gateway until a line comes on standard input; then what it used, as JSON.

    `tick` is how often the loop is looked at, in seconds: that costs CPU of its own, so seldom where CPU counts.
    """
    given: dict[str, Any] = {"limits.running": 1000, "log.level": "error"}
    if url:
        given["redis.url"] = url
    async with running_claw(directory, Waiting(seconds), arguments=given) as claw, AsyncExitStack() as stack:
        stack.enter_context(small_collections())
        tokens = [await claw.identities.add(f"u{os.getpid()}-{number}") for number in range(users)]
        print(json.dumps([port_of(claw), tokens]), flush=True)
        worst, busiest, is_over = 0.0, 0.0, asyncio.Event()
        loop = asyncio.get_running_loop()

        def begin() -> None:
            nonlocal worst, busiest
            worst = busiest = 0.0
            used.append(_cpu())

        used: list[float] = []
        loop.add_reader(sys.stdin, lambda: begin() if sys.stdin.readline() == "begin\n" else is_over.set())
        while not is_over.is_set():
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(tick)
            worst = max(worst, time.perf_counter() - before - tick)
            busiest = max(busiest, time.thread_time() - cpu)
        told = {"stall_ms": worst * 1000, "busy_ms": busiest * 1000, "cpu": _cpu() - used[-1]}
        print(json.dumps(told), flush=True)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Gateway:
    """Such a process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, tokens: list[str]) -> None:
        self._process = process
        self.port = port
        self.tokens = tokens

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")

    async def end(self) -> dict[str, float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"end\n")
        used: dict[str, float] = json.loads(await self._process.stdout.readline())
        return used


@asynccontextmanager
async def gateway(
    directory: Path, url: str, seconds: float, tick: float, users: int = 0
) -> AsyncIterator[Gateway]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--serve", str(directory), "--url", url),
        *("--seconds", str(seconds), "--tick", str(tick), "--users", str(users)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    assert process.stdout is not None
    try:
        yield Gateway(process, *json.loads(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def hang_up(clients: Sequence[RawClient]) -> None:
    """Go all at once: one close after the other would take longer than what is measured."""
    for client in clients:
        client.socket.transport.abort()


async def cost_of_a_turn(directory: Path, url: str, count: int, turns: int, people: int) -> float:
    """Milliseconds of CPU of all gateways together, a turn, of which `people` run at once, one of each person."""
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(gateway(directory / f"n{n}", url, 0.02, 1.0, 0 if n else people))
            for n in range(count)
        ]
        clients = [
            await stack.enter_async_context(raw_client(gateways[n % count].port, token))
            for n, token in enumerate(gateways[0].tokens)
        ]
        await asyncio.gather(*(client.say("warm up") for client in clients))
        for one in gateways:
            one.begin()
        for _ in range(turns // people):
            await asyncio.gather(*(client.say("go") for client in clients))
        used = await asyncio.gather(*(one.end() for one in gateways))
        hang_up(clients)
        return sum(one["cpu"] for one in used) / turns * 1000


async def many_sockets(
    directory: Path, url: str, sockets: int, running: int, over: float
) -> tuple[float, float, int]:
    """The longest stall and the most CPU in one of two gateways in ms, and how many turns ran at once.

    `SOCKETS_EACH` are one person's, and each of them is told of that person's turns, which begin over `over`
    seconds.
    """
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(gateway(directory / f"s{n}-{over}", url, over + 2, 0.005, users))
            for n, users in enumerate((sockets // SOCKETS_EACH, 0))
        ]
        tokens = gateways[0].tokens
        clients: list[RawClient] = []
        for start in range(0, sockets, 50):
            some = [
                raw_client(gateways[n % 2].port, tokens[n % len(tokens)])
                for n in range(start, min(sockets, start + 50))
            ]
            clients += await asyncio.gather(*(stack.enter_async_context(one) for one in some))
        for client in clients[:running:10]:
            await client.command("ping")
        for one in gateways:
            one.begin()
        at_once = most = 0

        async def talk(client: RawClient, delay: float) -> None:
            nonlocal at_once, most
            await asyncio.sleep(delay)
            at_once += 1
            most = max(most, at_once)
            await client.say("go")
            at_once -= 1

        await asyncio.gather(*(talk(one, over * n / running) for n, one in enumerate(clients[:running])))
        used = await asyncio.gather(*(one.end() for one in gateways))
        hang_up(clients)
        return max(one["stall_ms"] for one in used), max(one["busy_ms"] for one in used), most


async def measure(turns: int, sockets: int, running: int) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory(prefix="miniclaw-scale-") as name:
        directory = Path(name)
        (directory / "redis").mkdir()
        with own_server(directory / "redis") as redis:
            print("| back end | processes | people | CPU ms a turn | to SQLite |")
            print("| --- | --- | --- | --- | --- |")
            plain = 0.0
            cases = (("", 1, 1), (redis.url, 1, 1), (redis.url, 2, 2), (redis.url, 4, 4), (redis.url, 4, 1))
            for url, count, times in cases:
                where = directory / f"{bool(url)}-{count}-{times}"
                cost = await cost_of_a_turn(where, url, count, turns * times, AT_ONCE * times)
                plain = plain or cost
                name = "Redis" if url else "SQLite"
                print(
                    f"| {name} | {count} | {AT_ONCE * times} | {cost:.2f} | {cost / plain:.2f} |", flush=True
                )
            print("\n| sockets | processes | begun over s | turns at once | stall ms | most CPU at once ms |")
            print("| --- | --- | --- | --- | --- | --- |")
            for over in (2.5, 0.0):
                stall, busy, most = await many_sockets(directory, redis.url, sockets, running, over)
                print(f"| {sockets} | 2 | {over} | {most} | {stall:.0f} | {busy:.0f} |", flush=True)


def main() -> int:
    """Measure, or be one of the gateways."""
    parser = argparse.ArgumentParser(description="many gateways on one Redis")
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--sockets", type=int, default=2000)
    parser.add_argument("--running", type=int, default=500)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.1, help=argparse.SUPPRESS)
    parser.add_argument("--tick", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--users", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve, args.url, args.seconds, args.tick, args.users))
    else:
        asyncio.run(measure(args.turns, args.sockets, args.running))
    return 0


if __name__ == "__main__":
    sys.exit(main())
