"""What a tool may know about the call it serves; injected, never shown to the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ToolContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Who asks, in which turn, and where files may be kept."""

    user_id: str
    scope: str
    """Whose memory and workspace: the user's id, or the group's (`grp_…`) in a group's session."""
    session_id: str
    turn_id: str
    workspace: Path
    """The only directory that file tools may touch; made when first used."""
    saved_memories: list[str] = field(default_factory=list)
    """Ids of memories saved in this turn, in order; the turn reports them when it ends."""
    outside: list[str] = field(default_factory=list)
    """Tools by which words of others came into this turn, in order; what is saved after that may be theirs."""
    confirm: Callable[[str, dict[str, Any], str], Awaitable[bool]] | None = None
    """Asks the person of the turn yes or no in the middle of a call: what about, what is shown, a sentence."""
