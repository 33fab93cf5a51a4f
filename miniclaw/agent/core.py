"""`Core`: the parts that turns and commands act upon, made once by `app.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from miniclaw.agent.approval import ApprovalDesk
from miniclaw.agent.providers import LLMProvider
from miniclaw.agent.trace import TraceStore
from miniclaw.channel.base import Delivers
from miniclaw.config import Clock, Settings
from miniclaw.gateway.events import LiveTurns
from miniclaw.gateway.paced import PacedNews
from miniclaw.identity import Identities
from miniclaw.mcp.client.servers import Servers
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.short_term import ShortTermMemory
from miniclaw.session.manager import SessionManager
from miniclaw.session.once import OnceOnly
from miniclaw.session.ports import Deliveries, FenceOf, Turns
from miniclaw.session.search import SearchesText
from miniclaw.session.usage import UsageLedger
from miniclaw.skills.manager import SkillManager
from miniclaw.tools.registry import ToolRegistry

__all__ = ["Core"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Settings, storage, memory, skills, tools, model, and the live events of running turns."""

    settings: Settings
    data_dir: Path
    clock: Clock
    fence: FenceOf
    live: LiveTurns
    news: PacedNews
    """What all connections of a user are told of their sessions, in order."""
    identities: Identities
    sessions: SessionManager
    search: SearchesText
    turns: Turns
    outbox: Deliveries
    once: OnceOnly
    usage: UsageLedger
    traces: TraceStore
    window: ShortTermMemory
    desk: ApprovalDesk
    memory: LongTermMemory
    skills: SkillManager
    registry: ToolRegistry
    servers: Servers
    provider: LLMProvider
    push: dict[str, Delivers]
    """Push channels by name; their answers become delivery rows. Filled before the first turn."""
