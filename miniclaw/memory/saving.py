"""What saving a record does to those that are there; nothing is overwritten or deleted but what the rules name."""

from __future__ import annotations

from datetime import datetime
from heapq import nlargest
from typing import Final

from miniclaw.gateway.protocol import format_time
from miniclaw.memory.index import ScopeStore
from miniclaw.memory.models import MemoryRecord
from miniclaw.text import tokenize

__all__ = ["clean_up", "keep_version", "later", "put_in_place", "similar", "store_record"]

ALIKE: Final = 1 / 3
"""The part of the shorter text's terms that two records about the same thing share at least."""
LOOKED_AT: Final = 12
"""Records that are compared, the best of a search."""
VERSIONS: Final = 10
_SUBJECTS: Final = frozenset({"user", "用", "户", "用户"})
"""The terms of what nearly every record begins with (user, 用户): they tell nothing."""


def store_record(store: ScopeStore, draft: MemoryRecord, *, is_named: bool) -> MemoryRecord:
    """Insert, replace by id, or only touch what an active record says already to the letter."""
    record = draft
    if is_named and (known := store.records.get(draft.memory_id)):
        moment = later(draft.updated_at, known.updated_at)
        record = draft.model_copy(update={"created_at": known.created_at, "updated_at": moment})
    elif not is_named and (repeated := _same_as(store, draft)):
        record = repeated.model_copy(update={"updated_at": later(draft.updated_at, repeated.updated_at)})
    store.write(record)
    put_in_place(store, record)
    return record


def put_in_place(store: ScopeStore, record: MemoryRecord) -> None:
    """Let a stored preference take the place of the active ones of its key."""
    if record.category != "preference" or record.key is None or record.status != "active":
        return
    # The new one is stored first: a crash between the two leaves two, of which the later one counts.
    replaced = {"status": "superseded", "superseded_by": record.memory_id}
    for other in store.preferences(record.key):
        if other.memory_id != record.memory_id:
            moment = later(record.updated_at, other.updated_at)
            store.write(other.model_copy(update={**replaced, "updated_at": moment}))


def keep_version(store: ScopeStore, record: MemoryRecord, name: str) -> None:
    """Keep what a record says before it is changed, under a name of its own; `VERSIONS` of a record at most."""
    fields = {"memory_id": name, "status": "superseded", "superseded_by": record.memory_id}
    store.write(record.model_copy(update=fields))
    older = [one for one in store.records.values() if one.superseded_by == record.memory_id]
    older.sort(key=lambda one: one.updated_at)
    store.delete(one.memory_id for one in older[:-VERSIONS])


def later(now: str, before: str) -> str:
    """The time of a change: that of the clock, but always after the change before it."""
    if now > before:
        return now
    return format_time(datetime.fromisoformat(before).timestamp() + 0.001)


def clean_up(store: ScopeStore, now: str) -> None:
    """Remove the records whose time is over."""
    if over := store.expired(now):
        store.delete(over)


def similar(store: ScopeStore, draft: MemoryRecord, limit: int) -> list[MemoryRecord]:
    """Current records that seem to speak of the same: near repeats and contradictions, the closest first."""

    def is_current(record: MemoryRecord) -> bool:
        return record.is_current(draft.updated_at) and store.is_latest(record)

    terms = _telling(draft.content)
    names = store.index.search(
        draft.content,
        LOOKED_AT,
        accept=lambda name: name != draft.memory_id and is_current(store.records[name]),
    )
    rated = ((_alike(terms, _telling(store.records[name].content)), name) for name, _ in names)
    close = nlargest(limit, (pair for pair in rated if pair[0] >= ALIKE))
    return [store.records[name] for _, name in close]


def _telling(text: str) -> set[str]:
    terms = set(tokenize(text))
    # A contradiction often differs in its numbers alone.
    return {term for term in terms - _SUBJECTS if not term.isdigit()} or terms


def _alike(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, min(len(one), len(other)))


def _same_as(store: ScopeStore, draft: MemoryRecord) -> MemoryRecord | None:
    """The active record that says the same to the letter."""
    names = ("context", "memory_type", "category", "key", "status")
    for record in store.saying(draft.content):
        if all(getattr(record, name) == getattr(draft, name) for name in names):
            return record
    return None
