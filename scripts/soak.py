"""`make soak`: everyday load for a long time; memory, descriptors and answers are looked at.

python scripts/soak.py [--minutes 20] [--users 50] [--kills 4] [--seed 1]
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

from tests.support.soak import run_soak  # noqa: E402 - behind the path

MOST_GROWTH = 0.05


def main() -> int:
    """Run and print the table; exit 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description="everyday load for a long time")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the fake model's peers die on purpose
    with tempfile.TemporaryDirectory(prefix="miniclaw-soak-") as directory:
        report = asyncio.run(
            run_soak(
                Path(directory) / "data",
                users=args.users,
                seconds=args.minutes * 60,
                kills=args.kills,
                rng=random.Random(args.seed),
            )
        )
    if report.growth > MOST_GROWTH:
        report.wrong.append(f"memory grew by {report.growth:.1%}")
    if report.descriptors[1] > report.descriptors[0] + 10:
        report.wrong.append(f"open descriptors grew: {report.descriptors}")
    print(
        "| users | minutes | kills | answers | timers | MB early | MB late | growth | descriptors | wrong |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    early, late = report.megabytes
    before, after = report.descriptors
    print(
        f"| {report.users} | {args.minutes:g} | {report.kills} | {report.answers} | {report.timers} | {early:.1f} "
        f"| {late:.1f} | {report.growth:.1%} | {before:.0f} → {after:.0f} | {len(report.wrong)} |"
    )
    for sentence in report.wrong[:20]:
        print(sentence)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
