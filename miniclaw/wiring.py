"""Makes the `Core` of a gateway: storage, memory, skills and tools on one data directory."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from miniclaw.agent.calls import may_clear
from miniclaw.agent.core import Core
from miniclaw.agent.delegate import DelegateTool
from miniclaw.agent.masking import secrets_of
from miniclaw.agent.providers import LLMProvider
from miniclaw.agent.trace import TraceStore
from miniclaw.backends import Backend
from miniclaw.channel.base import Delivers
from miniclaw.config import Clock, Settings
from miniclaw.errors import ConfigError, StorageUnavailable
from miniclaw.gateway.events import LiveTurns
from miniclaw.gateway.paced import PacedNews
from miniclaw.mcp.client.questions import Questions
from miniclaw.mcp.client.servers import Servers
from miniclaw.memory.conversations import ConversationIndex
from miniclaw.memory.embeddings import LOCAL, EndpointEmbeddings, LocalEmbeddings
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.meaning import MeaningIndex
from miniclaw.memory.short_term import ShortTermMemory
from miniclaw.memory.tools import memory_tools
from miniclaw.session.manager import SessionManager
from miniclaw.skills.tools import skill_tools
from miniclaw.toolbox import skills_of, tools_of
from miniclaw.tools.builtins.todo_tool import DIRECTORY as PLANS
from miniclaw.tools.context import workspace_of
from miniclaw.tools.workspace import RESULTS

__all__ = ["build_core", "meaning_of"]


def build_core(
    settings: Settings,
    data_dir: Path,
    backend: Backend,
    *,
    provider: LLMProvider,
    live: LiveTurns,
    push: dict[str, Delivers],
    clock: Clock,
    token: str = "",
) -> Core:
    """The parts that turns and commands act upon, on an open back end."""
    skills = skills_of(settings, data_dir, tools=lambda: registry.names())
    memory = LongTermMemory(
        data_dir,
        clock=clock,
        conversations=ConversationIndex(backend.search, clock=clock),
        meaning=meaning_of(settings),
    )
    registry = tools_of(
        settings, data_dir, (*memory_tools(memory), *skill_tools(skills), DelegateTool()), token=token
    )
    traces = TraceStore(data_dir / "traces", settings.trace, secrets=secrets_of(settings, token), clock=clock)
    return Core(
        settings=settings,
        data_dir=data_dir,
        clock=clock,
        fence=backend.fence,
        live=live,
        news=PacedNews(live.bus),
        identities=backend.identities,
        sessions=SessionManager(
            backend.storage,
            clock=clock,
            loaded=settings.storage.loaded_sessions,
            ttl=settings.storage.session_ttl,
            fence=backend.fence,
            outside=_Outside(settings, data_dir, backend, traces),
        ),
        search=backend.search,
        turns=backend.turns,
        outbox=backend.outbox,
        once=backend.once,
        usage=backend.usage,
        traces=traces,
        window=ShortTermMemory(settings.context.max_tokens, may_clear=partial(may_clear, registry)),
        desk=backend.desk,
        memory=memory,
        skills=skills,
        registry=registry,
        servers=Servers(
            data_dir,
            registry,
            workspace=workspace_of(data_dir, "owner", settings.users),
            questions=Questions(),
        ),
        provider=provider,
        push=push,
    )


def meaning_of(settings: Settings) -> MeaningIndex | None:
    """What searches memories by meaning, if the operator wants it.

    Raises:
        ConfigError: the model is not there, or nothing says where it is.
    """
    wanted = settings.memory.embeddings
    if wanted.model is None:
        return None
    floor = {} if wanted.floor is None else {"floor": wanted.floor}
    if wanted.model == LOCAL:
        return MeaningIndex(LocalEmbeddings(**floor))
    base_url = wanted.base_url or settings.model.base_url
    if base_url is None:
        raise ConfigError("memory.embeddings.model needs memory.embeddings.base_url, the server that has it.")
    api_key = wanted.api_key or (settings.model.api_key if wanted.base_url is None else None)
    secret = api_key.get_secret_value() if api_key else ""
    return MeaningIndex(EndpointEmbeddings(wanted.model, base_url, secret, **floor))


class _Outside:
    """What a session leaves beside its rows: traces, its plan, its long results."""

    def __init__(self, settings: Settings, data_dir: Path, backend: Backend, traces: TraceStore) -> None:
        self._users = settings.users
        self._data_dir = data_dir
        self._backend = backend
        self._traces = traces

    async def forget(self, session_id: str, scope: str) -> None:
        try:
            await self._traces.remove(await self._backend.turns.ids_of(session_id))
            await asyncio.to_thread(self._remove_files, scope, session_id)
        except OSError as error:
            raise StorageUnavailable(f"What session {session_id} left cannot be removed: {error}.") from error

    async def scrub(self) -> bool:
        return await self._backend.scrub()

    def _remove_files(self, scope: str, session_id: str) -> None:
        workspace = workspace_of(self._data_dir, scope, self._users)
        for path in (
            workspace / PLANS / f"{session_id}.md",
            *(workspace / RESULTS).glob(f"{session_id}-*.txt"),
        ):
            path.unlink(missing_ok=True)
