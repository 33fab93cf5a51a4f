"""Turns as rows of the database."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any, Final

from miniclaw.gateway.protocol import Inbound
from miniclaw.session.models import Turn

__all__ = ["TURN_COLUMNS", "UNREADABLE", "note_key", "readable_turn", "session_key", "turn_of"]

logger = logging.getLogger(__name__)

TURN_COLUMNS: Final = (
    "t.n, t.turn_id, t.session_id, t.user_id, t.channel, t.message, t.state, t.attempt, "
    "t.cancel_requested, t.outcome, s.user_id, t.tries"
)

UNREADABLE: Final = {
    "name": "turn.failed",
    "data": {
        "code": "internal",
        "message": "This turn is damaged in the database and cannot be read; send the message again.",
    },
    "seq": 1,
}
"""The outcome of a turn whose row is damaged."""


def session_key(inbound: Inbound, scope: str) -> str | None:
    """The key of a platform's conversation; `None` where a peer names its session."""
    if inbound.conversation is None:
        return None
    return "\x1f".join((inbound.channel, inbound.account, inbound.conversation, inbound.thread or "", scope))


def note_key(inbound: Inbound, part: int = 0) -> str:
    """The key of the delivery that tells a person of a message which started no turn."""
    said = "\x1f".join((inbound.channel, inbound.account, inbound.msg_id))
    return f"note_{hashlib.sha256(said.encode('utf-8', 'replace')).hexdigest()[:24]}.{part}"


def readable_turn(row: tuple[Any, ...]) -> Turn | None:
    """The turn of a row, or `None`: one that is damaged must not keep the others from going on."""
    try:
        return turn_of(row)
    except ValueError:
        logger.error("turn %s of session %s cannot be read and is passed over", row[1], row[2])
        return None


def turn_of(row: tuple[Any, ...]) -> Turn:
    """The turn of a row; raises `ValueError` for an open one whose message is damaged."""
    message = _object(row[5], {"msg_id", "msg_type", "payload"})
    if message is None:
        if row[6] in ("waiting", "running"):
            raise ValueError("no message")
        message = {"msg_id": "", "msg_type": "text", "payload": {}}
    return Turn(
        n=row[0],
        turn_id=row[1],
        session_id=row[2],
        user_id=row[3],
        channel=row[4],
        message=message,
        state=row[6],
        attempt=row[7],
        cancel_requested=bool(row[8]),
        outcome=(_object(row[9], {"name", "data"}) or UNREADABLE) if row[9] else None,
        scope=row[10],
        tries=row[11],
    )


def _object(text: str, keys: set[str]) -> dict[str, Any] | None:
    """The object of that text if it has these keys."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and keys <= value.keys() else None
