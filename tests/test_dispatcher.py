"""Answers on their way to a platform: in order, once where it can be known, given up in the end."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniclaw.config import DeliverySettings
from miniclaw.db import Database
from miniclaw.errors import DeliveryError
from miniclaw.gateway.dispatcher import Dispatcher
from miniclaw.gateway.events import EventBus
from miniclaw.gateway.protocol import ReplyTarget
from miniclaw.session.outbox import Delivery, Outbox, insert_deliveries
from tests.support.agent import eventually
from tests.support.core import START, FakeClock, make_turn, open_database

QUICK = DeliverySettings(retry_base=0.01, retry_max=0.02)


def row(key: str, n: int = 1, *, conversation: str = "c", **more: Any) -> Delivery:
    return Delivery(
        key=key,
        n=n,
        part=0,
        turn_id=key,
        user_id="ann",
        channel="chat",
        account="",
        conversation=conversation,
        target=ReplyTarget(conversation=conversation, thread="t"),
        text=f"text of {key}",
        created_at=more.pop("created_at", time.time()),
        **more,
    )


class Platform:
    """A push channel; what `answers` hold for a key is done at its tries, and then it takes everything."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.tries: list[tuple[str, bool]] = []
        self.taken: list[str] = []

    def split(self, text: str) -> list[str]:
        return [text]

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        self.tries.append((key, repeat))
        answers = self.answers.get(key)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            await answer()
        assert (text, target.thread) == (f"text of {key}", "t")
        self.taken.append(key)
        return f"handle of {key}"


class Post:
    """A database, its outbox, and a dispatcher for one platform."""

    def __init__(
        self, database: Database, platform: Platform, settings: DeliverySettings, clock: Any
    ) -> None:
        self.database = database
        self.platform = platform
        self.bus = EventBus()
        self.outbox = Outbox(database, clock=clock)
        self.dispatcher = Dispatcher(
            self.outbox, {"chat": platform}, self.bus, settings, clock=clock, jitter=lambda: 1.0
        )

    async def put(self, *rows: Delivery) -> None:
        await self.database.write(lambda c: insert_deliveries(c, rows))

    def tell(self, conversation: str = "c") -> None:
        """A turn has ended whose answer goes there."""
        turn = make_turn("t")
        message = {**turn.message, "reply_to": {"conversation": conversation}}
        self.bus.publish("message.outbound", replace(turn, channel="chat", message=message))

    def states(self) -> dict[str, str]:
        return dict(self.database.read("SELECT key, state FROM deliveries"))

    async def all_are(self, state: str) -> None:
        await eventually(lambda: set(self.states().values()) == {state})


@asynccontextmanager
async def post_office(
    tmp_path: Path,
    platform: Platform | None = None,
    *rows: Delivery,
    settings: DeliverySettings = QUICK,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Post]:
    """A dispatcher that takes up these rows, and is stopped at the end."""
    async with open_database(tmp_path) as database:
        await database.write(lambda c: c.execute("PRAGMA busy_timeout=0").fetchall())
        post = Post(database, platform or Platform(), settings, clock)
        await post.put(*rows)
        await post.dispatcher.start()
        try:
            yield post
        finally:
            await post.dispatcher.stop(0)


class Lock:
    """Another program that holds the database."""

    def __init__(self, tmp_path: Path) -> None:
        self._other = sqlite3.connect(tmp_path / "miniclaw.db", isolation_level=None)

    async def take(self) -> None:
        self._other.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self._other.execute("ROLLBACK")
        self._other.close()


# --- order ------------------------------------------------------------------------------------------------


async def test_rows_of_a_former_process_and_new_ones_are_sent_in_order(tmp_path: Path) -> None:
    async with post_office(tmp_path, None, row("b", 2), row("a", 1)) as post:
        await post.put(row("c", 3))
        post.tell()
        await post.all_are("sent")
        assert post.platform.tries == [("a", False), ("b", False), ("c", False)]
        handles = post.database.read("SELECT handle, attempts FROM deliveries ORDER BY n")
        assert handles == [("handle of a", 1), ("handle of b", 1), ("handle of c", 1)]


async def test_sending_is_committed_before_the_platform_is_called(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look() -> None:
        other = sqlite3.connect(tmp_path / "miniclaw.db")
        seen.extend(other.execute("SELECT state, uncertain, attempts FROM deliveries"))
        other.close()

    async with post_office(tmp_path, Platform(a=[look]), row("a")) as post:
        await post.all_are("sent")
    assert seen == [("sending", 1, 1)]


async def test_a_row_that_must_be_tried_again_is_not_overtaken_in_its_conversation_but_in_others(
    tmp_path: Path,
) -> None:
    refusals = [DeliveryError("busy") for _ in range(3)]
    rows = (row("a", 1), row("b", 2), row("x", 3, conversation="d"))
    async with post_office(tmp_path, Platform(a=[*refusals]), *rows) as post:
        await post.all_are("sent")
    assert post.platform.taken == ["x", "a", "b"]


async def test_a_conversation_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    go = asyncio.Event()
    rows = (row("a", 1), row("x", 2, conversation="d"))
    async with post_office(tmp_path, Platform(a=[go.wait]), *rows) as post:
        await eventually(lambda: post.states() == {"a": "sending", "x": "sent"})
        assert post.platform.taken == ["x"]
        go.set()
        await post.all_are("sent")
    assert post.platform.taken == ["x", "a"]


async def test_an_answer_that_comes_while_the_last_one_is_sent_is_sent_too(tmp_path: Path) -> None:
    go = asyncio.Event()
    async with post_office(tmp_path, Platform(a=[go.wait]), row("a", 1)) as post:
        await eventually(lambda: post.platform.tries)
        await post.put(row("b", 2))
        post.tell()
        go.set()
        await post.all_are("sent")
    assert post.platform.taken == ["a", "b"]


async def test_an_answer_of_another_channel_or_without_a_target_starts_nothing(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.put(row("a"))
        post.bus.publish("message.outbound", make_turn("t"))
        post.bus.publish("message.outbound", replace(make_turn("t"), channel="chat"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert post.platform.tries == []
        post.tell()
        await post.all_are("sent")


async def test_without_push_channels_there_is_nothing_to_do(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        outbox = Outbox(database, clock=time.time)
        bus = EventBus()
        dispatcher = Dispatcher(outbox, {}, bus, QUICK, clock=time.time)
        await dispatcher.start()
        assert bus._handlers == {}, "it listens for answers that it cannot send"
        await dispatcher.stop(0)


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "repeat"),
    [
        (DeliveryError("refused"), False),
        (DeliveryError("slow down", retry_after=0.0), False),
        (DeliveryError("no answer", unknown=True), True),
        (ValueError("odd"), True),
        (KeyError("ok"), True),
        (RuntimeError("broken"), True),
        (ExceptionGroup("many", [OSError("gone")]), True),
    ],
    ids=repr,
)
async def test_a_try_that_failed_is_repeated_under_its_key_and_marked_where_it_may_have_arrived(
    tmp_path: Path, error: Exception, repeat: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        async with post_office(tmp_path, Platform(a=[error]), row("a", 1), row("b", 2)) as post:
            await post.all_are("sent")
    assert post.platform.tries == [("a", False), ("a", repeat), ("b", False)]


async def test_a_platform_that_is_silent_is_given_up_and_the_next_try_is_marked(tmp_path: Path) -> None:
    never = asyncio.Event()
    settings = DeliverySettings(retry_base=0.01, timeout=0.05)
    async with post_office(tmp_path, Platform(a=[never.wait]), row("a"), settings=settings) as post:
        await post.all_are("sent")
    assert post.platform.tries == [("a", False), ("a", True)]


async def test_a_mark_stays_even_if_a_later_try_was_surely_refused(tmp_path: Path) -> None:
    answers = [DeliveryError("no answer", unknown=True), DeliveryError("refused")]
    async with post_office(tmp_path, Platform(a=[*answers]), row("a")) as post:
        await post.all_are("sent")
    assert post.platform.tries == [("a", False), ("a", True), ("a", True)]


async def test_a_permanent_refusal_is_a_dead_letter_and_the_next_answer_is_sent(tmp_path: Path) -> None:
    refusal = DeliveryError("no such channel", permanent=True)
    async with post_office(tmp_path, Platform(a=[refusal]), row("a", 1), row("b", 2)) as post:
        await eventually(lambda: post.states() == {"a": "dead", "b": "sent"})
        (dead,) = await post.outbox.of_user("ann")
        assert dead.error == "no such channel"


async def test_a_row_that_is_too_old_is_given_up_without_another_try(tmp_path: Path) -> None:
    old = time.time() - 100
    settings = DeliverySettings(give_up_after=50)
    rows = (row("a", 1, created_at=old), row("b", 2, created_at=old, error="refused"), row("c", 3))
    async with post_office(tmp_path, None, *rows, settings=settings) as post:
        await eventually(lambda: post.states() == {"a": "dead", "b": "dead", "c": "sent"})
        assert {d.key: d.error for d in await post.outbox.of_user("ann")} == {
            "a": "not delivered in time",
            "b": "refused",
        }
    assert post.platform.tries == [("c", False)]


@pytest.mark.parametrize(
    ("attempts", "error", "wait"),
    [
        (0, DeliveryError("x"), 1.0),
        (3, DeliveryError("x"), 8.0),
        (50, DeliveryError("x"), 300.0),
        (0, DeliveryError("x", retry_after=17.0), 17.0),
    ],
)
async def test_the_wait_doubles_up_to_its_limit_unless_the_platform_names_one(
    tmp_path: Path, attempts: int, error: DeliveryError, wait: float
) -> None:
    clock, first = FakeClock(), row("a", attempts=attempts, created_at=START)
    async with post_office(
        tmp_path, Platform(a=[error]), first, settings=DeliverySettings(), clock=clock
    ) as post:
        await eventually(lambda: post.states() == {"a": "pending"} and post.platform.tries)
        (waiting,) = await post.outbox.of_user("ann")
        assert (waiting.next_at, waiting.error) == (START + wait, "x")


async def test_a_wait_that_was_planned_with_a_false_clock_ends_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    first = row("a", created_at=START, attempts=1, next_at=START + 36_000)  # the clock was ten hours ahead
    async with post_office(tmp_path, Platform(), first, clock=clock) as post:
        await post.all_are("sent")
    assert len(post.platform.tries) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_is_set_back_lengthens_no_wait(tmp_path: Path, restarted: bool) -> None:
    clock = FakeClock()
    if restarted:
        clock.advance(-3600)
    waiting: dict[str, Any] = {"attempts": 1, "next_at": START + 0.01} if restarted else {}
    first = row("a", created_at=START, **waiting)
    platform = Platform(a=[] if restarted else [DeliveryError("x")])
    async with post_office(tmp_path, platform, first, clock=clock) as post:
        await eventually(lambda: restarted or platform.tries)
        clock.now = START - 3600
        await post.all_are("sent")
    assert len(platform.tries) == (1 if restarted else 2)


# --- restarts and storage ---------------------------------------------------------------------------------


async def test_a_try_that_a_crash_interrupted_is_repeated_with_a_mark(tmp_path: Path) -> None:
    async with post_office(tmp_path, None, row("a", state="sending", uncertain=True)) as post:
        await post.all_are("sent")
    assert post.platform.tries == [("a", True)]


@pytest.mark.parametrize(
    ("uncertain", "age", "is_marked"), [(1, 50.0, False), (1, 200.0, True), (1, -50.0, True), (2, 50.0, True)]
)
async def test_what_the_platform_still_knows_again_is_sent_as_it_was(
    tmp_path: Path, uncertain: int, age: float, is_marked: bool
) -> None:
    class Knowing(Platform):
        known_seconds = 100

    begun = row("a", state="sending", uncertain=uncertain, created_at=time.time() - age)
    async with post_office(tmp_path, Knowing(), begun) as post:
        await post.all_are("sent")
        assert await post.dispatcher.held() == set()
    assert post.platform.tries == [("a", is_marked)]


async def test_what_once_went_out_marked_stays_so_when_the_clock_is_put_right(tmp_path: Path) -> None:
    class Knowing(Platform):
        known_seconds = 100

    clock = FakeClock(1000.0)
    unknown = DeliveryError("500", unknown=True)

    async def jump() -> None:
        clock.now += 20.0
        raise unknown

    platform = Knowing(a=[jump])
    begun = row("a", state="sending", uncertain=1, created_at=1010.0)
    async with post_office(tmp_path, platform, begun, clock=clock) as post:
        await post.all_are("sent")
    assert post.platform.tries == [("a", True), ("a", True)]


async def test_a_stop_waits_for_a_try_and_leaves_the_rest_for_the_next_start(tmp_path: Path) -> None:
    go, never = asyncio.Event(), asyncio.Event()
    platform = Platform(a=[go.wait], b=[never.wait])
    async with post_office(tmp_path, platform, row("a", 1), row("b", 2)) as post:
        await eventually(lambda: platform.tries)
        stopping = asyncio.create_task(post.dispatcher.stop(0.2))
        go.set()
        await stopping
        post.tell()
        assert post.states() == {"a": "sent", "b": "sending"}
    async with post_office(tmp_path) as post:
        await post.all_are("sent")
    assert post.platform.tries == [("b", True)]


@pytest.mark.parametrize(
    ("answer", "state", "tries"),
    [
        (None, "sent", 1),
        (DeliveryError("gone", permanent=True), "dead", 1),
        (DeliveryError("busy"), "sent", 2),
    ],
    ids=["sent", "dead", "retry"],
)
async def test_an_outcome_that_could_not_be_stored_is_stored_later_and_nothing_is_sent_twice(
    tmp_path: Path, answer: DeliveryError | None, state: str, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage fails exactly between the platform's answer and its commit."""
    lock = Lock(tmp_path)

    async def take_the_lock() -> None:
        await lock.take()
        if answer is not None:
            raise answer

    async with post_office(tmp_path, Platform(a=[take_the_lock]), row("a", 1), row("b", 2)) as post:
        await eventually(lambda: "storage is down" in caplog.text)
        assert post.platform.tries == [("a", False)]
        lock.release()
        await eventually(lambda: post.states() == {"a": state, "b": "sent"})
    assert [key for key, _ in post.platform.tries] == ["a"] * tries + ["b"]
    assert post.platform.tries[tries - 1] == ("a", False)


async def test_a_try_whose_beginning_cannot_be_stored_does_not_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with post_office(tmp_path) as post:
        await post.put(row("a"))
        lock = Lock(tmp_path)
        await lock.take()
        post.tell()
        await eventually(lambda: "storage is down" in caplog.text)
        assert post.platform.tries == []
        lock.release()
        await post.all_are("sent")
    assert post.platform.tries == [("a", False)]


async def test_a_damaged_row_is_a_dead_letter_and_the_next_answer_is_sent(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.put(row("a", 1), row("b", 2))
        await post.database.write(
            lambda c: c.execute("UPDATE deliveries SET target = '{\"conv' WHERE key = 'a'").rowcount
        )
        post.tell("c")
        await eventually(lambda: post.states() == {"a": "dead", "b": "sent"})
        (dead,) = await post.outbox.of_user("ann")
        assert dead.is_damaged and "damaged" in (dead.error or "")
        assert post.platform.tries == [("b", False)]


# --- what is deleted or sent again meanwhile --------------------------------------------------------------


async def test_an_answer_whose_session_is_deleted_while_it_waits_is_not_sent(tmp_path: Path) -> None:
    rows = (row("a", 1, next_at=time.time() + 3600), row("b", 2))
    async with post_office(tmp_path, None, *rows) as post:
        for _ in range(5):
            await asyncio.sleep(0)
        await post.database.write(lambda c: c.execute("DELETE FROM deliveries WHERE key = 'a'").rowcount)
        post.dispatcher.take_up(rows[1])
        await eventually(lambda: post.states() == {"b": "sent"})
    assert post.platform.tries == [("b", False)]


async def test_a_dead_letter_that_is_sent_again_does_not_wait_for_another_answers_next_try(
    tmp_path: Path,
) -> None:
    rows = (row("dead", 1, state="dead"), row("a", 2, next_at=time.time() + 3600))
    async with post_office(tmp_path, None, *rows) as post:
        for _ in range(5):
            await asyncio.sleep(0)
        revived = await post.outbox.revive("dead", None)
        assert revived is not None
        post.dispatcher.take_up(revived)
        await eventually(lambda: post.states() == {"dead": "sent", "a": "pending"})
