"""How a turn ends: last entry, end and deliveries in one commit, and only then everybody is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from miniclaw.agent.approval import ApprovalDesk
from miniclaw.agent.progress import Outcome, Progress
from miniclaw.channel.base import Delivers
from miniclaw.config import Clock
from miniclaw.gateway.events import LiveTurns, TurnFeed
from miniclaw.gateway.protocol import MessageType, ReplyTarget, event_message, format_time
from miniclaw.session.models import Entry, Session, Turn
from miniclaw.session.outbox import Delivery
from miniclaw.session.turns import TurnStore

__all__ = ["TurnEnding"]

logger = logging.getLogger(__name__)


class TurnEnding:
    """Commits ends and announces them.

    Args:
        push: push channels by name; their answers become delivery rows. Filled before the first turn.
    """

    def __init__(
        self,
        turns: TurnStore,
        live: LiveTurns,
        desk: ApprovalDesk,
        *,
        push: Mapping[str, Delivers],
        clock: Clock,
        fence: int,
    ) -> None:
        self._turns = turns
        self._live = live
        self._bus = live.bus
        self._desk = desk
        self._push = push
        self._clock = clock
        self._fence = fence

    async def end(
        self, turn: Turn, session: Session, feed: TurnFeed, outcome: Outcome, progress: Progress | None
    ) -> bool:
        """Commit the end, then tell everybody; `False` when a cancel or another end was first."""
        command = turn.message["msg_type"] == MessageType.COMMAND
        name = f"turn.{outcome.state}"
        if command and outcome.state == "finished":
            name = "command.result"
        elif command:
            outcome.data["reply_to"] = turn.message["msg_id"]
        entries = []
        steps = session.steps_of(turn.turn_id)
        if outcome.message is not None and steps and not command:
            step = steps[-1].step + 1
            entries = [Entry(turn.turn_id, step, outcome.message, self._clock(), outcome.meta or None)]
        committed = await self._turns.end(
            turn,
            outcome.state,
            {"name": name, "data": outcome.data, "seq": feed.seq + 1},
            fence=self._fence,
            entries=entries,
            deliveries=self._deliveries(turn, outcome),
            usage=progress.usage if progress else None,
        )
        if not committed:
            return False
        session.extend(entries)
        session.updated_at = self._clock()
        await self._desk.close_turn(turn.turn_id)
        logger.info("turn %s: %s", turn.turn_id, outcome.state)
        feed.emit(name, outcome.data)
        self._live.close(turn.session_id)
        self._bus.publish("message.outbound", turn)
        self.show_phase(session, turn, "idle")
        return True

    def _deliveries(self, turn: Turn, outcome: Outcome) -> list[Delivery]:
        channel = self._push.get(turn.channel)
        target = ReplyTarget.model_validate(turn.message.get("reply_to") or {})
        if channel is None or turn.message.get("reply_to") is None:
            return []
        text = outcome.data.get("text") or outcome.data.get("message") or ""
        moment = self._clock()
        return [
            Delivery(
                key=f"{turn.turn_id}.{part}",
                n=turn.n,
                part=part,
                turn_id=turn.turn_id,
                user_id=turn.user_id,
                channel=turn.channel,
                account=turn.message.get("account", ""),
                conversation=target.conversation,
                target=target,
                text=piece,
                next_at=moment,
                created_at=moment,
            )
            for part, piece in enumerate(channel.split(text))
        ]

    def show_phase(self, session: Session, turn: Turn, phase: str) -> None:
        """Tell all connections of the user what the session is doing."""
        data = {
            "session_id": session.session_id,
            "title": session.title,
            "channel": session.channel,
            "phase": phase,
            "updated_at": format_time(self._clock()),
        }
        target = f"{session.channel}:{session.session_id}"
        message = event_message("session.updated", data, target=target, session_id=session.session_id)
        self._bus.publish(f"user.{turn.user_id}", message)
