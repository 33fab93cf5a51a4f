"""What commands and the HTTP API do with memories; a scope is the caller's own, whoever asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from miniclaw.errors import ProtocolError
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.models import MemoryRecord

__all__ = ["MemoryActions"]


class MemoryActions:
    """Lists, saves, shows and deletes, as JSON-serialisable data."""

    def __init__(self, memory: LongTermMemory) -> None:
        self._memory = memory

    async def list(self, scope: str, query: str, limit: int) -> dict[str, Any]:
        """The scope's memories, oldest first, with the files that are none; or those that fit `query`, best first."""
        if query:
            return {"memories": _shown(r.record for r in await self._memory.search(scope, query, limit))}
        shown = _shown((await self._memory.list(scope))[:limit])
        problems = await self._memory.problems(scope)
        if not problems:
            return {"memories": shown}
        return {
            "memories": shown,
            "problems": [{"source": name, "error": reason} for name, reason in problems.items()],
        }

    async def save(self, scope: str, content: str, **fields: Any) -> dict[str, Any]:
        """Save what a person wrote; `similar` is what it seems to repeat or contradict."""
        record = await self._memory.save(scope, content, source="user", **fields)
        close = await self._memory.similar(scope, record.content, besides=record.memory_id)
        return {**record.model_dump(mode="json"), "similar": _shown(close)}

    async def confirm(self, scope: str, memory_id: str) -> dict[str, Any]:
        """Say yes to a memory that is only proposed; raises as `get` does."""
        await self.get(scope, memory_id)
        await self._memory.confirm(scope, memory_id)
        return {"memory_id": memory_id, "similar": []}

    async def get(self, scope: str, memory_id: str) -> MemoryRecord:
        """One memory.

        Raises:
            ProtocolError: there is none of that id.
        """
        record = await self._memory.get(scope, memory_id)
        if record is None:
            raise ProtocolError("not_found", "There is no such memory.")
        return record

    async def delete(self, scope: str, memory_id: str) -> None:
        """Delete one memory; raises as `get` does."""
        if not await self._memory.delete(scope, memory_id):
            raise ProtocolError("not_found", "There is no such memory.")

    async def clear(self, scope: str) -> dict[str, Any]:
        """Remove all of them."""
        return {"cleared": await self._memory.clear(scope)}


def _shown(records: Iterable[MemoryRecord]) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json") for record in records]
