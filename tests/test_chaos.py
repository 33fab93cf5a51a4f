"""The small chaos run; `make chaos` is the large one."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.chaos import run_chaos
from tests.support.soak import run_soak


async def test_every_message_is_answered_once_and_in_order_through_random_kills(tmp_path: Path) -> None:
    rng = random.Random(20261129)
    report = await run_chaos(tmp_path, sessions=20, messages=3, kills=5, rng=rng, pause=(0.05, 0.8))
    assert report.wrong == []
    assert report.kills == 5


async def test_everyday_load_with_a_kill_leaves_no_descriptor_and_every_answer_is_right(
    tmp_path: Path,
) -> None:
    """The small form of `make soak`."""
    report = await run_soak(
        tmp_path / "data", users=8, seconds=6, kills=1, rng=random.Random(2), pause=0.1, settled=1.0
    )
    assert report.wrong == []
    assert report.answers > 8 and report.descriptors[1] <= report.descriptors[0] + 8
