"""What holds for the mailbox of one process and for that of many gateways alike, over real stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from miniclaw.errors import ProtocolError
from miniclaw.identity import Identities
from miniclaw.redis.queue import RedisMailbox
from miniclaw.redis.turns import RedisTurns
from miniclaw.session.mailbox import Mailbox
from miniclaw.session.models import Turn
from miniclaw.session.turns import TurnStore
from miniclaw.settings import LimitSettings
from tests.support.agent import eventually
from tests.support.core import FakeClock, open_database, text_message
from tests.support.redis import fresh_prefix, needs_redis, open_link


class Stage:
    """Stores messages and runs their turns; each goes on until the test lets it end."""

    def __init__(self, turns: TurnStore | RedisTurns, made: Callable[..., Mailbox | RedisMailbox]) -> None:
        self.turns = turns
        self.mailbox = made(self.run)
        self.endings: dict[str, asyncio.Future[None]] = {}
        """The turns that run, in the order in which they began."""
        self.began: list[str] = []
        self.interrupted: list[str] = []

    async def run(self, turn: Turn) -> None:
        fence = self.mailbox.fence_of(turn.session_id) if isinstance(self.mailbox, RedisMailbox) else None
        begun = await self.turns.begin(turn, fence=fence)
        assert begun is not None
        self.began.append(turn.turn_id)
        ending = self.endings[turn.turn_id] = asyncio.get_running_loop().create_future()
        try:
            await ending
            await self.turns.end(begun, "finished", {"name": "turn.finished", "data": {}}, fence=fence)
        except asyncio.CancelledError:
            self.interrupted.append(turn.turn_id)
            raise
        finally:
            del self.endings[turn.turn_id]

    async def post(self, msg_id: str, session_id: str | None = None) -> Turn:
        message = text_message(msg_id, msg_id=msg_id, session_id=session_id)
        accepted = await self.turns.accept(message, self.mailbox.reserve)
        assert accepted.turn is not None
        self.mailbox.post(accepted.turn)
        return accepted.turn

    async def runs(self, *wanted: Turn) -> None:
        """Wait until exactly these run."""
        await eventually(lambda: set(self.endings) == {turn.turn_id for turn in wanted})

    def end(self, turn: Turn) -> None:
        self.endings[turn.turn_id].set_result(None)


Made = Callable[..., Awaitable[Stage]]


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
async def made(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Made]:
    """Makes a stage; what it left waits for the next one, as for the next process."""
    stages: list[Stage] = []

    @asynccontextmanager
    async def makes() -> AsyncIterator[Made]:
        if request.param == "redis":
            async with open_link(fresh_prefix()) as link:

                async def make(running: int = 3) -> Stage:
                    turns = RedisTurns(link, LimitSettings(), clock=FakeClock())
                    node = f"n{len(stages)}"
                    stage = Stage(
                        turns, lambda run: RedisMailbox(link, run, node=node, running=running, lease=5.0)
                    )
                    assert isinstance(stage.mailbox, RedisMailbox)
                    stage.mailbox.start()
                    stages.append(stage)
                    return stage

                yield make
        else:
            async with open_database(tmp_path) as database:

                async def make(running: int = 3) -> Stage:
                    clock = FakeClock()
                    turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
                    stage = Stage(
                        turns, lambda run: Mailbox(run, running=running, waiting=100, per_session=100)
                    )
                    for turn in await turns.open_turns(["web"]):
                        stage.mailbox.restore(turn)
                    stages.append(stage)
                    return stage

                yield make

    async with makes() as make:
        yield make
        for stage in stages:
            await stage.mailbox.stop(0)


async def test_a_session_runs_its_turns_in_order_and_others_beside_it_up_to_the_limit(made: Made) -> None:
    stage = await made(running=2)
    first = await stage.post("a1")
    await stage.runs(first)
    second = await stage.post("a2", first.session_id)
    third = await stage.post("a3", first.session_id)
    other = await stage.post("b1")
    await stage.runs(first, other)
    assert await stage.mailbox.has_turns(first.session_id)
    running = await stage.mailbox.current(first.session_id)
    assert running is not None and running.turn_id == first.turn_id
    for one, next_one in ((first, second), (second, third)):
        stage.end(one)
        await stage.runs(next_one, other)
    stage.end(third)
    stage.end(other)
    await stage.runs()
    assert [one for one in stage.began if one != other.turn_id] == [
        first.turn_id,
        second.turn_id,
        third.turn_id,
    ]
    await eventually(lambda: not stage.mailbox.load["running"])
    assert not await stage.mailbox.has_turns(first.session_id)


async def test_only_a_turn_that_waits_is_taken_out_and_only_once(made: Made) -> None:
    stage = await made()
    first = await stage.post("a1")
    await stage.runs(first)
    second = await stage.post("a2", first.session_id)
    third = await stage.post("a3", first.session_id)
    take_out = stage.mailbox.take_out
    assert await take_out(first.turn_id, first.session_id) is None
    assert await take_out("turn_unknown", first.session_id) is None
    taken = await take_out(second.turn_id, first.session_id)
    assert taken is not None and taken.turn_id == second.turn_id
    assert await take_out(second.turn_id, first.session_id) is None
    stage.end(first)
    await stage.runs(third)


async def test_a_session_that_waits_for_a_person_takes_no_place(made: Made) -> None:
    stage = await made(running=1)
    asks = await stage.post("a1")
    await stage.runs(asks)
    following = await stage.post("b1")
    assert stage.began == [asks.turn_id]
    stage.mailbox.pause(asks.session_id, True)
    await stage.runs(asks, following)
    assert stage.began == [asks.turn_id, following.turn_id]


async def test_what_a_stop_interrupts_or_leaves_is_the_next_ones_and_nothing_new_is_taken(made: Made) -> None:
    stage = await made(running=1)
    first = await stage.post("a1")
    await stage.runs(first)
    second = await stage.post("a2", first.session_id)
    await stage.mailbox.stop(0)
    await stage.mailbox.stop(0)
    assert (stage.interrupted, stage.began) == ([first.turn_id], [first.turn_id])
    with pytest.raises(ProtocolError) as caught:
        await stage.post("a3", first.session_id)
    assert caught.value.code == "draining"
    heir = await made(running=1)
    await heir.runs(first)
    heir.end(first)
    await heir.runs(second)
