"""加：让旧事淡去（答案）。"""

from __future__ import annotations

from day7_memory import LongTermMemory


async def forget_old(memory: LongTermMemory, scope: str, before: str) -> int:
    count = 0
    for record in await memory.list(scope):
        if record.memory_type == "episodic" and record.updated_at < before:
            count += await memory.delete(scope, record.memory_id)
    return count
