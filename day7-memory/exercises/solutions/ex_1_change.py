"""改：新的旧的分不清（答案）。"""

from __future__ import annotations

from day7_memory import MemoryRecord


def lines_of(records: list[MemoryRecord]) -> list[str]:
    latest = sorted(records, key=lambda record: record.updated_at, reverse=True)
    return [f"{record.updated_at[:10]} {record.content}" for record in latest]
