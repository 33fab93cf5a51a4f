"""Sessions as the program uses them: one object each, stored first, expired when idle; and lists for people."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from miniclaw.db import Database
from miniclaw.errors import ProtocolError, StaleFence, StorageError, StorageUnavailable
from miniclaw.gateway.pages import message_page, session_row
from miniclaw.redis.storage import RedisStorage
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Entry, Session
from miniclaw.session.search import SQLiteSearch
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.session.storage import InMemoryStorage, IsShared, SessionStorage
from tests.support.core import START, FakeClock, make_session, open_database, told
from tests.support.redis import fresh_prefix, needs_redis, open_link


def entry(turn_id: str, step: int = 0, content: str = "hi") -> Entry:
    return Entry(turn_id, step, {"role": "user", "content": content})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path) as database:
        yield database


class FarAway(InMemoryStorage):
    """A back end whose answers take a while, so that others come in between."""

    async def load(
        self, session_id: str, *, last: int | None = None, before: int | None = None
    ) -> Session | None:
        session = await super().load(session_id, last=last, before=before)
        await asyncio.sleep(0)
        return session

    async def save(self, session: Session, *, fence: int | None = None) -> None:
        await asyncio.sleep(0)
        await super().save(session, fence=fence)

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = await super().list(user_id)
        await asyncio.sleep(0)
        return found


@pytest.fixture(params=["memory", "far", "sqlite", pytest.param("redis", marks=needs_redis)])
async def storage(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[SessionStorage]:
    if request.param == "redis":
        async with open_link(fresh_prefix()) as link:
            yield RedisStorage(link)
    else:
        kinds = {"memory": InMemoryStorage(), "far": FarAway(), "sqlite": SQLiteStorage(database)}
        yield kinds[request.param]


@pytest.fixture
def manager(storage: SessionStorage, clock: FakeClock) -> SessionManager:
    return SessionManager(storage, clock=clock, loaded=2, ttl={"web": 60.0})


def contents(session: Session | None) -> list[str]:
    assert session is not None
    return [one.message["content"] for one in session.messages]


# --- finding and making -----------------------------------------------------------------------------------


async def test_without_a_conversation_every_call_makes_a_session(manager: SessionManager) -> None:
    first = await manager.get_or_create("ann", "web")
    second = await manager.get_or_create("ann", "web")
    assert first.session_id != second.session_id
    assert first.session_id.startswith("ses_")
    assert (first.user_id, first.channel, first.created_at, first.updated_at) == ("ann", "web", START, START)
    assert {session.session_id for session in await manager.list("ann")} == {
        first.session_id,
        second.session_id,
    }


async def test_a_conversation_has_one_session_for_each_thread_user_and_channel(
    manager: SessionManager,
) -> None:
    places: list[dict[str, Any]] = [
        {"user_id": "ann", "channel": "slack", "conversation": "C1"},
        {"user_id": "ann", "channel": "slack", "conversation": "C1", "thread": "t"},
        {"user_id": "ann", "channel": "slack", "conversation": "C2"},
        {"user_id": "ann", "channel": "feishu", "conversation": "C1"},
        {"user_id": "bob", "channel": "slack", "conversation": "C1"},
    ]
    first = [(await manager.get_or_create(**place)).session_id for place in places]
    again = [(await manager.get_or_create(**place)).session_id for place in places]
    assert first == again
    assert len(set(first)) == len(places)


async def test_the_same_conversation_asked_for_at_once_is_one_session(manager: SessionManager) -> None:
    made = await asyncio.gather(
        *(manager.get_or_create("ann", "slack", conversation="C1") for _ in range(10))
    )
    assert len({id(session) for session in made}) == 1
    assert len(await manager.list()) == 1


async def test_a_session_is_only_its_users_also_when_it_is_not_loaded(
    manager: SessionManager, storage: SessionStorage, clock: FakeClock
) -> None:
    session = await manager.get_or_create("ann", "web")
    for one in (manager, SessionManager(storage, clock=clock)):
        owned = await one.owned(session.session_id, "ann")
        assert owned is not None and owned.session_id == session.session_id
        assert await one.owned(session.session_id, "bob") is None
        assert await one.owned("ses_none", "ann") is None


async def test_a_session_that_is_not_there_is_none(manager: SessionManager) -> None:
    assert await manager.get("ses_none") is None
    assert await manager.delete("ses_none") is False


# --- one object of a session ------------------------------------------------------------------------------


async def test_callers_that_load_a_session_at_once_share_it(
    manager: SessionManager, storage: SessionStorage
) -> None:
    await storage.save(make_session())
    await storage.append("ses_1", [entry(f"t{n}") for n in range(300)])  # so many are read in a thread
    sessions = await asyncio.gather(*(manager.get("ses_1") for _ in range(5)))
    assert sessions[0] is not None
    assert all(session is sessions[0] for session in sessions)


async def test_a_session_in_use_is_never_loaded_a_second_time_however_many_others_are(
    manager: SessionManager,
) -> None:
    used = await manager.get_or_create("ann", "web")
    for _ in range(5):
        await manager.get_or_create("ann", "web")
    await manager.append(used, [entry("t1")])
    assert await manager.get(used.session_id) is used
    owned = await manager.owned(used.session_id, "ann")
    assert owned is used or (isinstance(manager.storage, IsShared) and owned is not None), "seen afresh"


async def test_only_so_many_sessions_stay_loaded_and_the_least_used_goes_first(
    storage: SessionStorage, clock: FakeClock
) -> None:
    loads: list[str] = []

    class Counting(SessionManager):
        async def get(self, session_id: str) -> Session | None:
            gc.collect()
            before = session_id in self._alive
            session = await super().get(session_id)
            if not before:
                loads.append(session_id)
            return session

    manager = Counting(storage, clock=clock, loaded=2)
    for session_id in ("a", "b", "c"):
        await storage.save(make_session(session_id))
    for session_id in ("a", "b", "a", "c", "a", "b"):
        await manager.get(session_id)
    assert loads == ["a", "b", "c", "b"]


# --- stored first -----------------------------------------------------------------------------------------


async def test_entries_are_stored_and_shown(manager: SessionManager, storage: SessionStorage) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.append(session, [entry("t1"), entry("t1", 1)])
    await manager.append(session, [entry("t1", 1), entry("t1", 2)])
    stored = await storage.load(session.session_id)
    assert stored is not None
    assert [(e.turn_id, e.step, e.position) for e in stored.messages] == [
        ("t1", 0, 0),
        ("t1", 1, 1),
        ("t1", 2, 2),
    ]
    assert [(e.step, e.position) for e in session.messages] == [(0, 0), (1, 1), (2, 2)]


async def test_what_cannot_be_stored_is_not_shown(tmp_path: Path, clock: FakeClock) -> None:
    async with open_database(tmp_path) as database:
        manager = SessionManager(SQLiteStorage(database), clock=clock, fence=database.epoch)
        session = await manager.get_or_create("ann", "web")
        await manager.update(session, title="before")
    clock.advance(5)
    with pytest.raises(StorageUnavailable):
        await manager.append(session, [entry("t1")])
    with pytest.raises(StorageUnavailable):
        await manager.update(session, title="after")
    assert session.messages == []
    assert (session.title, session.updated_at) == ("before", START)


async def test_a_process_that_was_taken_over_can_change_nothing(tmp_path: Path, clock: FakeClock) -> None:
    async with open_database(tmp_path) as database:
        manager = SessionManager(SQLiteStorage(database), clock=clock, fence=database.epoch)
        session = await manager.get_or_create("ann", "web")
        async with open_database(tmp_path):
            for work in (manager.append(session, [entry("t1")]), manager.update(session, title="x")):
                with pytest.raises(StaleFence):
                    await work
            with pytest.raises(StaleFence):
                await manager.get_or_create("ann", "web")
        assert (session.messages, session.title) == ([], "")


async def test_an_append_that_was_interrupted_after_its_commit_is_taken_in_by_a_refresh(
    manager: SessionManager, storage: SessionStorage
) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.append(session, [entry("t1"), entry("t1", 1)])
    await storage.append(session.session_id, [entry("t1", 2, "unseen")])
    await manager.refresh(session)
    await manager.refresh(session)
    assert [(e.step, e.position) for e in session.messages] == [(0, 0), (1, 1), (2, 2)]
    assert session.messages[2].message["content"] == "unseen"
    await manager.delete(session.session_id)
    await manager.refresh(session)
    assert len(session.messages) == 3


async def test_a_refresh_takes_nothing_twice_where_the_log_has_a_gap(
    database: Database, clock: FakeClock
) -> None:
    storage = SQLiteStorage(database)
    await storage.save(make_session())
    await storage.append("ses_1", [entry(f"t{n}") for n in range(5)])
    await database.write(lambda c: c.execute("UPDATE entries SET body = '' WHERE position = 1").rowcount)
    manager = SessionManager(storage, clock=clock)
    session = await manager.get("ses_1")
    assert session is not None
    await manager.refresh(session)
    assert [one.position for one in session.messages] == [0, 2, 3, 4]
    await manager.append(session, [entry("new")])
    assert [one.position for one in session.messages] == [0, 2, 3, 4, 5]


async def test_metadata_is_merged_and_a_none_removes_its_key(
    manager: SessionManager, storage: SessionStorage, clock: FakeClock
) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.update(session, title="a", model="m")
    clock.advance(5)
    await manager.update(session, title=None, cleared=3)
    stored = await storage.load(session.session_id)
    assert stored is not None
    assert stored.metadata == session.metadata == {"model": "m", "cleared": 3}
    assert stored.updated_at == session.updated_at == START + 5


async def test_changes_made_at_once_are_all_kept(manager: SessionManager, storage: SessionStorage) -> None:
    session = await manager.get_or_create("ann", "web")
    async with asyncio.timeout(10):
        await asyncio.gather(*(manager.update(session, is_use=True, **{f"key{n}": n}) for n in range(10)))
    stored = await storage.load(session.session_id)
    assert stored is not None
    assert stored.metadata == session.metadata == {f"key{n}": n for n in range(10)}


# --- going on elsewhere ----------------------------------------------------------------------------------


async def test_a_fork_has_the_log_up_to_a_message_and_the_old_session_stays_as_it_is(
    manager: SessionManager, storage: SessionStorage
) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.append(session, [entry(f"t{n}", content=str(n)) for n in range(4)])
    await manager.update(session, title="old", model="m")
    copy = await manager.fork(session, 1)
    await manager.append(copy, [entry("new", content="new")])
    for found in (copy, await storage.load(copy.session_id)):
        assert contents(found) == ["0", "1", "new"]
        assert found is not None and found.metadata == {"title": "old", "forked_from": session.session_id}
    assert (copy.user_id, copy.channel) == ("ann", "web")
    for found in (session, await storage.load(session.session_id)):
        assert contents(found) == ["0", "1", "2", "3"]
        assert found is not None and found.metadata == {"title": "old", "model": "m"}


async def test_a_fork_keeps_the_skills_and_their_limits(
    manager: SessionManager, storage: SessionStorage
) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.update(session, skills=["menu"], narrowed=["calculator"])
    copy = await manager.fork(session, -1)
    assert (copy.metadata["skills"], copy.metadata["narrowed"]) == (["menu"], ["calculator"])


KILLED_IN_A_FORK = """
import asyncio, os, sys, time
from miniclaw.db import Database
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Entry
from miniclaw.session.sqlite import SQLiteStorage

async def main():
    database = Database(sys.argv[1])
    await database.open()
    manager = SessionManager(SQLiteStorage(database), clock=time.time)
    session = await manager.get_or_create("ann", "ws")
    entries = [Entry(f"t{n}", 0, {"role": "user", "content": "x"}) for n in range(500)]
    await manager.append(session, entries)
    append, left = manager.append, 2
    async def killed(*args):
        nonlocal left
        await append(*args)
        left -= 1
        if not left:
            os.kill(os.getpid(), 9)
    manager.append = killed
    await manager.fork(session, 499)

asyncio.run(main())
"""


async def test_a_copy_that_a_kill_left_unfinished_is_hidden_and_gone_after_the_next_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "miniclaw.db"
    assert subprocess.run([sys.executable, "-c", KILLED_IN_A_FORK, str(path)], check=False).returncode == -9
    async with open_database(tmp_path) as database:
        manager = SessionManager(SQLiteStorage(database), clock=time.time)
        assert len(await manager.storage.list()) == 2
        (shown,) = await manager.list("ann")
        await manager.remove_left()
        assert [one.session_id for one in await manager.storage.list()] == [shown.session_id]
        assert database.read("SELECT count(*), count(DISTINCT session_id) FROM entries") == [(500, 1)]


@pytest.mark.parametrize(
    ("metadata", "position", "seen"),
    [
        ({}, 3, ["0", "1", "2", "3"]),
        ({}, -1, []),
        ({"cleared": 2}, 3, ["2", "3"]),
        ({"cleared": 2}, 2, ["2"]),
        ({"cleared": 2}, 1, ["0", "1"]),
        ({"cleared": 4}, 3, []),
        ({"summary": {"text": "…", "position": 4}}, 3, []),
        ({"summary": {"text": "…", "position": 3}}, 3, ["3"]),
        ({"cleared": 1, "summary": {"text": "…", "position": 3}}, 3, ["3"]),
    ],
)
async def test_a_fork_shows_the_model_what_the_old_session_showed_it(
    manager: SessionManager, metadata: dict[str, Any], position: int, seen: list[str]
) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.append(session, [entry(f"t{n}", content=str(n)) for n in range(4)])
    await manager.update(session, **metadata)
    copy = await manager.fork(session, position)
    assert [message["content"] for message in copy.history().messages()] == seen
    has_summary = "summary" in metadata and len(seen) < position + 1
    assert (copy.metadata.get("summary") or {}).get("text") == ("…" if has_summary else None)


# --- deleting and expiring --------------------------------------------------------------------------------


async def test_a_deleted_session_is_gone_for_everybody(manager: SessionManager) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.append(session, [entry("t1")])
    deleted, *_ = await asyncio.gather(manager.delete(session.session_id), manager.get(session.session_id))
    assert deleted is True
    assert await manager.get(session.session_id) is None
    assert await manager.owned(session.session_id, "ann") is None
    with pytest.raises(StorageError):
        await manager.append(session, [entry("t2")])


async def test_sessions_expire_after_their_channels_time_and_never_while_busy(
    manager: SessionManager, clock: FakeClock
) -> None:
    old = await manager.get_or_create("ann", "web")
    busy = await manager.get_or_create("ann", "web")
    other = await manager.get_or_create("ann", "ws")
    clock.advance(30)
    young = await manager.get_or_create("ann", "web")
    touched = await manager.get_or_create("ann", "web")
    clock.advance(31)
    await manager.update(touched, title="x")
    assert await manager.cleanup_expired(told(lambda session_id: session_id == busy.session_id)) == 1
    left = {session.session_id for session in await manager.list()}
    assert left == {s.session_id for s in (busy, other, young, touched)}
    assert await manager.get(old.session_id) is None
    assert await manager.get(busy.session_id) is busy
    clock.advance(1000)
    assert await manager.cleanup_expired(told(lambda session_id: False)) == 3
    assert [session.session_id for session in await manager.list()] == [other.session_id]


async def test_a_session_at_the_edge_of_its_time_stays(manager: SessionManager, clock: FakeClock) -> None:
    await manager.get_or_create("ann", "web")
    clock.advance(60)
    assert await manager.cleanup_expired(told(lambda session_id: False)) == 0
    clock.advance(0.001)
    assert await manager.cleanup_expired(told(lambda session_id: False)) == 1


async def test_without_a_time_nothing_expires(storage: SessionStorage, clock: FakeClock) -> None:
    manager = SessionManager(storage, clock=clock)
    await manager.get_or_create("ann", "web")
    clock.advance(1e9)
    assert await manager.cleanup_expired(told(lambda session_id: False)) == 0
    assert len(await manager.list()) == 1


async def test_a_session_with_an_open_turn_does_not_expire_and_stays_the_one_object(
    database: Database, clock: FakeClock
) -> None:
    manager = SessionManager(SQLiteStorage(database), clock=clock, ttl={"web": 60.0})
    session = await manager.get_or_create("ann", "web")
    row = ("turn_1", session.session_id)
    statement = (
        "INSERT INTO turns (turn_id, session_id, user_id, channel, message, state, created_at) "
        "VALUES (?, ?, 'ann', 'web', '{}', 'waiting', 0)"
    )
    await database.write(lambda c: c.execute(statement, row).rowcount)
    clock.advance(61)
    assert await manager.cleanup_expired(told(lambda session_id: False)) == 0
    assert await manager.get(session.session_id) is session


async def test_a_session_that_is_used_while_others_expire_stays(
    storage: SessionStorage, clock: FakeClock
) -> None:
    class Outside:
        async def forget(self, session_id: str, scope: str) -> None:
            (left,) = await storage.list()
            back = await sessions.get(left.session_id)
            assert back is not None
            await sessions.update(back, title="I am back")

        async def scrub(self) -> bool:
            return True

    sessions = SessionManager(storage, clock=clock, ttl={"web": 60.0}, outside=Outside())
    for _ in range(2):
        await sessions.get_or_create("ann", "web")
    clock.advance(61)
    assert await sessions.cleanup_expired(told(lambda session_id: False)) == 1
    assert [session.title for session in await sessions.list()] == ["I am back"]


# --- lists for people -------------------------------------------------------------------------------------


def test_a_row_of_a_session_is_what_a_list_shows() -> None:
    session = make_session(metadata={"title": "标题"}, created_at=0.0, updated_at=1.5)
    assert session_row(session, "idle") == {
        "session_id": "ses_1",
        "title": "标题",
        "channel": "web",
        "phase": "idle",
        "created_at": "1970-01-01T00:00:00.000Z",
        "updated_at": "1970-01-01T00:00:01.500Z",
        "unread": False,
    }


async def test_pages_go_back_from_the_end_and_say_whether_there_is_more(manager: SessionManager) -> None:
    session = await manager.get_or_create("ann", "web")
    await manager.append(session, [entry(f"t{n}", content=str(n)) for n in range(7)])
    seen: list[str] = []
    before: int | None = None
    sizes = []
    while True:
        page = await message_page(manager, session.session_id, "ann", before=before, limit=3)
        seen = [row["content"] for row in page["messages"]] + seen
        sizes.append((len(page["messages"]), page["more"]))
        if not page["more"]:
            break
        before = page["messages"][0]["position"]
    assert seen == [str(n) for n in range(7)]
    assert sizes == [(3, True), (3, True), (1, False)]


async def test_a_page_shows_calls_results_and_what_the_model_does_not_see(manager: SessionManager) -> None:
    session = await manager.get_or_create("ann", "web")
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    await manager.append(
        session,
        [
            Entry(
                "t1", 0, {"role": "assistant", "content": None, "tool_calls": calls}, 1.0, {"reasoning": "hm"}
            ),
            Entry(
                "t1", 1, {"role": "tool", "tool_call_id": "c1", "content": "done"}, 2.0, {"ok": True, "ms": 3}
            ),
        ],
    )
    page = await message_page(manager, session.session_id, "ann", before=None, limit=10)
    common = {"turn_id": "t1"}
    assert page == {
        "session_id": session.session_id,
        "messages": [
            {
                **common,
                **{"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "hm"},
                **{"step": 0, "position": 0, "at": "1970-01-01T00:00:01.000Z"},
            },
            {
                **common,
                **{"role": "tool", "content": "done", "tool_call_id": "c1", "ok": True, "ms": 3},
                **{"step": 1, "position": 1, "at": "1970-01-01T00:00:02.000Z"},
            },
        ],
        "more": False,
    }


@pytest.mark.parametrize("user_id", ["bob", ""])
async def test_the_messages_of_somebody_elses_session_are_as_if_they_were_not_there(
    manager: SessionManager, user_id: str
) -> None:
    session = await manager.get_or_create("ann", "web")
    for session_id in (session.session_id, "ses_none"):
        with pytest.raises(ProtocolError) as caught:
            await message_page(manager, session_id, user_id, before=None, limit=1)
        assert caught.value.code == "session_not_found"


async def test_the_page_of_an_empty_session_is_empty(manager: SessionManager) -> None:
    session = await manager.get_or_create("ann", "web")
    page = await message_page(manager, session.session_id, "ann", before=None, limit=1)
    assert page == {"session_id": session.session_id, "messages": [], "more": False}


# --- finding words ----------------------------------------------------------------------------------------


@pytest.fixture
async def searched(database: Database, clock: FakeClock) -> SQLiteSearch:
    manager = SessionManager(SQLiteStorage(database), clock=clock)
    for user_id, texts in (
        ("ann", ["Meet at NOON", "100%_sure!", "西湖的水面有多大"]),
        ("bob", ["noon, bob"]),
    ):
        session = await manager.get_or_create(user_id, "web")
        await manager.append(session, [entry(f"t{n}", content=text) for n, text in enumerate(texts)])
        await manager.update(session, title=f"of {user_id}")
    return SQLiteSearch(database)


@pytest.mark.parametrize(
    ("text", "excerpts"),
    [
        ("noon", ["Meet at NOON"]),
        ("西湖", ["西湖的水面有多大"]),
        ("%", ["100%_sure!"]),
        ("_", ["100%_sure!"]),
        ("!", ["100%_sure!"]),
        ("0%_s", ["100%_sure!"]),
        ("x%y", []),
        ("bob", []),
        ("role", []),
        ("x" * 60_000, []),
        ("\0", []),
    ],
)
async def test_words_are_found_in_the_users_own_messages_as_they_stand(
    searched: SQLiteSearch, text: str, excerpts: list[str]
) -> None:
    hits = await searched.search("ann", text)
    assert [hit.excerpt for hit in hits] == excerpts
    assert all(hit.title == "of ann" for hit in hits)


async def test_damaged_rows_are_passed_over_by_a_search(searched: SQLiteSearch, database: Database) -> None:
    damage = (
        "UPDATE entries SET body = '{' WHERE turn_id = 't1'",
        "UPDATE entries SET body = json_set(body, '$.message.content', 12) WHERE turn_id = 't2'",
        "UPDATE sessions SET metadata = '{' WHERE user_id = 'ann'",
    )
    for statement in damage:
        await database.write(partial(run, statement=statement))
    hits = await searched.search("ann", "noon")
    assert [(hit.excerpt, hit.title, hit.position) for hit in hits] == [("Meet at NOON", "", 0)]
    assert await searched.search("ann", "1") == []


def run(connection: sqlite3.Connection, statement: str) -> int:
    return connection.execute(statement).rowcount


async def test_only_so_many_hits_are_given_and_an_excerpt_is_one_short_line_around_the_word(
    manager: SessionManager, database: Database
) -> None:
    manager = SessionManager(SQLiteStorage(database), clock=FakeClock())
    session = await manager.get_or_create("ann", "web")
    await manager.append(
        session, [entry(f"t{n}", content=f"{'a ' * 200}\nneedle\n{'b ' * 200}") for n in range(30)]
    )
    hits = await SQLiteSearch(database).search("ann", "NEEDLE", limit=5)
    assert [hit.position for hit in hits] == [29, 28, 27, 26, 25]
    for hit in hits:
        assert "needle" in hit.excerpt and "\n" not in hit.excerpt
        assert len(hit.excerpt) <= 130
        assert hit.excerpt.startswith("…") and hit.excerpt.endswith("…")
