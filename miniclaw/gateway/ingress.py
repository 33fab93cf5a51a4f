"""The one way in: a message is stored, once, before anybody is told that it was taken."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal

from miniclaw import failpoints
from miniclaw.errors import ProtocolError, StaleFence, StorageError
from miniclaw.gateway.events import EventBus, LiveEvent
from miniclaw.gateway.protocol import Inbound, Receipt, TextPayload, has_unreadable
from miniclaw.logs import log_ids
from miniclaw.session.models import Turn
from miniclaw.session.ports import TurnQueue, Turns

__all__ = ["Ingress", "refusal"]

logger = logging.getLogger(__name__)

Status = Literal["busy", "refused", "unavailable"]

_STATUS: Final[dict[str, Status]] = {
    "session_busy": "busy",
    "overloaded": "unavailable",
    "draining": "unavailable",
    "storage_unavailable": "unavailable",
}

_UPLOADING: Final = frozenset({"web", "http", "ws", "terminal"})
"""Channels whose users can have uploaded what they name."""


def refusal(error: ProtocolError) -> Receipt:
    """The receipt of a message that changed nothing."""
    return Receipt(status=_STATUS.get(error.code, "refused"), code=error.code, message=str(error))


class Ingress:
    """Stores messages as turns and hands the turns to the mailbox, in the order in which they were stored."""

    def __init__(self, turns: Turns, mailbox: TurnQueue, bus: EventBus) -> None:
        self._turns = turns
        self._mailbox = mailbox
        self._bus = bus

    async def accept(self, inbound: Inbound) -> Receipt:
        """Claim the message's ids, find or make its session and store the turn, in one transaction.

        The receipt is given after the commit. A refused message claimed nothing, so that its repeat is
        not taken for a duplicate. Must not be cancelled between the commit and the hand-over, so it runs
        in the pump's tasks, never in a request's.
        """
        reserved: list[str] = []

        def reserve(session_id: str) -> None:
            self._mailbox.reserve(session_id)
            reserved.append(session_id)

        try:
            _check(inbound)
            accepted = await self._turns.accept(inbound, reserve)
        except BaseException as error:
            for session_id in reserved:
                self._mailbox.release(session_id)
            if not isinstance(error, ProtocolError | StorageError):
                raise
            if isinstance(error, ProtocolError):
                return refusal(error)
            logger.error("a message could not be stored: %s", error)
            code = "draining" if isinstance(error, StaleFence) else "storage_unavailable"
            return refusal(ProtocolError(code, "The message could not be stored; send it again in a moment."))
        if accepted.turn is None:
            return Receipt(status="duplicate", session_id=accepted.session_id, turn_id=accepted.turn_id)
        failpoints.hit("after-accept")
        self._mailbox.post(accepted.turn)
        ids = {"turn_id": accepted.turn_id, "msg_id": inbound.msg_id, "request_id": inbound.request_id}
        with log_ids(session_id=accepted.session_id, **ids):
            logger.info("turn %s of session %s accepted", accepted.turn_id, accepted.session_id)
        self._bus.publish("message.inbound", accepted.turn)
        ahead = accepted.ahead
        if position := self._mailbox.position(accepted.turn) if ahead is None else ahead:
            # Behind the receipt, which the channel gives as soon as this returns.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._show_position, inbound.channel, accepted.turn, position)
        return Receipt(status="accepted", session_id=accepted.session_id, turn_id=accepted.turn_id)

    def _show_position(self, channel: str, turn: Turn, position: int) -> None:
        event = LiveEvent(
            "turn.queued",
            {"position": position, **turn.said},
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            attempt=0,
            seq=1,
            target=f"{channel}:{turn.session_id}",
        )
        self._bus.publish(f"session.{turn.session_id}", event)


def _check(inbound: Inbound) -> None:
    """Refuse what cannot be kept or is not taken, before anything is stored."""
    has_uploads = isinstance(inbound.payload, TextPayload) and bool(inbound.payload.attachments)
    if has_uploads and inbound.channel not in _UPLOADING:
        raise ProtocolError("unsupported", "This channel takes no attachments.", reply_to=inbound.msg_id)
    envelope = (inbound.sender, inbound.account, inbound.conversation, inbound.thread, inbound.dedupe)
    target = inbound.reply_to.model_dump() if inbound.reply_to is not None else None
    if has_unreadable(envelope) or has_unreadable(target):
        raise ProtocolError("bad_message", "The message holds a lone surrogate or a NUL character.")
