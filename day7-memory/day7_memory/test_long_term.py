"""长期记忆：一件事一个文件，按词找，手改算数。"""

import asyncio
from pathlib import Path

import pytest

from day7_memory import LongTermMemory, MemoryRecord, MemoryStoreError
from day7_memory.models import parse_record, render_record


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(tmp_path: Path, clock: Clock) -> LongTermMemory:
    return LongTermMemory(tmp_path, clock=clock)


def directory(root: Path, user: str = "alice") -> Path:
    return root / "users" / user / "memory"


async def test_what_was_saved_is_found_by_the_words_it_shares(memory: LongTermMemory) -> None:
    await memory.save("alice", "我的快递只用顺丰速运", context="下单时说的")
    await memory.save("alice", "allergic to peanuts", memory_type="semantic")
    await memory.save("alice", "去年在杭州买过一双鞋", memory_type="episodic")
    found = await memory.search("alice", "快递用哪家？")
    assert [one.record.content for one in found] == ["我的快递只用顺丰速运"]
    assert found[0].score > 0
    assert (await memory.search("alice", "Peanuts?"))[0].record.content == "allergic to peanuts"
    assert await memory.search("alice", "天气") == []
    assert len(await memory.search("alice", "快递 peanuts 杭州", limit=2)) == 2


async def test_each_has_its_own(memory: LongTermMemory) -> None:
    await memory.save("alice", "住在杭州")
    assert await memory.search("bob", "住在哪里") == []
    assert await memory.list("bob") == []


async def test_the_same_again_is_no_second_memory(memory: LongTermMemory, clock: Clock) -> None:
    first = await memory.save("alice", "住在杭州")
    clock.now += 60
    again = await memory.save("alice", "住在杭州")
    assert again.memory_id == first.memory_id and again.created_at == first.created_at
    assert again.updated_at > first.updated_at
    replaced = await memory.save("alice", "住在上海", memory_id=first.memory_id)
    assert [one.content for one in await memory.list("alice")] == ["住在上海"]
    assert replaced.created_at == first.created_at


async def test_an_edit_by_hand_counts_at_once(memory: LongTermMemory, tmp_path: Path) -> None:
    record = await memory.save("alice", "住在杭州")
    path = directory(tmp_path) / f"{record.memory_id}.md"
    path.write_text(path.read_text(encoding="utf-8").replace("杭州", "上海"), encoding="utf-8")
    (directory(tmp_path) / "mem_own.md").write_text("喜欢红色\n", encoding="utf-8")
    assert {one.content for one in await memory.list("alice")} == {"住在上海", "喜欢红色"}


async def test_a_file_that_cannot_be_read_hides_only_itself(memory: LongTermMemory, tmp_path: Path) -> None:
    await memory.save("alice", "住在杭州")
    (directory(tmp_path) / "mem_bad.md").write_bytes(b"\xff")
    (directory(tmp_path) / "mem_empty.md").write_text("---\nmemory_type: dream\n---\nx\n", encoding="utf-8")
    assert [one.content for one in await memory.list("alice")] == ["住在杭州"]


async def test_forgetting(memory: LongTermMemory, tmp_path: Path) -> None:
    record = await memory.save("alice", "住在杭州")
    await memory.save("alice", "喜欢红色")
    assert await memory.get("alice", record.memory_id) == record
    assert await memory.delete("alice", record.memory_id) is True
    assert await memory.delete("alice", record.memory_id) is False
    assert await memory.get("alice", record.memory_id) is None
    assert await memory.clear("alice") == 1
    assert not directory(tmp_path).exists()


async def test_what_is_still_there_was_not_forgotten(memory: LongTermMemory, tmp_path: Path) -> None:
    await memory.save("alice", "住在杭州")
    directory(tmp_path).rename(tmp_path / "elsewhere")
    directory(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MemoryStoreError, match="cannot be used"):
        await memory.clear("alice")
    assert len(await memory.list("alice")) == 1
    assert await memory.clear("bob") == 0


async def test_every_line_end_comes_back_and_editors_of_windows_are_read(
    memory: LongTermMemory, tmp_path: Path
) -> None:
    saved = await memory.save("alice", "一\r\n二", context="说\u2028的")
    (known,) = await memory.list("alice")
    assert known == saved
    head = "\ufeff---\r\nmemory_type: episodic\r\n---\r\n买过鞋\r\n"
    (directory(tmp_path) / "mem_own.md").write_bytes(head.encode())
    own = await memory.get("alice", "mem_own")
    assert own is not None and (own.memory_type, own.content) == ("episodic", "买过鞋")
    with pytest.raises(MemoryStoreError, match="cannot be used"):
        await memory.save("alice", "x", context="\ud800")
    assert len(await memory.list("alice")) == 2


@pytest.mark.parametrize("scope", ["../bob", "Alice", "", "a/b"])
async def test_nobody_leads_out_of_the_directory(memory: LongTermMemory, scope: str) -> None:
    with pytest.raises(MemoryStoreError, match="no user id"):
        await memory.list(scope)
    with pytest.raises(MemoryStoreError, match="no memory id"):
        await memory.delete("alice", scope)


@pytest.mark.parametrize(
    ("content", "kind"), [("  ", "semantic"), ("x" * 20_000, "semantic"), ("x", "dream")]
)
async def test_what_cannot_be_remembered_is_refused(memory: LongTermMemory, content: str, kind: str) -> None:
    with pytest.raises(MemoryStoreError, match="cannot be used"):
        await memory.save("alice", content, memory_type=kind)


async def test_a_failed_write_leaves_what_was_there(
    memory: LongTermMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await memory.save("alice", "住在杭州")

    def full(_: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(MemoryStoreError, match="no space left"):
            await memory.save("alice", "住在上海", memory_id=record.memory_id)
    assert [one.content for one in await memory.list("alice")] == ["住在杭州"]


async def test_many_at_once(memory: LongTermMemory) -> None:
    await asyncio.gather(*(memory.save("alice", f"订单 {number}") for number in range(10)))
    assert len(await memory.list("alice")) == 10


@pytest.mark.parametrize("content", ["一行", "两行\n第二行\n", "---\nkey: value\n---", '"引号" \\ 反斜线'])
def test_a_record_goes_through_its_file_unchanged(content: str) -> None:
    record = MemoryRecord(
        memory_id="mem_1", content=content, context='说 "这个"\n的时候', created_at="a", updated_at="b"
    )
    assert parse_record(render_record(record), memory_id="mem_1", modified=0.0) == record


def test_a_head_written_by_hand_needs_no_quotes() -> None:
    text = '---\nmemory_type: episodic\ncontext: 在店里\ncreated_at: "x\n---\n买过鞋'
    record = parse_record(text, memory_id="mem_1", modified=0.0)
    assert (record.memory_type, record.context, record.created_at) == ("episodic", "在店里", '"x')
    assert record.updated_at == "1970-01-01T00:00:00.000Z"
