"""The inbox: stored before acknowledged, once each, ended once; commands once; usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from miniclaw.db import Database
from miniclaw.errors import ProtocolError, StaleFence, StorageUnavailable
from miniclaw.gateway.protocol import Inbound, ReplyTarget
from miniclaw.identity import Identities
from miniclaw.redis.desk import RedisLedger, RedisOnce
from miniclaw.redis.link import RedisLink
from miniclaw.redis.outbox import RedisOutbox
from miniclaw.redis.storage import RedisStorage
from miniclaw.redis.turns import RedisTurns
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Entry, Turn, Usage
from miniclaw.session.once import OnceOnly, dedupe_key
from miniclaw.session.outbox import Delivery, Outbox
from miniclaw.session.ports import Accepted, Deliveries, Turns
from miniclaw.session.rows import note_key
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.session.storage import SessionStorage
from miniclaw.session.turns import DEDUPE_LIFETIME, TurnStore
from miniclaw.session.usage import UsageLedger
from miniclaw.settings import LimitSettings
from tests.support.core import FakeClock, command_message, make_session, open_database, text_message
from tests.support.redis import fresh_prefix, needs_redis, open_link


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


Kept = Database | RedisLink
REDIS = pytest.param("redis", marks=needs_redis)
in_sqlite = pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
"""For what is seen only from inside of it."""


@pytest.fixture(params=["sqlite", REDIS])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kept]:
    """Where everything is kept."""
    if request.param == "redis":
        async with open_link(fresh_prefix()) as link:
            yield link
    else:
        async with open_database(tmp_path) as database:
            yield database


@pytest.fixture
def database(kept: Kept) -> Database:
    assert isinstance(kept, Database)
    return kept


@pytest.fixture
def turns(kept: Kept, clock: FakeClock) -> Turns:
    if isinstance(kept, RedisLink):
        return RedisTurns(kept, LimitSettings(), clock=clock)
    return TurnStore(kept, Identities(kept, clock=clock), clock=clock)


def storage_in(kept: Kept) -> SessionStorage:
    return RedisStorage(kept) if isinstance(kept, RedisLink) else SQLiteStorage(kept)


def once_in(kept: Kept, clock: FakeClock) -> OnceOnly:
    return RedisOnce(kept) if isinstance(kept, RedisLink) else OnceOnly(kept, clock=clock)


def ledger_in(kept: Kept, clock: FakeClock) -> UsageLedger:
    if isinstance(kept, RedisLink):
        return RedisLedger(kept, {}, clock=clock)
    return UsageLedger(kept, {}, clock=clock)


def fence_in(kept: Kept) -> int | None:
    return None if isinstance(kept, RedisLink) else kept.epoch


def take(session_id: str) -> None:
    """A mailbox that has place for everything."""


async def accepted(turns: Turns, inbound: Inbound | None = None) -> Turn:
    """The turn of a message that is new."""
    found = await turns.accept(inbound or text_message(), take)
    assert found.turn is not None
    return found.turn


async def counts(kept: Kept) -> dict[str, int]:
    if isinstance(kept, RedisLink):
        names = {"turns": "t:", "sessions": "s:", "dedupe": "d:"}
        keys = {name: await kept.run("KEYS", f"{kept.prefix}{what}*") for name, what in names.items()}
        hashes = {"identities": "people", "users": "users"}
        sizes = {name: await kept.run("HLEN", kept.prefix + what) for name, what in hashes.items()}
        return {**{name: len(found) for name, found in keys.items()}, **sizes}
    tables = ("turns", "sessions", "dedupe", "identities", "users")
    return {table: kept.read(f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables}


FINISHED = {"name": "turn.finished", "data": {"text": "done"}}
CANCELLED = {"name": "turn.cancelled", "data": {"text": ""}}
NOTHING = {"turns": 0, "sessions": 0, "dedupe": 0, "identities": 0, "users": 0}


def slack(text: str = "hello", **more: Any) -> Inbound:
    """A message of a platform, whose sender we do not know."""
    fields: dict[str, Any] = {"channel": "slack", "account": "T1", "sender": "U1", "conversation": "C1"}
    return text_message(text, user_id=None, **{**fields, **more})


# --- accepting --------------------------------------------------------------------------------------------


async def test_a_message_is_a_waiting_turn_of_a_session_from_its_commit_on(turns: Turns, kept: Kept) -> None:
    inbound = text_message("你好", sender="Ann", timestamp="2027-01-01T00:00:00.000Z")
    turn = await accepted(turns, inbound)
    assert turn.session_id.startswith("ses_") and turn.turn_id.startswith("turn_")
    assert (turn.user_id, turn.scope, turn.channel, turn.text) == ("ann", "ann", "web", "你好")
    assert (turn.state, turn.attempt, turn.cancel_requested, turn.outcome) == ("waiting", 0, False, None)
    assert turns.get(turn.turn_id) == turn
    assert Inbound.model_validate(turn.message) == inbound
    session = await storage_in(kept).load(turn.session_id)
    assert session is not None
    assert (session.user_id, session.channel, session.messages) == ("ann", "web", [])


@in_sqlite
async def test_claiming_ids_making_the_session_and_storing_the_turn_are_one_commit(
    turns: Turns, database: Database
) -> None:
    statements: list[str] = []
    await database.write(lambda c: c.set_trace_callback(statements.append))
    statements.clear()
    await turns.accept(slack(dedupe=("a", "b"), direct=False), take)
    assert statements.count("COMMIT") == 1
    assert await counts(database) == {"turns": 1, "sessions": 1, "dedupe": 2, "identities": 2, "users": 1}


async def test_the_same_message_many_times_at_once_is_one_turn_and_receipts_with_the_same_ids(
    turns: Turns, kept: Kept
) -> None:
    reserved: list[str] = []
    found = await asyncio.gather(*(turns.accept(text_message(), reserved.append) for _ in range(20)))
    assert len({(one.session_id, one.turn_id) for one in found}) == 1
    assert [one.turn is not None for one in found].count(True) == 1
    assert set(reserved) <= {"", found[0].session_id}
    assert await counts(kept) == {**NOTHING, "turns": 1, "sessions": 1, "dedupe": 1}


async def test_a_repeat_under_any_of_its_ids_is_the_same_message(turns: Turns) -> None:
    first = await turns.accept(slack(dedupe=("event", "ts")), take)
    for ids in (("event",), ("ts",), ("other", "ts"), ("event", "ts")):
        again = await turns.accept(slack("other text", msg_id="m2", dedupe=ids), take)
        assert again == Accepted(session_id=first.session_id, turn_id=first.turn_id, turn=None)


@pytest.mark.parametrize(
    "other",
    [
        text_message(msg_id="m2"),
        text_message(user_id="bob"),
        text_message(channel="ws"),
        text_message(account="T1"),
    ],
)
async def test_an_id_is_known_only_within_its_channel_and_user_or_account(
    turns: Turns, other: Inbound
) -> None:
    first = await accepted(turns)
    second = await accepted(turns, other)
    assert second.turn_id != first.turn_id
    assert second.n > first.n


async def test_a_repeat_is_known_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    found = []
    for _ in range(3):
        async with open_database(tmp_path) as database:
            turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
            found.append(await turns.accept(text_message(), take))
    assert found[0].turn is not None
    assert [one.turn for one in found[1:]] == [None, None]
    assert len({one.turn_id for one in found}) == 1


@in_sqlite
async def test_ids_are_forgotten_after_their_lifetime_which_is_more_than_a_day(
    turns: Turns, clock: FakeClock
) -> None:
    first = await accepted(turns)
    assert DEDUPE_LIFETIME > 24 * 3600
    clock.advance(DEDUPE_LIFETIME)
    assert await turns.forget_old() == 0
    assert (await turns.accept(text_message(), take)).turn_id == first.turn_id
    clock.advance(1)
    assert await turns.forget_old() == 1
    assert (await accepted(turns)).turn_id != first.turn_id


async def test_a_message_that_is_refused_claims_nothing_and_can_come_again(turns: Turns, kept: Kept) -> None:
    def full(session_id: str) -> None:
        raise ProtocolError("session_busy", "full")

    for inbound in (text_message(), slack(), slack(direct=False)):
        with pytest.raises(ProtocolError) as caught:
            await turns.accept(inbound, full)
        assert caught.value.code == "session_busy"
        assert await counts(kept) == NOTHING
    assert await accepted(turns)


async def test_one_refused_message_takes_no_other_of_its_commit_with_it(turns: Turns, kept: Kept) -> None:
    def refuses(session_id: str) -> None:
        raise ProtocolError("overloaded", "full")

    results = await asyncio.gather(
        turns.accept(text_message(msg_id="a"), take),
        turns.accept(text_message(msg_id="b"), refuses),
        turns.accept(text_message(msg_id="c"), take),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [Accepted, ProtocolError, Accepted]
    assert await counts(kept) == {**NOTHING, "turns": 2, "sessions": 2, "dedupe": 2}


async def test_an_unknown_or_foreign_session_is_not_found_and_nothing_is_stored(
    turns: Turns, kept: Kept
) -> None:
    foreign = (await accepted(turns, text_message(user_id="bob"))).session_id
    before = await counts(kept)
    for session_id in ("ses_none", foreign, ""):
        with pytest.raises(ProtocolError) as caught:
            await turns.accept(text_message(session_id=session_id), take)
        assert (caught.value.code, caught.value.reply_to) == ("session_not_found", "m1")
    assert await counts(kept) == before
    with pytest.raises(ProtocolError):
        await turns.accept(slack(session_id=foreign), take)
    assert await counts(kept) == before


async def test_a_named_session_goes_on_and_a_nameless_text_begins_one(turns: Turns, kept: Kept) -> None:
    first = await accepted(turns, text_message(msg_id="a"))
    second = await accepted(turns, text_message(msg_id="b", session_id=first.session_id))
    third = await accepted(turns, text_message(msg_id="c"))
    assert second.session_id == first.session_id != third.session_id
    assert first.n < second.n < third.n


async def test_a_message_that_cannot_be_stored_is_unavailable(tmp_path: Path, clock: FakeClock) -> None:
    async with open_database(tmp_path) as database:
        turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
    with pytest.raises(StorageUnavailable):
        await turns.accept(text_message(), take)


async def test_a_text_with_the_id_of_a_former_command_is_still_one_turn(
    turns: Turns, kept: Kept, clock: FakeClock
) -> None:
    async def done() -> dict[str, Any]:
        return {"ok": True}

    await once_in(kept, clock).run(("web", "ann", "m1"), done)
    first = await accepted(turns)
    assert (await turns.accept(text_message(), take)).turn_id == first.turn_id
    assert (await counts(kept))["turns"] == 1


# --- users, groups, conversations -------------------------------------------------------------------------


async def test_a_conversation_of_a_platform_has_one_session_and_a_stranger_one_user(turns: Turns) -> None:
    first = await accepted(turns, slack(msg_id="a"))
    second = await accepted(turns, slack(msg_id="b"))
    thread = await accepted(turns, slack(msg_id="c", thread="7"))
    elsewhere = await accepted(turns, slack(msg_id="d", conversation="C2"))
    assert second.session_id == first.session_id
    assert len({first.session_id, thread.session_id, elsewhere.session_id}) == 3
    assert {turn.user_id for turn in (first, second, thread, elsewhere)} == {first.user_id}
    assert first.user_id.startswith("u_") and first.scope == first.user_id


async def test_a_direct_conversation_is_not_shared_by_two_people_whatever_the_platform_calls_it(
    turns: Turns,
) -> None:
    ann = await accepted(turns, slack(msg_id="a", sender="U1"))
    bob = await accepted(turns, slack(msg_id="b", sender="U2"))
    assert ann.session_id != bob.session_id
    assert ann.user_id != bob.user_id


async def test_a_groups_session_belongs_to_the_group_and_each_turn_to_its_sender(
    turns: Turns, kept: Kept
) -> None:
    ann = await accepted(turns, slack(msg_id="a", sender="U1", direct=False))
    bob = await accepted(turns, slack(msg_id="b", sender="U2", direct=False))
    assert bob.session_id == ann.session_id
    assert bob.user_id != ann.user_id
    assert ann.scope == bob.scope and ann.scope.startswith("grp_")
    stored = turns.get(bob.turn_id)
    assert stored is not None and (stored.scope, stored.user_id) == (bob.scope, bob.user_id)
    session = await storage_in(kept).load(ann.session_id)
    assert session is not None and session.user_id == ann.scope


async def test_the_members_direct_sessions_and_other_groups_are_apart_from_the_groups(
    turns: Turns,
) -> None:
    group = await accepted(turns, slack(msg_id="a", direct=False))
    direct = await accepted(turns, slack(msg_id="b"))
    other = await accepted(turns, slack(msg_id="c", direct=False, conversation="C2"))
    thread = await accepted(turns, slack(msg_id="d", direct=False, thread="7"))
    assert len({turn.session_id for turn in (group, direct, other, thread)}) == 4
    assert direct.user_id == group.user_id and direct.scope == direct.user_id
    assert thread.scope == group.scope != other.scope
    with pytest.raises(ProtocolError):
        await turns.accept(text_message(user_id=group.user_id, session_id=group.session_id, msg_id="e"), take)


async def test_a_message_of_a_platform_is_identified_without_making_its_session(
    turns: Turns, kept: Kept
) -> None:
    known = text_message()
    assert await turns.identify(known) is known
    unknown = await turns.identify(slack(direct=False))
    assert unknown.session_id is None
    assert (await counts(kept))["sessions"] == 0
    turn = await accepted(turns, slack(direct=False))
    found = await turns.identify(slack(direct=False))
    assert (found.user_id, found.scope, found.session_id) == (turn.user_id, turn.scope, turn.session_id)
    assert (unknown.user_id, unknown.scope) == (turn.user_id, turn.scope)


# --- beginning and ending ---------------------------------------------------------------------------------


async def test_attempts_are_counted_and_a_stop_of_ours_is_no_try(turns: Turns, kept: Kept) -> None:
    turn = await accepted(turns)
    fence = fence_in(kept)
    first = await turns.begin(turn, fence=fence)
    assert first is not None and (first.attempt, first.tries, first.state) == (1, 1, "running")
    await turns.put_back(first)
    second = await turns.begin(turn, fence=fence)
    third = await turns.begin(turn, fence=fence)
    assert second is not None and (second.attempt, second.tries) == (2, 1)
    assert third is not None and (third.attempt, third.tries) == (3, 2)
    assert turns.get(turn.turn_id) == third


async def test_a_turn_that_was_cancelled_or_has_ended_does_not_begin(turns: Turns, kept: Kept) -> None:
    cancelled = await accepted(turns, text_message(msg_id="a"))
    assert await turns.request_cancel(cancelled.turn_id) is True
    assert await turns.begin(cancelled, fence=fence_in(kept)) is None
    ended = await accepted(turns, text_message(msg_id="b"))
    await turns.end(ended, "finished", FINISHED, fence=fence_in(kept))
    assert await turns.begin(ended, fence=fence_in(kept)) is None
    stored = turns.get(ended.turn_id)
    assert stored is not None and (stored.attempt, stored.state) == (0, "finished")


def delivery(turn: Turn, part: int = 0) -> Delivery:
    return Delivery(
        key=f"{turn.turn_id}.{part}",
        n=turn.n,
        part=part,
        turn_id=turn.turn_id,
        user_id=turn.user_id,
        channel="slack",
        account="T1",
        conversation="C1",
        target=ReplyTarget(conversation="C1"),
        text="done",
    )


def answer(turn: Turn, content: str = "done") -> Entry:
    return Entry(turn.turn_id, 1, {"role": "assistant", "content": content})


@in_sqlite
async def test_last_entry_end_and_deliveries_are_one_commit(
    turns: Turns, database: Database, clock: FakeClock
) -> None:
    turn = await accepted(turns)
    await turns.mark_started(turn.turn_id, "c1", fence=database.epoch)
    clock.advance(5)
    statements: list[str] = []
    await database.write(lambda c: c.set_trace_callback(statements.append))
    statements.clear()
    ended = await turns.end(
        *(turn, "finished", FINISHED),
        fence=database.epoch,
        entries=[answer(turn)],
        deliveries=[delivery(turn, 0), delivery(turn, 1)],
        usage=[Usage(model="m", input_tokens=3, output_tokens=2, calls=1)],
    )
    assert ended is True
    assert statements.count("COMMIT") == 1
    stored = turns.get(turn.turn_id)
    assert stored is not None and (stored.state, stored.outcome) == ("finished", FINISHED)
    session = await SQLiteStorage(database).load(turn.session_id)
    assert session is not None and session.updated_at == clock.now
    assert [one.message["content"] for one in session.messages] == ["done"]
    assert database.read("SELECT key FROM deliveries ORDER BY part") == [
        (f"{turn.turn_id}.0",),
        (f"{turn.turn_id}.1",),
    ]
    assert not await turns.was_started(turn.turn_id, "c1")


async def test_a_turn_ends_once_and_the_second_end_stores_nothing(turns: Turns, kept: Kept) -> None:
    turn = await accepted(turns)
    usage = Usage(model="m", calls=1)

    async def end(content: str) -> bool:
        return await turns.end(
            *(turn, "finished", {"name": "turn.finished", "data": {"text": content}}),
            fence=fence_in(kept),
            entries=[answer(turn, content)],
            deliveries=[delivery(turn)],
            usage=[usage],
        )

    assert list(await asyncio.gather(end("first"), end("second"))) == [True, False]
    assert await end("third") is False
    stored = turns.get(turn.turn_id)
    assert stored is not None and stored.outcome == {"name": "turn.finished", "data": {"text": "first"}}
    session = await storage_in(kept).load(turn.session_id)
    assert session is not None and [one.message["content"] for one in session.messages] == ["first"]
    (used,) = await ledger_in(kept, FakeClock()).rows("ann")
    assert used["calls"] == 1


async def test_an_end_that_is_committed_first_wins_over_a_cancel(turns: Turns, kept: Kept) -> None:
    turn = await accepted(turns)
    results = await asyncio.gather(
        turns.end(turn, "finished", FINISHED, fence=fence_in(kept)), turns.request_cancel(turn.turn_id)
    )
    assert list(results) == [True, False]
    assert await turns.end(turn, "cancelled", CANCELLED, fence=fence_in(kept)) is False
    stored = turns.get(turn.turn_id)
    assert stored is not None and (stored.state, stored.cancel_requested) == ("finished", False)


@pytest.mark.parametrize("state", ["finished", "failed"])
@in_sqlite
async def test_a_cancel_that_is_committed_first_wins_over_any_other_end(
    turns: Turns, database: Database, state: Any
) -> None:
    turn = await accepted(turns)
    results = await asyncio.gather(
        turns.request_cancel(turn.turn_id),
        turns.end(
            turn, state, FINISHED, fence=database.epoch, entries=[answer(turn)], deliveries=[delivery(turn)]
        ),
    )
    assert list(results) == [True, False]
    assert (
        database.read("SELECT COUNT(*) FROM entries")
        == database.read("SELECT COUNT(*) FROM deliveries")
        == [(0,)]
    )
    assert await turns.request_cancel(turn.turn_id) is True
    assert await turns.end(turn, "cancelled", CANCELLED, fence=database.epoch) is True
    stored = turns.get(turn.turn_id)
    assert stored is not None and (stored.state, stored.outcome) == ("cancelled", CANCELLED)


@in_sqlite
async def test_ending_a_turn_denies_what_it_still_asked(turns: Turns, database: Database) -> None:
    turn = await accepted(turns)
    statement = "INSERT INTO approvals VALUES (?, 's', ?, 'ses', 'ann', 'c', 't', '{}', 'd', ?, 0, 0)"
    for key, turn_id, state in (
        ("a", turn.turn_id, "asked"),
        ("b", turn.turn_id, "approved"),
        ("c", "x", "asked"),
    ):
        row = (key, turn_id, state)
        await database.write(lambda c, row=row: c.execute(statement, row).rowcount)  # type: ignore[misc]
    await turns.end(turn, "finished", FINISHED, fence=database.epoch)
    assert database.read("SELECT approval_id, state FROM approvals") == [
        ("a", "denied"),
        ("b", "approved"),
        ("c", "asked"),
    ]


@in_sqlite
async def test_the_end_of_a_turn_whose_session_was_deleted_stores_nothing(
    turns: Turns, database: Database
) -> None:
    turn = await accepted(turns)
    await SQLiteStorage(database).delete(turn.session_id)
    assert await turns.end(turn, "finished", FINISHED, fence=database.epoch, entries=[answer(turn)]) is False
    assert database.read("SELECT COUNT(*) FROM entries") == [(0,)]
    assert turns.get(turn.turn_id) is None


async def test_a_process_that_was_taken_over_can_neither_begin_nor_mark_nor_end(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with open_database(tmp_path) as former:
        turns = TurnStore(former, Identities(former, clock=clock), clock=clock)
        turn = await accepted(turns)
        async with open_database(tmp_path):
            for work in (
                turns.begin(turn, fence=former.epoch),
                turns.mark_started(turn.turn_id, "c1", fence=former.epoch),
                turns.end(turn, "finished", FINISHED, fence=former.epoch),
            ):
                with pytest.raises(StaleFence):
                    await work
        stored = turns.get(turn.turn_id)
        assert stored is not None and (stored.state, stored.attempt) == ("waiting", 0)


async def test_a_started_call_is_known_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    async with open_database(tmp_path) as database:
        turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
        for _ in range(2):
            await turns.mark_started("turn_1", "c1", fence=database.epoch)
    async with open_database(tmp_path) as database:
        turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
        assert await turns.was_started("turn_1", "c1")
        assert not await turns.was_started("turn_1", "c2")
        assert not await turns.was_started("turn_2", "c1")


async def test_a_restart_finds_the_open_turns_of_its_channels_in_order_of_arrival(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with open_database(tmp_path) as database:
        turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
        waiting = await accepted(turns, text_message("1", msg_id="a"))
        running = await accepted(turns, text_message("2", msg_id="b", session_id=waiting.session_id))
        ended = await accepted(turns, text_message("3", msg_id="c"))
        foreign = await accepted(turns, text_message("4", msg_id="d", channel="slack"))
        asked = await accepted(turns, command_message("clear", msg_id="e", channel="ws"))
        await turns.begin(running, fence=database.epoch)
        await turns.end(ended, "finished", FINISHED, fence=database.epoch)
        await turns.request_cancel(asked.turn_id)
    async with open_database(tmp_path) as database:
        turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
        found = await turns.open_turns(["web", "ws"])
        assert [turn.turn_id for turn in found] == [waiting.turn_id, running.turn_id, asked.turn_id]
        assert [(turn.state, turn.attempt) for turn in found] == [
            ("waiting", 0),
            ("running", 1),
            ("waiting", 0),
        ]
        assert [turn.cancel_requested for turn in found] == [False, False, True]
        assert [turn.text for turn in found] == ["1", "2", ""]
        assert [turn.turn_id for turn in await turns.open_turns(["slack"])] == [foreign.turn_id]
        assert await turns.open_turns([]) == []


# --- commands, once ---------------------------------------------------------------------------------------


class Counter:
    """A command that says how often it was carried out."""

    def __init__(self) -> None:
        self.done = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.begun = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        self.done += 1
        self.begun.set()
        await self.go_on.wait()
        return {"done": self.done, "text": "好"}


KEY = ("web", "ann", "m1")


async def test_a_repeated_command_gets_the_stored_result_also_after_a_restart(
    tmp_path: Path, clock: FakeClock
) -> None:
    command = Counter()
    for _ in range(2):
        async with open_database(tmp_path) as database:
            once = OnceOnly(database, clock=clock)
            for _ in range(2):
                assert await once.run(KEY, command) == {"done": 1, "text": "好"}
    assert command.done == 1


async def test_other_ids_users_and_channels_are_other_commands(kept: Kept, clock: FakeClock) -> None:
    once, command = once_in(kept, clock), Counter()
    keys = [KEY, ("web", "ann", "m2"), ("web", "bob", "m1"), ("ws", "ann", "m1")]
    assert [(await once.run(key, command))["done"] for key in keys] == [1, 2, 3, 4]


async def test_a_command_that_comes_again_while_it_is_at_work_waits_for_the_first_result(
    kept: Kept, clock: FakeClock
) -> None:
    once, command = once_in(kept, clock), Counter()
    command.go_on.clear()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        tasks = [group.create_task(once.run(KEY, command)) for _ in range(5)]
        await command.begun.wait()
        command.go_on.set()
    assert [task.result() for task in tasks] == [{"done": 1, "text": "好"}] * 5


async def test_a_command_that_failed_is_carried_out_again_by_its_repeat(kept: Kept, clock: FakeClock) -> None:
    once, command = once_in(kept, clock), Counter()

    async def fails() -> dict[str, Any]:
        await command()
        raise ProtocolError("not_found", "none")

    results = await asyncio.gather(once.run(KEY, fails), once.run(KEY, command), return_exceptions=True)
    assert isinstance(results[0], ProtocolError)
    assert results[1] == {"done": 2, "text": "好"}
    assert (await once.run(KEY, command))["done"] == 2


async def test_a_command_whose_id_a_text_has_taken_is_still_carried_out_once(
    turns: Turns, kept: Kept, clock: FakeClock
) -> None:
    first = await accepted(turns)
    once, command = once_in(kept, clock), Counter()
    for _ in range(2):
        assert (await once.run(KEY, command))["done"] == 1
    assert (await turns.accept(text_message(), take)).turn_id == first.turn_id


async def test_a_cancelled_command_lets_the_next_one_go_on(kept: Kept, clock: FakeClock) -> None:
    once, command = once_in(kept, clock), Counter()
    command.go_on.clear()
    first = asyncio.ensure_future(once.run(KEY, command))
    await command.begun.wait()
    second = asyncio.ensure_future(once.run(KEY, command))
    first.cancel()
    command.go_on.set()
    async with asyncio.timeout(10):
        assert (await second)["done"] == 2
    assert first.cancelled()


# --- usage ------------------------------------------------------------------------------------------------


async def test_tokens_are_counted_by_user_day_and_model(turns: Turns, kept: Kept, clock: FakeClock) -> None:
    async def spend(msg_id: str, *usage: Usage, user_id: str = "ann") -> None:
        turn = await accepted(turns, text_message(msg_id=msg_id, user_id=user_id))
        assert await turns.end(turn, "finished", FINISHED, fence=fence_in(kept), usage=usage)

    def row(day: str, usage: Usage) -> dict[str, object]:
        return {"day": day, **usage.to_dict()}

    clock.now = 1_799_999_999.0 - 1_799_999_999.0 % 86_400  # midnight, UTC
    await spend("a", Usage(model="m", input_tokens=10, output_tokens=1, calls=1))
    clock.advance(86_399)
    other = Usage(model="n", input_tokens=5, output_tokens=5, calls=1, ms=7, cost=None)
    await spend("b", Usage(model="m", input_tokens=20, output_tokens=2, calls=2, cost=0.5), other)
    await spend("d", Usage(model="m", input_tokens=7, output_tokens=7, calls=1), user_id="bob")
    await spend("e")
    await spend("f", Usage(model="n", cost=0.1))
    clock.advance(1)
    await spend("g", Usage(model="m", input_tokens=1, output_tokens=1, calls=1))
    ledger = ledger_in(kept, clock)
    assert await ledger.rows("ann") == [
        row("2027-01-16", Usage(model="m", input_tokens=1, output_tokens=1, calls=1)),
        row("2027-01-15", Usage(model="m", input_tokens=30, output_tokens=3, calls=3, cost=0.5)),
        row("2027-01-15", other),
    ]
    assert [found["input_tokens"] for found in await ledger.rows("bob")] == [7]
    assert await ledger.rows("nobody") == []


def test_usage_adds_up_and_names_the_later_model() -> None:
    total = Usage().plus(Usage(model="m", input_tokens=1, output_tokens=2, calls=1))
    total = total.plus(Usage(model="n", input_tokens=3, output_tokens=4, calls=2, cost=0.5)).plus(Usage())
    shown = {"model": "n", "input_tokens": 4, "output_tokens": 6, "cached_tokens": 0, "calls": 3}
    shown |= {"ms": 0, "cost": 0.5}
    assert total.to_dict() == shown
    assert Usage.from_dict({**shown, "later": 1}) == total
    unknown = total.plus(Usage(calls=1, cost=None))
    assert unknown.to_dict()["cost"] == "unknown"
    assert Usage.from_dict(unknown.to_dict()) == unknown


async def test_a_session_made_by_hand_can_be_named_by_its_user(turns: Turns, kept: Kept) -> None:
    await storage_in(kept).save(make_session("ses_mine", user_id="ann"))
    turn = await accepted(turns, text_message(session_id="ses_mine"))
    assert turn.session_id == "ses_mine"


@pytest.mark.parametrize("direct", [True, False])
async def test_a_conversation_goes_on_where_it_was_led_and_the_session_that_it_left_stays(
    turns: Turns, kept: Kept, clock: FakeClock, direct: bool
) -> None:
    storage, manager = storage_in(kept), SessionManager(storage_in(kept), clock=clock)

    async def said(msg_id: str) -> str:
        return (await accepted(turns, slack(msg_id=msg_id, direct=direct, thread="7"))).session_id

    old = await said("a")
    loaded = await manager.get(old)
    assert loaded is not None
    there = await turns.identify(slack(direct=direct, thread="7"))
    new = await turns.enter(there, None)
    assert new != old and await said("b") == new
    made = await storage.load(new)
    assert made is not None and (made.user_id, made.thread) == (there.scope, "7")
    await manager.update(loaded, title="kept")  # which knows nothing of its place any more
    assert await said("c") == new
    assert await turns.enter(there, old) == old and await said("d") == old
    elsewhere = (await accepted(turns, slack(msg_id="e", direct=direct))).session_id
    assert await turns.enter(there, elsewhere) == await said("f") == elsewhere
    assert (await accepted(turns, slack(msg_id="g", direct=direct))).session_id not in (old, new, elsewhere)


async def test_a_conversation_is_led_to_no_session_of_others(turns: Turns) -> None:
    here = await accepted(turns, slack(msg_id="a"))
    group = await accepted(turns, slack(msg_id="b", direct=False))
    other = await accepted(turns, slack(msg_id="c", sender="U2"))
    there = await turns.identify(slack())
    for session_id in (group.session_id, other.session_id, "ses_none"):
        with pytest.raises(ProtocolError) as refused:
            await turns.enter(there, session_id)
        assert refused.value.code == "session_not_found"
    assert (await accepted(turns, slack(msg_id="d"))).session_id == here.session_id


def outbox_in(kept: Kept, clock: FakeClock) -> Deliveries:
    if isinstance(kept, RedisLink):
        return RedisOutbox(kept, node="n", lease=30.0, clock=clock)
    return Outbox(kept, clock=clock)


@pytest.mark.parametrize("first", ["told", "taken"])
async def test_of_two_copies_of_a_message_never_one_is_told_to_come_again_and_one_is_run(
    turns: Turns, kept: Kept, clock: FakeClock, first: str
) -> None:
    outbox, ids = outbox_in(kept, clock), ("event:1", "msg:1")
    message = slack(msg_id="a", typed=True, dedupe=ids)
    keys = [dedupe_key("slack", "T1", each) for each in ids]
    fields: dict[str, Any] = {"key": note_key(message), "turn_id": "", "user_id": "", "channel": "slack"}
    fields |= {"n": 0, "part": 0, "account": "T1", "conversation": "C1", "text": "busy", "state": "sent"}
    row = Delivery(**fields, target=ReplyTarget(conversation="C1"))
    if first == "told":
        assert await outbox.notice([row], unless=keys)
        with pytest.raises(ProtocolError) as refused:
            await turns.accept(message, take)
        assert refused.value.code == "ignored" and (await counts(kept))["turns"] == 0
    else:
        await accepted(turns, message)
        assert not await outbox.notice([row], unless=keys)
        assert not await outbox.has(row.key)


# --- strangers, and messages that do not name the agent ---------------------------------------------------


async def test_a_message_that_names_nobody_is_taken_only_where_the_conversation_is_known(
    turns: Turns, kept: Kept
) -> None:
    aside: dict[str, Any] = {
        "channel": "slack",
        "conversation": "C1",
        "thread": "7",
        "direct": False,
        "user_id": None,
        "sender": "U1",
    }
    for policy in ("serve", "pair", "refuse"):
        message = text_message(msg_id="a", only_known=True, strangers=policy, **aside)
        for said in (turns.accept(message, take), turns.identify(message)):
            with pytest.raises(ProtocolError) as refused:
                await said
            assert refused.value.code == "ignored"
    assert await counts(kept) == NOTHING
    first = await turns.accept(text_message(msg_id="b", **aside), take)
    second = await turns.accept(text_message(msg_id="a", only_known=True, **aside), take)
    assert second.session_id == first.session_id and second.turn is not None
    stranger = {**aside, "sender": "U2", "strangers": "pair"}
    for is_aside, code in ((True, "ignored"), (False, "pairing")):  # a code is for whoever turns to the agent
        with pytest.raises(ProtocolError) as refused:
            await turns.accept(text_message(msg_id="c", only_known=is_aside, **stranger), take)
        assert refused.value.code == code


@pytest.mark.parametrize(("policy", "code"), [("pair", "pairing"), ("refuse", "ignored")])
@in_sqlite
async def test_a_stranger_is_refused_where_strangers_are_not_served(
    turns: Turns, database: Database, policy: str, code: str
) -> None:
    message: dict[str, Any] = {
        "channel": "slack",
        "conversation": "D1",
        "user_id": None,
        "sender": "U1",
        "strangers": policy,
    }
    with pytest.raises(ProtocolError) as refused:
        await turns.accept(text_message(msg_id="a", **message), take)
    assert refused.value.code == code
    assert await counts(database) == NOTHING
    await database.write(lambda c: c.execute("INSERT INTO identities VALUES ('slack', '', 'U1', 'ann')"))
    accepted = await turns.accept(text_message(msg_id="a", **message), take)
    assert accepted.turn is not None and accepted.turn.user_id == "ann"
