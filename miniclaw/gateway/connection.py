"""A person's or program's connection: frames in, receipts and live events out. Shared by all sockets."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC
from typing import Any, Final, Protocol

from miniclaw.channel.base import Channel
from miniclaw.errors import NOT_NOW, ProtocolError, StorageError
from miniclaw.gateway.events import SHUT_OUT, EventBus, LiveEvent, LiveTurns, Subscription, event_frame
from miniclaw.gateway.live import LiveHtml, with_text
from miniclaw.gateway.protocol import (
    TERMINAL_EVENTS,
    GatewayMessage,
    Inbound,
    MessageType,
    Receipt,
    TextPayload,
    error_message,
    new_id,
    now,
    parse_frame,
)
from miniclaw.logs import request_id
from miniclaw.session.models import Turn
from miniclaw.session.ports import Turns

__all__ = ["Connection", "ConnectionChannel", "Hub", "Socket"]

logger = logging.getLogger(__name__)

QUEUE: Final = 1024
"""Messages of one channel between its connections and the pump; a further one waits on its connection."""
CATCH_UP_SECONDS: Final = 0.2
"""How often a slow reader is looked at again."""
HARD_FACTOR: Final = 4
"""Times the soft limit of unsent bytes at which a reader is given up."""
TRY_AGAIN: Final = 1013
_TYPES: Final = {kind.value: kind for kind in MessageType}
POLICY_VIOLATION: Final = 1008


class Socket(Protocol):
    """The outgoing side of a connection; nothing here waits."""

    def write(self, frame: str) -> None:
        """Send, or buffer, a text frame; does nothing once it is closed."""
        ...

    def backlog(self) -> int:
        """Bytes that the peer has not taken yet."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Begin to close."""
        ...


class Hub:
    """What all connections share."""

    def __init__(self, bus: EventBus, live: LiveTurns, turns: Turns, *, soft_limit: int) -> None:
        self.bus = bus
        self.live = live
        self.turns = turns
        self.html = LiveHtml(live)
        self.soft_limit = soft_limit


class ConnectionChannel(Channel, ABC):
    """A channel whose peers hold connections and are users that it authenticated itself."""

    typed = False
    """Whether people type here, so that `/name` is a command."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.connections: dict[str, Connection] = {}
        self._queue: asyncio.Queue[Inbound] = asyncio.Queue(QUEUE)
        self._unsettled: dict[int, tuple[Connection | None, asyncio.Future[Receipt]]] = {}

    async def receive(self) -> Inbound:
        return await self._queue.get()

    async def submit(self, inbound: Inbound, connection: Connection | None = None) -> Receipt:
        """Put a message before the pump and wait for its receipt."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._unsettled[id(inbound)] = (connection, future)
        await self._queue.put(inbound)
        return await future

    def settle(self, inbound: Inbound, receipt: Receipt) -> None:
        connection, future = self._unsettled.pop(id(inbound))
        if connection is not None:
            # Here and not after the await: the reader must be subscribed before the turn's first event.
            connection.answer(inbound, receipt)
        if not future.done():
            future.set_result(receipt)

    async def send(self, message: GatewayMessage) -> None:
        frame = message.to_json()
        session_id = message.target.partition(":")[2]
        for connection in tuple(self.connections.values()):
            if session_id in connection.sessions:
                connection.write(frame)

    def open(self, socket: Socket, user_id: str, *, html: bool = False) -> Connection:
        """A new connection of an authenticated user."""
        connection = Connection(self, socket, user_id, html=html)
        self.connections[connection.connection_id] = connection
        self.hub.bus.publish("connection.opened", connection.connection_id)
        logger.info("connection %s of %s opened on %s", connection.connection_id, user_id, self.name)
        return connection

    def closed(self, connection: Connection) -> None:
        """The connection is gone; may be told twice."""
        if self.connections.pop(connection.connection_id, None) is not None:
            connection.release()
            self.hub.bus.publish("connection.closed", connection.connection_id)
            logger.info("connection %s closed", connection.connection_id)


class Connection:
    """One peer: its user, its current session, and the sessions whose events it gets.

    A reader that is slow loses deltas and gets a snapshot in their place; one that does not read at all
    is closed with 1013 and finds everything again by `resume`. It slows nobody else.
    """

    __slots__ = (
        "_bus",
        "_channel",
        "_hub",
        "_is_shut_out",
        "_lagging",
        "_socket",
        "_timer",
        "connection_id",
        "current",
        "html",
        "sessions",
        "user_id",
        "_user_events",
    )

    def __init__(self, channel: ConnectionChannel, socket: Socket, user_id: str, *, html: bool) -> None:
        self._channel = channel
        self._hub = channel.hub
        self._bus = channel.hub.bus
        self._socket = socket
        self._lagging: set[str] = set()
        self._is_shut_out = False
        self._timer: asyncio.TimerHandle | None = None
        self.connection_id = new_id("con")
        self.user_id = user_id
        self.html = html
        self.current: str | None = None
        self.sessions: dict[str, Subscription] = {}
        self._user_events = self._bus.subscribe(f"user.{user_id}", self._on_user_event)

    async def handle(self, data: str | bytes) -> None:
        """Take one frame of the peer; whatever is wrong with it is answered, and the connection lives."""
        if self._is_shut_out:
            return
        try:
            if isinstance(data, bytes):
                raise ProtocolError("bad_message", "Binary frames are not taken; send JSON text.")
            inbound = await self._inbound(data)
        except ProtocolError as error:
            self._refuse(error.code, str(error), error.reply_to)
            return
        await self._channel.submit(inbound, self)

    def answer(self, inbound: Inbound, receipt: Receipt) -> None:
        """Answer a message; subscribes to the session that it went into."""
        try:
            self._answer(inbound, receipt)
        except StorageError as error:
            logger.error("message %s: %s", inbound.msg_id, error)
            self._refuse("storage_unavailable", NOT_NOW, inbound.msg_id)

    def _answer(self, inbound: Inbound, receipt: Receipt) -> None:
        target = f"{self._channel.name}:{receipt.session_id or self.current or ''}"
        if receipt.stored and receipt.session_id:
            self.enter(receipt.session_id)
            if receipt.status == "duplicate" and inbound.msg_type is MessageType.COMMAND:
                first = self._hub.turns.get(receipt.turn_id or "")
                if first is not None and first.message["msg_type"] == MessageType.TEXT:
                    why = "Another message had this msg_id; send the command with a new one."
                    self._refuse("bad_message", why, inbound.msg_id)
                    return
            if inbound.msg_type is MessageType.TEXT:
                ids = {"session_id": receipt.session_id, "turn_id": receipt.turn_id}
                data = {"reply_to": inbound.msg_id, "status": receipt.status, **ids}
                self.write(event_frame("message.accepted", data, target=target, **ids))
            if receipt.status == "duplicate":
                self._replay_end(receipt.turn_id)  # for clients that only send again
        elif receipt.status == "answered":
            if receipt.session_id:
                self.enter(receipt.session_id)
            result = receipt.result or {}
            name = receipt.name or ""
            told = {"reply_to": inbound.msg_id, "name": name, "ok": True, "result": result}
            shown = with_text(told) if self.html else told
            self.write(event_frame("command.result", shown, target=target))
            if receipt.name == "resume" and receipt.session_id:
                self._resume(receipt.session_id, inbound)
        else:
            self._refuse(receipt.code or "internal", receipt.message, inbound.msg_id)

    def enter(self, session_id: str) -> None:
        """Make a session the current one and get its events from now on."""
        self.current = session_id
        if session_id not in self.sessions:
            self.sessions[session_id] = self._bus.subscribe(f"session.{session_id}", self._on_event)

    def write(self, frame: str) -> None:
        """Send a frame that must not be lost; a peer that has stopped reading is closed."""
        if self._socket.backlog() > HARD_FACTOR * self._hub.soft_limit:
            self._socket.close(TRY_AGAIN, "not reading; resume later")
            return
        self._socket.write(frame)

    def close(self, code: int, reason: str) -> None:
        """Begin to close, with a reason for the peer."""
        self._socket.close(code, reason)

    def release(self) -> None:
        """Take it off the bus; called once it is closed."""
        for subscription in self.sessions.values():
            subscription.close()
        self.sessions.clear()
        self._user_events.close()
        if self._timer is not None:
            self._timer.cancel()

    async def _inbound(self, data: str) -> Inbound:
        message = parse_frame(data)
        payload = message.payload
        named = payload.session_id if isinstance(payload, TextPayload) else payload.args.get("session_id")
        is_in_one = not isinstance(named, str) and self.current is not None
        try:
            if is_in_one and not await self._hub.turns.has_session(self.current or ""):
                self.current = None  # it expired or was deleted, so the next text begins a new one
        except StorageError as error:
            raise ProtocolError("storage_unavailable", NOT_NOW, reply_to=message.msg_id) from error
        return Inbound.of_valid(
            msg_id=message.msg_id,
            msg_type=_TYPES[message.msg_type],
            source=f"{self._channel.name}:{self.user_id}",
            payload=payload,
            timestamp=now(),
            channel=self._channel.name,
            sender=self.user_id,
            user_id=self.user_id,
            session_id=named if isinstance(named, str) else self.current,
            typed=self._channel.typed,
            request_id=request_id(),
        )

    def _refuse(self, code: str, message: str, reply_to: str | None, turn_id: str | None = None) -> None:
        target = f"{self._channel.name}:{self.current or ''}"
        self.write(error_message(code, message, target=target, reply_to=reply_to, turn_id=turn_id).to_json())

    def _on_user_event(self, topic: str, frame: object) -> None:
        if frame is SHUT_OUT:
            self._is_shut_out = True
            self._socket.close(POLICY_VIOLATION, "the token is not valid any more")
        elif isinstance(frame, str):
            self.write(frame)

    def _on_event(self, topic: str, event: LiveEvent) -> None:
        if event.name.endswith(".delta") or event.name == "turn.snapshot":
            if event.session_id in self._lagging or self._socket.backlog() > self._hub.soft_limit:
                self._lagging.add(event.session_id)
                self._look_again()
                return
        elif event.name in TERMINAL_EVENTS:
            self._lagging.discard(event.session_id)
        self._send_event(event)

    def _send_event(self, event: LiveEvent) -> None:
        if event.name == "error":  # a queued command that failed
            said = event.data
            self._refuse(said["code"], said["message"], said["reply_to"], event.turn_id)
            return
        for frame in self._hub.html.frames(event) if self.html else (event.frame,):
            self.write(frame)

    def _look_again(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CATCH_UP_SECONDS, self._catch_up)

    def _catch_up(self) -> None:
        self._timer = None
        if self._socket.backlog() > self._hub.soft_limit // 2:
            self._look_again()
            return
        lagging, self._lagging = self._lagging, set()
        for session_id in lagging:
            feed = self._hub.live.get(session_id)
            if feed is not None:
                self._send_event(feed.snapshot())

    def _resume(self, session_id: str, inbound: Inbound) -> None:
        """Bring the peer up to date with the turn it named, and with the one that runs."""
        args: dict[str, Any] = getattr(inbound.payload, "args", {})
        turn_id, feed = args.get("turn_id"), self._hub.live.get(session_id)
        if turn_id and (feed is None or feed.turn_id != turn_id):
            self._replay_end(turn_id)
        if feed is None:
            return
        missed = None
        if turn_id in (None, feed.turn_id) and args.get("after_seq") is not None:
            missed = feed.since(args.get("attempt"), args["after_seq"])
        for event in [feed.snapshot()] if missed is None else missed:
            self._send_event(event)

    def _replay_end(self, turn_id: str | None) -> None:
        turn = self._hub.turns.get(turn_id) if turn_id else None
        if turn is not None and turn.outcome is not None and turn.session_id in self.sessions:
            self._send_event(_terminal_event(turn))


def _terminal_event(turn: Turn) -> LiveEvent:
    outcome = turn.outcome or {}
    return LiveEvent(
        outcome["name"],
        outcome["data"],
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        attempt=turn.attempt,
        seq=outcome.get("seq", 0),
        target=f"{turn.channel}:{turn.session_id}",
    )
