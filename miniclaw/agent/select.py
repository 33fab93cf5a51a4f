"""Which model answers: what is configured, else a server on this machine, else the built-in demo."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from miniclaw.agent.config import AgentConfig
from miniclaw.agent.demo import DemoProvider
from miniclaw.agent.failures import MOST_WAIT
from miniclaw.agent.fallback import FallbackProvider
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMProvider
from miniclaw.config import ModelSettings
from miniclaw.errors import ModelError

__all__ = ["DEFAULT_MODEL", "LOCAL_PORTS", "LocalServer", "choose_provider", "find_local_server"]

logger = logging.getLogger(__name__)

DEFAULT_MODEL: Final = "gpt-4o-mini"
"""Where neither a name is configured nor the server lists a chat model."""
LOCAL_PORTS: Final = {11434: "Ollama", 1234: "LM Studio", 8080: "llama.cpp", 8000: "vLLM"}
PROBE_SECONDS: Final = 0.5
"""How long a server on this machine may take to answer the probe."""
PROBE: Final = (
    "GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
)
MOST_BYTES: Final = 1024 * 1024
"""What is read of an answer to the probe."""
WAIT_BEFORE_FALLBACK: Final = 5.0
"""Seconds that a model with another behind it is waited for, in all."""
LIST_SECONDS: Final = 5.0
"""How long a configured server may take to list its models at start."""

_NO_CHAT: Final = re.compile(
    r"embed|whisper|tts|dall-e|image|moderation|rerank|audio|realtime|transcribe|speech|bge|-e5|davinci|babbage",
    re.IGNORECASE,
)


async def choose_provider(
    settings: ModelSettings, agent: AgentConfig, *, local_ports: Sequence[int] = tuple(LOCAL_PORTS)
) -> LLMProvider:
    """The provider for these settings; never fails, since the demo model is always there."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    if key or settings.base_url:
        first = await _configured(settings, agent, key or "none")
        return _with_fallback(first, settings.base_url, key or "none", settings, agent)
    if settings.probe_local:
        if (found := await find_local_server(local_ports, settings.name)) is not None:
            logger.info("model %s found at %s (%s)", found.model, found.base_url, found.name)
            first = _provider(found.model, found.base_url, "local", settings, agent)
            return _with_fallback(first, found.base_url, "local", settings, agent)
    return DemoProvider()


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server on this machine."""

    name: str
    base_url: str
    model: str


async def find_local_server(
    ports: Sequence[int] = tuple(LOCAL_PORTS), wanted: str | None = None
) -> LocalServer | None:
    """The first server that answers on these ports, with the wanted model or its first one for chats."""
    for port, models in zip(ports, await _probe(ports), strict=True):
        if model := wanted if wanted in models else first_chat_model(models):
            return LocalServer(LOCAL_PORTS.get(port, "local"), f"http://127.0.0.1:{port}/v1", str(model))
    return None


def first_chat_model(names: Sequence[str]) -> str | None:
    """The first name in a server's list that does not look like anything but a chat model."""
    return next((name for name in names if not _NO_CHAT.search(name)), None)


async def _configured(settings: ModelSettings, agent: AgentConfig, key: str) -> LLMProvider:
    name = settings.name
    provider = _provider(name or DEFAULT_MODEL, settings.base_url, key, settings, agent)
    if name:
        return provider
    try:
        async with asyncio.timeout(LIST_SECONDS):
            found = first_chat_model(await provider.models())
    except (ModelError, TimeoutError) as error:
        why = str(error) or f"no answer within {LIST_SECONDS:g} s"
        logger.warning("the model list could not be read (%s); using %s", why, DEFAULT_MODEL)
        return provider
    return provider.with_model(found) if found else provider


def _with_fallback(
    first: LLMProvider, base_url: str | None, key: str, settings: ModelSettings, agent: AgentConfig
) -> LLMProvider:
    others = []
    for other in settings.fallback:
        own = other.api_key.get_secret_value() if other.api_key else "none" if other.base_url else key
        where = other.base_url or base_url
        others.append(
            _provider(other.name, where, own, settings.model_copy(update={"api": other.api}), agent)
        )
    return FallbackProvider([first, *others]) if others else first


def _provider(
    name: str, base_url: str | None, key: str, settings: ModelSettings, agent: AgentConfig
) -> OpenAIProvider:
    return OpenAIProvider(
        name,
        api_key=key,
        base_url=base_url,
        api=settings.api,
        temperature=agent.temperature,
        max_tokens=agent.max_tokens,
        parameters=settings.parameters,
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_wait=WAIT_BEFORE_FALLBACK if settings.fallback else MOST_WAIT,
    )


async def _probe(ports: Sequence[int]) -> list[list[str]]:
    return await asyncio.gather(*(_models_at(port) for port in ports))


async def _models_at(port: int) -> list[str]:
    """Models that a server on this machine lists; none when nothing answers or it is one of ours."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                # One GET by hand: at every start without a model, importing a client costs more than asking.
                writer.write(PROBE.format(port).encode())
                raw = b""
                while len(raw) < MOST_BYTES and (piece := await reader.read(MOST_BYTES)):
                    raw += piece
            finally:
                writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        rows: Any = json.loads(body)["data"] if b" 200 " in head.split(b"\r\n", 1)[0] else []
        return [str(row["id"]) for row in rows if row.get("owned_by") != "miniclaw"]
    except (OSError, TimeoutError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
