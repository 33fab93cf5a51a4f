"""两种存储，同一份约定；文件坏了也读得出好的。"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from day3_session import (
    Entry,
    FileStorage,
    InMemoryStorage,
    Session,
    SessionStorage,
    StorageError,
    StorageUnavailable,
)


@pytest.fixture(params=["memory", "files"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStorage:
    return InMemoryStorage() if request.param == "memory" else FileStorage(tmp_path / "sessions")


def session(
    session_id: str = "ses_1", user_id: str = "alice", *, created_at: float = 0.0, updated_at: float = 0.0
) -> Session:
    return Session(
        session_id=session_id,
        user_id=user_id,
        channel="web",
        created_at=created_at,
        updated_at=updated_at,
    )


def entry(text: str, turn_id: str = "t1", step: int = 0) -> Entry:
    return Entry(turn_id, step, {"role": "user", "content": text})


def texts(found: Session | None) -> list[str]:
    assert found is not None
    return [one.message["content"] for one in found.messages]


async def test_what_was_saved_is_loaded(storage: SessionStorage) -> None:
    assert await storage.load("ses_1") is None
    await storage.save(session(created_at=5.0))
    await storage.append("ses_1", [entry("4471 到哪了？"), entry("已发货", step=1)])
    found = await storage.load("ses_1")
    assert texts(found) == ["4471 到哪了？", "已发货"]
    assert found is not None and found.created_at == 5.0
    assert [one.position for one in found.messages] == [0, 1]
    assert texts(await storage.load("ses_1", last=1)) == ["已发货"]
    assert texts(await storage.load("ses_1", last=0)) == []


async def test_a_step_that_is_there_is_not_stored_again(storage: SessionStorage) -> None:
    await storage.save(session())
    await storage.append("ses_1", [entry("a"), entry("a")])
    await storage.append("ses_1", [entry("a"), entry("b", step=1)])
    assert texts(await storage.load("ses_1")) == ["a", "b"]


async def test_saving_again_leaves_the_log(storage: SessionStorage) -> None:
    await storage.save(session())
    await storage.append("ses_1", [entry("a")])
    await storage.save(session(updated_at=9.0))
    found = await storage.load("ses_1")
    assert texts(found) == ["a"] and found is not None and found.updated_at == 9.0


async def test_nothing_is_appended_to_a_session_that_is_not_there(storage: SessionStorage) -> None:
    with pytest.raises(StorageError, match="ses_1"):
        await storage.append("ses_1", [entry("a")])


async def test_sessions_are_listed_by_user_latest_first_and_deleted(storage: SessionStorage) -> None:
    await storage.save(session("ses_1", updated_at=1.0))
    await storage.save(session("ses_2", updated_at=2.0))
    await storage.save(session("ses_3", "bob", updated_at=3.0))
    assert [one.session_id for one in await storage.list("alice")] == ["ses_2", "ses_1"]
    assert len(await storage.list()) == 3
    assert await storage.delete("ses_2") is True
    assert await storage.delete("ses_2") is False
    assert await storage.load("ses_2") is None


async def test_what_was_loaded_is_a_copy(storage: SessionStorage) -> None:
    await storage.save(session())
    await storage.append("ses_1", [entry("a")])
    found = await storage.load("ses_1")
    assert found is not None
    found.metadata["title"] = "changed"
    found.messages.clear()
    assert texts(await storage.load("ses_1")) == ["a"]
    again = await storage.load("ses_1")
    assert again is not None and again.metadata == {}


async def test_a_new_process_reads_the_files(tmp_path: Path) -> None:
    await FileStorage(tmp_path).save(session())
    await FileStorage(tmp_path).append("ses_1", [entry("a")])
    await FileStorage(tmp_path).append("ses_1", [entry("a"), entry("b", step=1)])
    assert texts(await FileStorage(tmp_path).load("ses_1")) == ["a", "b"]


@pytest.mark.parametrize("left", [b'{"turn_id": "t2", "st', b"garbage\n", b"[]\n", b"\xff\n"])
async def test_what_a_crash_left_is_set_aside_and_the_rest_is_kept(
    tmp_path: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FileStorage(tmp_path)
    await storage.save(session())
    await storage.append("ses_1", [entry("a")])
    with (tmp_path / "ses_1.jsonl").open("ab") as log:
        log.write(left)
    fresh = FileStorage(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert texts(await fresh.load("ses_1")) == ["a"]
    assert left.strip() in (tmp_path / "ses_1.jsonl.corrupt").read_bytes()
    await fresh.append("ses_1", [entry("b", "t2")])
    assert texts(await FileStorage(tmp_path).load("ses_1")) == ["a", "b"]


async def test_a_last_line_without_its_end_is_kept_and_ended(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    await storage.save(session())
    await storage.append("ses_1", [entry("a")])
    log = tmp_path / "ses_1.jsonl"
    log.write_bytes(log.read_bytes().rstrip(b"\n"))
    fresh = FileStorage(tmp_path)
    await fresh.append("ses_1", [entry("b", "t2")])
    assert texts(await FileStorage(tmp_path).load("ses_1")) == ["a", "b"]


async def test_a_session_whose_file_is_damaged_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "ses_1.json").write_bytes(b"{")
    assert await FileStorage(tmp_path).load("ses_1") is None
    assert (tmp_path / "ses_1.json.corrupt").exists()


@pytest.mark.parametrize("bad", ["../x", "a/b", "", "A", "a.json", "x" * 101])
async def test_an_id_cannot_lead_out_of_the_directory(tmp_path: Path, bad: str) -> None:
    with pytest.raises(StorageError, match="no id"):
        await FileStorage(tmp_path).load(bad)


async def test_a_crash_while_writing_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    await storage.save(session(updated_at=1.0))

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageUnavailable, match="no space left"):
        await storage.save(session(updated_at=2.0))
    found = await FileStorage(tmp_path).load("ses_1")
    assert found is not None and found.updated_at == 1.0


async def test_a_failed_append_is_read_anew_and_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    await storage.save(session())
    await storage.append("ses_1", [entry("a")])
    real: Callable[..., object] = Path.open

    def refuse(path: Path, *args: str, **more: str) -> object:
        if path.suffix == ".jsonl":
            raise OSError("read-only file system")
        return real(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(StorageUnavailable):
            await storage.append("ses_1", [entry("b", step=1)])
    await storage.append("ses_1", [entry("b", step=1)])
    assert texts(await storage.load("ses_1")) == ["a", "b"]


async def test_many_at_once_lose_nothing(storage: SessionStorage) -> None:
    await storage.save(session())
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(storage.append("ses_1", [entry(str(number), f"t{number}")]))
    assert sorted(map(int, texts(await storage.load("ses_1")))) == list(range(20))


@pytest.mark.parametrize("bad", ["\ud800", object()])
async def test_what_cannot_be_written_is_refused_and_changes_nothing(tmp_path: Path, bad: object) -> None:
    storage = FileStorage(tmp_path)
    await storage.save(session())
    wrong = Entry("t1", 0, {"role": "user", "content": bad})
    with pytest.raises(StorageError, match="cannot be written"):
        await storage.append("ses_1", [wrong])
    changed = session()
    changed.metadata["title"] = bad
    with pytest.raises(StorageError, match="cannot be written"):
        await storage.save(changed)
    await storage.append("ses_1", [entry("a")])
    assert wrong.position == -1 and texts(await FileStorage(tmp_path).load("ses_1")) == ["a"]
