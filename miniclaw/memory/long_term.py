"""Long-term memory: what is remembered of a user or a group across sessions, kept as files and searched by words.

Owns who may see what, and one writer a scope. Does not know prompts, sessions or models.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from heapq import nlargest
from pathlib import Path
from typing import Any, Final, TypeVar

from miniclaw.errors import MemoryStoreError
from miniclaw.gateway.protocol import format_time, new_id
from miniclaw.memory.index import ScopeStore
from miniclaw.memory.models import (
    Category,
    MemoryRecord,
    MemorySearchResult,
    MemorySource,
    check_memory_id,
    is_group,
    make_record,
    scope_parts,
)
from miniclaw.text import tokenize

__all__ = ["LongTermMemory"]

T = TypeVar("T")

QUERY_CHARS: Final = 4_000
"""Characters of a query that count; a longer one is a document, and most of it is beside the point."""


class _Slot:
    """A loaded scope and what keeps it to one user at a time."""

    def __init__(self, store: ScopeStore) -> None:
        self.store = store
        self.turn = asyncio.Lock()
        self.users = 0
        self._working = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return self.users == 0 and not self._working.locked()

    def run(self, work: Callable[[ScopeStore], T]) -> T:
        # A cancelled caller gives up its turn while its thread is still at work; the next one waits here.
        with self._working:
            self.store.refresh()
            return work(self.store)


class LongTermMemory:
    """Records of every user and group, each scope in a directory of its own below `root`.

    The files are the truth: an edit by hand shows at the next call. A call runs as a whole in a thread, so
    that it is done completely or not at all even when its caller is cancelled. One process writes.

    Args:
        root: the data directory.
        clock: seconds since the epoch.
        new_id: a fresh id for a prefix.
        loaded: scopes kept in memory at most, beside those in use; the one used longest ago is dropped first.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[str], str] = new_id,
        loaded: int = 256,
    ) -> None:
        self._root = root
        self._clock = clock
        self._new_id = new_id
        self._loaded_limit = loaded
        self._slots: OrderedDict[str, _Slot] = OrderedDict()

    async def save(
        self,
        scope: str,
        content: str,
        *,
        context: str = "",
        memory_type: str = "semantic",
        category: Category = "fact",
        key: str | None = None,
        source: MemorySource = "user",
        memory_id: str | None = None,
        expires_at: str | None = None,
    ) -> MemoryRecord:
        """Remember something.

        A `memory_id` that is known has its record replaced, but for the id and `created_at`. What an active
        record says already to the letter only touches its `updated_at`. A preference takes the place of the
        active ones with the same `key`.

        Raises:
            MemoryStoreError: a value cannot be used, or the file cannot be written.
        """
        draft = self._draft(
            {
                "content": content,
                "context": context,
                "memory_type": memory_type,
                "category": category,
                "key": key,
                "source": source,
                "expires_at": expires_at,
            },
            memory_id,
        )
        return await self._run(scope, lambda store: _save(store, draft, is_named=memory_id is not None))

    async def search(self, scope: str, query: str, limit: int = 5) -> list[MemorySearchResult]:
        """The current records that share words with the query, best first.

        In a group's scope, what is marked `sensitive` is never among them.
        """
        terms = tokenize(query[:QUERY_CHARS])

        def work(store: ScopeStore) -> list[MemorySearchResult]:
            now = self._now()
            results = (
                MemorySearchResult(store.records[memory_id], score)
                for memory_id, score in store.index.scores(terms).items()
                if _may_show(store.records[memory_id], scope, now)
            )
            return nlargest(limit, results, key=_rank)

        return await self._run(scope, work)

    async def get(self, scope: str, memory_id: str) -> MemoryRecord | None:
        """The record, whatever its status, or `None`."""
        check_memory_id(memory_id)
        return await self._run(scope, lambda store: store.records.get(memory_id))

    async def update(
        self,
        scope: str,
        memory_id: str,
        *,
        content: str | None = None,
        context: str | None = None,
        memory_type: str | None = None,
    ) -> MemoryRecord:
        """Change what is given and leave the rest.

        Raises:
            MemoryStoreError: there is no such record, or a value cannot be used.
        """
        given = {"content": content, "context": context, "memory_type": memory_type}
        changes = {name: value for name, value in given.items() if value is not None}
        return await self._change(scope, memory_id, changes)

    async def supersede(self, scope: str, memory_id: str, *, by: str | None = None) -> MemoryRecord:
        """Take a record out of search and keep it, with the id of what replaces it.

        Raises:
            MemoryStoreError: there is no such record.
        """
        changes = {"status": "superseded", "superseded_by": by and check_memory_id(by)}
        return await self._change(scope, memory_id, changes)

    async def delete(self, scope: str, memory_id: str) -> bool:
        """Remove a record and the older versions that it replaced; whether there was one."""
        check_memory_id(memory_id)

        def work(store: ScopeStore) -> bool:
            is_known = memory_id in store
            doomed, fresh = {memory_id}, {memory_id}
            while fresh:
                fresh = {r.memory_id for r in store.records.values() if r.superseded_by in fresh} - doomed
                doomed |= fresh
            store.delete(doomed)
            return is_known

        return await self._run(scope, work)

    async def export(self, scope: str) -> list[dict[str, Any]]:
        """Everything in the scope as JSON-serialisable mappings that `import_` takes."""
        return [record.model_dump() for record in await self._run(scope, _in_order)]

    async def import_(self, scope: str, records: Iterable[Mapping[str, Any]]) -> int:
        """Store exported records; a known id is replaced, so that a repeat changes nothing. Returns how many.

        Raises:
            MemoryStoreError: a record cannot be used; then none is stored.
        """
        drafts = [self._draft(fields, fields.get("memory_id")) for fields in records]

        def work(store: ScopeStore) -> int:
            for draft in drafts:
                store.write(draft)
            return len(drafts)

        return await self._run(scope, work)

    async def clear(self, scope: str) -> int:
        """Remove all of the scope's memory from disk; how many records there were."""
        return await self._run(scope, ScopeStore.clear)

    async def list(self, scope: str, *, include_inactive: bool = False) -> list[MemoryRecord]:
        """The records that search could find, oldest first; or all, with the replaced and expired ones."""
        records, now = await self._run(scope, _in_order), self._now()
        return [record for record in records if include_inactive or _may_show(record, scope, now)]

    def _now(self) -> str:
        return format_time(self._clock())

    def _draft(self, fields: Mapping[str, Any], memory_id: str | None) -> MemoryRecord:
        name = self._new_id("mem") if memory_id is None else memory_id
        now = self._now()
        return make_record({"created_at": now, "updated_at": now, **fields, "memory_id": name})

    async def _change(self, scope: str, memory_id: str, changes: Mapping[str, Any]) -> MemoryRecord:
        check_memory_id(memory_id)

        def work(store: ScopeStore) -> MemoryRecord:
            record = store.records.get(memory_id)
            if record is None:
                raise MemoryStoreError(f"there is no memory {memory_id}")
            changed = make_record({**record.model_dump(), **changes, "updated_at": self._now()})
            store.write(changed)
            return changed

        return await self._run(scope, work)

    async def _run(self, scope: str, work: Callable[[ScopeStore], T]) -> T:
        with self._loaded(scope) as slot:
            async with slot.turn:
                return await asyncio.to_thread(slot.run, work)

    @contextmanager
    def _loaded(self, scope: str) -> Iterator[_Slot]:
        slot = self._slots.get(scope) or _Slot(ScopeStore(self._root, scope_parts(scope)))
        self._slots[scope] = slot
        self._slots.move_to_end(scope)
        slot.users += 1
        try:
            yield slot
        finally:
            slot.users -= 1
            for idle in [name for name, other in self._slots.items() if other.is_idle]:
                if len(self._slots) <= self._loaded_limit:
                    break
                del self._slots[idle]


def _may_show(record: MemoryRecord, scope: str, now: str) -> bool:
    return record.is_current(now) and not (is_group(scope) and record.category == "sensitive")


def _save(store: ScopeStore, draft: MemoryRecord, *, is_named: bool) -> MemoryRecord:
    record = draft
    if is_named and (known := store.records.get(draft.memory_id)):
        record = draft.model_copy(update={"created_at": known.created_at})
    elif not is_named and (repeated := _same_as(store, draft)):
        record = repeated.model_copy(update={"updated_at": draft.updated_at})
    store.write(record)
    if record.category == "preference" and record.key is not None:
        # The new one is stored first: a crash between the two leaves one too many rather than none.
        replaced = {
            "status": "superseded",
            "superseded_by": record.memory_id,
            "updated_at": record.updated_at,
        }
        for other in tuple(store.records.values()):
            same_key = other.category == "preference" and other.key == record.key
            if same_key and other.status == "active" and other.memory_id != record.memory_id:
                store.write(other.model_copy(update=replaced))
    return record


def _same_as(store: ScopeStore, draft: MemoryRecord) -> MemoryRecord | None:
    """The active record that says the same to the letter."""
    names = ("content", "context", "memory_type", "category", "key", "expires_at", "status")
    for record in store.records.values():
        if all(getattr(record, name) == getattr(draft, name) for name in names):
            return record
    return None


def _in_order(store: ScopeStore) -> list[MemoryRecord]:
    return sorted(store.records.values(), key=lambda record: (record.created_at, record.memory_id))


def _rank(result: MemorySearchResult) -> tuple[float, str, str]:
    return result.score, result.record.updated_at, result.record.memory_id
