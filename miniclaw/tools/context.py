"""What a tool may know about the call it serves; injected, never shown to the model."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from miniclaw.session.models import Usage

__all__ = ["Answer", "HasWorkspace", "ToolContext", "workspace_of"]


class Answer(Protocol):
    """What a model said."""

    @property
    def text(self) -> str:
        """Without thoughts and calls."""
        ...

    @property
    def usage(self) -> Usage:
        """What it used, and which model it was."""
        ...


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
    confirm: Callable[[str, dict[str, Any], str], Awaitable[tuple[str, dict[str, Any]]]] | None = None
    """Asks the person of the turn in the middle of a call: what about, what is shown, a sentence.

    Gives `approved`, `denied`, `unattended` or `expired`, and what a shown `form` (`channel.forms`) is filled in with.
    """
    call_id: str = ""
    """The call that is served, where there is one."""
    ask: Callable[[str, list[dict[str, Any]]], Awaitable[Answer]] | None = None
    """Has the turn's model answer messages, for a purpose that the trace names, within the limits of the turn."""
    show: Callable[[dict[str, Any]], object] | None = None
    """Shows how far a call is: `{call_id, progress, total, message}`, at most a few times a second."""
    judged: tuple[Mapping[str, Any], Any] | None = None
    """The arguments of the call, as an object, and the risk that they were found to have."""


class HasWorkspace(Protocol):
    """What is needed of a user's settings."""

    @property
    def workspace(self) -> Path | None:
        """Another directory than the one in the data directory."""
        ...


def workspace_of(data_dir: Path, scope: str, users: Mapping[str, HasWorkspace]) -> Path:
    """The root of the file tools of a user or a group; the user's settings may name another one."""
    own = users[scope].workspace if scope in users else None
    return own or _workspace(data_dir, scope)


@functools.lru_cache(maxsize=1024)
def _workspace(data_dir: Path, scope: str) -> Path:
    return data_dir / ("groups" if scope.startswith("grp_") else "users") / scope / "workspace"
