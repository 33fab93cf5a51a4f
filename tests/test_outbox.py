"""Delivery rows: what is still to be sent, in order, and what became of each try, also after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniclaw.db import Database
from miniclaw.gateway.protocol import ReplyTarget
from miniclaw.identity import Identities
from miniclaw.redis.outbox import RedisOutbox
from miniclaw.redis.people import RedisIdentities
from miniclaw.redis.storage import RedisStorage
from miniclaw.session.outbox import Delivery, Outbox
from miniclaw.session.ports import Deliveries
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.session.storage import SessionStorage
from tests.support.core import START, FakeClock, make_session, open_database
from tests.support.redis import fresh_prefix, needs_redis, open_link

HERE = ("slack", "T1", "C1")


in_sqlite = pytest.mark.parametrize("outbox", ["sqlite"], indirect=True)
"""For what is seen only from inside of it."""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path) as database:
        yield database


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
async def outbox(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Deliveries]:
    if request.param == "redis":
        async with open_link(fresh_prefix()) as link:
            yield RedisOutbox(link, node="n", lease=30.0, clock=FakeClock())
    else:
        yield Outbox(database, clock=FakeClock())


def delivery(n: int = 1, part: int = 0, **more: Any) -> Delivery:
    fields: dict[str, Any] = {
        "key": f"turn_{n}.{part}",
        "n": n,
        "part": part,
        "turn_id": f"turn_{n}",
        "user_id": "ann",
        "channel": "slack",
        "account": "T1",
        "conversation": "C1",
        "target": ReplyTarget(conversation="C1", thread="7", url="https://a.example/回"),
        "text": "done 😀",
        "created_at": START,
    }
    return Delivery(**{**fields, **more})


async def store(outbox: Deliveries, *deliveries: Delivery) -> None:
    await outbox.notice(deliveries)


async def sent_in_order(outbox: Deliveries, place: tuple[str, str, str] = HERE) -> list[str]:
    """Send everything of a conversation; the keys in the order in which they came up."""
    keys = []
    while (row := await outbox.next_of(*place)) is not None:
        keys.append(row.key)
        await outbox.sent(row, None)
    return keys


async def test_a_row_comes_back_as_it_was_stored(outbox: Deliveries) -> None:
    row = delivery(uncertain=True, attempts=2, next_at=5.5, handle="ts", error="none")
    await store(outbox, row)
    assert await outbox.next_of(*HERE) == row


async def test_rows_of_a_conversation_come_up_by_turn_and_part(outbox: Deliveries) -> None:
    await store(outbox, delivery(10), delivery(2, 1), delivery(2, 0), delivery(9), delivery(2, 2))
    assert await sent_in_order(outbox) == ["turn_2.0", "turn_2.1", "turn_2.2", "turn_9.0", "turn_10.0"]
    assert await outbox.next_of(*HERE) is None


async def test_conversations_are_apart(outbox: Deliveries) -> None:
    await store(
        outbox,
        delivery(1),
        delivery(2, conversation="C2"),
        delivery(3, account="T2"),
        delivery(4, channel="feishu"),
        delivery(5),
    )
    assert await sent_in_order(outbox) == ["turn_1.0", "turn_5.0"]
    assert sorted(await outbox.conversations(["slack", "feishu"])) == [
        ("feishu", "T1", "C1"),
        ("slack", "T1", "C2"),
        ("slack", "T2", "C1"),
    ]
    assert await outbox.conversations(["feishu"]) == [("feishu", "T1", "C1")]
    assert await outbox.conversations([]) == []


async def test_notices_come_up_one_after_the_other_with_all_their_parts(outbox: Deliveries) -> None:
    for key, later in (("note_b", 0.0), ("note_a", 1.0)):
        parts = [delivery(0, part, key=f"{key}.{part}", created_at=START + later) for part in range(2)]
        await outbox.notice(parts)
    assert await sent_in_order(outbox) == ["note_b.0", "note_b.1", "note_a.0", "note_a.1"]


async def test_a_row_that_is_there_stays_as_it_is(outbox: Deliveries) -> None:
    await store(outbox, delivery(text="first"))
    await store(outbox, delivery(text="second"), delivery(2))
    first = await outbox.next_of(*HERE)
    assert first is not None and first.text == "first"
    await outbox.sent(first, "ts")
    await store(outbox, delivery(text="third"))
    assert await sent_in_order(outbox) == ["turn_2.0"]


async def test_a_row_opened_for_a_streamed_reply_is_sent_only_when_its_final_text_is_there(
    outbox: Deliveries,
) -> None:
    await store(outbox, delivery(text="", state="streaming", handle="ts"))
    assert await outbox.next_of(*HERE) is None
    assert await outbox.conversations(["slack"]) == []
    await store(outbox, delivery(text="final"), delivery(1, 1))
    row = await outbox.next_of(*HERE)
    assert row is not None and (row.text, row.state, row.handle) == ("final", "pending", "ts")
    assert await sent_in_order(outbox) == ["turn_1.0", "turn_1.1"]


async def test_sending_is_committed_and_a_crash_leaves_a_row_whose_outcome_is_unknown(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        outbox = Outbox(database, clock=FakeClock())
        await store(outbox, delivery())
        row = await outbox.next_of(*HERE)
        assert row is not None and (row.state, row.attempts, row.uncertain) == ("pending", 0, False)
        await outbox.begin(row)
    async with open_database(tmp_path) as database:
        outbox = Outbox(database, clock=FakeClock())
        assert await outbox.conversations(["slack"]) == [HERE]
        row = await outbox.next_of(*HERE)
        assert row is not None and (row.state, row.attempts, row.uncertain) == ("sending", 1, True)


@pytest.mark.parametrize("uncertain", [False, True])
async def test_a_row_put_off_keeps_its_place_and_says_whether_it_may_have_arrived(
    outbox: Deliveries, uncertain: bool
) -> None:
    row = delivery(1)
    await store(outbox, row, delivery(2))
    await outbox.begin(row)
    await outbox.retry(row, "429", at=START + 9, uncertain=uncertain)
    expected = replace(row, attempts=1, error="429", next_at=START + 9, uncertain=uncertain)
    assert await outbox.next_of(*HERE) == expected


@in_sqlite
async def test_a_sent_row_keeps_the_handle_and_no_error(outbox: Deliveries, database: Database) -> None:
    row = delivery()
    await store(outbox, row)
    await outbox.begin(row)
    await outbox.retry(row, "429", at=0, uncertain=False)
    await outbox.begin(row)
    await outbox.sent(row, "ts-1")
    query = "SELECT state, attempts, handle, error FROM deliveries"
    assert database.read(query) == [("sent", 2, "ts-1", None)]


async def test_a_dead_row_is_not_sent_any_more_and_can_be_seen(outbox: Deliveries) -> None:
    await store(outbox, delivery(1), delivery(2))
    await outbox.dead(delivery(1), "channel_not_found")
    assert await sent_in_order(outbox) == ["turn_2.0"]
    assert [(row.key, row.state, row.error) for row in await outbox.of_user("ann")] == [
        ("turn_1.0", "dead", "channel_not_found")
    ]


async def test_a_user_sees_their_own_rows_that_are_not_sent_the_latest_first(outbox: Deliveries) -> None:
    await store(outbox, *(delivery(n) for n in range(1, 120)), delivery(200, user_id="bob"), delivery(5, 1))
    await outbox.sent(delivery(119), None)
    mine = [row.key for row in await outbox.of_user("ann")]
    assert mine[:2] == ["turn_118.0", "turn_117.0"]
    assert len(mine) == 100
    assert [row.key for row in await outbox.of_user("bob")] == ["turn_200.0"]
    assert await outbox.of_user("nobody") == await outbox.of_user("") == []
    assert [row.key for row in await outbox.of_user(None)][:2] == ["turn_200.0", "turn_118.0"]


@in_sqlite
async def test_sent_rows_are_dropped_when_they_are_old_and_no_others(
    outbox: Deliveries, database: Database
) -> None:
    rows = {"old sent": START, "old dead": START, "old open": START, "young sent": START + 10}
    for n, created_at in enumerate(rows.values(), 1):
        await store(outbox, delivery(n, created_at=created_at))
    await outbox.sent(delivery(1), None)
    await outbox.dead(delivery(2), "no")
    await outbox.sent(delivery(4), None)
    assert await outbox.forget_sent(before=START + 5) == 1
    assert database.read("SELECT n FROM deliveries ORDER BY n") == [(2,), (3,), (4,)]


async def test_a_try_begins_only_of_a_row_that_is_still_to_be_sent(outbox: Deliveries) -> None:
    await store(outbox, delivery(1), delivery(2))
    await outbox.dead(delivery(2), "no")
    assert [await outbox.begin(delivery(n)) for n in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize("uncertain", [0, 1])
async def test_what_was_not_known_when_it_was_given_up_is_never_taken_for_recent(
    outbox: Deliveries, uncertain: int
) -> None:
    await store(outbox, delivery(uncertain=uncertain))
    await outbox.dead(delivery(), "24 h")
    row = await outbox.revive("turn_1.0", None)
    assert row is not None and row.uncertain == 2 * uncertain
    await outbox.begin(row)
    await outbox.retry(row, "429", at=0, uncertain=row.uncertain)
    (again,) = await outbox.of_user(None)
    assert again.uncertain == 2 * uncertain
    await outbox.begin(again)
    (begun,) = await outbox.of_user(None)
    assert begun.uncertain == max(1, 2 * uncertain)


async def test_a_dead_letter_is_revived_for_its_user_or_an_admin(outbox: Deliveries) -> None:
    await store(outbox, delivery(1, state="dead"), delivery(2, state="dead"))
    assert await outbox.revive("turn_1.0", "bob") is None
    for key, who in (("turn_1.0", "ann"), ("turn_2.0", None)):
        revived = await outbox.revive(key, who)
        assert revived is not None and (revived.key, revived.state) == (key, "pending")


# --- notices ----------------------------------------------------------------------------------------------


def notice(number: int, shows: str = "", **more: Any) -> Delivery:
    return delivery(0, key=f"note_{number}.0", turn_id=shows, created_at=START + number, **more)


@pytest.fixture
def beside(outbox: Deliveries, database: Database) -> tuple[SessionStorage, Identities]:
    """The sessions and users of the same back end."""
    if isinstance(outbox, RedisOutbox):
        return RedisStorage(outbox._link), RedisIdentities(outbox._link, clock=FakeClock())
    return SQLiteStorage(database), Identities(database, clock=FakeClock())


async def test_a_notice_that_was_sent_is_known_by_its_key_and_has_no_text_any_more(
    outbox: Deliveries, database: Database
) -> None:
    await store(outbox, notice(1), delivery(1))
    assert await sent_in_order(outbox) == ["note_1.0", "turn_1.0"]
    assert await outbox.has("note_1.0")
    if isinstance(outbox, RedisOutbox):
        keys = [f"{outbox._link.prefix}dl:{key}" for key in ("note_1.0", "turn_1.0")]
        texts = [await outbox._link.run("HGET", key, "text") for key in keys]
    else:
        texts = [row[0] for row in database.read("SELECT text FROM deliveries ORDER BY key")]
    assert texts == ["", "done 😀"]


async def test_a_notice_that_shows_a_session_is_not_kept_longer_than_it(
    outbox: Deliveries, beside: tuple[SessionStorage, Identities]
) -> None:
    for name in ("ses_1", "ses_2"):
        await beside[0].save(make_session(name))
    await store(
        outbox, notice(1, "ses_2 ses_1"), notice(2, "ses_2"), notice(3, "ses_1"), notice(4), delivery(1)
    )
    row = await outbox.next_of(*HERE)
    assert row is not None
    await outbox.dead(row, "no such channel")
    await beside[0].delete("ses_1")
    assert [row.key for row in await outbox.of_user("ann")][1:] in (
        ["note_2.0", "note_4.0"],
        ["note_4.0", "note_2.0"],
    )
    assert await sent_in_order(outbox) == ["note_2.0", "note_4.0", "turn_1.0"]


async def test_no_notice_of_a_user_who_is_wiped_is_sent_and_others_go_on(
    outbox: Deliveries, beside: tuple[SessionStorage, Identities]
) -> None:
    await store(outbox, notice(1), notice(2), notice(3, user_id="bob"))
    row = await outbox.next_of(*HERE)
    assert row is not None
    await outbox.dead(row, "no such channel")
    await beside[1].wipe("ann")
    assert [row.key for row in await outbox.of_user(None)] == ["note_3.0"]
    assert await sent_in_order(outbox) == ["note_3.0"]
