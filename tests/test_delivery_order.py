"""Answers through bad platforms, over a real socket: in order, none missing, no unmarked double."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from miniclaw.channel.platforms.generic import GenericPlatform
from miniclaw.channel_settings import GenericWebhookSettings
from miniclaw.config import Clock, DeliverySettings
from miniclaw.db import Database
from miniclaw.gateway.dispatcher import Dispatcher
from miniclaw.gateway.events import EventBus
from miniclaw.gateway.protocol import ReplyTarget
from miniclaw.session.outbox import Delivery, Outbox, insert_deliveries
from tests.support.agent import eventually
from tests.support.core import START, FakeClock, open_database
from tests.support.receiver import SECRET

REFUSALS: Final = ("429", "429 0", "429 ²", "429 soon")
"""Surely not sent; behind the status, the `Retry-After`."""
UNKNOWN: Final = ("500", "503 shown", "reset", "reset shown")
"""It may have arrived; `shown`: a person sees it."""
SILENT: Final = ("silent", "silent shown")
"""No answer within `delivery.timeout`."""

Plan = list[tuple[str, list[list[str]], int]]
"""The turns as they end: conversation, what happens to each part at each try before it is taken, and how
many steps of the loop pass before the next one ends."""


def plans(faults: tuple[str, ...], *, most: int) -> st.SearchStrategy[Plan]:
    part = st.lists(st.sampled_from(faults), max_size=most)
    turn = st.tuples(st.sampled_from("abc"), st.lists(part, min_size=1, max_size=2), st.integers(0, 40))
    return st.lists(turn, min_size=1, max_size=7)


class BadPlatform:
    """Takes replies, and before that does to each key what its plan says.

    Attributes:
        tries: key and mark of each try, by conversation.
        shown: what a person sees of them.
    """

    def __init__(self) -> None:
        self.plan: dict[str, list[str]] = {}
        self.tries: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        self.shown: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        self.over = asyncio.Event()

    @property
    def count(self) -> int:
        return sum(map(len, self.tries.values()))

    def has_tried(self, times: int, ending: asyncio.Task[None]) -> bool:
        """Whether so many tries came, or all turns have ended, after which there may be no more."""
        return self.count >= times or ending.done()

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        this = (request.headers["webhook-id"], body.get("possibly_repeated", False))
        assert body["text"] == f"text of {this[0]}"
        self.tries[body["session"]].append(this)
        left = self.plan.get(this[0])
        what, _, more = (left.pop(0) if left else "200 shown").partition(" ")
        if more == "shown":
            self.shown[body["session"]].append(this)
        if what == "silent":
            await self.over.wait()
        if what in ("silent", "reset"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=int(what), headers={"Retry-After": more} if what == "429" and more else {})


@asynccontextmanager
async def listening(platform: BadPlatform) -> AsyncIterator[str]:
    """Its address."""
    app = web.Application()
    app.router.add_post("/reply", platform.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/reply"
    finally:
        platform.over.set()
        await runner.cleanup()


@dataclass
class Office:
    """Outbox and dispatcher with the generic webhook as their only channel."""

    database: Database
    url: str
    delivery: DeliverySettings
    clock: Clock = time.time

    def __post_init__(self) -> None:
        generic = {"secret": SECRET, "user": "ann", "reply_hosts": ("127.0.0.1",)}
        self.generic = GenericPlatform(GenericWebhookSettings.model_validate(generic), clock=time.time)
        self.channel = self.generic
        self.outbox = Outbox(self.database, clock=self.clock)
        self.open()

    def open(self) -> None:
        self.dispatcher = Dispatcher(
            self.outbox, {"generic": self.channel}, EventBus(), self.delivery, clock=self.clock
        )

    async def restart(self) -> None:
        await self.dispatcher.stop(0)
        self.open()
        await self.dispatcher.start()

    async def put(self, number: int, conversation: str, parts: int = 1, **more: float) -> list[str]:
        """Turn `number` has ended; the keys of its answer."""
        target = ReplyTarget(conversation=conversation, thread=conversation, url=self.url)
        rows = [
            Delivery(
                key=f"t{number}.{part}",
                n=number,
                part=part,
                turn_id=f"t{number}",
                user_id="ann",
                channel="generic",
                account="",
                conversation=conversation,
                target=target,
                text=f"text of t{number}.{part}",
                created_at=self.clock(),
                **more,  # type: ignore[arg-type]  # only numbers are given
            )
            for part in range(parts)
        ]
        await self.database.write(lambda c: insert_deliveries(c, rows))
        self.dispatcher.take_up(rows[0])
        return [row.key for row in rows]

    def states(self) -> dict[str, str]:
        return dict(self.database.read("SELECT key, state FROM deliveries"))

    def all_sent(self) -> bool:
        return set(self.states().values()) == {"sent"}


@asynccontextmanager
async def office(
    directory: Path, platform: BadPlatform, clock: Clock = time.time, **delivery: float
) -> AsyncIterator[Office]:
    given_settings = {"retry_base": 0.001, "retry_max": 0.005, **delivery}
    async with listening(platform) as url, open_database(directory) as database:
        opened = Office(database, url, DeliverySettings.model_validate(given_settings), clock)
        await opened.dispatcher.start()
        try:
            yield opened
        finally:
            await opened.dispatcher.stop(0)
            await opened.channel.close()


async def carry_out(plan: Plan, *restarts: int, timeout: float) -> tuple[BadPlatform, dict[str, list[str]]]:
    """Let all turns of a plan end; what the platform saw, and the keys of each conversation in order."""
    platform, keys = BadPlatform(), defaultdict[str, list[str]](list)
    with tempfile.TemporaryDirectory() as directory:
        async with office(Path(directory), platform, timeout=timeout) as post:

            async def turns() -> None:
                for number, (conversation, parts, ticks) in enumerate(plan):
                    names = [f"t{number}.{part}" for part in range(len(parts))]
                    platform.plan |= dict(zip(names, map(list.copy, parts), strict=True))
                    keys[conversation] += await post.put(number, conversation, len(parts))
                    for _ in range(ticks):
                        await asyncio.sleep(0)

            ending = asyncio.create_task(turns())
            for tries in restarts:
                await eventually(partial(platform.has_tried, platform.count + tries, ending))
                await post.restart()
            await ending
            await eventually(post.all_sent)
    return platform, keys


def expected(keys: list[str], faults: Mapping[str, list[str]]) -> tuple[list[tuple[str, bool]], ...]:
    """The tries of a conversation, and what of them a person sees."""
    tries: list[tuple[str, bool]] = []
    shown: list[tuple[str, bool]] = []
    for key in keys:
        marked = False
        for fault in (*faults[key], "200 shown"):
            tries.append((key, marked))
            if fault.endswith("shown"):
                shown.append((key, marked))
            marked = marked or fault in UNKNOWN
    return tries, shown


@settings(max_examples=40)
@given(plans(REFUSALS + UNKNOWN, most=3))
def test_each_conversation_is_tried_in_order_and_marked_exactly_where_it_may_have_arrived(plan: Plan) -> None:
    """openclaw/openclaw#22780: a 500 behind which the message was stored made two posts, unmarked."""
    platform, keys = asyncio.run(carry_out(plan, timeout=20))
    faults = {
        f"t{number}.{part}": list(tries)
        for number, (_, parts, _) in enumerate(plan)
        for part, tries in enumerate(parts)
    }
    for conversation, own in keys.items():
        tries, shown = expected(own, faults)
        assert platform.tries[conversation] == tries
        assert platform.shown[conversation] == shown


@settings(max_examples=20)
@given(plans(REFUSALS[:2] + UNKNOWN + SILENT, most=2), st.lists(st.integers(1, 6), max_size=2))
def test_silence_and_restarts_lose_nothing_change_no_order_and_double_nothing_unmarked(
    plan: Plan, restarts: list[int]
) -> None:
    """agentscope-ai/QwenPaw#2421, NousResearch/hermes-agent#14061: a time-out is no proof that nothing came."""
    platform, keys = asyncio.run(carry_out(plan, *restarts, timeout=0.06))
    for conversation, own in keys.items():
        shown = platform.shown[conversation]
        assert list(dict.fromkeys(key for key, _ in shown)) == own
        unmarked = [key for key, marked in shown if not marked]
        assert len(unmarked) == len(set(unmarked)), "the same answer twice, and nothing says so"


async def test_an_answer_that_the_platform_confirms_late_is_sent_once(tmp_path: Path) -> None:
    """NousResearch/hermes-agent#81052: a slow confirmation had the answer sent again.

    `delivery.timeout` alone says how long a platform may take: the client has no shorter limit of its own.
    """
    platform = BadPlatform()
    async with office(tmp_path, platform, timeout=20) as post:
        await post.put(1, "a")
        await eventually(post.all_sent)
        client = post.generic._client._client
        assert client is not None and client.timeout.read is None and client.timeout.write is None
    assert platform.shown["a"] == [("t1.0", False)]


async def test_the_wait_that_a_platform_names_is_kept(tmp_path: Path) -> None:
    platform = BadPlatform()
    platform.plan["t1.0"] = ["429 17"]
    async with office(tmp_path, platform, FakeClock()) as post:
        await post.put(1, "a")
        await eventually(lambda: platform.count and post.states() == {"t1.0": "pending"})
        (row,) = await post.outbox.of_user("ann")
        assert (row.next_at, row.uncertain) == (START + 17, False)


@pytest.mark.parametrize("wait", ["9999999999", "9" * 400])
async def test_a_wait_without_end_is_given_up_and_does_not_hold_up_what_comes_after(
    tmp_path: Path, wait: str
) -> None:
    """Nothing waits for ever, whatever a platform asks for."""
    platform = BadPlatform()
    platform.plan["t1.0"] = [f"429 {wait}"]
    async with office(tmp_path, platform, give_up_after=0.3) as post:
        await post.put(1, "a")
        await eventually(lambda: post.states() == {"t1.0": "dead"})
        await post.put(2, "a")
        await eventually(lambda: post.states() == {"t1.0": "dead", "t2.0": "sent"})
    assert platform.tries["a"] == [("t1.0", False), ("t2.0", False)]


async def test_an_answer_that_comes_after_a_stop_is_left_for_the_next_start(tmp_path: Path) -> None:
    platform = BadPlatform()
    async with office(tmp_path, platform) as post:
        await post.dispatcher.stop(0)
        await post.put(1, "a")
        assert post.dispatcher._draining == {}
        await post.restart()
        await eventually(post.all_sent)
    assert platform.tries["a"] == [("t1.0", False)]


@pytest.mark.parametrize("fault", ["429 0", "500"])
async def test_an_answer_that_was_tried_thousands_of_times_is_tried_again(tmp_path: Path, fault: str) -> None:
    """A platform that asks for a try a second comes to so many within a day."""
    platform = BadPlatform()
    platform.plan["t1.0"] = [fault]
    async with office(tmp_path, platform) as post:
        await post.put(1, "a", attempts=5000)
        await eventually(post.all_sent)
    assert [key for key, _ in platform.tries["a"]] == ["t1.0"] * 2
