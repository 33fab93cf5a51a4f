"""改：新的旧的分不清。

记忆里有“住在杭州”，后来又有“住在上海”。`lines_of` 把它们写进提示词，可是没有日期，顺序也乱，模型只能猜。
改到每行开头是更新的日期（`updated_at` 的前十个字符）加一个空格，最近更新的排在最前面。
"""

from __future__ import annotations

from day7_memory import MemoryRecord


def lines_of(records: list[MemoryRecord]) -> list[str]:
    return [record.content for record in records]
