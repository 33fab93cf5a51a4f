"""What storage costs: an append on a long log against one on a short one, the last page, the longest stall.

python bench/storage.py [--entries 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from miniclaw.db import Database  # noqa: E402 - behind the path
from miniclaw.session.files import FileStorage  # noqa: E402
from miniclaw.session.models import Entry, Session  # noqa: E402
from miniclaw.session.sqlite import SQLiteStorage  # noqa: E402
from miniclaw.session.storage import InMemoryStorage, SessionStorage  # noqa: E402

TEXT = "lorem ipsum dolor sit amet " * 8
BATCH = 1000


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncIterator[SessionStorage]:
    database = Database(directory / "bench.db")
    await database.open()
    try:
        yield SQLiteStorage(database)
    finally:
        await database.close()


@asynccontextmanager
async def files(directory: Path) -> AsyncIterator[SessionStorage]:
    yield FileStorage(directory)


@asynccontextmanager
async def memory(directory: Path) -> AsyncIterator[SessionStorage]:
    yield InMemoryStorage()


def entry(number: int) -> Entry:
    role = "user" if number % 2 == 0 else "assistant"
    return Entry(f"turn_{number}", 0, {"role": role, "content": f"{number} {TEXT}"}, 0.0)


async def cost_of_appends(storage: SessionStorage, session_id: str, first: int) -> float:
    """Microseconds of CPU of one append, median of 300."""
    costs = []
    for number in range(first, first + 300):
        began = time.process_time_ns()
        await storage.append(session_id, [entry(number)])
        costs.append((time.process_time_ns() - began) / 1000)
    return statistics.median(costs)


class Stall:
    """The longest time for which the loop's own thread worked without looking at its timers."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = now


async def measure(make: Callable[[Path], object], entries: int) -> tuple[float, float, float, float, float]:
    with tempfile.TemporaryDirectory(prefix="miniclaw-bench-") as directory:
        async with make(Path(directory)) as storage:  # type: ignore[attr-defined]  # one of the three above
            for session_id in ("short", "long"):
                await storage.save(Session(session_id=session_id, user_id="owner", channel="ws"))
            await storage.append("short", [entry(n) for n in range(10)])
            for first in range(0, entries, BATCH):
                await storage.append("long", [entry(n) for n in range(first, first + BATCH)])
            short = await cost_of_appends(storage, "short", 10)
            long = await cost_of_appends(storage, "long", entries)
            began = time.process_time()
            page = await storage.load("long", last=50)
            page_ms = (time.process_time() - began) * 1000
            assert page is not None and len(page.messages) == 50
            stall = Stall()
            watcher = asyncio.create_task(stall.watch())
            await asyncio.sleep(0.01)
            began = time.process_time()
            whole = await storage.load("long")
            whole_ms = (time.process_time() - began) * 1000
            for number in range(300):
                await storage.append("long", [entry(entries + 300 + number)])
            assert whole is not None and len(whole.messages) == entries + 300
            await storage.delete("long")
            watcher.cancel()
            return short, long, page_ms, whole_ms, stall.longest * 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="what storage costs")
    parser.add_argument("--entries", type=int, default=100_000)
    args = parser.parse_args()
    body = [json.dumps(entry(n).body()) for n in range(args.entries)]
    began = time.process_time()
    json.loads("[" + ",".join(body) + "]")
    reference = (time.process_time() - began) * 1000
    print(f"one json.loads of {args.entries} entries: {reference:.0f} ms CPU")
    print(
        f"{'storage':8} {'append at 10':>13} {'at ' + str(args.entries):>13} {'ratio':>6} {'last page':>10} {'all':>9} {'stall':>8}"
    )
    for name, make in (("sqlite", sqlite), ("files", files), ("memory", memory)):
        short, long, page, whole, stall = asyncio.run(measure(make, args.entries))
        print(
            f"{name:8} {short:10.0f} us {long:10.0f} us {long / short:6.2f} {page:7.1f} ms {whole:6.0f} ms {stall:5.1f} ms"
        )


if __name__ == "__main__":
    main()
