"""加：让旧事淡去。

写 `forget_old`：删掉 `scope` 里所有 `episodic` 的、`updated_at` 早于 `before`（RFC 3339）的记忆，返回删了几条。
事实和做法（`semantic`、`procedural`）再旧也不删。
"""

from __future__ import annotations

from day7_memory import LongTermMemory


async def forget_old(memory: LongTermMemory, scope: str, before: str) -> int:
    return 0
