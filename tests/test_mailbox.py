"""The mailbox: one turn at a time per session, in order; sessions side by side; bounds that hold exactly."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miniclaw.errors import ProtocolError
from miniclaw.session.mailbox import Mailbox
from miniclaw.session.models import Turn
from tests.support.core import make_turn


class Stage:
    """Runs turns for a mailbox; each goes on until the test lets it end."""

    def __init__(self, *, running: int = 3, waiting: int = 100, per_session: int = 100) -> None:
        self.mailbox = Mailbox(self.run, running=running, waiting=waiting, per_session=per_session)
        self.limit = running
        self.endings: dict[str, asyncio.Future[None]] = {}
        """The turns that run, in the order in which they began."""
        self.began: dict[str, list[str]] = defaultdict(list)
        """What began, by session."""
        self.interrupted: list[str] = []
        self.sessions: dict[str, str] = {}
        self.number = 0

    async def run(self, turn: Turn) -> None:
        assert self.mailbox.running(turn.session_id) is turn
        self.began[turn.session_id].append(turn.turn_id)
        ending = self.endings[turn.turn_id] = asyncio.get_running_loop().create_future()
        self.sessions[turn.turn_id] = turn.session_id
        try:
            await ending
        except asyncio.CancelledError:
            self.interrupted.append(turn.turn_id)
            raise
        finally:
            del self.endings[turn.turn_id]

    def turn(self, session_id: str) -> Turn:
        self.number += 1
        return make_turn(f"t{self.number}", session_id, n=self.number)

    def post(self, session_id: str) -> Turn:
        """A message that was stored in its reserved place."""
        self.mailbox.reserve(session_id)
        turn = self.turn(session_id)
        self.mailbox.post(turn)
        return turn

    def end(self, turn_id: str, error: BaseException | None = None) -> None:
        if error is None:
            self.endings[turn_id].set_result(None)
        else:
            self.endings[turn_id].set_exception(error)


async def settle() -> None:
    """Let everything happen that can happen now."""
    for _ in range(8):
        await asyncio.sleep(0)


def refusal(reserve: Callable[[], None]) -> str:
    with pytest.raises(ProtocolError) as caught:
        reserve()
    return caught.value.code


# --- order ------------------------------------------------------------------------------------------------


async def test_turns_of_a_session_run_one_after_the_other_in_order_of_arrival() -> None:
    stage = Stage()
    turns = [stage.post("a") for _ in range(4)]
    for turn in turns:
        await settle()
        assert list(stage.endings) == [turn.turn_id]
        assert stage.mailbox.running("a") == turn
        stage.end(turn.turn_id)
    await settle()
    assert stage.began["a"] == [turn.turn_id for turn in turns]
    assert stage.mailbox.load == {"running": 0, "waiting": 0}
    assert not stage.mailbox.is_busy("a")
    assert stage.mailbox.running("a") is None


async def test_sessions_run_side_by_side_up_to_the_limit_and_then_in_order() -> None:
    stage = Stage(running=2)
    for session_id in "abcd":
        stage.post(session_id)
    await settle()
    assert list(stage.endings) == ["t1", "t2"]
    assert stage.mailbox.load == {"running": 2, "waiting": 2}
    stage.end("t2")
    await settle()
    assert list(stage.endings) == ["t1", "t3"]
    stage.end("t1")
    stage.end("t3")
    await settle()
    assert list(stage.endings) == ["t4"]


async def test_of_turns_that_come_in_one_moment_one_begins_in_each_round_of_the_loop() -> None:
    stage = Stage(running=20)
    for number in range(20):
        stage.post(f"s{number}")
    counts = []
    for _ in range(30):
        await asyncio.sleep(0)
        counts.append(len(stage.endings))
    steps = [later - earlier for earlier, later in zip(counts, counts[1:], strict=False)]
    assert counts[0] <= 1 and max(steps) == 1
    assert list(stage.endings) == [f"t{number}" for number in range(1, 21)]


async def test_a_session_with_many_messages_does_not_keep_the_others_waiting() -> None:
    stage = Stage(running=1)
    for session_id in "aaab":
        stage.post(session_id)
    await settle()
    began = []
    for _ in range(4):
        (turn_id,) = stage.endings
        began.append(turn_id)
        stage.end(turn_id)
        await settle()
    assert began == ["t1", "t4", "t2", "t3"]


@pytest.mark.parametrize("error", [RuntimeError("broken turn"), asyncio.CancelledError()])
async def test_a_turn_that_breaks_does_not_stop_its_session(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.post("a")
    stage.post("a")
    await settle()
    stage.end("t1", error)
    await settle()
    assert list(stage.endings) == ["t2"]
    stage.end("t2")
    await settle()
    assert not stage.mailbox.is_busy("a")
    logged = [record.getMessage() for record in caplog.records]
    assert logged == (["a turn of session a broke"] if isinstance(error, RuntimeError) else [])


async def test_a_position_counts_what_is_before_a_turn() -> None:
    stage = Stage(running=1)
    turns = [stage.post("a") for _ in range(3)]
    other = stage.post("b")
    assert [stage.mailbox.position(turn) for turn in turns] == [0, 1, 2]
    await settle()
    assert [stage.mailbox.position(turn) for turn in turns] == [0, 1, 2]
    assert stage.mailbox.position(other) == 0
    stage.end("t1")
    await settle()
    stage.end("t4")
    await settle()
    assert [stage.mailbox.position(turn) for turn in turns] == [0, 0, 1]


# --- bounds -----------------------------------------------------------------------------------------------


async def test_a_session_may_have_exactly_so_many_waiting_messages() -> None:
    stage = Stage(per_session=2)
    stage.post("a")
    await settle()
    stage.post("a")
    stage.mailbox.reserve("a")
    assert refusal(lambda: stage.mailbox.reserve("a")) == "session_busy"
    stage.mailbox.reserve("b")
    stage.mailbox.release("a")
    stage.post("a")
    assert refusal(lambda: stage.mailbox.reserve("a")) == "session_busy"
    stage.end("t1")
    await settle()
    stage.mailbox.reserve("a")


async def test_exactly_so_many_messages_may_wait_in_all() -> None:
    stage = Stage(running=1, waiting=3)
    stage.post("a")
    await settle()
    stage.post("b")
    stage.post("c")
    stage.mailbox.reserve("d")
    assert refusal(lambda: stage.mailbox.reserve("e")) == "overloaded"
    stage.mailbox.release("d")
    stage.mailbox.reserve("e")
    assert refusal(lambda: stage.mailbox.reserve("d")) == "overloaded"
    stage.end("t1")
    await settle()
    stage.mailbox.reserve("d")
    assert stage.mailbox.load == {"running": 1, "waiting": 3}


async def test_a_message_that_is_being_stored_keeps_its_session_busy() -> None:
    stage = Stage()
    stage.mailbox.reserve("a")
    assert stage.mailbox.is_busy("a")
    stage.mailbox.release("a")
    assert not stage.mailbox.is_busy("a")
    assert stage.mailbox.load == {"running": 0, "waiting": 0}


async def test_turns_of_a_former_process_are_never_refused_and_run_in_their_order() -> None:
    stage = Stage(running=1, waiting=2, per_session=1)
    turns = [stage.turn("a") for _ in range(5)]
    for turn in turns:
        stage.mailbox.restore(turn)
    assert refusal(lambda: stage.mailbox.reserve("b")) == "overloaded"
    for turn in turns:
        await settle()
        assert list(stage.endings) == [turn.turn_id]
        stage.end(turn.turn_id)
    await settle()
    stage.mailbox.reserve("b")


# --- taking out -------------------------------------------------------------------------------------------


async def test_a_waiting_turn_can_be_taken_out_and_a_running_or_unknown_one_cannot() -> None:
    stage = Stage()
    turns = [stage.post("a") for _ in range(3)]
    await settle()
    assert stage.mailbox.withdraw("t1", "a") is None
    assert stage.mailbox.withdraw("t9", "a") is None
    assert stage.mailbox.withdraw("t2", "b") is None
    assert stage.mailbox.withdraw("t2", "a") is turns[1]
    assert stage.mailbox.withdraw("t2", "a") is None
    assert stage.mailbox.load == {"running": 1, "waiting": 1}
    stage.end("t1")
    await settle()
    assert list(stage.endings) == ["t3"]


async def test_a_session_whose_only_waiting_turn_was_taken_out_goes_on_with_the_next() -> None:
    stage = Stage(running=1)
    stage.post("a")
    stage.post("b")
    await settle()
    assert stage.mailbox.withdraw("t2", "b") is not None
    assert not stage.mailbox.is_busy("b")
    stage.post("c")
    stage.post("b")
    began = []
    for _ in range(3):
        await settle()
        (turn_id,) = stage.endings
        began.append(turn_id)
        stage.end(turn_id)
    assert began == ["t1", "t3", "t4"]


async def test_a_turn_taken_out_just_before_it_would_begin_does_not_begin() -> None:
    stage = Stage()
    stage.post("a")
    assert stage.mailbox.withdraw("t1", "a") is not None
    await settle()
    assert stage.began == {}
    assert stage.mailbox.load == {"running": 0, "waiting": 0}
    stage.post("a")
    await settle()
    assert list(stage.endings) == ["t2"]


async def test_posting_and_taking_out_while_all_places_are_taken_leaves_nothing_behind() -> None:
    stage = Stage(running=1)
    stage.post("a")
    await settle()
    for _ in range(50):
        turn = stage.post("b")
        stage.mailbox.withdraw(turn.turn_id, "b")
    assert len(stage.mailbox._ready) == 0


# --- stopping ---------------------------------------------------------------------------------------------


async def test_a_stop_takes_nothing_new_lets_running_turns_end_and_leaves_waiting_ones() -> None:
    stage = Stage(running=1)
    stage.post("a")
    stage.post("a")
    stage.post("b")
    stage.mailbox.reserve("c")
    await settle()
    async with asyncio.timeout(10):
        stopping = asyncio.ensure_future(stage.mailbox.stop(5))
        await settle()
        assert stage.mailbox.is_stopped and not stopping.done()
        assert refusal(lambda: stage.mailbox.reserve("a")) == "draining"
        stage.mailbox.post(stage.turn("c"))  # it was stored before the stop: the next start resumes it
        stage.end("t1")
        await stopping
    assert stage.began == {"a": ["t1"]}
    assert stage.interrupted == []


async def test_a_stop_interrupts_what_does_not_end_in_time() -> None:
    stage = Stage()
    stage.post("a")
    stage.post("a")
    stage.post("b")
    await settle()
    async with asyncio.timeout(10):
        await stage.mailbox.stop(0)
        await stage.mailbox.stop(0)
    assert stage.interrupted == ["t1", "t3"]
    assert stage.began == {"a": ["t1"], "b": ["t3"]}
    assert stage.mailbox.load == {"running": 0, "waiting": 1}


async def test_a_stop_of_an_idle_mailbox_returns_at_once() -> None:
    stage = Stage()
    async with asyncio.timeout(5):
        await stage.mailbox.stop(1000)
    assert refusal(lambda: stage.mailbox.reserve("a")) == "draining"


# --- whatever happens -------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), st.sampled_from("abcde")),
        st.tuples(
            st.sampled_from(["end", "fail", "interrupt", "withdraw", "reserve", "release"]),
            st.integers(0, 20),
        ),
        st.just(("settle", 0)),
    ),
    max_size=60,
)


class Play:
    """Does what it is told to a mailbox and checks after each step what must always hold."""

    def __init__(self, running: int, waiting: int, per_session: int) -> None:
        self.stage = Stage(running=running, waiting=waiting, per_session=per_session)
        self.limits = (waiting, per_session)
        self.expected: dict[str, list[str]] = defaultdict(list)
        """What is to begin, by session, in order."""
        self.withdrawn: set[str] = set()
        self.reserved: list[str] = []

    def waiting(self, session_id: str) -> list[str]:
        began = self.stage.began[session_id]
        return [t for t in self.expected[session_id] if t not in began and t not in self.withdrawn]

    def all_waiting(self) -> int:
        return sum(len(self.waiting(session_id)) for session_id in list(self.expected))

    def step(self, what: str, which: Any) -> None:
        stage = self.stage
        running = list(stage.endings)
        chosen = running[which % len(running)] if running and isinstance(which, int) else None
        if what == "post":
            self.post(which)
        elif what == "reserve":
            self.reserve("abcde"[which % 5])
        elif what == "release" and self.reserved:
            stage.mailbox.release(self.reserved.pop(which % len(self.reserved)))
        elif what == "withdraw":
            self.withdraw(which)
        elif chosen is not None and not stage.endings[chosen].done():
            errors = {"end": None, "fail": RuntimeError("broken"), "interrupt": asyncio.CancelledError()}
            if what in errors:
                stage.end(chosen, errors[what])

    def reserve(self, session_id: str) -> bool:
        """Reserve a place; it must succeed exactly where the bounds allow it."""
        in_all = self.all_waiting() + len(self.reserved)
        in_session = len(self.waiting(session_id)) + self.reserved.count(session_id)
        try:
            self.stage.mailbox.reserve(session_id)
        except ProtocolError as error:
            assert error.code == ("overloaded" if in_all >= self.limits[0] else "session_busy")
            assert in_all >= self.limits[0] or in_session >= self.limits[1]
            return False
        assert in_all < self.limits[0] and in_session < self.limits[1]
        self.reserved.append(session_id)
        return True

    def post(self, session_id: str) -> None:
        if self.reserve(session_id):
            self.reserved.pop()
            turn = self.stage.turn(session_id)
            self.expected[session_id].append(turn.turn_id)
            self.stage.mailbox.post(turn)

    def withdraw(self, which: int) -> None:
        turns = [(turn_id, s) for s, all_turns in self.expected.items() for turn_id in all_turns]
        if turns:
            turn_id, session_id = turns[which % len(turns)]
            waits = turn_id in self.waiting(session_id)
            assert (self.stage.mailbox.withdraw(turn_id, session_id) is not None) == waits
            if waits:
                self.withdrawn.add(turn_id)

    def check(self) -> None:
        stage = self.stage
        sessions = [stage.sessions[turn_id] for turn_id in stage.endings]
        assert len(sessions) == len(set(sessions)) <= stage.limit
        for session_id, turns in self.expected.items():
            left = [turn_id for turn_id in turns if turn_id not in self.withdrawn]
            assert stage.began[session_id] == left[: len(stage.began[session_id])]

    def check_settled(self) -> None:
        """Nothing more can happen by itself: no place is free while a session could use it."""
        stage = self.stage
        able = {session_id for session_id in list(self.expected) if self.waiting(session_id)}
        busy = {stage.sessions[turn_id] for turn_id in stage.endings}
        assert len(busy) == stage.limit or not able - busy
        assert stage.mailbox.load == {
            "running": len(busy),
            "waiting": self.all_waiting() + len(self.reserved),
        }
        for session_id in "abcde":
            is_busy = session_id in busy or session_id in able or session_id in self.reserved
            assert stage.mailbox.is_busy(session_id) == is_busy


@given(STEPS, st.integers(1, 3), st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=150)
def test_whatever_arrives_fails_and_is_cancelled_order_and_bounds_hold_and_all_turns_run(
    steps: list[tuple[str, Any]], running: int, waiting: int, per_session: int
) -> None:
    async def play() -> None:
        it = Play(running, waiting, per_session)
        for what, which in steps:
            if what == "settle":
                await settle()
                it.check_settled()
            else:
                it.step(what, which)
            it.check()
        for session_id in it.reserved:
            it.stage.mailbox.release(session_id)
        it.reserved.clear()
        await settle()
        while it.stage.endings:
            it.check_settled()
            it.stage.end(next(iter(it.stage.endings)))
            await settle()
            it.check()
        for session_id, turns in it.expected.items():
            assert it.stage.began[session_id] == [t for t in turns if t not in it.withdrawn]
        assert it.stage.mailbox.load == {"running": 0, "waiting": 0}

    logging.disable(logging.CRITICAL)  # turns break here by the hundred
    try:
        asyncio.run(play())
    finally:
        logging.disable(logging.NOTSET)


async def test_a_session_that_waits_for_a_person_takes_no_place_of_those_that_run() -> None:
    stage = Stage(running=1)
    asks, following, last = stage.post("asks"), stage.post("next"), stage.post("last")
    await settle()
    assert list(stage.endings) == [asks.turn_id]
    stage.mailbox.pause("asks", True)
    await settle()
    assert list(stage.endings) == [asks.turn_id, following.turn_id]
    stage.mailbox.pause("asks", False)
    stage.mailbox.pause("gone", True)
    stage.end(asks.turn_id)
    await settle()
    assert list(stage.endings) == [following.turn_id]  # one place again, and it is taken
    stage.end(following.turn_id)
    await settle()
    assert list(stage.endings) == [last.turn_id]
    stage.end(last.turn_id)
    await settle()
