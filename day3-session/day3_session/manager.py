"""程序其余的部分怎么用会话：找到或新建，先存后用，闲久了就过期。"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from day3_session.errors import StorageError
from day3_session.models import Entry, Session
from day3_session.storage import SessionStorage

__all__ = ["SessionManager"]

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


class SessionManager:
    """每个会话在内存里只有一个对象，每个改动先存下再看得见。

    Args:
        storage: 放在哪里。
        clock: 现在几点，从纪元算起的秒；测试里换成假的。
        ttl: 各渠道的会话闲多少秒之后过期；没写的渠道不过期。
    """

    def __init__(
        self, storage: SessionStorage, *, clock: Clock, ttl: Mapping[str, float] | None = None
    ) -> None:
        self.storage = storage
        self._clock = clock
        self._ttl = ttl or {}
        # 有人拿着的会话一定在这里：同一个会话绝不会有两个对象各走各的。没人拿着，自己就消失。
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # region get
    async def get(self, session_id: str) -> Session | None:
        """带着整本日志的会话，或者 `None`。"""
        session = self._alive.get(session_id)
        if session is None:
            async with self._one_at_a_time(session_id):  # 正在删的，等它删完：读了一半的不许又活过来
                session = self._alive.get(session_id) or await self.storage.load(session_id)
                if session is not None:
                    self._alive[session_id] = session
        return session

    async def get_or_create(
        self, user_id: str, channel: str, *, conversation: str | None = None, thread: str | None = None
    ) -> Session:
        """这个人在这段对话里的会话，没有就新建；不说是哪段对话，就总是新的。"""
        if conversation is None:
            return await self._create(user_id, channel, None, thread)
        key = "\x1f".join((channel, conversation, thread or "", user_id))
        async with self._one_at_a_time(key):  # 两条消息同时到，也只建一个
            for known in await self.storage.list(user_id):
                if known.key == key and (found := await self.get(known.session_id)):
                    return found
            return await self._create(user_id, channel, key, thread)

    # endregion

    async def _create(self, user_id: str, channel: str, key: str | None, thread: str | None) -> Session:
        moment = self._clock()
        session = Session(
            session_id=f"ses_{secrets.token_hex(12)}",
            user_id=user_id,
            channel=channel,
            key=key,
            thread=thread,
            created_at=moment,
            updated_at=moment,
        )
        await self.storage.save(session)
        logger.info("session %s of %s made", session.session_id, user_id)
        return self._alive.setdefault(session.session_id, session)

    async def owned(self, session_id: str, user_id: str) -> Session | None:
        """这个人的会话；别人的和没有的，回答一样，猜不出编号存不存在。"""
        session = self._alive.get(session_id) or await self.storage.load(session_id, last=0)
        return session if session is not None and session.user_id == user_id else None

    # region append
    async def append(self, session: Session, entries: Sequence[Entry]) -> None:
        """先存下，再出现在内存里的日志中：看得见的都是存住了的；也记下用过的时间，还在聊的不会过期。"""
        async with self._one_at_a_time(session.session_id):
            await self.storage.append(session.session_id, entries)
            session.extend(list(entries))
            session.updated_at = max(self._clock(), session.updated_at)
            await self.storage.save(session)

    async def update(self, session: Session, **metadata: Any) -> None:
        """改元数据并记下用过的时间；值是 `None` 的键去掉。

        Raises:
            StorageError: 会话已经被删了；不能因为这一改又活过来。
        """
        async with self._one_at_a_time(session.session_id):
            if self._alive.get(session.session_id) is not session:
                raise StorageError(f"There is no session `{session.session_id}`.")
            merged = {**session.metadata, **metadata}
            changed = {name: value for name, value in merged.items() if value is not None}
            moment = max(self._clock(), session.updated_at)
            await self.storage.save(session.model_copy(update={"metadata": changed, "updated_at": moment}))
            session.metadata, session.updated_at = changed, moment

    # endregion

    async def delete(self, session_id: str) -> bool:
        """连日志一起删掉；返回有没有这个会话。"""
        async with self._one_at_a_time(session_id):
            return await self._delete(session_id)

    async def _delete(self, session_id: str) -> bool:
        self._alive.pop(session_id, None)
        return await self.storage.delete(session_id)

    def _one_at_a_time(self, key: str) -> asyncio.Lock:
        """有人拿着或等着它，这把锁就在。"""
        return self._locks.setdefault(key, asyncio.Lock())

    async def list(self, user_id: str | None = None) -> list[Session]:
        """不带日志的会话，最近的在前。"""
        return await self.storage.list(user_id)

    # region expire
    async def cleanup_expired(self, is_busy: Callable[[str], bool]) -> int:
        """删掉闲得超过期限的，正忙的不删；返回删了几个。"""
        deleted = 0
        for session in filter(self._is_expired, await self.storage.list()):
            async with self._one_at_a_time(session.session_id):  # 排队的时候可能又有人聊了，再看一眼
                known = await self.storage.load(session.session_id, last=0)
                if known and self._is_expired(known) and not is_busy(session.session_id):
                    deleted += await self._delete(session.session_id)
                    logger.info("session %s expired", session.session_id)
        return deleted

    def _is_expired(self, session: Session) -> bool:
        ttl = self._ttl.get(session.channel)
        return ttl is not None and self._clock() - session.updated_at > ttl

    # endregion
