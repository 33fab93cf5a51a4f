"""Makes the `Core` of a gateway: storage, memory, skills and tools on one data directory."""

from __future__ import annotations

from pathlib import Path

from miniclaw.agent.approval import ApprovalDesk
from miniclaw.agent.core import Core
from miniclaw.agent.providers import LLMProvider
from miniclaw.channel.base import Delivers
from miniclaw.config import Clock, Settings
from miniclaw.db import Database
from miniclaw.gateway.events import LiveTurns
from miniclaw.identity import Identities
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.tools import memory_tools
from miniclaw.session.manager import SessionManager
from miniclaw.session.once import OnceOnly
from miniclaw.session.outbox import Outbox
from miniclaw.session.search import SQLiteSearch
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.session.turns import TurnStore
from miniclaw.session.usage import usage_of
from miniclaw.skills.manager import BUNDLED, SkillManager
from miniclaw.skills.tools import skill_tools
from miniclaw.tools.builtins import builtin_tools
from miniclaw.tools.registry import ToolRegistry

__all__ = ["build_core"]


def build_core(
    settings: Settings,
    data_dir: Path,
    db: Database,
    *,
    identities: Identities,
    provider: LLMProvider,
    live: LiveTurns,
    push: dict[str, Delivers],
    clock: Clock,
) -> Core:
    """The parts that turns and commands act upon, on an open database."""
    skill_paths = [Path(path).expanduser() for path in settings.skills.paths]
    skills = SkillManager([data_dir / "skills", *skill_paths, BUNDLED])
    memory = LongTermMemory(data_dir)
    built_in = builtin_tools(http_allow=settings.tools.http_allow)
    registry = ToolRegistry(
        (*built_in, *memory_tools(memory), *skill_tools(skills)),
        default_timeout=settings.agent.tool_timeout,
        result_chars=settings.tools.result_chars,
    )
    return Core(
        settings=settings,
        data_dir=data_dir,
        clock=clock,
        fence=db.epoch,
        live=live,
        identities=identities,
        sessions=SessionManager(
            SQLiteStorage(db),
            clock=clock,
            loaded=settings.storage.loaded_sessions,
            ttl=settings.storage.session_ttl,
            fence=db.epoch,
        ),
        search=SQLiteSearch(db),
        turns=TurnStore(db, identities, clock=clock),
        outbox=Outbox(db, clock=clock),
        once=OnceOnly(db, clock=clock),
        usage=lambda user_id: usage_of(db, user_id),
        desk=ApprovalDesk(db, settings.approval, is_admin=identities.is_admin, clock=clock),
        memory=memory,
        skills=skills,
        registry=registry,
        provider=provider,
        push=push,
    )
