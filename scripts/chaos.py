"""`make chaos`: conversations through kills, larger than the test suite has time for.

python scripts/chaos.py [--sessions 200] [--messages 5] [--kills 10] [--seed 1]
python scripts/chaos.py --redis [--nodes 4] [--sessions 300] [--messages 10] [--every 3] [--small]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.chaos import run_chaos  # noqa: E402 - behind the path
from tests.support.redis_chaos import run_redis_chaos  # noqa: E402


def main() -> int:
    """Run and print the table; exit 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description="conversations through kill -9")
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument(
        "--redis", action="store_true", help="many gateways on one Redis, which goes away too"
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--small", action="store_true", help="less than a minute of it")
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the fake model's peers die on purpose
    if args.redis:
        return with_redis(args)
    args.sessions, args.messages = args.sessions or 200, args.messages or 5
    with tempfile.TemporaryDirectory(prefix="miniclaw-chaos-") as directory:
        report = asyncio.run(
            run_chaos(
                Path(directory),
                sessions=args.sessions,
                messages=args.messages,
                kills=args.kills,
                rng=random.Random(args.seed),
            )
        )
    answers = report.sessions * report.messages
    print("| sessions | messages | kills | seed | answers | model requests | wrong | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print(
        f"| {report.sessions} | {report.messages} | {report.kills} | {args.seed} | {answers} "
        f"| {report.model_requests} | {len(report.wrong)} | {report.seconds:.0f} |"
    )
    for sentence in report.wrong[:20]:
        print(sentence)
    return 1 if report.wrong else 0


def with_redis(args: argparse.Namespace) -> int:
    """The same with many gateways on one Redis, which is paused and restarted."""
    few = args.small
    with tempfile.TemporaryDirectory(prefix="miniclaw-chaos-") as directory:
        report = asyncio.run(
            run_redis_chaos(
                Path(directory),
                nodes=args.nodes,
                sessions=args.sessions or (40 if few else 300),
                messages=args.messages or (5 if few else 10),
                every=args.every,
                pauses=1 if few else 2,
                pause=3.0 if few else 5.0,
                restarts=1,
                stops=1,
                rng=random.Random(args.seed),
            )
        )
    names = ("sessions", "messages", "kills", "pauses", "restarts", "stops", "writes", "model_requests")
    row = [args.nodes, *(getattr(report, name) for name in names), len(report.wrong), round(report.seconds)]
    print(f"| nodes | {' | '.join(names)} | wrong | seconds |")
    print("| --- " * len(row) + "|")
    print(f"| {' | '.join(map(str, row))} |")
    for sentence in report.wrong[:20]:
        print(sentence)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
