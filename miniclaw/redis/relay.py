"""Live events between nodes: published at once, and the last ones of a running turn kept for late readers.

A node that runs a turn writes the events of some milliseconds as one batch into the session's capped stream and to
its channel. A node where somebody reads that session builds the turn's feed from them, so that a `resume` there is
the same as anywhere. Nothing durable hangs on it: who missed an end finds it in the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from miniclaw.errors import StorageError
from miniclaw.gateway.events import SHUT_OUT, EventBus, LiveEvent, LiveTurns, TurnFeed
from miniclaw.gateway.protocol import TERMINAL_EVENTS
from miniclaw.redis.link import FIRST_WAIT, LONGEST_WAIT, RedisLink
from miniclaw.session.ports import FenceOf, Turns

__all__ = ["RedisRelay"]

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.02
AT_ONCE: Final = 16
"""Batches that are sent in one round of the loop, so that much of it holds nobody up."""
NEWS_SECONDS: Final = 0.05
"""How long what a user is told waits for more; each batch wakes every node where the user is connected."""
SNAPSHOT_BATCHES: Final = 128
"""After so many batches one carries all that was shown before, so that older ones can go."""
KEPT_BATCHES: Final = 2 * SNAPSHOT_BATCHES + 8
KEPT_MS: Final = 600_000
"""How long the events of a turn are kept behind its last."""
LOOKED_SECONDS: Final = 30.0
"""How long the events of a session are followed after somebody looked, who then subscribes."""
LIFE_SECONDS: Final = 5.0
"""How often a connection is asked whether it lives; one that says nothing for twice as long is made anew."""
MISSED_SECONDS: Final = 2.0
"""How often turns are looked up whose end should have come."""


@dataclass(slots=True)
class _Watched:
    """A topic that somebody here reads."""

    last: str = ""
    """The stream's entry that was taken last."""
    loaded: asyncio.Future[None] | None = None
    early: list[str] = field(default_factory=list)
    """What came while the stream was being read."""
    until: float = 0.0
    """Followed so long though nobody has subscribed."""
    is_read: bool = False
    expected: dict[str, float] = field(default_factory=dict)
    """Turns whose end is waited for, with when they are looked up."""


@dataclass(slots=True)
class _Outgoing:
    """A session's events that are not sent yet."""

    events: list[list[Any]] = field(default_factory=list)
    is_new: bool = False
    batches: int = 0
    fence: int | None = None


class RedisRelay:
    """Carries the bus' `session.<id>` and `user.<id>` between nodes, and what nodes tell each other."""

    def __init__(
        self, link: RedisLink, bus: EventBus, live: LiveTurns, turns: Turns, *, node: str, fence: FenceOf
    ) -> None:
        self._link = link
        self._bus = bus
        self._live = live
        self._turns = turns
        self._node = node
        self._fence = fence
        self._watched: dict[str, _Watched] = {}
        self._outgoing: dict[str, _Outgoing] = {}
        self._early: dict[str, list[list[Any]]] = {}
        """Events of turns that are being accepted here, whose receipt comes first."""
        self._aside: list[tuple[str, str]] = []
        self._news: dict[str, list[str]] = {}
        """Frames for users that are not sent yet, by topic."""
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = 0.0
        self.told: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {}
        """By kind of message: what is done about it."""
        self.on_return: Callable[[], Awaitable[None]] | None = None
        """Awaited when messages may have been missed."""

    def start(self) -> None:
        """Carry from now on."""
        self._bus.on_interest = self._on_interest
        self._live.look = self.look
        self._bus.subscribe("session.*", self._on_event)
        self._bus.subscribe("user.*", self._on_frame)
        for work in (self._listen(), self._look_after()):
            self._spawn(work)

    async def stop(self) -> None:
        """Send what there is, then carry no more."""
        self._bus.on_interest = None
        while self._flush():
            pass
        self._tell()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def accepting(self, turn_id: str, begins: bool) -> None:
        """Keep back the events of a turn from its storing to behind its receipt, which follows at once."""
        if begins:
            self._early[turn_id] = []
        else:
            asyncio.get_running_loop().call_soon(self._let_go, turn_id)

    def _let_go(self, turn_id: str) -> None:
        for session_id, row in self._early.pop(turn_id, ()):
            if (watched := self._watched.get(f"session.{session_id}")) is not None:
                self._take_event(watched, session_id, row)

    def expect(self, session_id: str, turn_id: str) -> None:
        """Somebody here waits for the end of a turn."""
        topic = f"session.{session_id}"
        watched = self._watch(topic)
        watched.expected[turn_id] = time.monotonic() + MISSED_SECONDS
        watched.until = time.monotonic() + LOOKED_SECONDS

    async def look(self, session_id: str) -> None:
        """Have the feed of a session's turn, wherever it runs; see `LiveTurns.look`."""
        watched = self._watch(f"session.{session_id}")
        watched.until = time.monotonic() + LOOKED_SECONDS
        if watched.loaded is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await asyncio.shield(watched.loaded)
        feed = self._live.get(session_id)
        if isinstance(feed, _Mirror):  # its node may have died between the end and the telling of it
            await self._look_up(f"session.{session_id}", watched, feed.turn_id)

    def publish(self, kind: str, **more: Any) -> None:
        """Tell all nodes something; nobody waits for it."""
        self._send(
            "PUBLISH", f"{self._link.prefix}ctl", json.dumps({"kind": kind, "node": self._node, **more})
        )

    # --- what goes out

    def _on_event(self, topic: str, event: object) -> None:
        if not isinstance(event, LiveEvent):
            return
        row = [event.name, event.data, event.turn_id, event.attempt, event.seq, event.target]
        feed = self._live.get(event.session_id)
        if event.name in _ENDS and (watched := self._watched.get(topic)) is not None:
            watched.expected.pop(event.turn_id, None)
        if feed is None or feed.turn_id != event.turn_id:
            self._aside.append((event.session_id, self._batch([row])))
            self._flush_soon()
            return
        out = self._outgoing.setdefault(event.session_id, _Outgoing())
        out.fence = self._fence(event.session_id)
        if event.seq == 1 and event.name != "turn.snapshot":
            out.is_new, out.batches = True, 0
        out.events.append(row)
        self._flush_soon()

    def _on_frame(self, topic: str, frame: object) -> None:
        if not self._news:
            asyncio.get_running_loop().call_later(NEWS_SECONDS, self._tell)
        self._news.setdefault(topic, []).append("" if frame is SHUT_OUT else str(frame))

    def _tell(self) -> None:
        news, self._news = self._news, {}
        for topic, frames in news.items():
            self._send("PUBLISH", self._link.prefix + topic, f"{self._node} {json.dumps(frames)}")

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> bool:
        """Send what there is, and later what is too much for once; returns whether there is more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        aside, self._aside = self._aside, []
        for session_id, text in aside:
            self._call(session_id, "", text, "aside")
        full = [session_id for session_id, out in self._outgoing.items() if out.events]
        for session_id in full[:AT_ONCE]:
            out = self._outgoing[session_id]
            events, out.events = out.events, []
            out.batches += 1
            feed = self._live.get(session_id)
            if out.batches % SNAPSHOT_BATCHES == 0 and feed is not None:
                snapshot = feed.snapshot()
                row = [_BEFORE, snapshot.data, feed.turn_id, feed.attempt, feed.seq, snapshot.target]
                events.append(row)
            fence = "" if out.fence is None else out.fence
            self._call(session_id, fence, self._batch(events), "new" if out.is_new else "")
            out.is_new = False
            if events[-1][0] in _ENDS:
                del self._outgoing[session_id]
        if is_more := len(full) > AT_ONCE:
            self._timer = asyncio.get_running_loop().call_later(0, self._flush)
        return is_more

    def _batch(self, events: list[list[Any]]) -> str:
        return f"{self._node} {json.dumps(events, ensure_ascii=False)}"

    def _call(self, session_id: str, fence: str | int, batch: str, how: str) -> None:
        self._send_on(
            self._link.call("emit", session_id, fence, batch, how, KEPT_BATCHES, KEPT_MS, waits=True)
        )

    def _send(self, *command: Any) -> None:
        self._send_on(self._link.run(*command, waits=True))  # whoever said it: nobody waits for it

    @staticmethod
    def _send_on(future: asyncio.Future[Any]) -> None:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    # --- what comes in

    def _on_interest(self, topic: str, begins: bool) -> None:
        if topic.endswith(".*") or not topic.startswith(("session.", "user.")):
            return
        if begins:
            self._watch(topic).is_read = True
        elif (watched := self._watched.get(topic)) is not None:
            watched.is_read = False

    def _watch(self, topic: str) -> _Watched:
        if (watched := self._watched.get(topic)) is None:
            watched = self._watched[topic] = _Watched()
            watched.loaded = asyncio.get_running_loop().create_future()
            self._wanted.put_nowait((topic, True))
        return watched

    def _channel(self, topic: str) -> str:
        return self._link.prefix + (f"e:{topic[8:]}" if topic.startswith("session.") else topic)

    def _topic(self, channel: str) -> str:
        name = channel.removeprefix(self._link.prefix)
        return f"session.{name[2:]}" if name.startswith("e:") else name

    async def _listen(self) -> None:
        from redis.exceptions import RedisError

        wait = FIRST_WAIT
        while True:
            connection = self._link.connection()
            writer: asyncio.Task[None] | None = None
            try:
                await self._link.connect(connection)
                await connection.send_command("SUBSCRIBE", f"{self._link.prefix}ctl")
                for topic in self._watched:
                    self._wanted.put_nowait((topic, True))
                if self.on_return is not None:
                    self._spawn(self.on_return())
                writer = asyncio.get_running_loop().create_task(self._write(connection))
                writer.add_done_callback(lambda done: done.cancelled() or done.exception())
                wait = FIRST_WAIT
                while not writer.done():
                    self._on_message(await connection.read_response())
                    self._heard = time.monotonic()
                    await asyncio.sleep(0)  # much that came at once holds nobody up
            except (RedisError, OSError, TimeoutError) as error:
                logger.debug("the reader of live events lost Redis: %s", error)
            finally:
                if writer is not None:
                    writer.cancel()
                with contextlib.suppress(OSError, RedisError):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _write(self, connection: Any) -> None:
        """Subscribe and unsubscribe as it is wanted, and show life; end the connection when none comes back.

        The clock of that runs however much is wanted: what is written into a dead connection tells nothing.
        """
        clock, wanted = time.monotonic, list[tuple[str, bool]]()
        self._heard = clock()
        look = self._heard + LIFE_SECONDS
        try:
            while (now := clock()) <= self._heard + 2 * LIFE_SECONDS:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(look - now):
                        wanted.append(await self._wanted.get())
                async with asyncio.timeout(LIFE_SECONDS):  # where nobody takes what is written
                    if clock() >= look:
                        look = clock() + LIFE_SECONDS
                        await connection.send_command("PING")
                    while not self._wanted.empty():
                        wanted.append(self._wanted.get_nowait())
                    last = dict(wanted)  # what was wanted last counts
                    wanted.clear()
                    for command, begins in (("SUBSCRIBE", True), ("UNSUBSCRIBE", False)):
                        if channels := [self._channel(topic) for topic, how in last.items() if how is begins]:
                            await connection.send_command(command, *channels)
            logger.warning("Redis says nothing to the reader of live events; connecting again")
        finally:
            await connection.disconnect(nowait=True)  # which ends the reading too

    def _on_message(self, message: Any) -> None:
        kind = message[0]
        if kind == "subscribe" and message[1] != f"{self._link.prefix}ctl":
            topic = self._topic(message[1])
            if topic.startswith("session."):
                self._spawn(self._load(topic))
            elif (watched := self._watched.get(topic)) is not None and watched.loaded is not None:
                watched.loaded.set_result(None) if not watched.loaded.done() else None
        elif kind == "message":
            if message[1] == f"{self._link.prefix}ctl":
                told = json.loads(message[2])
                if told.get("node") != self._node and (handler := self.told.get(told["kind"])) is not None:
                    self._spawn(handler(told))
            else:
                self._on_batch(self._topic(message[1]), message[2])

    def _on_batch(self, topic: str, text: str) -> None:
        if topic.startswith("user."):
            node, _, frames = text.partition(" ")
            if node != self._node:
                self._hand_out(topic, json.loads(frames))
            return
        watched = self._watched.get(topic)
        if watched is None:
            return
        if watched.loaded is not None and not watched.loaded.done():
            watched.early.append(text)
            return
        entry, _, batch = text.partition(" ")
        self._take(topic, watched, entry, batch)

    def _hand_out(self, topic: str, frames: list[str]) -> None:
        """One frame a round of the loop: each goes to every connection of the user."""
        self._bus.relay(topic, frames.pop(0) or SHUT_OUT)
        if frames:
            asyncio.get_running_loop().call_soon(self._hand_out, topic, frames)

    async def _load(self, topic: str) -> None:
        """Read what the stream holds, then what came meanwhile."""
        watched, session_id = self._watched.get(topic), topic[8:]
        if watched is None:
            return
        if watched.loaded is None or watched.loaded.done():
            watched.loaded = asyncio.get_running_loop().create_future()
        loaded = watched.loaded
        try:
            rows = await self._link.run("XRANGE", f"{self._link.prefix}ev:{session_id}", "-", "+")
            for entry, row in rows:
                self._take(topic, watched, entry, row[1])
        except StorageError as error:
            logger.warning("live events of session %s cannot be read: %s", session_id, error)
        finally:
            early, watched.early = watched.early, []
            if not loaded.done():
                loaded.set_result(None)
        for text in early:
            entry, _, batch = text.partition(" ")
            self._take(topic, watched, entry, batch)

    def _take(self, topic: str, watched: _Watched, entry: str, batch: str) -> None:
        if entry:
            if watched.last and _order(entry) <= _order(watched.last):
                return
            watched.last = entry
        node, _, events = batch.partition(" ")
        if node == self._node:
            return
        session_id = topic[8:]
        own = self._live.get(session_id)
        if own is not None and not isinstance(own, _Mirror):
            return  # a turn of it runs here
        for row in json.loads(events):
            self._take_event(watched, session_id, row)

    def _take_event(self, watched: _Watched, session_id: str, row: list[Any]) -> None:
        name, data, turn_id, attempt, seq, target = row
        if (early := self._early.get(turn_id)) is not None:
            early.append([session_id, row])
            return
        is_before, name = name == _BEFORE, "turn.snapshot" if name == _BEFORE else name
        ids = {"session_id": session_id, "turn_id": turn_id, "attempt": attempt}
        event = LiveEvent(name, data, seq=seq, target=target, **ids)
        feed = self._live.get(session_id)
        is_known = feed is not None and (feed.turn_id, feed.attempt) == (turn_id, attempt)
        if is_known and feed is not None and seq <= feed.seq and (is_before or name != "turn.snapshot"):
            return
        if name in _ENDS:
            watched.expected.pop(turn_id, None)
            if feed is not None and feed.turn_id == turn_id:
                self._live.close(feed)
        elif attempt > 0:
            if feed is None or not is_known:
                feed = _Mirror(self._bus, channel=target.partition(":")[0], **ids)
                self._live.put(feed)
                watched.expected.setdefault(turn_id, time.monotonic() + MISSED_SECONDS)
            feed.take(event)
        self._bus.relay(f"session.{session_id}", event)

    # --- what was missed

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(MISSED_SECONDS)
            now = time.monotonic()
            for topic, watched in list(self._watched.items()):
                for turn_id, at in list(watched.expected.items()):
                    own = self._live.get(topic[8:])
                    if at < now and (own is None or isinstance(own, _Mirror) or own.turn_id != turn_id):
                        watched.expected[turn_id] = now + LOOKED_SECONDS / 3
                        self._spawn(self._look_up(topic, watched, turn_id))
                if not watched.is_read and watched.until < now:
                    del self._watched[topic]
                    self._wanted.put_nowait((topic, False))
                    feed = self._live.get(topic[8:])
                    if isinstance(feed, _Mirror):
                        self._live.close(feed)

    async def _look_up(self, topic: str, watched: _Watched, turn_id: str) -> None:
        """Give the end of a turn to those who wait for it, if it came while nobody could be told."""
        try:
            turn = await self._turns.find(turn_id)
        except StorageError as error:
            logger.warning("turn %s cannot be looked up: %s", turn_id, error)
            return
        feed = self._live.get(topic[8:])
        is_shown = isinstance(feed, _Mirror) and feed.turn_id == turn_id
        if turn is not None and turn.outcome is None:
            return
        if is_shown and feed is not None:
            self._live.close(feed)
        if (watched.expected.pop(turn_id, None) is None and not is_shown) or turn is None:
            return
        outcome = turn.outcome or {}
        event = LiveEvent(
            outcome["name"],
            outcome["data"],
            session_id=turn.session_id,
            turn_id=turn_id,
            attempt=turn.attempt,
            seq=outcome.get("seq", 0),
            target=f"{turn.channel}:{turn.session_id}",
        )
        self._bus.relay(topic, event)

    def _spawn(self, work: Any) -> None:
        # A context of its own: it is not the receipt of whoever watches that waits for it.
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("carrying live events broke: %s", error, exc_info=error)


_ENDS: Final = frozenset({*TERMINAL_EVENTS, "command.result", "error"})
_BEFORE: Final = "before"
"""In place of a name: a snapshot for readers who come late."""


class _Mirror(TurnFeed):
    """The feed of a turn that another node runs."""


def _order(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)
