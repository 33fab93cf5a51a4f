"""长期记忆：一个人一个目录，一件事一个 Markdown 文件，按共有的词找。文件就是真相，手改马上算数。"""

import asyncio
import logging
import math
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from day7_memory import models
from day7_memory.models import MemoryRecord, MemorySearchResult, MemoryStoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

USER_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_HAN: Final = re.compile("[\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]+")  # 汉字和假名


class LongTermMemory:
    """所有人的记忆，放在 `root/users/<谁>/memory/`；给一个进程用，文件操作在线程里，一次一个。"""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._root, self._clock = root, clock
        self._lock = asyncio.Lock()

    async def save(
        self,
        scope: str,
        content: str,
        *,
        context: str = "",
        memory_type: str = "semantic",
        memory_id: str | None = None,
    ) -> MemoryRecord:
        """记住一件事。一字不差的已经有了，就只更新时间；给了 `memory_id` 就换掉那一条。"""
        now, name = models.moment_of(self._clock()), memory_id or f"mem_{secrets.token_hex(12)}"
        fields = {"content": content, "context": context, "memory_type": memory_type}
        draft = models.make_record({**fields, "created_at": now, "updated_at": now, "memory_id": name})

        def work(directory: Path) -> MemoryRecord:
            for known in _read_all(directory):
                if known.memory_id == memory_id or (memory_id is None and known.content == content):
                    kept = {"memory_id": known.memory_id, "created_at": known.created_at}
                    return _write(directory, draft.model_copy(update=kept))
            return _write(directory, draft)

        return await self._run(scope, work)

    async def search(self, scope: str, query: str, limit: int = 5) -> list[MemorySearchResult]:
        """和问题有共同词的，最像的在前。"""
        return rank(await self._run(scope, _read_all), query)[:limit]

    async def get(self, scope: str, memory_id: str) -> MemoryRecord | None:
        """那一条，或者 `None`。"""
        name = _checked(memory_id)
        records = await self._run(scope, _read_all)
        return next((record for record in records if record.memory_id == name), None)

    async def delete(self, scope: str, memory_id: str) -> bool:
        """忘掉一条；返回有没有。"""
        name = f"{_checked(memory_id)}.md"

        def work(directory: Path) -> bool:
            existed = (directory / name).exists()
            (directory / name).unlink(missing_ok=True)
            return existed

        return await self._run(scope, work)

    async def clear(self, scope: str) -> int:
        """这个人的全部忘掉；返回有几条。"""

        def work(directory: Path) -> int:
            count = len(_read_all(directory))
            if directory.exists():
                shutil.rmtree(directory)
            return count

        return await self._run(scope, work)

    async def list(self, scope: str) -> list[MemoryRecord]:
        """全部，先记的在前。"""
        return await self._run(scope, _read_all)

    async def _run(self, scope: str, work: Callable[[Path], T]) -> T:
        if not USER_ID.fullmatch(scope):
            raise MemoryStoreError(f"{scope[:80]!r} is no user id")
        async with self._lock:
            try:
                return await asyncio.to_thread(work, self._root / "users" / scope / "memory")
            except (OSError, UnicodeError) as error:
                raise MemoryStoreError(f"the memory of {scope} cannot be used: {error}") from error


def rank(records: list[MemoryRecord], query: str) -> list[MemorySearchResult]:
    """共有的词越多、越少见，越像；太长的记忆打折，免得什么都沾一点边的排在前面。"""
    wanted, texts = words(query, False), [words(f"{record.content} {record.context}") for record in records]
    spread = Counter(word for text in texts for word in text)
    found = []
    for record, text in zip(records, texts, strict=True):
        shared = wanted.keys() & text.keys()
        score = sum(math.log(1 + len(records) / spread[word]) for word in shared) / math.sqrt(len(text) or 1)
        if score:
            found.append(MemorySearchResult(record, score))
    return sorted(found, key=lambda result: (-result.score, result.record.memory_id))


def words(text: str, singly: bool = True) -> Counter[str]:
    """英文按词，汉字和假名按相邻的两个：不用分词也能找到“顺丰”；记忆里的也记单字，问题只有一个字时用得上。"""
    found = Counter(re.findall(r"[a-z0-9]+", text.lower()))
    for run in _HAN.findall(text):
        found.update(run[place : place + 2] for place in range(max(1, len(run) - 1)))
        found.update(run if singly and len(run) > 1 else ())
    return found


def _checked(memory_id: str) -> str:
    """编号会变成文件名，所以只收自己造的那种样子。"""
    if not re.fullmatch(models.MEMORY_ID, memory_id):
        raise MemoryStoreError(f"{memory_id[:80]!r} is no memory id; one looks like `mem_3f9c…`")
    return memory_id


def _read_all(directory: Path) -> list[MemoryRecord]:
    records = []
    for path in directory.glob("mem_*.md"):
        if not path.is_file():  # 目录、断了的链接、管道
            continue
        try:
            text = path.read_bytes().decode("utf-8-sig")
            records.append(models.parse_record(text, memory_id=path.stem, modified=path.stat().st_mtime))
        except (MemoryStoreError, OSError, UnicodeDecodeError) as error:
            logger.warning("%s is passed over: %s", path.name, error)
    return sorted(records, key=lambda record: (record.created_at, record.memory_id))


def _write(directory: Path, record: MemoryRecord) -> MemoryRecord:
    """先写在旁边再换过去：崩在哪里都不会有半条记忆。"""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record.memory_id}.md"
    temporary = path.with_suffix(f".{secrets.token_hex(4)}.tmp")  # 两个程序同时写，也各写各的
    content = models.render_record(record).encode()
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return record
