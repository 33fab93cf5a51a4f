"""Day 3 and the sessions: what storages keep, how sessions are found, made and expired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import day3_session
import miniclaw.errors
import miniclaw.session
from tests.contracts.support import both

modules = both(day3_session, miniclaw.session)
GONE = (day3_session.StorageError, miniclaw.errors.StorageError, miniclaw.errors.ProtocolError)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "files"])
def make_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], Any]:
    if request.param == "memory":
        return lambda side: side.InMemoryStorage()
    return lambda side: side.FileStorage(tmp_path)


def session(side: Any, session_id: str = "ses_1", **fields: Any) -> Any:
    return side.Session(session_id=session_id, user_id="alice", channel="web", **fields)


def entry(side: Any, text: str, turn_id: str = "t1", step: int = 0) -> Any:
    return side.Entry(turn_id, step, {"role": "user", "content": text})


def texts(found: Any) -> list[str]:
    return [one.message["content"] for one in found.messages]


@modules
async def test_what_was_stored_is_loaded_whole_or_only_its_end(
    side: Any, make_storage: Callable[[Any], Any]
) -> None:
    storage = make_storage(side)
    assert await storage.load("ses_1") is None
    await storage.save(session(side, created_at=5.0))
    await storage.append("ses_1", [entry(side, "4471"), entry(side, "已发货", step=1)])
    found = await storage.load("ses_1")
    assert (texts(found), found.created_at) == (["4471", "已发货"], 5.0)
    assert [one.position for one in found.messages] == [0, 1]
    assert texts(await storage.load("ses_1", last=1)) == ["已发货"]


@modules
async def test_a_repeated_step_is_no_second_entry(side: Any, make_storage: Callable[[Any], Any]) -> None:
    storage = make_storage(side)
    await storage.save(session(side))
    await storage.append("ses_1", [entry(side, "a"), entry(side, "a")])
    await storage.append("ses_1", [entry(side, "a"), entry(side, "b", step=1)])
    await storage.save(session(side, updated_at=9.0))
    assert texts(await storage.load("ses_1")) == ["a", "b"]


@modules
@pytest.mark.parametrize(
    ("turn_id", "step", "message"),
    [
        ("t2", 0, {"content": "no role"}),
        ("t2", 0, {"role": 1, "content": "x"}),
        ("t2", 0, ["user", "x"]),
        ("t2", "0", {"role": "user", "content": "x"}),
        (5, 0, {"role": "user", "content": "x"}),
        ([5], 0, {"role": "user", "content": "x"}),
    ],
)
async def test_what_could_not_be_read_again_is_refused_with_its_whole_batch(
    side: Any, make_storage: Callable[[Any], Any], turn_id: Any, step: Any, message: Any
) -> None:
    storage = make_storage(side)
    await storage.save(session(side))
    with pytest.raises(GONE):
        await storage.append("ses_1", [entry(side, "a"), side.Entry(turn_id, step, message)])
    assert texts(await storage.load("ses_1")) == []
    await storage.append("ses_1", [entry(side, "a")])
    assert texts(await storage.load("ses_1")) == ["a"]


@modules
async def test_a_step_twice_in_one_batch_is_shown_once(side: Any) -> None:
    manager = side.SessionManager(side.InMemoryStorage(), clock=Clock())
    held = await manager.get_or_create("alice", "web")
    await manager.append(held, [entry(side, "a"), entry(side, "b"), entry(side, "c", step=1)])
    assert texts(held) == texts(await manager.storage.load(held.session_id)) == ["a", "c"]


@modules
async def test_nothing_is_appended_to_a_session_that_is_not_there(
    side: Any, make_storage: Callable[[Any], Any]
) -> None:
    with pytest.raises(GONE):
        await make_storage(side).append("ses_1", [entry(side, "a")])


@modules
async def test_sessions_are_listed_latest_first_and_deleted_with_their_logs(
    side: Any, make_storage: Callable[[Any], Any]
) -> None:
    storage = make_storage(side)
    for number in (1, 2):
        await storage.save(session(side, f"ses_{number}", updated_at=float(number)))
    assert [one.session_id for one in await storage.list("alice")] == ["ses_2", "ses_1"]
    assert await storage.list("bob") == []
    assert await storage.delete("ses_2") is True
    assert await storage.delete("ses_2") is False


@modules
async def test_half_a_line_that_a_crash_left_costs_nothing_else(side: Any, tmp_path: Path) -> None:
    storage = side.FileStorage(tmp_path)
    await storage.save(session(side))
    await storage.append("ses_1", [entry(side, "a")])
    (log,) = tmp_path.glob("*.jsonl")
    with log.open("ab") as file:
        file.write(b'{"turn_id": "t2", "st')
    fresh = side.FileStorage(tmp_path)
    assert texts(await fresh.load("ses_1")) == ["a"]
    await fresh.append("ses_1", [entry(side, "b", "t2")])
    assert texts(await side.FileStorage(tmp_path).load("ses_1")) == ["a", "b"]


@modules
@pytest.mark.parametrize(
    "line",
    [
        '{"turn_id":"t","step":0,"message":null}',
        '{"turn_id":"t","step":0,"message":"x"}',
        '{"turn_id":"t","step":0,"message":{}}',
        '{"turn_id":"t","step":0,"message":{"role":1}}',
        '{"turn_id":"t","step":"0","message":{"role":"user","content":"x"}}',
        '{"turn_id":[1],"step":0,"message":{"role":"user","content":"x"}}',
    ],
)
async def test_a_line_of_another_shape_is_set_aside(side: Any, tmp_path: Path, line: str) -> None:
    storage = side.FileStorage(tmp_path)
    await storage.save(session(side))
    await storage.append("ses_1", [entry(side, "4471")])
    (log,) = tmp_path.rglob("*.jsonl")
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    fresh = side.FileStorage(tmp_path)
    assert texts(await fresh.load("ses_1")) == ["4471"]
    await fresh.append("ses_1", [entry(side, "4472", step=1)])
    assert texts(await side.FileStorage(tmp_path).load("ses_1")) == ["4471", "4472"]
    assert line in "".join(one.read_text(encoding="utf-8") for one in tmp_path.rglob("*.corrupt"))


@modules
async def test_a_write_that_fails_leaves_the_former_file(
    side: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = side.FileStorage(tmp_path)
    await storage.save(session(side, updated_at=1.0))

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(GONE):
        await storage.save(session(side, updated_at=2.0))
    assert (await side.FileStorage(tmp_path).load("ses_1")).updated_at == 1.0


@modules
async def test_the_same_place_finds_the_same_session_also_at_once(side: Any) -> None:
    manager = side.SessionManager(side.InMemoryStorage(), clock=Clock())
    found = await asyncio.gather(
        *(manager.get_or_create("alice", "web", conversation="c1") for _ in range(5))
    )
    assert len({one.session_id for one in found}) == 1
    others = [
        await manager.get_or_create("bob", "web", conversation="c1"),
        await manager.get_or_create("alice", "web", conversation="c2"),
        await manager.get_or_create("alice", "web", conversation="c1", thread="t"),
        await manager.get_or_create("alice", "web"),
    ]
    assert len({one.session_id for one in [found[0], *others]}) == 5
    assert await manager.get(found[0].session_id) is found[0]


@modules
async def test_what_could_not_be_stored_is_not_shown(side: Any) -> None:
    manager = side.SessionManager(side.InMemoryStorage(), clock=Clock())
    held = await manager.get_or_create("alice", "web")
    await manager.append(held, [entry(side, "a")])
    await manager.delete(held.session_id)
    with pytest.raises(GONE):
        await manager.append(held, [entry(side, "b", "t2")])
    assert texts(held) == ["a"]


@modules
async def test_metadata_is_merged_and_does_not_bring_a_deleted_session_back(side: Any) -> None:
    manager = side.SessionManager(side.InMemoryStorage(), clock=Clock())
    held = await manager.get_or_create("alice", "web")
    await manager.update(held, title="订单", model="m")
    await manager.update(held, model=None)
    (listed,) = await manager.list("alice")
    assert listed.metadata == held.metadata == {"title": "订单"}
    await manager.delete(held.session_id)
    with pytest.raises(GONE):
        await manager.update(held, title="x")
    assert await manager.list() == []


@modules
async def test_anothers_session_is_the_same_as_none(side: Any) -> None:
    manager = side.SessionManager(side.InMemoryStorage(), clock=Clock())
    held = await manager.get_or_create("alice", "web")
    assert await manager.owned(held.session_id, "alice") is held
    assert await manager.owned(held.session_id, "bob") is None
    assert await manager.owned("ses_none", "alice") is None


@modules
async def test_what_is_idle_beyond_its_channels_time_expires_unless_it_is_busy(side: Any) -> None:
    clock = Clock()
    manager = side.SessionManager(side.InMemoryStorage(), clock=clock, ttl={"web": 60.0})
    busy, for_ever = await manager.get_or_create("alice", "web"), await manager.get_or_create("alice", "cli")
    await manager.get_or_create("alice", "web")
    clock.now += 61
    assert await manager.cleanup_expired(lambda session_id: session_id == busy.session_id) == 1
    left = {one.session_id for one in await manager.list()}
    assert left == {busy.session_id, for_ever.session_id}
