"""A whole answer as one value, for programs that use miniclaw as a library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miniclaw.errors import ModelError
from miniclaw.session.manager import SessionManager

__all__ = ["AgentReply", "reply_of"]


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What came of something that was said."""

    text: str
    history: list[dict[str, Any]]
    """The session's messages up to and with the answer, oldest first."""
    used_memories: list[dict[str, Any]]
    """Memories that the model was shown: `memory_id` and `content`."""
    session_id: str = ""
    """Where to go on talking."""


async def reply_of(end: Mapping[str, Any], sessions: SessionManager) -> AgentReply:
    """The answer that a turn's last event tells.

    Raises:
        ModelError: the turn failed or was cancelled.
    """
    data, session_id = end["data"], str(end["session_id"])
    if end["name"] != "turn.finished":
        code, message = data.get("code", "abandoned"), data.get("message", "The turn was cancelled.")
        raise ModelError(code, message)
    session = await sessions.get(session_id)
    history = [entry.message for entry in session.messages] if session is not None else []
    return AgentReply(data["text"], history, data["used_memories"], session_id)
