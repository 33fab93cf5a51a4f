"""运行：pytest exercises/test_2_add.py"""

from pathlib import Path

from day7_memory import LongTermMemory
from ex_2_add import forget_old


async def test_only_what_happened_long_ago_fades(tmp_path: Path) -> None:
    moments = iter([1_600_000_000.0, 1_600_000_001.0, 1_700_000_000.0])
    memory = LongTermMemory(tmp_path, clock=lambda: next(moments))
    await memory.save("alice", "买过一双鞋", memory_type="episodic")
    await memory.save("alice", "住在杭州")
    await memory.save("alice", "退过一件衣服", memory_type="episodic")
    hint = "提示：memory.list 给出全部；看 memory_type 和 updated_at，再 memory.delete。"
    assert await forget_old(memory, "alice", "2021-01-01T00:00:00.000Z") == 1, hint
    assert {one.content for one in await memory.list("alice")} == {"住在杭州", "退过一件衣服"}, hint
