"""How a turn ends: last entry, end and deliveries in one commit, and only then everybody is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from miniclaw import failpoints
from miniclaw.agent.command_text import command_text
from miniclaw.agent.core import Core
from miniclaw.agent.patience import until_stored
from miniclaw.agent.progress import Outcome, Progress, without_memories
from miniclaw.agent.replies import stopped_note, with_memory_line
from miniclaw.agent.transcript import pending_calls
from miniclaw.channel.base import Pulled
from miniclaw.errors import StaleFence, StorageError, StorageUnavailable
from miniclaw.gateway.events import TurnFeed, event_frame
from miniclaw.gateway.protocol import MessageType, ReplyTarget, format_time
from miniclaw.session.history import INTERRUPTED, NOT_BEGUN
from miniclaw.session.models import PASSING, Entry, Session, Turn
from miniclaw.session.outbox import Delivery

__all__ = ["TurnEnding"]

logger = logging.getLogger(__name__)

DAMAGED: Final[dict[str, Any]] = {
    "code": "internal",
    "message": "This conversation is damaged in the database; begin a new one, and see `miniclaw doctor`.",
}


def _command_reply(turn: Turn, outcome: Outcome) -> tuple[str, dict[str, Any]]:
    """A queued command is answered like any other: by its result or an error."""
    if outcome.state == "finished":
        return "command.result", outcome.data
    code, text = outcome.data.get("code", "unsupported"), outcome.data.get("message", "It was cancelled.")
    return "error", {"code": code, "message": text, "reply_to": turn.message["msg_id"]}


def _told(turn: Turn, outcome: Outcome) -> str:
    """What a chat is told of an end; never nothing, since something may be shown there that it replaces."""
    data = outcome.data
    if turn.message["msg_type"] == MessageType.COMMAND and "result" in data:
        return command_text(data["name"], data["result"])
    if outcome.state == "cancelled":
        return str((outcome.message or {}).get("content") or stopped_note(turn.text))
    return with_memory_line(data.get("text") or data.get("message") or "…", data, turn.text)


class TurnEnding:
    """Commits ends and announces them."""

    def __init__(self, core: Core) -> None:
        self._c = core
        self._bus = core.live.bus

    async def end(
        self, turn: Turn, session: Session, feed: TurnFeed, outcome: Outcome, progress: Progress | None
    ) -> bool:
        """Commit the end, then tell everybody; `False` when a cancel or another end was first.

        Waits for storage as long as the process runs: an answer that is there is not thrown away.
        """
        name, data = f"turn.{outcome.state}", outcome.data
        if turn.message["msg_type"] == MessageType.COMMAND:
            name, data = _command_reply(turn, outcome)
        entries = await self._last_entries(turn, session, outcome)
        failpoints.hit("before-end")
        committed = await until_stored(
            lambda: self._c.turns.end(
                turn,
                outcome.state,
                {"name": name, "data": without_memories(data), "seq": feed.seq + 1},
                fence=self._c.fence(turn.session_id),
                entries=entries,
                deliveries=self._deliveries(turn, outcome),
                usage=progress.budget.by_model.values() if progress else (),
            )
        )
        if not committed:
            return False
        session.extend(entries)
        session.updated_at = self._c.clock()
        logger.info("turn %s: %s", turn.turn_id, outcome.state)
        feed.emit(name, data)
        self._c.live.close(feed)
        self._bus.publish("message.outbound", turn)
        if self._c.live.get(turn.session_id) is None:
            self.show_phase(session, turn, "idle")
        return True

    async def unless_damaged(self, turn: Turn, work: Callable[[Turn], Awaitable[None]]) -> None:
        """Do something with a turn; one whose session turns out to be damaged is ended."""
        try:
            await work(turn)
        except (StorageUnavailable, StaleFence):
            raise
        except StorageError as error:
            await self._end_unread(turn, error)

    async def _end_unread(self, turn: Turn, error: StorageError) -> None:
        """End a turn, which may be cancelled, whose session the database cannot give: nothing of that is read."""
        logger.error("turn %s: its session cannot be read: %s", turn.turn_id, error)
        session = Session(session_id=turn.session_id, user_id=turn.scope, channel=turn.channel)
        feed = self._c.live.open(turn.session_id, turn.turn_id, turn.attempt, turn.channel)
        try:
            if not await self.end(turn, session, feed, Outcome("failed", DAMAGED.copy()), None):
                await self.end(turn, session, feed, Outcome("cancelled", {"text": ""}), None)
        finally:
            self._c.live.close(feed)

    async def _last_entries(self, turn: Turn, session: Session, outcome: Outcome) -> list[Entry]:
        """Results for calls that will get none any more, then the last message of the turn."""
        steps = session.steps_of(turn.turn_id)
        if not steps or turn.message["msg_type"] == MessageType.COMMAND:
            return []
        moment, number = self._c.clock(), max(entry.step for entry in steps)
        entries: list[Entry] = []
        for call in pending_calls(steps):
            look = partial(self._c.turns.was_only_asked, turn.turn_id, call.id)
            only_asked = await until_stored(look)
            content = NOT_BEGUN if only_asked else INTERRUPTED
            message = {"role": "tool", "tool_call_id": call.id, "content": content}
            entries.append(Entry(turn.turn_id, (number := number + 1), message, moment, {"ok": False}))
        if outcome.message is not None:
            entries.append(Entry(turn.turn_id, number + 1, outcome.message, moment, outcome.meta or None))
        return entries

    def _deliveries(self, turn: Turn, outcome: Outcome) -> list[Delivery]:
        channel = self._c.push.get(turn.channel)
        target = ReplyTarget.model_validate(turn.message.get("reply_to") or {})
        if channel is None or turn.message.get("reply_to") is None:
            return []
        text = _told(turn, outcome)
        moment = self._c.clock()
        if isinstance(channel, Pulled):
            parts = channel.left_over(target, text)
        else:
            parts = list(enumerate(channel.split(text)))
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
            for part, piece in parts
        ]

    def show_phase(self, session: Session, turn: Turn, phase: str) -> None:
        """Tell all connections of the user what the session is doing."""
        if session.metadata.get(PASSING):
            return
        data = {
            "session_id": session.session_id,
            "title": session.title,
            "channel": session.channel,
            "phase": phase,
            "updated_at": format_time(self._c.clock()),
        }
        target = f"{session.channel}:{session.session_id}"
        # The frame and not the message: it goes to every connection of the user, encoded once.
        frame = event_frame("session.updated", data, target=target, session_id=session.session_id)
        self._c.news.publish(f"user.{turn.user_id}", session.session_id, frame)
