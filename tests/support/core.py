"""What the tests of the lower core share: a clock set by hand, messages, a database that is closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from miniclaw.db import Database
from miniclaw.gateway.protocol import CommandPayload, Inbound, MessageType, TextPayload
from miniclaw.session.models import Session, Turn

START = 1_800_000_000.0
"""What a `FakeClock` shows first."""


class FakeClock:
    """Seconds since the epoch, which pass only when a test says so."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def told(busy: Callable[[str], bool]) -> Callable[[str], Awaitable[bool]]:
    """What a back end says of whether a session is busy."""

    async def has_turns(session_id: str) -> bool:
        return busy(session_id)

    return has_turns


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """The database of a directory, closed at the end."""
    database = Database(path / "miniclaw.db")
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def text_message(
    text: str = "hello", *, msg_id: str = "m1", user_id: str | None = "ann", **more: Any
) -> Inbound:
    """A text as a pull channel hands it in."""
    return Inbound(
        msg_id=msg_id,
        msg_type=MessageType.TEXT,
        payload=TextPayload(text=text),
        channel=more.pop("channel", "web"),
        user_id=user_id,
        **more,
    )


def command_message(name: str, *, msg_id: str = "m1", user_id: str | None = "ann", **more: Any) -> Inbound:
    """A command as a pull channel hands it in."""
    return Inbound(
        msg_id=msg_id,
        msg_type=MessageType.COMMAND,
        payload=CommandPayload(name=name),
        channel=more.pop("channel", "web"),
        user_id=user_id,
        **more,
    )


def make_session(session_id: str = "ses_1", *, user_id: str = "ann", **more: Any) -> Session:
    """A session that is stored nowhere."""
    return Session(session_id=session_id, user_id=user_id, channel=more.pop("channel", "web"), **more)


def make_turn(turn_id: str, session_id: str = "ses_1", *, n: int = 1) -> Turn:
    """A turn that is stored nowhere."""
    return Turn(
        n=n,
        turn_id=turn_id,
        session_id=session_id,
        user_id="ann",
        scope="ann",
        channel="web",
        message={"msg_id": turn_id, "msg_type": "text", "payload": {"text": turn_id}},
    )
