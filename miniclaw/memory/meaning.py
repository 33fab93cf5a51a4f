"""Search by meaning, where the operator wants it: vectors of records, fused with what the words find.

Vectors are an index that can be thrown away: they stand beside the records with the model's name and are
made anew when either changes. Without them, or when they cannot be had, search by words goes on alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from miniclaw.errors import MemoryStoreError, MiniClawError
from miniclaw.memory.embeddings import Embeds
from miniclaw.memory.index import ScopeStore
from miniclaw.memory.vectors import FILE, Vectors

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MeaningIndex"]

logger = logging.getLogger(__name__)

BATCH: Final = 64
MOST_NEW: Final = 512
"""Records whose vectors are made before the file is written."""
AT_ONCE: Final = 2
"""Scopes whose vectors are made at a time."""
PATIENCE: Final = 2.0
"""Seconds that a search waits for vectors."""
PAUSE: Final = 30.0
"""Seconds in which nothing is asked after a failure."""
WEIGHT: Final = 0.7
"""What the closest meaning adds, in units of a text that has all words of the question."""
TEXT_CHARS: Final = 2_000


class MeaningIndex:
    """Adds what is near in meaning to what a search by words found; whatever fails in it, words go on alone.

    A search waits two seconds at most: vectors that are made by then count, the others are made in the
    background. After a failure nothing is asked for half a minute.

    Args:
        embeds: makes the vectors.
        clock: seconds that only grow.
        patience: seconds that a search waits.
    """

    def __init__(
        self, embeds: Embeds, *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE
    ) -> None:
        self._embeds = embeds
        self._clock = clock
        self._patience = patience
        self._paused_until = -math.inf
        self._loaded: WeakKeyDictionary[ScopeStore, Vectors] = WeakKeyDictionary()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._at_work = asyncio.Semaphore(AT_ONCE)

    async def search(
        self,
        scope: str,
        query: str,
        limit: int,
        by_words: Mapping[str, float],
        *,
        run: Callable[[Callable[[ScopeStore], Any]], Awaitable[Any]],
        accept: Callable[[ScopeStore], Callable[[str], bool]],
    ) -> dict[str, float] | None:
        """Names with their scores, best first; `None` where there are no vectors to be had.

        Args:
            scope: whose.
            query: what is asked.
            limit: how many.
            by_words: the scores that words gave, 1 for a repeat of the question.
            run: carries work out on the scope's store.
            accept: of a store, whether a record may be among them.
        """
        if self._clock() < self._paused_until:
            return None
        try:
            async with asyncio.timeout(self._patience):
                vector = (await self._made([query[:TEXT_CHARS]], is_query=True))[0]
        except (MemoryStoreError, TimeoutError) as error:
            self._pause(error)
            return None
        await self._begin(scope, run, vector.shape)

        def fuse(store: ScopeStore) -> dict[str, float]:
            scores, may_show = dict(by_words), accept(store)
            floor = self._embeds.floor
            for name, (_, row) in self._vectors(store).rows.items():
                near = (float(row @ vector) - floor) / (1 - floor) if row.shape == vector.shape else 0.0
                if near > 0 and name in store.records and may_show(name):
                    scores[name] = scores.get(name, 0.0) + WEIGHT * near
            return dict(sorted(scores.items(), key=lambda item: -item[1])[:limit])

        return cast("dict[str, float]", await run(fuse))

    async def close(self) -> None:
        """Stop making vectors and let go of connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._embeds.close()

    def forget(self, store: ScopeStore) -> None:
        """Drop the vectors of records that are gone."""
        vectors = self._vectors(store)
        gone = vectors.rows.keys() - store.records.keys()
        if gone:
            vectors.drop(gone)
            vectors.write()

    async def _made(self, texts: Sequence[str], *, is_query: bool) -> np.ndarray[Any, Any]:
        """Vectors as they can be compared: a row a text, none of them empty or zero."""
        import numpy as np

        try:
            rows = await self._embeds.vectors(texts, is_query=is_query)
        except MemoryStoreError:
            raise
        except Exception as error:  # boundary: a model that breaks must not break a turn
            raise MemoryStoreError(f"the embeddings gave no vectors: {error!r}") from error
        if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all() or not rows.any(1).all():
            raise MemoryStoreError("the embeddings gave other vectors than they were asked for")
        return rows

    def _pause(self, error: Exception) -> None:
        self._paused_until = self._clock() + PAUSE
        what = str(error) or "they were too slow"
        logger.warning("search goes by words alone for %d s: %s", PAUSE, what)

    async def _begin(self, scope: str, run: Any, shape: tuple[int, ...]) -> None:
        """Begin to make what vectors are missing, unless that goes on already, and wait for a moment."""
        if scope in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(self._catch_up(run, shape))
        self._tasks[scope] = task
        task.add_done_callback(lambda _: self._tasks.pop(scope, None))
        await asyncio.wait([task], timeout=self._patience)

    async def _catch_up(
        self, run: Callable[[Callable[[ScopeStore], Any]], Awaitable[Any]], shape: tuple[int, ...]
    ) -> None:
        """Make vectors of records that are new or were changed; no other record waits for them."""
        try:
            async with self._at_work:
                while missing := await run(partial(self._missing, shape=shape)):
                    for start in range(0, len(missing), BATCH):
                        batch = missing[start : start + BATCH]
                        made = await self._made([text for _, _, text in batch], is_query=False)
                        if made.shape[1:] != shape:
                            raise MemoryStoreError("its vectors of texts and of questions differ in length")
                        await run(partial(self._keep, batch=batch, made=made))
                    await run(lambda store: self._vectors(store).write())
        except MiniClawError as error:
            self._pause(error)

    def _keep(self, store: ScopeStore, batch: Sequence[tuple[str, str, str]], made: Any) -> None:
        vectors = self._vectors(store)
        for (name, digest, _), row in zip(batch, made, strict=True):
            if name in store.records:
                vectors.put(name, digest, row)

    def _missing(self, store: ScopeStore, shape: tuple[int, ...]) -> list[tuple[str, str, str]]:
        """The records that have no vector of their text and of this shape: a server may change its model."""
        self.forget(store)
        vectors = self._vectors(store)
        vectors.drop({name for name, (_, row) in vectors.rows.items() if row.shape != shape})
        found = []
        for name, record in store.records.items():
            if vectors.checked.get(name) is record:
                continue
            text = f"{record.content}\n{record.context}".strip()[:TEXT_CHARS]
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
            if name in vectors.rows and vectors.rows[name][0] == digest:
                vectors.checked[name] = record
            else:
                found.append((name, digest, text))
                if len(found) == MOST_NEW:
                    break
        return found

    def _vectors(self, store: ScopeStore) -> Vectors:
        loaded = self._loaded.get(store)
        if loaded is None:
            loaded = self._loaded[store] = Vectors(store.directory / FILE, self._embeds.name)
        return loaded
