"""Long-term memory: what it promises through its public methods, and what is on disk afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from miniclaw.errors import MemoryStoreError
from miniclaw.memory import LongTermMemory, MemoryRecord, index
from miniclaw.memory.models import make_record, parse_record, render_record

TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"))
"""Any text that a person or a model can send."""
CONTENT = TEXT.filter(lambda text: text.strip() != "")


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(tmp_path: Path, clock: Clock) -> LongTermMemory:
    return opened(tmp_path, clock)


def opened(root: Path, clock: Callable[[], float] | None = None) -> LongTermMemory:
    numbers = count(1)
    return LongTermMemory(
        root, clock=clock or Clock(), new_id=lambda prefix: f"{prefix}_{os.getpid()}{next(numbers)}"
    )


@contextmanager
def fresh() -> Iterator[tuple[LongTermMemory, Path]]:
    """A memory of its own for each example of a property."""
    with tempfile.TemporaryDirectory() as directory:
        yield opened(Path(directory)), Path(directory)


async def found(memory: LongTermMemory, scope: str, query: str) -> list[str]:
    return [result.record.content for result in await memory.search(scope, query, 100)]


def file_of(root: Path, scope: str, memory_id: str) -> Path:
    return root / "users" / scope / "memory" / f"{memory_id}.md"


def all_bytes(root: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


# --- save -------------------------------------------------------------------------------------------------


async def test_what_is_saved_is_found_after_a_restart(tmp_path: Path, memory: LongTermMemory) -> None:
    record = await memory.save(
        "alice", "The cat is called Momo", context="about pets", memory_type="episodic"
    )
    assert record.created_at == record.updated_at == "2027-01-15T08:00:00.000Z"
    [result] = await opened(tmp_path).search("alice", "cat")
    assert result.record == record
    assert result.score > 0


async def test_a_record_is_a_readable_file_that_only_the_owner_may_read(
    tmp_path: Path, memory: LongTermMemory
) -> None:
    record = await memory.save("alice", "喜欢喝茶 🍵", category="preference", key="drink")
    path = file_of(tmp_path, "alice", record.memory_id)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("---\n")
    assert text.endswith("---\n喜欢喝茶 🍵\n")
    assert "key: drink\n" in text
    assert path.stat().st_mode & 0o777 == 0o600
    assert {path.parents[level].stat().st_mode & 0o777 for level in range(3)} == {0o700}


async def test_a_known_id_is_updated_and_keeps_its_beginning(memory: LongTermMemory, clock: Clock) -> None:
    first = await memory.save("alice", "old words")
    clock.now += 60
    second = await memory.save("alice", "other text", memory_id=first.memory_id)
    assert (second.memory_id, second.created_at) == (first.memory_id, first.created_at)
    assert second.updated_at > first.updated_at
    assert await found(memory, "alice", "old words other text") == ["other text"]


async def test_an_unknown_id_is_taken_as_given(memory: LongTermMemory) -> None:
    assert (await memory.save("alice", "x", memory_id="mem_mine")).memory_id == "mem_mine"


async def test_an_exact_repeat_only_touches_the_record(memory: LongTermMemory, clock: Clock) -> None:
    first = await memory.save("alice", "tea, no sugar")
    clock.now += 60
    again = await memory.save("alice", "tea, no sugar", source="agent")
    assert again == first.model_copy(update={"updated_at": again.updated_at})
    assert again.updated_at > first.updated_at
    assert len(await memory.list("alice")) == 1


async def test_the_same_words_in_another_context_are_another_record(memory: LongTermMemory) -> None:
    await memory.save("alice", "yes")
    await memory.save("alice", "yes", context="to the trip")
    assert len(await memory.list("alice")) == 2


async def test_a_preference_takes_the_place_of_the_one_before(memory: LongTermMemory) -> None:
    old = await memory.save("alice", "likes blue", category="preference", key="colour")
    other = await memory.save("alice", "likes jazz", category="preference", key="music")
    fact = await memory.save("alice", "paint is blue", key="colour")
    new = await memory.save("alice", "likes red", category="preference", key="colour")
    assert [record.memory_id for record in await memory.list("alice")] == [
        other.memory_id,
        fact.memory_id,
        new.memory_id,
    ]
    assert await found(memory, "alice", "likes blue") != []
    assert "likes blue" not in await found(memory, "alice", "likes blue")
    replaced = await memory.get("alice", old.memory_id)
    assert replaced is not None
    assert (replaced.status, replaced.superseded_by) == ("superseded", new.memory_id)
    await memory.save("alice", "likes green", category="preference", key="colour")
    assert await memory.get("alice", old.memory_id) == replaced, "what was replaced before stays as it was"


async def test_an_unknown_type_counts_as_semantic(memory: LongTermMemory) -> None:
    record = await memory.save("alice", "x", memory_type="rumour")
    assert record.memory_type == "semantic"
    assert record.text == "semantic\nx"


async def test_lone_surrogates_and_nul_become_replacement_characters(memory: LongTermMemory) -> None:
    assert (await memory.save("alice", "a\ud800b\0")).content == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"content": " \n"}, "content"),
        ({"content": "x" * 20_000}, "content"),
        ({"content": "x", "category": "gossip"}, "category"),
        ({"content": "x", "expires_at": "soon"}, "expires_at"),
        ({"content": "x", "key": ""}, "key"),
    ],
)
async def test_a_wrong_value_is_named_and_nothing_is_written(
    tmp_path: Path, memory: LongTermMemory, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(MemoryStoreError, match=f"`{field}`"):
        await memory.save("alice", **arguments)
    assert list(tmp_path.iterdir()) == []


async def test_a_task_expires_and_what_expired_goes_with_the_next_save(
    tmp_path: Path, memory: LongTermMemory, clock: Clock
) -> None:
    task = await memory.save("alice", "call the zahnarzt", category="task")
    assert task.expires_at == "2027-04-15T08:00:00.000Z"
    assert (await memory.save("alice", "a fact")).expires_at is None
    clock.now += 91 * 86_400
    assert "call the zahnarzt" not in await found(memory, "alice", "call")
    await memory.save("alice", "another fact")
    assert b"zahnarzt" not in all_bytes(tmp_path)
    assert len(await memory.list("alice", include_inactive=True)) == 2


async def test_only_the_user_saves_what_is_sensitive(memory: LongTermMemory) -> None:
    for source in ("agent", "tool"):
        with pytest.raises(MemoryStoreError, match="by the user alone"):
            await memory.save("alice", "blood type B", category="sensitive", source=source)
    record = await memory.save("alice", "blood type B", category="sensitive")
    assert record.line.startswith(f"[{record.memory_id}, semantic, 2027-01-15, sensitive] blood")


@pytest.mark.parametrize(
    ("known", "new"),
    [
        ("The user lives in Bonn", "User lives in Graz now"),
        ("User is allergic to nuts", "The user is not allergic to nuts"),
        ("用户住在北京", "用户住在上海"),
        ("用户喜欢喝茶", "用户不喜欢喝茶，喜欢咖啡"),
        ("Standup is at 9:30 every weekday", "The standup moved to 10:00"),
    ],
)
async def test_a_near_repeat_or_a_contradiction_is_shown_and_nothing_is_overwritten(
    memory: LongTermMemory, known: str, new: str
) -> None:
    old = await memory.save("alice", known)
    for content in ("User has two sisters", "用户每周三打羽毛球", "The report is due in June"):
        await memory.save("alice", content)
    assert [record.content for record in await memory.similar("alice", new)] == [known]
    saved = await memory.save("alice", new)
    assert await memory.similar("alice", new, besides=saved.memory_id) == [old]
    assert old in await memory.list("alice")


async def test_what_is_not_current_or_not_to_be_shown_is_not_similar(
    memory: LongTermMemory, clock: Clock
) -> None:
    await memory.save("grp_a", "the code is 4711", category="sensitive")
    gone = await memory.save("grp_a", "the code is 4712")
    await memory.supersede("grp_a", gone.memory_id)
    assert await memory.similar("grp_a", "the code is 4713") == []


async def test_an_update_can_insist_that_nobody_came_between(memory: LongTermMemory, clock: Clock) -> None:
    record = await memory.save("alice", "tea")
    clock.now += 1
    await memory.update("alice", record.memory_id, content="coffee", expected_updated_at=record.updated_at)
    with pytest.raises(MemoryStoreError, match="changed meanwhile; it says now: coffee"):
        await memory.update("alice", record.memory_id, content="milk", expected_updated_at=record.updated_at)
    assert await found(memory, "alice", "tea coffee milk") == ["coffee"]


async def test_a_changed_record_becomes_the_preference_of_its_key(memory: LongTermMemory) -> None:
    old = await memory.save("alice", "likes blue", category="preference", key="colour")
    new = await memory.save("alice", "likes red")
    await memory.update("alice", new.memory_id, category="preference", key="colour")
    assert [record.content for record in await memory.list("alice")] == ["likes red"]
    assert (await memory.get("alice", old.memory_id)) != old


# --- search -----------------------------------------------------------------------------------------------


async def test_the_best_match_comes_first(memory: LongTermMemory) -> None:
    await memory.save("alice", "The dog sleeps")
    await memory.save("alice", "The cat sleeps")
    await memory.save("alice", "The dog of the neighbour barks at the postman every day")
    assert await found(memory, "alice", "sleeping dogs") == [
        "The dog sleeps",
        "The cat sleeps",
        "The dog of the neighbour barks at the postman every day",
    ]
    assert [r.record.content for r in await memory.search("alice", "sleeping dogs", 1)] == ["The dog sleeps"]


async def test_a_rare_word_tells_more_than_a_common_one(memory: LongTermMemory) -> None:
    await memory.save("alice", "a zebra")
    for number in range(5):
        await memory.save("alice", f"holiday {number}")
    assert (await found(memory, "alice", "holiday zebra"))[0] == "a zebra"


async def test_chinese_is_found_by_a_part_of_a_sentence(memory: LongTermMemory) -> None:
    await memory.save("alice", "用户在上海工作，养了一只猫")
    await memory.save("alice", "用户每周三打羽毛球")
    assert await found(memory, "alice", "什么时候打羽毛球？") == ["用户每周三打羽毛球"]


async def test_the_context_is_searched_too(memory: LongTermMemory) -> None:
    await memory.save("alice", "window seat", context="booking the flight to Oslo")
    assert await found(memory, "alice", "oslo") == ["window seat"]


@pytest.mark.parametrize("query", ["", "the of and", "zebra", "---", "的"])
async def test_a_query_without_a_shared_word_finds_nothing(memory: LongTermMemory, query: str) -> None:
    await memory.save("alice", "the cat of the house")
    assert await memory.search("alice", query) == []


async def test_what_expired_is_found_no_more(memory: LongTermMemory, clock: Clock) -> None:
    await memory.save("alice", "parked on level 3", expires_at="2027-01-15T16:01:00+08:00")
    assert len(await memory.list("alice")) == len(await found(memory, "alice", "parked")) == 1
    clock.now += 60
    assert await memory.list("alice") == []
    assert await found(memory, "alice", "parked") == []
    assert len(await memory.list("alice", include_inactive=True)) == 1


async def test_sensitive_records_never_show_in_a_group(memory: LongTermMemory) -> None:
    for scope in ("alice", "grp_a1"):
        await memory.save(scope, "blood type B", category="sensitive")
    assert await found(memory, "alice", "blood type") == ["blood type B"]
    assert await found(memory, "grp_a1", "blood type") == []
    assert await memory.list("grp_a1") == []


async def test_searching_makes_no_directory(tmp_path: Path, memory: LongTermMemory) -> None:
    assert await memory.search("alice", "x") == []
    assert await memory.export("alice") == []
    assert list(tmp_path.iterdir()) == []


# --- change and removal -----------------------------------------------------------------------------------


async def test_update_changes_what_is_given_and_nothing_else(memory: LongTermMemory, clock: Clock) -> None:
    old = await memory.save("alice", "tea", context="breakfast", category="preference", key="drink")
    clock.now += 1
    new = await memory.update("alice", old.memory_id, content="coffee", memory_type="procedural")
    changed = {"content": "coffee", "memory_type": "procedural", "updated_at": "2027-01-15T08:00:01.000Z"}
    assert new == old.model_copy(update=changed)
    assert await memory.get("alice", old.memory_id) == new
    assert await found(memory, "alice", "tea") == []


async def test_an_update_can_take_key_and_expiry_away(memory: LongTermMemory) -> None:
    old = await memory.save("alice", "tea", category="preference", key="drink", expires_at="2999-01-01")
    new = await memory.update("alice", old.memory_id, key="", expires_at="")
    assert (new.key, new.expires_at, new.content) == (None, None, "tea")


async def test_supersede_keeps_the_record_out_of_search(memory: LongTermMemory) -> None:
    old = await memory.save("alice", "lives in Bonn")
    new = await memory.save("alice", "lives in Graz")
    await memory.supersede("alice", old.memory_id, by=new.memory_id)
    assert await found(memory, "alice", "lives") == ["lives in Graz"]
    assert len(await memory.list("alice", include_inactive=True)) == 2


async def test_what_is_not_there_cannot_be_changed(memory: LongTermMemory) -> None:
    for call in (memory.update("alice", "mem_x", content="a"), memory.supersede("alice", "mem_x")):
        with pytest.raises(MemoryStoreError, match="no memory mem_x"):
            await call
    assert await memory.get("alice", "mem_x") is None
    assert await memory.delete("alice", "mem_x") is False


async def test_delete_removes_the_older_versions_too(tmp_path: Path, memory: LongTermMemory) -> None:
    """Who has a preference forgotten does not mean to keep what it was before."""
    for colour in ("blue", "red", "blue"):
        last = await memory.save("alice", f"likes {colour}", category="preference", key="colour")
    await memory.save("alice", "likes jazz", category="preference", key="music")
    assert await memory.delete("alice", last.memory_id) is True
    assert [record.content for record in await memory.list("alice", include_inactive=True)] == ["likes jazz"]
    assert b"blue" not in all_bytes(tmp_path)


async def test_export_and_import_move_everything(tmp_path: Path, memory: LongTermMemory) -> None:
    await memory.save("alice", "likes blue", category="preference", key="colour")
    await memory.save("alice", "likes red", category="preference", key="colour", expires_at="2030-01-01")
    exported = await memory.export("alice")
    assert [entry["status"] for entry in exported] == ["superseded", "active"]
    for _ in range(2):
        assert await memory.import_("bob", exported) == 2
    assert await memory.export("bob") == exported
    assert await memory.export("alice") == exported


async def test_import_fills_in_what_is_missing(memory: LongTermMemory) -> None:
    await memory.import_("alice", [{"content": "only this", "from": "elsewhere"}])
    [record] = await memory.list("alice")
    assert (record.content, record.created_at) == ("only this", "2027-01-15T08:00:00.000Z")


async def test_import_takes_all_or_nothing(memory: LongTermMemory) -> None:
    for bad in ({"content": ""}, {"context": "x"}, {"content": "x", "memory_id": "mem_../x"}, {"content": 5}):
        with pytest.raises(MemoryStoreError):
            await memory.import_("alice", [{"content": "good"}, bad])
    assert await memory.list("alice") == []


async def test_clear_takes_broken_files_and_copies_with_it(tmp_path: Path, memory: LongTermMemory) -> None:
    record = await memory.save("alice", "secret word xyzzy")
    directory = file_of(tmp_path, "alice", record.memory_id).parent
    for name in ("mem_broken.md", f"{record.memory_id}.md~", f".{record.memory_id}.md.tmp"):
        (directory / name).write_text("xyzzy", encoding="utf-8")
    assert await memory.clear("alice") == 2
    assert b"xyzzy" not in all_bytes(tmp_path)
    assert await found(memory, "alice", "xyzzy") == []
    assert await memory.clear("alice") == 0


@pytest.mark.parametrize("action", ["save", "delete"])
async def test_what_a_cut_off_write_left_is_removed(
    tmp_path: Path, memory: LongTermMemory, action: str
) -> None:
    record = await memory.save("alice", "x")
    left = file_of(tmp_path, "alice", "mem_gone").with_name(".mem_gone.md.tmp")
    left.write_text("half a sen", encoding="utf-8")
    later = opened(tmp_path)
    if action == "save":
        await later.save("alice", "y")
    else:
        await later.delete("alice", record.memory_id)
    assert not left.exists()


# --- files by hand ----------------------------------------------------------------------------------------


async def test_changes_by_hand_show_at_the_next_search(tmp_path: Path, memory: LongTermMemory) -> None:
    record = await memory.save("alice", "the bike is green")
    path = file_of(tmp_path, "alice", record.memory_id)
    path.write_text(path.read_text(encoding="utf-8").replace("green", "black"), encoding="utf-8")
    assert await found(memory, "alice", "bike") == ["the bike is black"]
    written = path.with_name("mem_byhand.md")
    written.write_text("---\ncontext: garage\n---\nthe bike has a flat tyre\n", encoding="utf-8")
    assert sorted(await found(memory, "alice", "bike")) == ["the bike has a flat tyre", "the bike is black"]
    path.unlink()
    assert await found(memory, "alice", "bike") == ["the bike has a flat tyre"]


async def test_an_edit_of_the_same_length_shows_when_the_editor_replaces_the_file(
    tmp_path: Path, memory: LongTermMemory
) -> None:
    """Time and size may be the same then; the inode is not."""
    record = await memory.save("alice", "tea or milk")
    path = file_of(tmp_path, "alice", record.memory_id)
    status = path.stat()
    edited = path.with_name("edited")
    edited.write_text(path.read_text(encoding="utf-8").replace("milk", "wine"), encoding="utf-8")
    os.utime(edited, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(edited, path)
    assert await found(memory, "alice", "tea") == ["tea or wine"]


def edit_unseen(path: Path, old: bytes, new: bytes) -> None:
    """Change a file in a way that its status does not tell."""
    status = path.stat()
    with path.open("r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


async def test_unchanged_files_are_not_read_again(tmp_path: Path, memory: LongTermMemory) -> None:
    record = await memory.save("alice", "tea or milk")
    edit_unseen(file_of(tmp_path, "alice", record.memory_id), b"milk", b"wine")
    assert await found(memory, "alice", "tea") == ["tea or milk"]


async def test_only_so_many_scopes_stay_loaded(tmp_path: Path) -> None:
    """A scope that was dropped reads its files again and so shows what nobody could see from their status."""
    memory = LongTermMemory(tmp_path, loaded=2)
    record = await memory.save("alice", "tea or milk")
    edit_unseen(file_of(tmp_path, "alice", record.memory_id), b"milk", b"wine")
    await memory.save("bob", "x")
    assert await found(memory, "alice", "tea") == ["tea or milk"]
    await memory.save("carol", "x")
    assert await found(memory, "alice", "tea") == ["tea or milk"], "bob was used longer ago"
    async with asyncio.TaskGroup() as tasks:
        for name in ("bob", "carol", "dave", "erin"):
            tasks.create_task(memory.save(name, "x"))
    assert await found(memory, "alice", "tea") == ["tea or wine"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"---\nno front matter", "line 1"),
        (b"---\ncategory: gossip\n---\nx\n", "`category`"),
        (b"---\nkey: [a]\n---\nx\n", "`key`"),
        (b"---\nexpires_at: soon\n---\nx\n", "`expires_at`"),
        (b"---\ncontext: x\n---\n\n", "it is empty"),
        (b"---\ncontext: x\n---\n\xff\n", "not UTF-8"),
        (b"---\ncontext: x\n---\n" + b"x" * 300_000, "larger than"),
    ],
)
async def test_a_broken_file_is_logged_once_and_left_alone(
    tmp_path: Path, memory: LongTermMemory, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    await memory.save("alice", "sound x")
    path = file_of(tmp_path, "alice", "mem_bad")
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert await found(memory, "alice", "x") == ["sound x"]
    assert [reason in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(MemoryStoreError, match="mem_bad cannot be read; mend or delete"):
        await memory.save("alice", "new", memory_id="mem_bad")
    with pytest.raises(MemoryStoreError, match="cannot be read"):
        await memory.import_("alice", [{"content": "new", "memory_id": "mem_bad"}])
    assert path.read_bytes() == content
    assert await memory.delete("alice", "mem_bad") is True
    assert not path.exists()


async def test_links_and_foreign_files_are_not_read(tmp_path: Path, memory: LongTermMemory) -> None:
    bob = await memory.save("bob", "the code is 4711")
    alice = await memory.save("alice", "hello")
    directory = file_of(tmp_path, "alice", alice.memory_id).parent
    (directory / "mem_link.md").symlink_to(file_of(tmp_path, "bob", bob.memory_id))
    (directory / "mem_dir.md").mkdir()
    (directory / alice.memory_id).write_text("---\na: b\n---\ncode\n", encoding="utf-8")
    (directory / "notes.md").write_text("---\na: b\n---\ncode\n", encoding="utf-8")
    assert await found(memory, "alice", "code") == []
    assert len(await memory.export("alice")) == 1


async def test_a_failing_disk_is_our_error_and_the_old_file_stays(
    tmp_path: Path, memory: LongTermMemory
) -> None:
    record = await memory.save("alice", "old")
    path = file_of(tmp_path, "alice", record.memory_id)
    # A directory in the way of the temporary file stands for any failure to write it.
    path.with_name(f".{path.name}.{os.getpid()}.tmp").mkdir()
    with pytest.raises(MemoryStoreError, match="cannot write"):
        await memory.update("alice", record.memory_id, content="new")
    assert await found(memory, "alice", "old new") == ["old"]
    (tmp_path / "users" / "bob").write_text("in the way", encoding="utf-8")
    with pytest.raises(MemoryStoreError, match="cannot read"):
        await memory.search("bob", "x")


# --- walls ------------------------------------------------------------------------------------------------

BAD_SCOPES = [
    "",
    "Alice",
    "../alice",
    "a/b",
    "a" * 33,
    "alice\n",
    ".",
    "grp_",
    "grp_A",
    "grp_a-b",
    "grp_a/../b",
    "9a",
]
BAD_IDS = ["", "mem_", "mem_A", "mem_../x", "mem_" + "a" * 65, "mem_a\n", "x", "mem_a.md", "mem_ä"]


@pytest.mark.parametrize("scope", BAD_SCOPES)
async def test_a_scope_that_is_no_id_is_refused(tmp_path: Path, memory: LongTermMemory, scope: str) -> None:
    with pytest.raises(MemoryStoreError, match="neither a user id nor a group id"):
        await memory.save(scope, "x")
    with pytest.raises(MemoryStoreError):
        await memory.clear(scope)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory_id", BAD_IDS)
async def test_an_id_that_is_none_is_refused(tmp_path: Path, memory: LongTermMemory, memory_id: str) -> None:
    calls = [
        memory.save("alice", "x", memory_id=memory_id),
        memory.get("alice", memory_id),
        memory.update("alice", memory_id, content="x"),
        memory.supersede("alice", memory_id),
        memory.supersede("alice", "mem_a", by=memory_id or "-"),
        memory.delete("alice", memory_id),
        memory.import_("alice", [{"content": "x", "memory_id": memory_id}]),
    ]
    for call in calls:
        with pytest.raises(MemoryStoreError):
            await call
    assert list(tmp_path.iterdir()) == []


async def test_groups_and_users_have_directories_of_their_own(tmp_path: Path, memory: LongTermMemory) -> None:
    await memory.save("grp_ab12", "x")
    await memory.save("grpab12", "x")
    assert len(list((tmp_path / "groups" / "grp_ab12" / "memory").iterdir())) == 1
    assert len(list((tmp_path / "users" / "grpab12" / "memory").iterdir())) == 1


SCOPES = ["a", "ab", "a_b", "a-b", "grp_a", "grp_ab", "grp", "mem_a"]
"""Prefixes of each other, and what could be mistaken for something else."""


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from(["mem_a", "mem_ab", None])), max_size=12))
def test_no_scope_ever_sees_anothers_record(saves: list[tuple[str, str | None]]) -> None:
    async def run() -> None:
        with fresh() as (memory, _):
            for scope, memory_id in saves:
                await memory.save(scope, f"common word of {scope}", memory_id=memory_id)
            for scope in SCOPES:
                own = {f"common word of {scope}"} if scope in dict(saves) else set()
                assert set(await found(memory, scope, "common word")) == own
                assert {entry["content"] for entry in await memory.export(scope)} == own
                record = await memory.get(scope, "mem_a")
                assert record is None or record.content in own

    asyncio.run(run())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "ab"]), st.integers(0, 3), st.booleans()), max_size=8),
    st.booleans(),
)
def test_nothing_of_a_text_is_left_after_it_was_deleted(
    saves: list[tuple[str, int, bool]], clears: bool
) -> None:
    async def run() -> None:
        with fresh() as (memory, root):
            for scope, number, is_preference in saves:
                await memory.save(
                    scope,
                    f"word{number} of {scope}.",
                    context=f"context of {scope}.",
                    category="preference" if is_preference else "fact",
                    key="k" if is_preference else None,
                )
            if clears:
                await memory.clear("a")
            else:
                for record in await memory.list("a"):
                    await memory.delete("a", record.memory_id)
            assert b" of a." not in all_bytes(root)
            assert (b" of ab." in all_bytes(root)) == any(scope == "ab" for scope, *_ in saves)

    asyncio.run(run())


# --- at the same time -------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["alice", "bob", "grp_a"]), st.integers(0, 5)), max_size=24))
def test_saves_at_the_same_time_lose_nothing(saves: list[tuple[str, int]]) -> None:
    async def run() -> None:
        with fresh() as (memory, root):
            async with asyncio.TaskGroup() as tasks:
                for scope, number in saves:
                    tasks.create_task(memory.save(scope, f"text {number}"))
            for current in (memory, opened(root)):
                for scope in ("alice", "bob", "grp_a"):
                    kept = [record.content for record in await current.list(scope)]
                    assert sorted(kept) == sorted({f"text {n}" for name, n in saves if name == scope})

    asyncio.run(run())


async def test_a_call_whose_caller_is_cancelled_is_still_done_as_a_whole(tmp_path: Path) -> None:
    """And the next call waits for it, though the lock of the cancelled one is free already."""
    inside, let_go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    is_slow = False

    def clock() -> float:
        if is_slow and threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(inside.set)
            assert let_go.wait(10)
        return 1_800_000_000.0

    memory = opened(tmp_path, clock)
    record = await memory.save("alice", "one")
    is_slow = True
    update = asyncio.create_task(memory.update("alice", record.memory_id, content="two"))
    async with asyncio.timeout(10):
        await inside.wait()
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        is_slow = False
        save = asyncio.create_task(memory.save("alice", "two", memory_id=record.memory_id, context="last"))
        await asyncio.sleep(0)
        let_go.set()
        await save
    assert await memory.get("alice", record.memory_id) == save.result()


async def test_a_busy_scope_holds_up_neither_the_loop_nor_other_scopes(tmp_path: Path) -> None:
    """More calls wait for it than there are threads."""
    let_go = threading.Event()
    is_first = threading.Lock()

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread() and is_first.acquire(blocking=False):
            assert let_go.wait(10)
        return 1_800_000_000.0

    memory = opened(tmp_path, clock)
    busy = [asyncio.create_task(memory.search("alice", "x")) for _ in range(64)]
    async with asyncio.timeout(5):
        while not is_first.locked():
            await asyncio.sleep(0)
        assert await memory.search("bob", "x") == []
        assert not any(task.done() for task in busy)
        let_go.set()
        assert await asyncio.gather(*busy) == [[]] * 64


# --- the file format --------------------------------------------------------------------------------------


@given(CONTENT, TEXT, TEXT.filter(bool).map(lambda text: text[:200]))
@example("---\na: b\n---\n", "\n---\n", "---")
@example("\"quoted\": 'x'\r\n\t- [a]\r", "# not: a comment", "null")
@example("\ufeffmark 🙂\x85\u2028\x1b", "true", "1_000")
@example("ends with lines\n\n", " blanks ", "~")
@example("x", "\x85", "...")
def test_any_text_survives_the_file(content: str, context: str, key: str) -> None:
    record = make_record(
        {
            "memory_id": "mem_a",
            "content": content,
            "context": context,
            "key": key,
            "created_at": "2026-01-31",
            "updated_at": "2026-01-31T10:00:00.5+02:00",
        }
    )
    data = render_record(record).encode("utf-8")
    assert parse_record(data.decode("utf-8"), memory_id="mem_a", modified=0) == record


@given(TEXT)
def test_any_file_is_a_record_or_refused(text: str) -> None:
    for candidate in (text, f"---\n{text}\n---\nx", f"---\ncontext: x\n---\n{text}"):
        try:
            assert isinstance(parse_record(candidate, memory_id="mem_a", modified=0), MemoryRecord)
        except MemoryStoreError:
            pass


def test_times_by_hand_take_one_form() -> None:
    record = parse_record(
        "---\ncreated_at: 2026-01-31 08:00+08:00\n---\nx\n", memory_id="mem_a", modified=1.5
    )
    assert record.created_at == "2026-01-31T00:00:00.000Z"
    assert record.updated_at == "1970-01-01T00:00:01.500Z"


# --- several processes ------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from pathlib import Path
from miniclaw.errors import MemoryStoreError
from miniclaw.memory.long_term import LongTermMemory

async def main(root, who):
    memory, done = LongTermMemory(Path(root)), 0
    for number in range(25):
        saved = await memory.save("ann", f"{who} fact {number}")
        if number % 3 == 0:
            assert await memory.delete("ann", saved.memory_id)
        assert len(await memory.search("ann", f"{who} fact")) > 0 or number == 0
    while done < 25:
        old = await memory.get("ann", "mem_count")
        try:
            value = str(int(old.content) + 1)
            await memory.update("ann", "mem_count", content=value, expected_updated_at=old.updated_at)
            done += 1
        except MemoryStoreError as error:
            assert "was changed meanwhile" in str(error), error

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_on_one_directory_lose_no_save_and_no_update(
    tmp_path: Path, memory: LongTermMemory
) -> None:
    await memory.save("ann", "0", memory_id="mem_count")
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, who], stderr=subprocess.PIPE) for who in "AB"]
    said = [await asyncio.to_thread(writer.communicate, timeout=60) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    count = await memory.get("ann", "mem_count")
    assert count is not None and count.content == "50"
    assert len(await memory.list("ann")) == 1 + 2 * (25 - 9)
    assert not [path for path in (tmp_path / "users/ann/memory").iterdir() if path.suffix != ".md"]


async def test_two_changes_in_the_same_moment_are_told_apart(tmp_path: Path) -> None:
    memory = LongTermMemory(tmp_path, clock=lambda: 1.8e9)
    old = await memory.save("ann", "0")
    await memory.update("ann", old.memory_id, content="A", expected_updated_at=old.updated_at)
    with pytest.raises(MemoryStoreError, match="was changed meanwhile"):
        await memory.update("ann", old.memory_id, content="B", expected_updated_at=old.updated_at)


async def test_of_many_files_what_was_added_is_seen_at_once_and_an_edit_in_place_soon(
    tmp_path: Path, memory: LongTermMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.import_("ann", [{"content": f"fact {number}"} for number in range(index.FEW)])
    bike = await memory.save("ann", "the bike is green")
    assert await found(memory, "ann", "bike") == ["the bike is green"]
    other = await LongTermMemory(tmp_path).save("ann", "the bike is old")
    assert sorted(await found(memory, "ann", "bike")) == ["the bike is green", "the bike is old"]
    assert await LongTermMemory(tmp_path).delete("ann", other.memory_id)
    assert await found(memory, "ann", "bike") == ["the bike is green"]
    path = file_of(tmp_path, "ann", bike.memory_id)
    path.write_text(path.read_text(encoding="utf-8").replace("green", "black and white"), encoding="utf-8")
    monkeypatch.setattr(index, "SCAN_SECONDS", -1.0)
    assert await found(memory, "ann", "bike") == ["the bike is black and white"]


async def test_of_two_active_preferences_of_a_key_that_a_crash_left_the_later_counts(
    tmp_path: Path, memory: LongTermMemory, clock: Clock
) -> None:
    old = await memory.save("ann", "call me Zhou", category="preference", key="name")
    before = file_of(tmp_path, "ann", old.memory_id).read_bytes()
    clock.now += 1
    new = await memory.save("ann", "call me Wang", category="preference", key="name")
    file_of(tmp_path, "ann", old.memory_id).write_bytes(before)
    again = opened(tmp_path)
    assert await found(again, "ann", "call me") == ["call me Wang"]
    assert [record.content for record in await again.list("ann")] == ["call me Wang"]
    assert await again.delete("ann", new.memory_id)
    assert await found(again, "ann", "call me") == ["call me Zhou"]


async def test_clear_takes_directories_below_with_it(tmp_path: Path, memory: LongTermMemory) -> None:
    record = await memory.save("ann", "x")
    below = file_of(tmp_path, "ann", record.memory_id).parent / "old"
    below.mkdir()
    (below / "copy.md").write_text("x", encoding="utf-8")
    await memory.clear("ann")
    assert list(below.parent.iterdir()) == []


async def test_days_are_those_of_this_machines_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        now = datetime(2026, 11, 30, 23, 30, tzinfo=UTC).timestamp()  # Tuesday 07:30 in Shanghai
        memory = LongTermMemory(tmp_path, clock=lambda: now)
        await memory.save("ann", "dinner with Li", memory_id="mem_today")
        now -= 86_400
        await memory.save("ann", "dinner with Wu", memory_id="mem_yesterday")
        now += 86_400
        hits = await memory.search("ann", "昨天 dinner")
        assert [hit.record.memory_id for hit in hits][0] == "mem_yesterday"
        assert "2026-12-01" in next(hit.record.line for hit in hits if hit.record.memory_id == "mem_today")
    finally:
        monkeypatch.undo()
        time.tzset()
