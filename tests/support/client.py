"""A raw client of the gateway, as a program that knows nothing but the protocol would be written."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

Payload = dict[str, Any]

GUARD = 20.0
"""Seconds after which a test that waits has failed."""
ENDS = ("turn.finished", "turn.failed", "turn.cancelled")


class RawClient:
    """Sends frames and keeps every frame that came, so that tests can ask for what they need."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        # Ids are unique over all clients: the same id of the same user is the same message.
        self._ids = (f"{uuid.uuid4().hex}-{number}" for number in itertools.count(1))

    async def send(self, msg_type: str, payload: Payload, *, msg_id: str | None = None) -> str:
        """Send a message; returns its id."""
        msg_id = msg_id or next(self._ids)
        await self.socket.send(json.dumps({"msg_id": msg_id, "msg_type": msg_type, "payload": payload}))
        return msg_id

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next frame that is wanted; all frames up to it are kept in `frames`."""
        async with asyncio.timeout(GUARD):
            while True:
                frame: dict[str, Any] = json.loads(await self.socket.recv())
                self.frames.append(frame)
                if wanted(frame):
                    return frame

    async def receipt(self, msg_id: str) -> Payload:
        """The payload that answers a message: an event or an error."""
        frame = await self.until(lambda f: reply_to(f) == msg_id)
        payload: Payload = frame["payload"]
        return payload

    async def command(self, name: str, args: Payload | None = None) -> Payload:
        """Send a command; its result, or the error's payload."""
        payload = await self.receipt(await self.send("command", {"name": name, "args": args or {}}))
        result: Payload = payload["data"]["result"] if "data" in payload else payload
        return result

    async def end(self, turn_id: str | None = None) -> Payload:
        """The payload of a turn's end."""
        frame = await self.until(
            lambda f: f["payload"].get("name") in ENDS and turn_id in (None, f["payload"].get("turn_id"))
        )
        payload: Payload = frame["payload"]
        return payload

    async def say(self, text: str, *, session_id: str | None = None) -> Payload:
        """Send a text and wait for its end."""
        payload = {"text": text} if session_id is None else {"text": text, "session_id": session_id}
        receipt = await self.receipt(await self.send("text", payload))
        assert receipt.get("name") == "message.accepted", receipt
        return await self.end(receipt["turn_id"])


def reply_to(frame: dict[str, Any]) -> str | None:
    """The id of the message that a frame answers."""
    payload = frame["payload"]
    found: str | None = payload.get("reply_to") or payload.get("data", {}).get("reply_to")
    return found


@asynccontextmanager
async def raw_client(port: int, token: str = "test-token", *, query: str = "") -> AsyncIterator[RawClient]:
    """A connected client of the gateway on this machine."""
    url = f"ws://127.0.0.1:{port}/?token={token}{query}"
    async with connect(url, compression=None, proxy=None, max_size=None) as socket:
        yield RawClient(socket)
