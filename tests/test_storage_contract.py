"""One contract for all back ends, and what each of them does about damage."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from miniclaw.errors import StaleFence, StorageError, StorageUnavailable
from miniclaw.redis.storage import RedisStorage
from miniclaw.session.files import FileStorage
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Entry, Session
from miniclaw.session.sqlite import PURGED, SQLiteStorage
from miniclaw.session.storage import InMemoryStorage, SessionStorage
from tests.support.core import make_session, open_database
from tests.support.redis import fresh_prefix, needs_redis, open_link

T = TypeVar("T")
REDIS = pytest.param("redis", marks=needs_redis)

IDS = [
    *(
        "ses_1",
        "SES_1",
        "a/b",
        "a\\b",
        "a:b",
        "a?b",
        "a*b",
        "a_b",
        "a%b",
        "a%2Fb",
        "CON",
        "con",
        "nul.txt",
        ".",
        "..",
    ),
    *(
        "../x",
        "~",
        "",
        " ",
        "a.json",
        "a.jsonl",
        "a",
        "😀",
        "会话",
        "x" * 300,
        "x" * 300 + "y",
        "é",
        "e\u0301",
    ),
    *("s-a", "%2E", "a\nb", "x" * 118, "x" * 120, "会" * 100, "😀" * 300),
]
"""Session ids that have something against them as the name of a file."""


def entry(turn_id: str, step: int = 0, content: str = "hi", **more: Any) -> Entry:
    return Entry(turn_id, step, {"role": "user", "content": content}, **more)


def shown(session: Session | None) -> list[tuple[Any, ...]] | None:
    """The log as it is seen from outside."""
    if session is None:
        return None
    return [(e.position, e.turn_id, e.step, e.message, e.at, e.meta) for e in session.messages]


def turns_of(session: Session | None) -> list[str]:
    assert session is not None
    return [one.turn_id for one in session.messages]


# --- the back ends ----------------------------------------------------------------------------------------


class Backend:
    """A back end with a way to look at its data through a second object, as a later process would."""

    def __init__(self, storage: SessionStorage, reopen: Callable[[], Awaitable[SessionStorage]]) -> None:
        self.storage = storage
        self.reopen = reopen


async def make_backend(kind: str, directory: Path, stack: AsyncExitStack) -> Backend:
    if kind == "memory":
        memory = InMemoryStorage()

        async def same() -> SessionStorage:
            return memory

        return Backend(memory, same)
    if kind == "file":

        async def files() -> SessionStorage:
            return FileStorage(directory / "sessions")

        return Backend(await files(), files)

    if kind == "redis":
        prefix = fresh_prefix()

        async def redis() -> SessionStorage:
            return RedisStorage(await stack.enter_async_context(open_link(prefix)))

        return Backend(await redis(), redis)

    async def database() -> SessionStorage:
        return SQLiteStorage(await stack.enter_async_context(open_database(directory)))

    return Backend(await database(), database)


@pytest.fixture(params=["memory", "file", "sqlite", REDIS])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        yield await make_backend(request.param, tmp_path, stack)


@pytest.fixture
def storage(backend: Backend) -> SessionStorage:
    return backend.storage


# --- the contract -----------------------------------------------------------------------------------------


async def test_a_session_that_was_never_saved_is_none_and_cannot_be_appended_to(
    storage: SessionStorage,
) -> None:
    assert await storage.load("ses_1") is None
    assert await storage.list() == []
    assert await storage.delete("ses_1") is False
    with pytest.raises(StorageError, match="ses_1"):
        await storage.append("ses_1", [entry("t1")])
    assert await storage.load("ses_1") is None


async def test_a_saved_session_comes_back_with_everything_in_it(backend: Backend) -> None:
    metadata = {"title": "标题 😀", "summary": {"text": "…", "position": 3}, "skills": ["a"], "n": 1.5}
    session = make_session(
        *("ses_1",), user_id="bob", channel="slack", key="k\x1fx", thread="t", created_at=1.5, updated_at=2.5
    )
    session.metadata = metadata
    await backend.storage.save(session)
    for storage in (backend.storage, await backend.reopen()):
        loaded = await storage.load("ses_1")
        assert loaded is not None
        assert loaded.model_dump() == session.model_dump()
        assert loaded.messages == []


async def test_saving_again_replaces_everything_but_the_log(backend: Backend) -> None:
    await backend.storage.save(make_session(metadata={"title": "a", "model": "m"}, thread="t"))
    await backend.storage.append("ses_1", [entry("t1")])
    changed = make_session(
        user_id="bob", channel="ws", key="k", thread=None, metadata={"title": "b"}, updated_at=9.0
    )
    await backend.storage.save(changed)
    loaded = await (await backend.reopen()).load("ses_1")
    assert loaded is not None
    assert loaded.model_dump() == changed.model_dump()
    assert turns_of(loaded) == ["t1"]


async def test_what_a_caller_does_to_its_object_does_not_change_what_is_stored(
    storage: SessionStorage,
) -> None:
    session = make_session(metadata={"skills": ["a"]})
    await storage.save(session)
    session.metadata["skills"].append("b")
    loaded = await storage.load("ses_1")
    assert loaded is not None
    loaded.metadata["title"] = "x"
    loaded.messages.append(entry("t1"))
    again = await storage.load("ses_1")
    assert again is not None
    assert (again.metadata, again.messages) == ({"skills": ["a"]}, [])
    (listed,) = await storage.list()
    listed.metadata["title"] = "x"
    assert (await storage.list())[0].metadata == {"skills": ["a"]}


async def test_entries_come_back_in_order_with_their_positions(backend: Backend) -> None:
    await backend.storage.save(make_session())
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u00e9"}'}}]
    first = [
        entry("t1", 0, "你好\n\u2028\x01😀", at=1.5),
        Entry("t1", 1, {"role": "assistant", "tool_calls": calls}),
    ]
    second = [
        Entry("t1", 2, {"role": "tool", "tool_call_id": "c1", "content": ""}, 2.0, {"ok": True, "ms": 3})
    ]
    await backend.storage.append("ses_1", first)
    await backend.storage.append("ses_1", second)
    assert [one.position for one in first + second] == [0, 1, 2]
    expected = [(n, "t1", n, e.message, e.at, e.meta) for n, e in enumerate(first + second)]
    assert shown(await backend.storage.load("ses_1")) == expected
    assert shown(await (await backend.reopen()).load("ses_1")) == expected


async def test_a_repeat_of_a_step_is_no_second_entry(backend: Backend) -> None:
    await backend.storage.save(make_session())
    await backend.storage.append("ses_1", [entry("t1", 0, "first"), entry("t1", 1)])
    for storage in (backend.storage, await backend.reopen()):
        await storage.append("ses_1", [entry("t1", 0, "second"), entry("t2"), entry("t2"), entry("t1", 1)])
        session = await storage.load("ses_1")
        assert shown(session) is not None
        assert session is not None and [(e.position, e.turn_id, e.step) for e in session.messages] == [
            (0, "t1", 0),
            (1, "t1", 1),
            (2, "t2", 0),
        ]
        assert session.messages[0].message["content"] == "first"


async def test_appending_nothing_changes_nothing(storage: SessionStorage) -> None:
    await storage.save(make_session())
    await storage.append("ses_1", [])
    assert shown(await storage.load("ses_1")) == []


@pytest.mark.parametrize(
    ("last", "before", "expected"),
    [
        (None, None, range(10)),
        (3, None, range(7, 10)),
        (0, None, range(0)),
        (99, None, range(10)),
        (None, 4, range(4)),
        (2, 4, range(2, 4)),
        (9, 4, range(4)),
        (2, 0, range(0)),
        (3, 10, range(7, 10)),
        (3, 500, range(7, 10)),
        (None, 500, range(10)),
    ],
)
async def test_a_page_is_the_last_entries_below_a_position(
    storage: SessionStorage, last: int | None, before: int | None, expected: range
) -> None:
    await storage.save(make_session())
    await storage.append("ses_1", [entry(f"t{n}") for n in range(10)])
    session = await storage.load("ses_1", last=last, before=before)
    assert session is not None
    assert [one.position for one in session.messages] == list(expected)


async def test_a_long_log_is_loaded_whole(storage: SessionStorage) -> None:
    await storage.save(make_session())
    await storage.append("ses_1", [entry(f"t{n}", content=str(n)) for n in range(450)])
    session = await storage.load("ses_1")
    assert session is not None
    assert [one.message["content"] for one in session.messages] == [str(n) for n in range(450)]


async def test_a_deleted_session_is_gone_and_its_id_can_begin_anew(backend: Backend) -> None:
    await backend.storage.save(make_session())
    await backend.storage.save(make_session("ses_2"))
    for one in ("ses_1", "ses_2"):
        await backend.storage.append(one, [entry("t1"), entry("t2")])
    assert await backend.storage.delete("ses_1") is True
    assert await backend.storage.delete("ses_1") is False
    assert await backend.storage.load("ses_1") is None
    assert [s.session_id for s in await backend.storage.list()] == ["ses_2"]
    with pytest.raises(StorageError):
        await backend.storage.append("ses_1", [entry("t3")])
    await backend.storage.save(make_session())
    await backend.storage.append("ses_1", [entry("t1")])
    for storage in (backend.storage, await backend.reopen()):
        assert [e[:3] for e in shown(await storage.load("ses_1")) or ()] == [(0, "t1", 0)]
        assert turns_of(await storage.load("ses_2")) == ["t1", "t2"]


async def test_a_session_that_was_used_since_is_not_deleted(storage: SessionStorage) -> None:
    await storage.save(make_session(updated_at=5.0))
    await storage.append("ses_1", [entry("t1")])
    assert not await storage.delete("ses_1", unused_since=5.0)
    assert turns_of(await storage.load("ses_1")) == ["t1"]
    assert await storage.delete("ses_1", unused_since=5.001)
    assert await storage.load("ses_1") is None


async def test_sessions_are_listed_the_latest_first_without_logs_and_by_user(backend: Backend) -> None:
    for session_id, user_id, updated_at in [
        ("a", "ann", 1.0),
        ("b", "bob", 3.0),
        ("c", "ann", 2.0),
        ("d", "ann", 2.0),
    ]:
        await backend.storage.save(make_session(session_id, user_id=user_id, updated_at=updated_at))
    await backend.storage.append("a", [entry("t1")])
    for storage in (backend.storage, await backend.reopen()):
        listed = await storage.list()
        assert [session.session_id for session in listed] == ["b", "d", "c", "a"]
        assert all(session.messages == [] for session in listed)
        assert [session.session_id for session in await storage.list("ann")] == ["d", "c", "a"]
        assert await storage.list("nobody") == []
        assert await storage.list("") == []


@pytest.mark.parametrize("kind", ["memory", "file", REDIS])
async def test_a_writer_whose_epoch_is_over_is_refused(kind: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        storage = (await make_backend(kind, tmp_path, stack)).storage
        await storage.save(make_session(), fence=1)
        await storage.append("ses_1", [entry("t1")], fence=2)
        with pytest.raises(StaleFence):
            await storage.save(make_session(metadata={"title": "stale"}), fence=1)
        with pytest.raises(StaleFence):
            await storage.append("ses_1", [entry("t2")], fence=1)
        await storage.append("ses_1", [entry("t3")], fence=2)
        await storage.append("ses_1", [entry("t4")])
        session = await storage.load("ses_1")
        assert session is not None and session.metadata == {}
        assert turns_of(session) == ["t1", "t3", "t4"]


async def test_a_process_that_was_taken_over_is_refused_by_the_database(tmp_path: Path) -> None:
    async with open_database(tmp_path) as former:
        storage, fence = SQLiteStorage(former), former.epoch
        await storage.save(make_session(), fence=fence)
        await storage.append("ses_1", [entry("t1")], fence=fence)
        async with open_database(tmp_path) as latter:
            with pytest.raises(StaleFence):
                await storage.save(make_session(metadata={"title": "stale"}), fence=fence)
            with pytest.raises(StaleFence):
                await storage.append("ses_1", [entry("t2")], fence=fence)
            successor = SQLiteStorage(latter)
            await successor.append("ses_1", [entry("t3")], fence=latter.epoch)
            session = await successor.load("ses_1")
            assert session is not None and session.metadata == {}
            assert turns_of(session) == ["t1", "t3"]


async def test_appends_and_pages_of_one_session_at_once_lose_nothing(storage: SessionStorage) -> None:
    await storage.save(make_session())
    async with asyncio.timeout(20):
        await asyncio.gather(
            *(storage.append("ses_1", [entry(f"t{n}")]) for n in range(30)),
            *(storage.load("ses_1", last=n % 5) for n in range(30)),
            *(storage.append("ses_1", [entry(f"t{n}")]) for n in range(0, 30, 3)),
        )
    session = await storage.load("ses_1")
    assert session is not None
    assert sorted(turns_of(session)) == sorted(f"t{n}" for n in range(30))
    assert [one.position for one in session.messages] == list(range(30))


async def test_ids_that_are_no_file_names_are_kept_apart(backend: Backend) -> None:
    for session_id in IDS:
        await backend.storage.save(make_session(session_id, user_id="ann", metadata={"title": session_id}))
        await backend.storage.append(session_id, [entry("t1", content=session_id)])
    for storage in (backend.storage, await backend.reopen()):
        assert sorted(session.session_id for session in await storage.list()) == sorted(IDS)
        for session_id in IDS:
            session = await storage.load(session_id)
            assert session is not None
            assert session.title == session_id
            assert [one.message["content"] for one in session.messages] == [session_id]
    for session_id in IDS[::2]:
        assert await backend.storage.delete(session_id)
    left = sorted(session.session_id for session in await (await backend.reopen()).list())
    assert left == sorted(IDS[1::2])


async def test_what_is_done_to_an_entry_afterwards_does_not_change_what_is_stored(
    storage: SessionStorage,
) -> None:
    await storage.save(make_session())
    mine = entry("t1", content="said")
    await storage.append("ses_1", [mine])
    for _ in range(2):
        session = await storage.load("ses_1")
        assert session is not None and session.messages[0].message["content"] == "said"
        mine.message["content"] = session.messages[0].message["content"] = "changed"


async def test_an_entry_that_cannot_be_stored_is_refused_with_those_beside_it(
    storage: SessionStorage,
) -> None:
    await storage.save(make_session())
    for bad in (entry("t1", 2**63), Entry("t1", 1, {"role": "user", "content": object()})):
        with pytest.raises(StorageError, match="cannot be stored"):
            await storage.append("ses_1", [entry("t1"), bad])
    await storage.append("ses_1", [entry("t2", at=float("nan"))])
    assert turns_of(await storage.load("ses_1")) == ["t2"]
    assert turns_of(await storage.load("ses_1", last=10**20, before=10**20)) == ["t2"]


# --- all back ends agree ----------------------------------------------------------------------------------

SESSION_IDS = st.sampled_from(["a", "A", "a/b", "会", "x" * 130])
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["t1", "t2", "t3"]), st.integers(0, 3), st.sampled_from(["", "hi", "你好\n😀"])
    ),
    max_size=4,
)
METADATA = st.dictionaries(
    st.sampled_from(["title", "model"]), st.text(st.characters(codec="utf-8"), max_size=5)
)


class BackendsAgree(RuleBasedStateMachine):
    """Whatever is done to all of them, in memory, files and database show the same."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.stack = AsyncExitStack()
        self.moment = 0.0

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def everywhere(self, ask: Callable[[SessionStorage], Awaitable[T]]) -> T:
        """The one answer of all back ends; an error is an answer too."""

        async def answer(storage: SessionStorage) -> Any:
            try:
                return await ask(storage)
            except StorageError as error:
                return type(error)

        answers = [self.run(answer(backend.storage)) for backend in self.backends]
        assert answers[0] == answers[1] == answers[2]
        result: T = answers[0]
        return result

    @initialize()
    def begin(self) -> None:
        kinds = ("memory", "file", "sqlite")
        self.backends = [self.run(make_backend(kind, self.directory, self.stack)) for kind in kinds]

    @rule(session_id=SESSION_IDS, user_id=st.sampled_from(["ann", "bob"]), metadata=METADATA)
    def save(self, session_id: str, user_id: str, metadata: dict[str, str]) -> None:
        self.moment += 1

        async def save(storage: SessionStorage) -> None:
            await storage.save(
                make_session(session_id, user_id=user_id, metadata=dict(metadata), updated_at=self.moment)
            )

        self.everywhere(save)

    @rule(session_id=SESSION_IDS, entries=ENTRIES)
    def append(self, session_id: str, entries: list[tuple[str, int, str]]) -> None:
        async def append(storage: SessionStorage) -> list[int]:
            fresh = [entry(turn_id, step, content) for turn_id, step, content in entries]
            await storage.append(session_id, fresh)
            return [one.position for one in fresh]

        self.everywhere(append)

    @rule(session_id=SESSION_IDS, last=st.none() | st.integers(0, 5), before=st.none() | st.integers(0, 8))
    def load(self, session_id: str, last: int | None, before: int | None) -> None:
        async def load(storage: SessionStorage) -> Any:
            session = await storage.load(session_id, last=last, before=before)
            return session and session.model_dump(), shown(session)

        self.everywhere(load)

    @rule(session_id=SESSION_IDS)
    def delete(self, session_id: str) -> None:
        self.everywhere(lambda storage: storage.delete(session_id))

    @precondition(lambda self: self.moment > 0)
    @rule()
    def go_on_in_another_process(self) -> None:
        for backend in self.backends:
            backend.storage = self.run(backend.reopen())

    @invariant()
    def lists_are_the_same(self) -> None:
        async def listed(storage: SessionStorage) -> list[dict[str, Any]]:
            return [session.model_dump() for session in await storage.list()]

        async def of_ann(storage: SessionStorage) -> list[str]:
            return [session.session_id for session in await storage.list("ann")]

        self.everywhere(listed)
        self.everywhere(of_ann)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()
        shutil.rmtree(self.directory)


BackendsAgree.TestCase.settings = settings(max_examples=12, stateful_step_count=25)
TestBackendsAgree = BackendsAgree.TestCase


# --- files ------------------------------------------------------------------------------------------------


def the_file(directory: Path, suffix: str) -> Path:
    (found,) = [path for path in directory.rglob("*") if path.name.endswith(suffix)]
    return found


async def filled(directory: Path) -> FileStorage:
    """A session `ses_1` of three entries, and another that must not be touched."""
    storage = FileStorage(directory)
    await storage.save(make_session("other_2", updated_at=1.0))
    await storage.append("other_2", [entry("t1", content="untouched")])
    await storage.save(make_session("ses_1", updated_at=2.0))
    await storage.append("ses_1", [entry(f"t{n}", content=str(n)) for n in range(3)])
    return storage


async def check_other(storage: FileStorage) -> None:
    other = await storage.load("other_2")
    assert other is not None
    assert [one.message["content"] for one in other.messages] == ["untouched"]


def log_of(directory: Path) -> Path:
    return the_file(directory, "ses_1.jsonl")


@pytest.mark.parametrize("cut", [1, 2, 10, 40])
async def test_a_half_written_last_line_is_set_aside_and_the_log_goes_on(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    raw = log_of(tmp_path).read_bytes()
    half = raw.splitlines(keepends=True)[2][:-cut]
    log_of(tmp_path).write_bytes(raw[:-cut])
    storage = FileStorage(tmp_path)
    await storage.append("ses_1", [entry("t3", content="3")])
    whole = cut == 1  # only the end of the line is missing: nothing is lost
    for again in (storage, FileStorage(tmp_path)):
        session = await again.load("ses_1")
        assert session is not None
        contents = [one.message["content"] for one in session.messages]
        assert contents == (["0", "1", "2", "3"] if whole else ["0", "1", "3"])
    if not whole:
        assert the_file(tmp_path, ".corrupt").read_bytes() == half + b"\n"
        assert "cannot be read" in caplog.text and ".corrupt" in caplog.text
    await check_other(storage)


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00\xff garbage",
        b"{}",
        b"[1, 2]",
        b'"text"',
        b"null",
        b'{"turn_id": "t1", "step": 0}',
        b'{"turn_id": "t1", "step": 0, "message": "text"}',
        b'{"turn_id": "t1", "step": 0, "message": {}}',
        b'{"turn_id": ["t1"], "step": 0, "message": {"role": "user"}}',
        b'{"turn_id": "t1", "step": "0", "message": {"role": "user"}}',
    ],
)
async def test_a_corrupt_line_is_set_aside_and_the_sound_ones_keep_their_places(
    tmp_path: Path, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    lines = log_of(tmp_path).read_bytes().splitlines()
    log_of(tmp_path).write_bytes(b"\n".join([lines[0], bad, lines[2]]) + b"\n")
    storage = FileStorage(tmp_path)
    with caplog.at_level(logging.ERROR):
        session = await storage.load("ses_1")
    assert [(e[0], e[1]) for e in shown(session) or ()] == [(0, "t0"), (2, "t2")]
    assert the_file(tmp_path, ".corrupt").read_bytes() == bad + b"\n"
    assert caplog.text.count("set aside") == 1
    await storage.append("ses_1", [entry("t1"), entry("t2"), entry("t3")])
    again = FileStorage(tmp_path)
    assert [(e[0], e[1]) for e in shown(await again.load("ses_1")) or ()] == [
        (0, "t0"),
        (2, "t2"),
        (3, "t1"),
        (4, "t3"),
    ]
    assert caplog.text.count("set aside") == 1
    await check_other(again)


@given(
    sizes=st.lists(st.integers(0, 60), max_size=12),
    block=st.integers(1, 80),
    last=st.integers(0, 14),
    before=st.none() | st.integers(0, 14),
)
def test_a_page_read_from_the_end_of_a_file_is_that_of_the_whole_log(
    sizes: list[int], block: int, last: int, before: int | None
) -> None:
    async def check(directory: Path) -> None:
        storage = FileStorage(directory)
        await storage.save(make_session("ses_1"))
        await storage.append("ses_1", [entry(f"t{n}", content="字" * size) for n, size in enumerate(sizes)])
        whole = [one for one in range(len(sizes)) if before is None or one < before]
        wanted = whole[max(0, len(whole) - last) :]
        if last and len(wanted) == last and 0 not in wanted:  # what lies before the page is not even read
            raw = log_of(directory).read_bytes()
            log_of(directory).write_bytes(b"x" + raw[1:])
        page = await storage.load("ses_1", last=last, before=before)
        assert turns_of(page) == [f"t{n}" for n in wanted]
        assert not list(directory.rglob("*.corrupt"))

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("miniclaw.session.files.BLOCK_BYTES", block)
        asyncio.run(check(Path(directory)))


async def test_the_last_page_of_a_damaged_file_sets_the_damage_aside(tmp_path: Path) -> None:
    await filled(tmp_path)
    raw = log_of(tmp_path).read_bytes()
    log_of(tmp_path).write_bytes(raw[:-20])
    storage = FileStorage(tmp_path)
    assert turns_of(await storage.load("ses_1", last=1)) == ["t1"]
    assert the_file(tmp_path, ".corrupt").exists()
    await storage.append("ses_1", [entry("t9")])
    assert turns_of(await storage.load("ses_1", last=2)) == ["t1", "t9"]


async def test_a_log_that_is_read_without_damage_is_not_written(tmp_path: Path) -> None:
    await filled(tmp_path)
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()
    }
    storage = FileStorage(tmp_path)
    await storage.load("ses_1")
    await storage.list()
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()
    }
    assert after == before


@pytest.mark.parametrize("keep", [0, 1, 20])
async def test_a_truncated_session_file_is_set_aside_and_its_log_and_the_others_are_kept(
    tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    meta = the_file(tmp_path, "ses_1.json")
    rest = meta.read_bytes()[:keep]
    meta.write_bytes(rest)
    storage = FileStorage(tmp_path)
    assert [session.session_id for session in await storage.list()] == ["other_2"]
    assert await storage.load("ses_1") is None
    assert the_file(tmp_path, ".json.corrupt").read_bytes() == rest
    assert "set aside" in caplog.text
    assert len(the_file(tmp_path, "ses_1.jsonl.corrupt").read_bytes().splitlines()) == 3
    await check_other(storage)
    await storage.save(make_session("ses_1", user_id="bob"))
    assert turns_of(await storage.load("ses_1")) == [], "nobody knows whether that is bob's"
    await storage.append("ses_1", [entry("t1")])
    meta.write_bytes(b"{again")
    with pytest.raises(StorageError):
        await FileStorage(tmp_path).append("ses_1", [entry("t2")])
    assert the_file(tmp_path, ".json.corrupt").read_bytes() == rest
    assert the_file(tmp_path, ".json.corrupt.1").read_bytes() == b"{again"
    await storage.save(make_session("ses_1"))
    (tmp_path / "s-ses_1.jsonl.tmp").write_bytes(b"left by a crash")
    assert await storage.delete("ses_1")
    assert not list(tmp_path.glob("s-ses_1*"))


async def test_a_file_that_is_another_sessions_is_set_aside_and_a_repeated_last_line_is_shown_once(
    tmp_path: Path,
) -> None:
    await filled(tmp_path)
    lines = log_of(tmp_path).read_bytes().splitlines(keepends=True)
    log_of(tmp_path).write_bytes(b"".join([*lines, lines[-1]]))
    assert turns_of(await FileStorage(tmp_path).load("ses_1", last=3)) == ["t0", "t1", "t2"]
    shutil.copy(the_file(tmp_path, "other_2.json"), the_file(tmp_path, "ses_1.json"))
    assert await FileStorage(tmp_path).load("ses_1") is None
    assert [session.session_id for session in await FileStorage(tmp_path).list()] == ["other_2"]


async def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    await filled(tmp_path)
    meta = the_file(tmp_path, "ses_1.json")
    meta.write_text(json.dumps({**json.loads(meta.read_text("utf-8")), "later": 1}), encoding="utf-8")
    line = {"turn_id": "t9", "step": 0, "message": {"role": "user", "content": "x"}, "later": 1}
    with log_of(tmp_path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    assert turns_of(await FileStorage(tmp_path).load("ses_1")) == ["t0", "t1", "t2", "t9"]


async def test_a_write_that_fails_is_said_and_can_be_done_again(tmp_path: Path) -> None:
    storage = await filled(tmp_path)
    log = log_of(tmp_path)
    log.rename(log.with_suffix(".away"))
    log.mkdir()
    with pytest.raises(StorageUnavailable):
        await storage.append("ses_1", [entry("t3")])
    log.rmdir()
    log.with_suffix(".away").rename(log)
    await storage.append("ses_1", [entry("t3")])
    assert turns_of(await FileStorage(tmp_path).load("ses_1")) == ["t0", "t1", "t2", "t3"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
async def test_a_disk_that_is_full_in_the_middle_of_a_line_costs_no_sound_line(tmp_path: Path) -> None:
    import resource

    storage = await filled(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_of(tmp_path).stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(StorageUnavailable):
            await storage.append("ses_1", [entry("t3")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await storage.append("ses_1", [entry("t3")])
    assert turns_of(await FileStorage(tmp_path).load("ses_1")) == ["t0", "t1", "t2", "t3"]


async def test_a_directory_that_cannot_be_made_is_unavailable_storage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StorageUnavailable):
        await FileStorage(tmp_path / "file").save(make_session())


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=400), unique=True, max_size=5))
@settings(max_examples=30)
@example(["a", "A", "%61", "CON", "con", "Ä", "ä"])
def test_any_ids_give_files_of_their_own_with_names_that_every_system_takes(ids: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        storage = FileStorage(root)

        async def work() -> list[str]:
            for session_id in ids:
                await storage.save(make_session(session_id))
            return sorted(session.session_id for session in await storage.list())

        assert asyncio.run(work()) == sorted(ids)
        files = [path.relative_to(root) for path in root.rglob("*")]
        assert len({str(path).lower() for path in files}) == len(files)
        for path in files:
            assert len(path.name.encode()) <= 200
            assert not set(path.name) & set(':\\?*"<>|')
            assert path.name.split(".")[0].lower() not in ("con", "nul", "aux", "prn")


# --- the database -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", "{}", '{"message": 5}', '{"message": {}}', '{"message": {"role": "user"}},{}'],
)
@pytest.mark.parametrize("count", [5, 300])
async def test_a_corrupt_row_is_passed_over_and_the_others_keep_their_places(
    tmp_path: Path, body: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        await storage.save(make_session())
        await storage.append("ses_1", [entry(f"t{n}") for n in range(count)])
        statement = "UPDATE entries SET body = ? WHERE position = 2"
        await database.write(lambda c: c.execute(statement, (body,)).rowcount)
        session = await storage.load("ses_1")
        assert session is not None
        places = [place for place in range(count) if place != 2]
        assert [one.position for one in session.messages] == places
        assert "entry 2 of session ses_1 cannot be read" in caplog.text
        await storage.append("ses_1", [entry("new")])
        page = await storage.load("ses_1", last=1)
        assert [(e[0], e[1]) for e in shown(page) or ()] == [(count, "new")]


async def test_metadata_that_cannot_be_read_does_not_hide_the_session_or_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for session_id in ("ses_1", "ses_2"):
            await storage.save(make_session(session_id, metadata={"title": "a"}))
            await storage.append(session_id, [entry("t1")])
        statement = "UPDATE sessions SET metadata = '{' WHERE session_id = 'ses_1'"
        await database.write(lambda c: c.execute(statement).rowcount)
        assert {s.session_id: s.metadata for s in await storage.list()} == {
            "ses_1": {},
            "ses_2": {"title": "a"},
        }
        assert turns_of(await storage.load("ses_1")) == ["t1"]
        assert "ses_1" in caplog.text


def fill(connection: sqlite3.Connection, session_id: str, turn_id: str) -> None:
    """A row of every table that knows a session."""
    ids = {"session": session_id, "turn": turn_id}
    for statement in (
        "INSERT INTO turns (turn_id, session_id, user_id, channel, message, state, created_at) "
        "VALUES (:turn, :session, 'ann', 'web', '{}', 'waiting', 0)",
        "INSERT INTO dedupe VALUES (:turn, :turn, :session, '{}', 0)",
        "INSERT INTO approvals VALUES (:turn, 's', :turn, :session, 'ann', 'c', 't', '{}', 'd', 'asked', 0, 0)",
        "INSERT INTO approval_rules VALUES ('ann', :session, 't')",
        "INSERT INTO started_calls VALUES (:turn, 'c')",
        "INSERT INTO deliveries (key, n, part, turn_id, user_id, channel, account, conversation, target, text, "
        "state, next_at, created_at) VALUES (:turn, 1, 0, :turn, 'ann', 'x', '', '', '{}', '', 'dead', 0, 0)",
    ):
        connection.execute(statement, ids)


async def test_deleting_a_session_takes_everything_of_it_and_leaves_keys_without_results(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for session_id, turn_id in (("ses_1", "turn_1"), ("ses_2", "turn_2")):
            await storage.save(make_session(session_id))
            await storage.append(session_id, [entry(turn_id)])
            await database.write(partial(fill, session_id=session_id, turn_id=turn_id))
        assert await storage.delete("ses_1")
        emptied = (
            "sessions",
            "entries",
            "turns",
            "approvals",
            "approval_rules",
            "started_calls",
            "deliveries",
        )
        assert {table: database.read(f"SELECT COUNT(*) FROM {table}") for table in emptied} == dict.fromkeys(
            emptied, [(1,)]
        )
        dedupe = database.read("SELECT session_id, result FROM dedupe ORDER BY session_id")
        assert dedupe == [("ses_1", None), ("ses_2", "{}")]


def set_deliveries(connection: sqlite3.Connection, state: str) -> None:
    connection.execute("UPDATE deliveries SET state = ?", (state,))


async def test_a_session_that_is_at_work_is_kept_and_one_whose_answer_is_on_its_way_does_not_expire(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        await storage.save(make_session())
        await database.write(partial(fill, session_id="ses_1", turn_id="turn_1"))
        assert not await storage.delete("ses_1", unless="open")
        await database.write(lambda c: c.execute("UPDATE turns SET state = 'finished'").rowcount)
        for state in ("streaming", "pending", "sending"):
            await database.write(partial(set_deliveries, state=state))
            assert not await storage.delete("ses_1", unless="undelivered")
        assert await storage.load("ses_1") is not None
        await database.write(partial(set_deliveries, state="sent"))
        assert await storage.delete("ses_1", unless="undelivered")
        assert await storage.load("ses_1") is None


async def test_a_delete_that_a_crash_interrupted_is_finished_by_the_next_process(tmp_path: Path) -> None:
    """Nobody can reach the session any more, and the rest of its log goes with the next start."""
    log = [entry(f"turn_{n}", 0) for n in range(3 * PURGED)]
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        await storage.save(make_session())
        await storage.append("ses_1", log)

        async def crash(scope: str) -> None:
            raise RuntimeError(scope)

        with pytest.raises(RuntimeError, match="ann"):
            await storage.delete("ses_1", forget=crash)
        assert await storage.load("ses_1") is None
    forgotten: list[tuple[str, str]] = []
    scrubbed: list[bool] = []

    class Outside:
        async def forget(self, session_id: str, scope: str) -> None:
            forgotten.append((session_id, scope))

        async def scrub(self) -> bool:
            scrubbed.append(bool(scrubbed))
            return scrubbed[-1]

    async with open_database(tmp_path) as database:
        manager = SessionManager(SQLiteStorage(database), clock=time.time, outside=Outside())
        await manager.finish_deletes()
        assert forgotten == [("ses_1", "ann")]
        assert database.read("SELECT COUNT(*) FROM entries") == [(0,)]
        assert database.read("SELECT key FROM meta WHERE key LIKE 'deleted%'") == []
        for _ in range(2):
            await manager.finish_deletes()
            assert len(forgotten) == 1 and scrubbed == [False, True], "what is owed is done, once"


async def test_what_was_on_its_way_is_gone_with_the_first_step_of_a_delete(tmp_path: Path) -> None:
    """A crash between that and the rest must not let the next start send it."""
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for name in ("ses_1", "ses_2"):
            await storage.save(make_session(name))
            await database.write(partial(fill, session_id=name, turn_id=f"turn of {name}"))
        await database.write(partial(set_deliveries, state="pending"))

        async def crash(scope: str) -> None:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await storage.delete("ses_1", forget=crash)
        assert database.read("SELECT turn_id FROM deliveries") == [("turn of ses_2",)]


async def test_others_write_while_a_long_session_is_deleted(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for name in ("ses_1", "ses_2"):
            await storage.save(make_session(name))
        await storage.append("ses_1", [entry(f"turn_{n}", 0) for n in range(4 * PURGED)])
        done: list[str] = []

        async def forget(scope: str) -> None:
            turn = asyncio.create_task(storage.append("ses_2", [entry("turn_1", 0)]))
            turn.add_done_callback(lambda _: done.append("append"))

        await storage.delete("ses_1", forget=forget)
        done.append("delete")
        assert done == ["append", "delete"]
        assert database.read("SELECT session_id FROM entries") == [("ses_2",)]


async def test_a_page_reaches_over_a_gap_that_damage_left(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        await storage.save(make_session())
        await storage.append("ses_1", [entry(f"t{n}") for n in range(60)])
        await database.write(
            lambda c: c.execute("DELETE FROM entries WHERE position BETWEEN 20 AND 39").rowcount
        )
        page = await storage.load("ses_1", last=10, before=40)
        assert page is not None and [one.position for one in page.messages] == list(range(10, 20))


async def test_a_damaged_time_or_metadata_of_a_wrong_kind_hides_no_session(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        storage = SQLiteStorage(database)
        for session_id in ("ses_1", "ses_2"):
            await storage.save(make_session(session_id, metadata={"title": "fine", "n": 1}))
        wrong = json.dumps({"title": 7, "cleared": "x", "summary": [], "skills": "a", "model": {}, "n": 1})
        await database.write(
            lambda c: c.execute(
                "UPDATE sessions SET created_at = 'x', updated_at = 'yesterday', metadata = ? WHERE session_id = 'ses_1'",
                (wrong,),
            )
        )
        assert {session.session_id for session in await storage.list()} == {"ses_1", "ses_2"}
        damaged = await storage.load("ses_1")
        assert damaged is not None and (damaged.updated_at, damaged.metadata) == (0.0, {"n": 1})
