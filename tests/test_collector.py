"""The garbage collector looks at what came lately, and once in a while at everything."""

from __future__ import annotations

import asyncio
import gc
import weakref

from miniclaw.collector import collect_thoroughly, small_collections


class Knot:
    """Only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_survived_a_collection_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    with small_collections():
        kept = [Knot() for _ in range(1000)]
        lately = weakref.ref(Knot())
        gc.collect()
        assert lately() is None, "new garbage is freed"
        assert gc.get_freeze_count() > before + len(kept)
        looked_at = {id(one) for one in gc.get_objects()}
        assert not looked_at & {id(one) for one in kept}
    assert gc.get_freeze_count() == 0, "and everything is as it was"


async def test_once_in_a_while_everything_is_looked_at_when_nobody_waits() -> None:
    quiet = False
    with small_collections():
        knot = Knot()
        old = weakref.ref(knot)
        gc.collect()
        del knot
        gc.collect()
        assert old() is not None, "set aside"
        work = asyncio.create_task(collect_thoroughly(lambda: quiet, seconds=0.001))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert old() is not None, "turns run"
        quiet = True
        async with asyncio.timeout(30):
            while old() is not None:
                await asyncio.sleep(0.001)
        work.cancel()
