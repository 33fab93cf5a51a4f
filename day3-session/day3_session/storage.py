"""会话放在哪里：一份约定，和内存里的一种。文件、SQLite、Redis 都照这份约定写。"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from day3_session.errors import StorageError
from day3_session.models import Entry, Session

__all__ = ["InMemoryStorage", "SessionStorage"]


class SessionStorage(ABC):
    """会话的信息整份保存，日志只追加。五个方法都是异步的：换成网络那头的 Redis，一行调用也不用改。"""

    @abstractmethod
    async def load(self, session_id: str, *, last: int | None = None) -> Session | None:
        """会话和它的日志；给了 `last` 就只要最后这么多条。没有就是 `None`。"""

    @abstractmethod
    async def save(self, session: Session) -> None:
        """存下日志以外的一切；没有这个会话就新建。"""

    @abstractmethod
    async def append(self, session_id: str, entries: Sequence[Entry]) -> None:
        """接到日志后面，填上位置；`(turn_id, step)` 已经有的不再存。

        Raises:
            StorageError: 没有这个会话，或者有一条存下了也读不回来；什么也没有存。
        """

    @abstractmethod
    async def delete(self, session_id: str) -> bool:
        """连日志一起删掉；返回有没有删。"""

    @abstractmethod
    async def list(self, user_id: str | None = None) -> list[Session]:
        """一个人的，或者所有人的；不带日志，最近的在前。"""


class InMemoryStorage(SessionStorage):
    """进程在，它就在；测试用它。进出都复制，别人改手上的那份不会改到这里。"""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._logs: dict[str, list[Entry]] = {}

    async def load(self, session_id: str, *, last: int | None = None) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        log = self._logs[session_id]
        copy = _without_log(session)
        copy.messages = [
            replace(entry) for entry in (log if last is None else log[max(0, len(log) - last) :])
        ]
        return copy

    async def save(self, session: Session) -> None:
        self._sessions[session.session_id] = _without_log(session)
        self._logs.setdefault(session.session_id, [])

    async def append(self, session_id: str, entries: Sequence[Entry]) -> None:
        log = self._logs.get(session_id)
        if log is None:
            raise StorageError(f"There is no session `{session_id}`.")
        have = {(entry.turn_id, entry.step) for entry in log}
        for entry in [checked(one) for one in entries]:
            if (entry.turn_id, entry.step) not in have:
                have.add((entry.turn_id, entry.step))
                entry.position = len(log)
                log.append(replace(entry))

    async def delete(self, session_id: str) -> bool:
        self._logs.pop(session_id, None)
        return self._sessions.pop(session_id, None) is not None

    async def list(self, user_id: str | None = None) -> list[Session]:
        found = [_without_log(one) for one in self._sessions.values() if user_id in (None, one.user_id)]
        return latest_first(found)


def checked(entry: Entry) -> Entry:
    """写之前、读之后，看的是同样的几处：收下的，重启之后都还在；样子不对就是 `StorageError`。"""
    role = entry.message.get("role") if isinstance(entry.message, dict) else None
    if not (isinstance(entry.turn_id, str) and type(entry.step) is int and isinstance(role, str)):
        raise StorageError("An entry needs a text as turn_id, an integer as step, and a message with a role.")
    return entry


def latest_first(sessions: list[Session]) -> list[Session]:
    """最近用过的在前。"""
    return sorted(sessions, key=lambda one: (one.updated_at, one.session_id), reverse=True)


def _without_log(session: Session) -> Session:
    return Session.model_validate(session.model_dump())
