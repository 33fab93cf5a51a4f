"""Turns that Ctrl+C can stop, and `--once`: one of them, and the program ends."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Protocol

from miniclaw.cli import json_text
from miniclaw.cli.screen import Screen
from miniclaw.errors import ProtocolError

__all__ = ["Talks", "interruptible", "once"]


class Talks(Protocol):
    """What is needed of a conversation."""

    screen: Screen
    session_id: str | None

    async def say(self, text: str | None) -> dict[str, Any]:
        """Send a text, or go on with the turn that was entered, and return the payload of the turn's end."""
        ...

    async def cancel(self) -> None:
        """Stop the running turn."""
        ...


async def once(conversation: Talks, text: str, *, as_json: bool) -> int:
    """Say one thing; 0 when the turn came to its own end, else 1."""
    try:
        end = await interruptible(conversation, text)
        data = end["data"]
    except ProtocolError as error:
        end, data = {"name": "turn.failed"}, {"code": error.code, "message": str(error)}
    failed = end["name"] == "turn.failed"
    if as_json:
        _print_object(conversation, end, data)
    elif failed:
        conversation.screen.error(data["message"])
    return 0 if end["name"] == "turn.finished" and not data.get("stopped_by") else 1


def _print_object(conversation: Talks, end: dict[str, Any], data: dict[str, Any]) -> None:
    error = {"code": data["code"], "message": data["message"]} if end["name"] == "turn.failed" else None
    if end["name"] == "turn.cancelled":
        error = {"code": "cancelled", "message": "The turn was cancelled."}
    row = {
        "text": data.get("text", ""),
        "session_id": conversation.session_id,
        "turn_id": end.get("turn_id"),
        **{name: data.get(name) for name in ("stopped_by", "usage")},
        **{name: data.get(name, []) for name in ("tools", "used_memories", "saved_memories")},
        "error": error,
    }
    print(json_text(row))


async def interruptible(conversation: Talks, text: str | None) -> dict[str, Any]:
    """A turn that the first Ctrl+C cancels; the second leaves the program."""
    loop = asyncio.get_running_loop()
    turn = loop.create_task(conversation.say(text))
    presses = 0
    cancels: set[asyncio.Task[None]] = set()

    def interrupted() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            turn.cancel()
        else:
            cancels.add(loop.create_task(conversation.cancel()))

    before = signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    except NotImplementedError:
        return await turn  # Windows: Ctrl+C raises KeyboardInterrupt, which ends the program
    try:
        return await turn
    except asyncio.CancelledError:
        if presses > 1:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)  # the runner's, which ends the program in order
