"""The client of model servers: connections, and what has to be imported for them, late or ahead of the first request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from miniclaw.errors import ModelError

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI

__all__ = ["new_client", "not_loaded", "warm_up"]


def new_client(base_url: str | None, api_key: str, connect: float, read: float) -> AsyncOpenAI:
    """A client that repeats nothing by itself; `connect` and `read` are limits in seconds."""
    import httpx2
    from openai import AsyncOpenAI

    from miniclaw.agent.transport import ModelClient

    return AsyncOpenAI(
        api_key=api_key,
        base_url=base_url,
        max_retries=0,
        timeout=httpx2.Timeout(read, connect=connect),
        http_client=ModelClient(read=read, verify=_tls()),
    )


def warm_up() -> None:
    """Import the client's libraries and read the certificates: most of a second, in any thread."""
    import openai

    import miniclaw.agent.transport

    _ = openai.AsyncOpenAI, openai.AsyncStream, miniclaw.agent.transport
    _tls()


def not_loaded() -> ModelError | None:
    """Do what `warm_up` does; if it cannot be done just now, such as while no file can be opened, what to raise."""
    try:
        warm_up()
    except (OSError, ImportError) as error:
        sentence = f"The client of model servers could not be loaded ({error}); ask again."
        return ModelError("model_error", sentence, kind="unreachable", retryable=True)
    return None


@cache
def _tls() -> ssl.SSLContext:
    """Made once: to read all certificates costs more than a request."""
    import httpx2

    return httpx2.create_ssl_context()
