"""管理员：找到或新建，一个会话一个对象，闲久了过期。"""

import asyncio
import gc
from pathlib import Path

import pytest

from day3_session import Entry, FileStorage, InMemoryStorage, Session, SessionManager, StorageError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def manager(clock: Clock) -> SessionManager:
    return SessionManager(InMemoryStorage(), clock=clock, ttl={"web": 60.0})


def entry(text: str, turn_id: str = "t1") -> Entry:
    return Entry(turn_id, 0, {"role": "user", "content": text})


async def test_the_same_place_finds_the_same_session(manager: SessionManager) -> None:
    first = await manager.get_or_create("alice", "web", conversation="c1")
    assert await manager.get_or_create("alice", "web", conversation="c1") is first
    others = [
        await manager.get_or_create("bob", "web", conversation="c1"),
        await manager.get_or_create("alice", "cli", conversation="c1"),
        await manager.get_or_create("alice", "web", conversation="c2"),
        await manager.get_or_create("alice", "web", conversation="c1", thread="17.1"),
        await manager.get_or_create("alice", "web"),
        await manager.get_or_create("alice", "web"),
    ]
    assert len({one.session_id for one in [first, *others]}) == 7


async def test_two_messages_at_once_make_one_session(manager: SessionManager) -> None:
    found = await asyncio.gather(
        *(manager.get_or_create("alice", "web", conversation="c1") for _ in range(10))
    )
    assert len({id(one) for one in found}) == 1
    assert len(await manager.list("alice")) == 1


async def test_it_is_found_again_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    before = SessionManager(FileStorage(tmp_path), clock=clock)
    session = await before.get_or_create("alice", "web", conversation="c1")
    await before.append(session, [entry("4471 到哪了？")])
    after = SessionManager(FileStorage(tmp_path), clock=clock)
    again = await after.get_or_create("alice", "web", conversation="c1")
    assert again.session_id == session.session_id
    assert again.messages[0].message["content"] == "4471 到哪了？"


async def test_one_session_is_one_object_for_as_long_as_somebody_holds_it(manager: SessionManager) -> None:
    session = await manager.get_or_create("alice", "web")
    session_id = session.session_id
    assert await manager.get(session_id) is session
    del session
    gc.collect()
    assert manager._alive.get(session_id) is None
    one, other = await asyncio.gather(manager.get(session_id), manager.get(session_id))
    assert one is other is not None
    assert await manager.get("ses_none") is None


async def test_what_could_not_be_stored_is_not_shown(manager: SessionManager) -> None:
    session = await manager.get_or_create("alice", "web")
    await manager.append(session, [entry("a")])
    await manager.append(session, [entry("a")])
    await manager.delete(session.session_id)
    with pytest.raises(StorageError):
        await manager.append(session, [entry("b", "t2")])
    assert [one.message["content"] for one in session.messages] == ["a"]


async def test_metadata_is_merged_and_none_removes(manager: SessionManager, clock: Clock) -> None:
    session = await manager.get_or_create("alice", "web")
    clock.now += 5
    await asyncio.gather(manager.update(session, title="订单"), manager.update(session, model="m"))
    await manager.update(session, model=None)
    (listed,) = await manager.list("alice")
    assert listed.metadata == session.metadata == {"title": "订单"}
    assert listed.updated_at == session.updated_at == 1005.0


async def test_a_session_that_is_talked_in_does_not_expire(manager: SessionManager, clock: Clock) -> None:
    session = await manager.get_or_create("alice", "web", conversation="c1")
    for number in range(3):
        clock.now += 40
        await manager.append(session, [entry("还在", f"t{number}")])
        assert await manager.cleanup_expired(lambda _: False) == 0
    (listed,) = await manager.list("alice")
    assert listed.updated_at == session.updated_at == 1120.0
    clock.now += 61
    assert await manager.cleanup_expired(lambda _: False) == 1


async def test_a_deleted_session_does_not_come_back_by_an_update(manager: SessionManager) -> None:
    session = await manager.get_or_create("alice", "web")
    assert await manager.delete(session.session_id)
    with pytest.raises(StorageError, match="no session"):
        await manager.update(session, title="订单")
    assert await manager.list() == []


class Slow(InMemoryStorage):
    """每个方法做完都停一下，让别人插队。"""

    async def load(self, session_id: str, *, last: int | None = None) -> Session | None:
        found = await super().load(session_id, last=last)
        await asyncio.sleep(0)
        return found

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = await super().list(user_id)
        await asyncio.sleep(0)
        return found


async def test_a_session_deleted_while_it_is_read_does_not_come_back(clock: Clock) -> None:
    manager = SessionManager(Slow(), clock=clock)
    session_id = (await manager.get_or_create("alice", "web")).session_id
    gc.collect()
    found, _ = await asyncio.gather(manager.get(session_id), manager.delete(session_id))
    assert await manager.get(session_id) is None
    if found is not None:
        with pytest.raises(StorageError, match="no session"):
            await manager.update(found, title="订单")
    assert await manager.list() == []


async def test_a_session_used_while_the_idle_ones_are_looked_for_stays(clock: Clock) -> None:
    manager = SessionManager(Slow(), clock=clock, ttl={"web": 60.0})
    session = await manager.get_or_create("alice", "web")
    clock.now += 61
    deleted, _ = await asyncio.gather(
        manager.cleanup_expired(lambda _: False), manager.append(session, [entry("还在")])
    )
    assert deleted == 0 and [one.session_id for one in await manager.list()] == [session.session_id]


async def test_anothers_session_is_the_same_as_none(manager: SessionManager) -> None:
    session = await manager.get_or_create("alice", "web")
    assert await manager.owned(session.session_id, "alice") is session
    assert await manager.owned(session.session_id, "bob") is None
    assert await manager.owned("ses_none", "alice") is None


async def test_only_what_is_idle_and_not_busy_expires(manager: SessionManager, clock: Clock) -> None:
    async def made(channel: str) -> Session:
        return await manager.get_or_create("alice", channel)

    old, busy, for_ever = await made("web"), await made("web"), await made("cli")
    clock.now += 61
    fresh = await made("web")
    assert await manager.cleanup_expired(lambda session_id: session_id == busy.session_id) == 1
    left = {one.session_id for one in await manager.list()}
    assert left == {busy.session_id, for_ever.session_id, fresh.session_id}
    assert await manager.get(old.session_id) is None
