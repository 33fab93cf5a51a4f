"""Uploads in Redis: a hash each, and a set of those that no message has carried. The files lie where all nodes see them."""

from __future__ import annotations

from miniclaw.config import Clock
from miniclaw.gateway.protocol import FileRef, Inbound
from miniclaw.redis.link import RedisLink
from miniclaw.upload_store import KEEP_UNSENT, UploadStore, named_uploads

__all__ = ["RedisUploads"]


class RedisUploads(UploadStore):
    """See `UploadStore`; a message claims what it names in the function that stores it."""

    def __init__(self, link: RedisLink, *, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    def _key(self, name: str) -> str:
        return self._link.prefix + name

    async def add(self, user_id: str, file: FileRef) -> None:
        now = repr(self._clock())
        # In this order, so that nothing is kept that nobody would delete.
        await self._link.run("ZADD", self._key("unsent"), now, file.id)
        row = ("user_id", user_id, "created_at", now, "ref", file.model_dump_json(exclude_defaults=True))
        await self._link.run("HSET", self._key(f"up:{file.id}"), *row)

    async def unsent(self) -> list[tuple[str, FileRef]]:
        last = repr(self._clock() - KEEP_UNSENT)
        late = await self._link.run("ZRANGEBYSCORE", self._key("unsent"), "-inf", last, "LIMIT", 0, 500)
        found: list[tuple[str, FileRef]] = []
        for upload_id in late:
            user_id, ref = await self._link.run("HMGET", self._key(f"up:{upload_id}"), "user_id", "ref")
            if ref is None:
                await self.remove(upload_id)
            else:
                found.append((user_id, FileRef.model_validate_json(ref)))
        return found

    async def remove(self, upload_id: str) -> None:
        await self._link.run("UNLINK", self._key(f"up:{upload_id}"))
        await self._link.run("ZREM", self._key("unsent"), upload_id)

    async def with_files(self, inbound: Inbound) -> Inbound:
        """The message with the files that it names, as far as they are there; they are not claimed yet."""
        named = named_uploads(inbound)
        refs = [await self._link.run("HGET", self._key(f"up:{one}"), "ref", waits=False) for one in named]
        files = tuple(FileRef.model_validate_json(ref) for ref in refs if ref is not None)
        return inbound.model_copy(update={"files": files}) if files else inbound
