"""A turn's transcript inside its session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniclaw.agent.providers import Message, ToolCall
from miniclaw.agent.stream import parse_call
from miniclaw.config import Clock
from miniclaw.memory.short_term import ShortTermMemory
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Entry, Session, Turn

__all__ = ["SessionTranscript", "pending_calls"]


class SessionTranscript:
    """The `Transcript` of a stored session: each step is one entry, numbered within its turn."""

    def __init__(
        self,
        session: Session,
        turn: Turn,
        *,
        sessions: SessionManager,
        window: ShortTermMemory,
        system: str,
        clock: Clock,
    ) -> None:
        self._session = session
        self._turn_id = turn.turn_id
        self._sessions = sessions
        self._window = window
        self._system = system
        self._clock = clock
        steps = session.steps_of(turn.turn_id)
        self._steps = steps
        self._next = steps[-1].step + 1 if steps else 0

    def messages(self) -> list[Message]:
        """System prompt and the legal history that fits the window."""
        return self._window.fit(self._system, self._session.history())

    def pending(self) -> list[ToolCall]:
        """Calls without a result at the end of what an earlier attempt stored."""
        return pending_calls(self._steps)

    def call_ids(self) -> set[str]:
        """Ids of calls that the turn has made already."""
        return {call["id"] for e in self._steps for call in e.message.get("tool_calls") or ()}

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        """Store the next step and show it in the loaded session."""
        entry = Entry(self._turn_id, self._next, message, self._clock(), meta)
        self._next += 1
        await self._sessions.append(self._session, [entry])


def pending_calls(steps: Sequence[Entry]) -> list[ToolCall]:
    """Calls of the last assistant message that have no result."""
    answered = {entry.message["tool_call_id"] for entry in steps if entry.message["role"] == "tool"}
    for entry in reversed(steps):
        if entry.message["role"] == "assistant":
            calls = [
                parse_call(raw["id"], raw["function"]["name"], raw["function"]["arguments"])
                for raw in entry.message.get("tool_calls") or ()
            ]
            return [call for call in calls if call.id not in answered]
    return []
