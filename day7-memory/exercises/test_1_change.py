"""运行：pytest exercises/test_1_change.py"""

from day7_memory import MemoryRecord
from ex_1_change import lines_of


def record(number: int, content: str, day: str) -> MemoryRecord:
    moment = f"{day}T08:00:00.000Z"
    return MemoryRecord(memory_id=f"mem_{number}", content=content, created_at=moment, updated_at=moment)


def test_the_latest_comes_first_with_its_day() -> None:
    records = [record(1, "住在杭州", "2025-03-01"), record(2, "住在上海", "2026-01-02")]
    wanted = ["2026-01-02 住在上海", "2025-03-01 住在杭州"]
    assert lines_of(records) == wanted, "提示：先 sorted(…, reverse=True)，RFC 3339 的时间按字符串比就行。"
