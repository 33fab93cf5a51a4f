"""Long-term memory: what is remembered of a user or a group across sessions, kept as files and searched by words.

Owns who may see what, and one writer a scope. Does not know prompts, sessions or models.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from miniclaw.errors import MemoryStoreError
from miniclaw.gateway.protocol import format_time, new_id
from miniclaw.memory.conversations import ConversationHit, ConversationIndex
from miniclaw.memory.index import ScopeStore
from miniclaw.memory.loaded import LoadedScope, Mode
from miniclaw.memory.meaning import MeaningIndex
from miniclaw.memory.models import (
    Category,
    MemoryRecord,
    MemorySearchResult,
    MemorySource,
    check_memory_id,
    is_group,
    local_day,
    make_record,
    scope_parts,
)
from miniclaw.memory.saving import clean_up, keep_version, later, put_in_place, similar, store_record

__all__ = ["LongTermMemory"]

T = TypeVar("T")

QUERY_CHARS: Final = 4_000
"""Characters of a query that count; a longer one is a document, and most of it is beside the point."""

MORE: Final = 20
"""Records beyond the limit that words find, of which meaning may lift one."""
TASK_SECONDS: Final = 90 * 86_400
"""How long a task is remembered unless its saver says otherwise."""


class LongTermMemory:
    """Records of every user and group, each scope in a directory of its own below `root`.

    The files are the truth: an edit by hand shows at the next call. A call runs as a whole in a thread, so
    that it is done completely or not at all even when its caller is cancelled. Several processes may write.

    Args:
        root: the data directory.
        clock: seconds since the epoch.
        new_id: a fresh id for a prefix.
        loaded: scopes kept in memory at most, beside those in use; the one used longest ago is dropped first.
        conversations: finds what was said in sessions; without it only records are recalled.
        meaning: finds records by their meaning too.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[str], str] = new_id,
        loaded: int = 256,
        conversations: ConversationIndex | None = None,
        meaning: MeaningIndex | None = None,
    ) -> None:
        self._root = root
        self._meaning = meaning
        self._clock = clock
        self._new_id = new_id
        self._loaded_limit = loaded
        self._conversations = conversations
        self._slots: OrderedDict[str, LoadedScope] = OrderedDict()

    async def close(self) -> None:
        """Let go of what a search by meaning holds."""
        if self._meaning is not None:
            await self._meaning.close()

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
        status: Literal["active", "proposed"] = "active",
    ) -> MemoryRecord:
        """Remember something.

        A `memory_id` that is known has its record replaced, but for the id and `created_at`. What an active
        record says already to the letter only touches its `updated_at`. A preference takes the place of the
        active ones with the same `key`.

        A task expires, after three months unless said otherwise.

        Raises:
            MemoryStoreError: a value cannot be used, what is sensitive does not come from the user, or the
                file cannot be written.
        """
        if category == "sensitive" and source != "user":
            raise MemoryStoreError("what is sensitive is saved by the user alone")
        if category == "task" and expires_at is None:
            expires_at = format_time(self._clock() + TASK_SECONDS)
        fields: dict[str, Any] = {
            "content": content,
            "context": context,
            "memory_type": memory_type,
            "category": category,
        }
        fields |= {"key": key, "source": source, "expires_at": expires_at, "status": status}
        draft = self._draft(fields, memory_id)

        def work(store: ScopeStore) -> MemoryRecord:
            clean_up(store, draft.updated_at)
            return store_record(store, draft, is_named=memory_id is not None)

        return await self._run(scope, work)

    async def similar(
        self, scope: str, content: str, *, besides: str | None = None, limit: int = 3
    ) -> list[MemoryRecord]:
        """The current records, but for `besides`, that `content` seems to repeat or contradict, closest first."""
        draft = self._draft({"content": content}, besides)
        found = await self._run(scope, lambda store: similar(store, draft, limit), mode="quick")
        return [record for record in found if _may_show(record, scope, draft.updated_at)]

    async def search(self, scope: str, query: str, limit: int = 5) -> list[MemorySearchResult]:
        """The current records that share words with the query, or its meaning where that is looked for, best first.

        In a group's scope, what is marked `sensitive` is never among them.
        """
        query = query[:QUERY_CHARS]

        def accept(store: ScopeStore) -> Callable[[str], bool]:
            now = self._now()
            return lambda name: (
                _may_show(store.records[name], scope, now) and store.is_latest(store.records[name])
            )

        def by_words(store: ScopeStore) -> list[MemorySearchResult]:
            most = limit if self._meaning is None else limit + MORE
            found = store.index.search(query, most, today=local_day(self._now()), accept=accept(store))
            return [MemorySearchResult(store.records[name], score) for name, score in found]

        found = await self._run(scope, by_words, mode="quick")
        if self._meaning is None:
            return found
        scores = {result.record.memory_id: result.score for result in found}
        fused = await self._meaning.search(
            scope, query, limit, scores, run=partial(self._run, scope, mode="read"), accept=accept
        )
        if fused is None:
            return found[:limit]
        return await self._run(
            scope,
            lambda store: [
                MemorySearchResult(store.records[name], score)
                for name, score in fused.items()
                if name in store.records
            ],
        )

    async def recall(
        self, scope: str, query: str, limit: int = 5, *, session_id: str = "", clear: float = 0.0
    ) -> list[MemorySearchResult | ConversationHit]:
        """One search over records and past conversations: records first, then messages, `limit` of each at most.

        Args:
            scope: whose.
            query: what is asked.
            limit: how many of a kind.
            session_id: the conversation that goes on; what was said in it is left out.
            clear: the score that a message needs, such as `conversations.CLEAR`.
        """
        records = await self.search(scope, query, limit)
        if self._conversations is None:
            return [*records]
        hits = await self._conversations.search(scope, query[:QUERY_CHARS], limit, besides=session_id)
        return [*records, *(hit for hit in hits if hit.score >= clear)]

    async def get(self, scope: str, memory_id: str) -> MemoryRecord | None:
        """The record, whatever its status, or `None`."""
        check_memory_id(memory_id)
        return await self._run(scope, lambda store: store.records.get(memory_id), mode="quick")

    async def contents(self, scope: str, ids: Iterable[str]) -> dict[str, str]:
        """What those of these records say that are there."""

        def work(store: ScopeStore) -> dict[str, str]:
            return {name: store.records[name].content for name in ids if name in store.records}

        return await self._run(scope, work, mode="quick")

    async def update(
        self,
        scope: str,
        memory_id: str,
        *,
        content: str | None = None,
        context: str | None = None,
        memory_type: str | None = None,
        category: Category | None = None,
        key: str | None = None,
        expires_at: str | None = None,
        source: MemorySource | None = None,
        expected_updated_at: str | None = None,
    ) -> MemoryRecord:
        """Change what is given and leave the rest; an empty `key` or `expires_at` takes it away.

        A `source` says that the model changes it: these are no longer the words of who said them before, which
        are kept as superseded; the ten latest of them. With `expected_updated_at`, only if nobody has changed
        the record since it had that time.

        Raises:
            MemoryStoreError: there is no such record, it was changed meanwhile, or a value cannot be used.
        """
        given: dict[str, Any] = {
            "content": content,
            "context": context,
            "memory_type": memory_type,
            "category": category,
        }
        given |= {"key": key, "expires_at": expires_at, "source": source}
        changes = {name: value for name, value in given.items() if value is not None}
        changes |= {name: None for name in ("key", "expires_at") if changes.get(name) == ""}
        return await self._change(scope, memory_id, changes, expected_updated_at)

    async def supersede(
        self, scope: str, memory_id: str, *, by: str | None = None, expected_updated_at: str | None = None
    ) -> MemoryRecord:
        """Take a record out of search and keep it, with the id of what replaces it.

        Raises:
            MemoryStoreError: there is no such record, or it was changed since it had that time.
        """
        changes = {"status": "superseded", "superseded_by": by and check_memory_id(by)}
        return await self._change(scope, memory_id, changes, expected_updated_at)

    async def confirm(self, scope: str, memory_id: str) -> MemoryRecord:
        """The user says yes to a proposed record; any other stays as it is. Raises as `update` does."""
        record = await self.get(scope, memory_id)
        changes = {"status": "active"} if record is not None and record.status == "proposed" else {}
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
            if self._meaning is not None:
                self._meaning.forget(store)
            return is_known

        return await self._run(scope, work)

    async def export(self, scope: str) -> list[dict[str, Any]]:
        """Everything in the scope as JSON-serialisable mappings that `import_` takes."""
        return [record.model_dump() for record in await self._run(scope, _in_order, mode="read")]

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

    async def problems(self, scope: str) -> dict[str, str]:
        """The files that cannot be read as memories, by name, and why."""

        def work(store: ScopeStore) -> dict[str, str]:
            return {f"{name}.md": reason for name, reason in sorted(store.problems.items())}

        return await self._run(scope, work, mode="quick")

    async def list(self, scope: str, *, include_inactive: bool = False) -> list[MemoryRecord]:
        """What search could find and what is proposed, oldest first; or all, the replaced and expired too."""
        if include_inactive:
            return await self._run(scope, _in_order, mode="read")
        return await self._run(scope, partial(_open, scope=scope, now=self._now()), mode="read")

    def _now(self) -> str:
        return format_time(self._clock())

    def _draft(self, fields: Mapping[str, Any], memory_id: str | None) -> MemoryRecord:
        name = self._new_id("mem") if memory_id is None else memory_id
        now = self._now()
        return make_record({"created_at": now, "updated_at": now, **fields, "memory_id": name})

    async def _change(
        self, scope: str, memory_id: str, changes: Mapping[str, Any], expected: str | None = None
    ) -> MemoryRecord:
        check_memory_id(memory_id)

        def work(store: ScopeStore) -> MemoryRecord:
            record = store.records.get(memory_id)
            if record is None:
                raise MemoryStoreError(f"there is no memory {memory_id}")
            if expected not in (None, record.updated_at):
                raise MemoryStoreError(f"{memory_id} was changed meanwhile; it says now: {record.content}")
            moment = later(self._now(), record.updated_at)
            changed = make_record({**record.model_dump(), **changes, "updated_at": moment})
            if "source" in changes and changed.text != record.text:
                keep_version(store, record, self._new_id("mem"))
            store.write(changed)
            put_in_place(store, changed)
            return changed

        return await self._run(scope, work)

    async def _run(self, scope: str, work: Callable[[ScopeStore], T], *, mode: Mode = "write") -> T:
        with self._loaded(scope) as slot:
            return await slot.do(work, mode)

    @contextmanager
    def _loaded(self, scope: str) -> Iterator[LoadedScope]:
        slot = self._slots.get(scope) or LoadedScope(ScopeStore(self._root, scope_parts(scope)))
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


def _in_order(store: ScopeStore) -> list[MemoryRecord]:
    return sorted(store.records.values(), key=lambda record: (record.created_at, record.memory_id))


def _open(store: ScopeStore, scope: str, now: str) -> list[MemoryRecord]:
    return [
        record
        for record in _in_order(store)
        if record.status == "proposed" or (_may_show(record, scope, now) and store.is_latest(record))
    ]
