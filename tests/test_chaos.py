"""The small chaos run; `make chaos` is the large one."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.chaos import run_chaos


async def test_every_message_is_answered_once_and_in_order_through_random_kills(tmp_path: Path) -> None:
    rng = random.Random(20261129)
    report = await run_chaos(tmp_path, sessions=20, messages=3, kills=5, rng=rng, pause=(0.05, 0.8))
    assert report.wrong == []
    assert report.kills == 5
