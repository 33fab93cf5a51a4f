"""`make chaos`: conversations through kills, larger than the test suite has time for.

python scripts/chaos.py [--sessions 200] [--messages 5] [--kills 10] [--seed 1]
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


def main() -> int:
    """Run and print the table; exit 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description="conversations through kill -9")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--messages", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the fake model's peers die on purpose
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


if __name__ == "__main__":
    sys.exit(main())
