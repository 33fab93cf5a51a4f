"""弄坏它：让一条记录不见（答案）。

`NaiveStorage` 把整个会话读出来、改、再整份写回去。写一段 `lose`：用两个同时进行的 `append`，
让其中一条消失。（提示：读和写之间有一个 `await`。）
"""

from __future__ import annotations

import asyncio


class NaiveStorage:
    def __init__(self) -> None:
        self.log: list[str] = []

    async def append(self, text: str) -> None:
        log = list(self.log)
        await asyncio.sleep(0)  # 磁盘在转
        self.log = [*log, text]


async def lose(storage: NaiveStorage) -> None:
    await asyncio.gather(storage.append("4471"), storage.append("4472"))
