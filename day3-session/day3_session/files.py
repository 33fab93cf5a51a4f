"""会话放在普通文件里：`less` 就能看，崩溃之后打得开。"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, TypeVar

from day3_session.errors import StorageError, StorageUnavailable
from day3_session.models import Entry, Session
from day3_session.storage import SessionStorage, checked, latest_first

__all__ = ["FileStorage"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

SAFE_ID: Final = re.compile(r"[a-z0-9_-]{1,100}")
"""能当文件名的编号。没有大写：有的文件系统分不清大小写；没有点和斜线：走不出目录。"""


class FileStorage(SessionStorage):
    """一个会话两个文件：`<编号>.json` 整份原子地写，`<编号>.jsonl` 只追加。

    给一个进程用。文件操作在线程里，一次一个：磁盘慢的时候，别的客人照常聊。
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys: dict[str, set[tuple[str, int]]] = {}  # 每本日志里已经有的
        self._lock = threading.Lock()

    async def load(self, session_id: str, *, last: int | None = None) -> Session | None:
        return await self._run(lambda: self._load(session_id, last))

    async def save(self, session: Session) -> None:
        path = self._path(session.session_id, ".json")
        await self._run(lambda: _replace(path, session.model_dump_json().encode()))

    async def append(self, session_id: str, entries: Sequence[Entry]) -> None:
        await self._run(lambda: self._append(session_id, entries))

    async def delete(self, session_id: str) -> bool:
        return await self._run(lambda: self._delete(session_id))

    async def _run(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        try:
            return await asyncio.to_thread(locked)
        except OSError as error:
            raise StorageUnavailable(f"`{self._directory}` cannot be used: {error}.") from error
        except (TypeError, ValueError, RecursionError) as error:  # 半个字符、自己套自己、不是数据的
            raise StorageError(f"This cannot be written as JSON: {error}.") from error

    def _path(self, session_id: str, suffix: str) -> Path:
        if not SAFE_ID.fullmatch(session_id):
            raise StorageError(f"`{session_id[:100]}` is no id of a session.")
        return self._directory / f"{session_id}{suffix}"

    def _load(self, session_id: str, last: int | None) -> Session | None:
        session = _read_meta(self._path(session_id, ".json"))
        if session is not None:
            log = self._read_log(session_id)
            session.messages = log if last is None else log[max(0, len(log) - last) :]
        return session

    def _append(self, session_id: str, entries: Sequence[Entry]) -> None:
        if session_id not in self._keys and self._load(session_id, None) is None:
            raise StorageError(f"There is no session `{session_id}`.")
        keys = self._keys[session_id]
        fresh = {
            (one.turn_id, one.step): one for one in map(checked, reversed(entries))
        }  # 同一批里重复的留第一条
        added = [one for key, one in reversed(fresh.items()) if key not in keys]
        placed = [replace(entry, position=position) for position, entry in enumerate(added, len(keys))]
        lines = [json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in placed]
        data = "".join(lines).encode()
        try:
            with self._path(session_id, ".jsonl").open("ab") as log:
                log.write(data)
        except OSError:
            del self._keys[session_id]  # 可能写进去了一半：下次重新读
            raise
        keys.update(fresh)
        for entry, there in zip(added, placed, strict=True):
            entry.position = there.position

    # region read
    def _read_log(self, session_id: str) -> list[Entry]:
        """读整本日志；坏行和崩溃留下的半行另放一边，好的留下。"""
        path = self._path(session_id, ".jsonl")
        raw = path.read_bytes() if path.exists() else b""
        entries: list[Entry] = []
        sound, bad = b"", b""
        for line in raw.splitlines(keepends=True):
            try:
                entries.append(checked(Entry(**{**json.loads(line), "position": len(entries)})))
                sound += line.rstrip(b"\n") + b"\n"
            except (ValueError, TypeError, RecursionError, StorageError):
                bad += line.rstrip(b"\n") + b"\n"
        if sound != raw:
            logger.error("%s holds lines that cannot be read; they are in %s.corrupt", path, path.name)
            with path.with_name(path.name + ".corrupt").open("ab") as aside:
                aside.write(bad)
            _replace(path, sound)
        self._keys[session_id] = {(entry.turn_id, entry.step) for entry in entries}
        return entries

    # endregion

    def _delete(self, session_id: str) -> bool:
        self._keys.pop(session_id, None)
        existed = self._path(session_id, ".json").exists()
        for suffix in (".json", ".jsonl", ".jsonl.corrupt"):
            self._path(session_id, suffix).unlink(missing_ok=True)
        return existed

    def _list(self) -> list[Session]:
        found = map(_read_meta, sorted(self._directory.glob("*.json")))
        return [session for session in found if session is not None]

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = await self._run(self._list)
        return latest_first([one for one in found if user_id in (None, one.user_id)])


def _read_meta(path: Path) -> Session | None:
    try:
        return Session.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        logger.error("%s cannot be read; it is set aside", path)
        path.replace(path.with_name(path.name + ".corrupt"))
        return None


# region replace
def _replace(path: Path, content: bytes) -> None:
    """整份写：先写到旁边，落到盘上，再一步换过去。崩在哪里都只有旧的或者新的，没有半个。"""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# endregion
