"""What a platform that asks for its answers may show of a turn: from its live events, then from its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from miniclaw.agent.command_text import command_text
from miniclaw.agent.replies import with_memory_line
from miniclaw.gateway.events import LiveTurns
from miniclaw.gateway.protocol import ReplyTarget
from miniclaw.session.ports import Deliveries, Turns

__all__ = ["Standing", "Standings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far an answer is."""

    text: str
    """What there is of it; once it has ended, all of it."""
    is_ended: bool = True
    question: dict[str, Any] | None = None
    """What the turn waits for somebody to approve."""
    target: ReplyTarget | None = None
    is_delivered: bool = False
    """Its first part is a delivery, and not to be shown a second time."""


class Standings:
    """Nothing is kept here, so that a restart changes nothing."""

    def __init__(self, live: LiveTurns, turns: Turns, outbox: Deliveries) -> None:
        self._live = live
        self._turns = turns
        self._outbox = outbox

    async def of(self, turn_id: str, channel: str) -> Standing | None:
        """How far a turn is; `None` when this channel has none of that id."""
        turn = await self._turns.find(turn_id)
        if turn is None or turn.channel != channel:
            return None
        target = ReplyTarget.model_validate(turn.message.get("reply_to") or {})
        if turn.outcome is not None:
            is_delivered = await self._outbox.has(f"{turn_id}.0")
            return Standing(
                text=_final_text(turn.outcome, turn.text), target=target, is_delivered=is_delivered
            )
        await self._live.look(turn.session_id)
        feed = self._live.get(turn.session_id)
        if feed is None or feed.turn_id != turn_id:
            return Standing(text="", is_ended=False, target=target)
        return Standing(text=feed.paragraphs, is_ended=False, question=feed.approval, target=target)


def _final_text(outcome: dict[str, Any], question: str) -> str:
    data = outcome["data"]
    if outcome["name"] == "command.result":
        return command_text(data["name"], data["result"])
    return with_memory_line(str(data.get("text") or data.get("message") or ""), data, question)
