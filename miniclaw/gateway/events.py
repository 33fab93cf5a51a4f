"""The EventBus and what flows on it: live events and observers. Nothing durable hangs on it."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from json.encoder import encode_basestring as _encode_string
from typing import Any, Final

from miniclaw.gateway.protocol import encode_json, new_id, now

__all__ = ["SHUT_OUT", "EventBus", "LiveEvent", "LiveTurns", "Subscription", "TurnFeed", "event_frame"]

logger = logging.getLogger(__name__)

RING_EVENTS: Final = 512
RING_BYTES: Final = 256 * 1024
FRAME_BYTES: Final = 300
"""What a frame holds beside its text, about."""

Handler = Callable[[str, Any], None]

SHUT_OUT: Final = object()
"""Published to `user.<id>` when a token is withdrawn: what it let in is closed."""


class Subscription:
    """A handler's place on the bus; `close()` takes it off and may be called again."""

    __slots__ = ("_bus", "handler", "is_open", "pattern")

    def __init__(self, bus: EventBus, pattern: str, handler: Handler) -> None:
        self._bus = bus
        self.pattern = pattern
        self.handler = handler
        self.is_open = True

    def close(self) -> None:
        """Stop receiving, also what is being handed out now."""
        self.is_open = False
        self._bus._remove(self)


class EventBus:
    """Publish to a topic, subscribe to a topic or to a prefix ending in `.*`.

    Handlers are plain functions that run at once, in order of subscription, and must not wait: one that
    has slow work puts the event into a bounded queue of its own. A handler that fails is logged and does
    not keep the event from the others.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, list[Subscription]] = {}
        self.on_interest: Callable[[str, bool], None] | None = None
        """Told of a topic that gets its first subscription or loses its last, where others publish to it too."""

    def subscribe(self, pattern: str, handler: Handler) -> Subscription:
        """Call `handler(topic, event)` for each event whose topic matches `pattern`.

        Raises:
            ValueError: `*` stands anywhere but at the end behind a dot.
        """
        if "*" in pattern and (not pattern.endswith(".*") or pattern.count("*") > 1):
            raise ValueError(f"pattern {pattern!r}: `*` may only stand at the end, as in `session.*`")
        subscription = Subscription(self, pattern, handler)
        others = self._handlers.setdefault(pattern, [])
        others.append(subscription)
        if self.on_interest is not None and len(others) == 1:
            self.on_interest(pattern, True)
        return subscription

    def relay(self, topic: str, event: Any) -> None:
        """Hand on what another process published: to those who asked for exactly this topic, not to observers."""
        if matched := self._handlers.get(topic):
            self._deliver(matched, topic, event)

    def publish(self, topic: str, event: Any) -> None:
        """Hand `event` to every handler of the topic and of the prefixes above it."""
        self.relay(topic, event)
        dot = topic.rfind(".")
        while dot > 0:
            if matched := self._handlers.get(f"{topic[:dot]}.*"):
                self._deliver(matched, topic, event)
            dot = topic.rfind(".", 0, dot)

    @staticmethod
    def _deliver(subscriptions: list[Subscription], topic: str, event: Any) -> None:
        for subscription in tuple(subscriptions):
            try:
                if subscription.is_open:
                    subscription.handler(topic, event)
            except Exception:  # boundary: one failing handler never hurts another
                logger.exception("a handler of %s failed", subscription.pattern)

    def _remove(self, subscription: Subscription) -> None:
        remaining = self._handlers.get(subscription.pattern)
        if remaining and subscription in remaining:
            remaining.remove(subscription)
            if not remaining:
                del self._handlers[subscription.pattern]
                if self.on_interest is not None:
                    self.on_interest(subscription.pattern, False)


class LiveEvent:
    """An event of a running turn; its frame is encoded once, when somebody first wants it."""

    __slots__ = ("_frame", "attempt", "data", "name", "seq", "session_id", "target", "turn_id")

    def __init__(
        self,
        name: str,
        data: dict[str, Any],
        *,
        session_id: str,
        turn_id: str,
        attempt: int,
        seq: int,
        target: str,
    ) -> None:
        self.name = name
        self.data = data
        self.session_id = session_id
        self.turn_id = turn_id
        self.attempt = attempt
        self.seq = seq
        self.target = target
        self._frame: str | None = None

    @property
    def frame(self) -> str:
        """The six fields as they go over the wire; the id is the same for everybody and at every replay."""
        if self._frame is None:
            self._frame = self.encode(self.data)
        return self._frame

    def encode(self, data: dict[str, Any]) -> str:
        """The frame with other data, such as one with rendered Markdown added."""
        if len(data) == 1 and (text := data.get("text")) is not None:
            body = f'{{"text":{_encode_string(text)}}}'  # the shape of a delta, of which there are most
        else:
            body = encode_json(data).decode()
        return (
            f'{{"msg_id":"{self.turn_id}.{self.attempt}.{self.seq}","msg_type":"event","source":"gateway",'
            f'"target":"{self.target}","payload":{{"name":"{self.name}","session_id":"{self.session_id}",'
            f'"turn_id":"{self.turn_id}","attempt":{self.attempt},"seq":{self.seq},"data":{body}}},'
            f'"timestamp":"{now()}"}}'
        )


def event_frame(
    name: str, data: dict[str, Any], *, target: str, session_id: str | None = None, turn_id: str | None = None
) -> str:
    """An event that belongs to no numbered attempt, such as `message.accepted`, as it goes over the wire."""
    payload: dict[str, Any] = {"name": name}
    if session_id is not None:
        payload["session_id"] = session_id
    if turn_id is not None:
        payload["turn_id"] = turn_id
    payload["data"] = data
    frame = {
        "msg_id": new_id("evt"),
        "msg_type": "event",
        "source": "gateway",
        "target": target,
        "payload": payload,
        "timestamp": now(),
    }
    return encode_json(frame).decode()


class TurnFeed:
    """The live events of one attempt of a turn, and enough of them to bring a late reader up to date.

    Keeps the last `RING_EVENTS` events or `RING_BYTES`, whichever is less; older ones are replaced by a
    snapshot of what they came to.
    """

    def __init__(self, bus: EventBus, *, session_id: str, turn_id: str, attempt: int, channel: str) -> None:
        self._bus = bus
        self._topic = f"session.{session_id}"
        self._ids = {"session_id": session_id, "turn_id": turn_id, "target": f"{channel}:{session_id}"}
        self.session_id = session_id
        self.turn_id = turn_id
        self.attempt = attempt
        self.seq = 0
        self._ring: deque[tuple[LiveEvent, int]] = deque()
        self._ring_bytes = 0
        self._text: list[str] = []
        self._breaks = [0]
        self._reasoning: list[str] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self._approval: dict[str, Any] | None = None

    @property
    def approval(self) -> dict[str, Any] | None:
        """The question that the turn waits for."""
        return self._approval

    @property
    def text(self) -> str:
        """Everything the reader has been shown as the answer so far."""
        return "".join(self._text)

    @property
    def paragraphs(self) -> str:
        """The same for readers who see no tools: what was said behind one stands below what was said before."""
        places = [*self._breaks, len(self._text)]
        said = ("".join(self._text[start:end]).strip() for start, end in itertools.pairwise(places))
        return "\n\n".join(filter(None, said))

    @property
    def segment(self) -> str:
        """The text since the last tool call."""
        return "".join(self._text[self._breaks[-1] :])

    def segment_start(self, back: int = 0) -> int:
        """Where in `text` the segment begins, or one of those before it."""
        return len("".join(self._text[: self._breaks[-1 - back]]))

    def emit(self, name: str, data: dict[str, Any]) -> LiveEvent:
        """Number an event, remember it, and publish it."""
        self.seq += 1
        event = LiveEvent(name, data, attempt=self.attempt, seq=self.seq, **self._ids)
        self._remember(event)
        self._bus.publish(self._topic, event)
        return event

    def take(self, event: LiveEvent) -> None:
        """Remember an event that another process numbered."""
        self.seq = event.seq
        self._remember(event)

    def keep(self, text: str, tools: list[dict[str, Any]]) -> None:
        """Take over what stored steps of earlier attempts showed; they are not sent again as events."""
        if text:
            self._text.append(text)
            self._breaks.append(len(self._text))
        self._tools.update((tool["call_id"], tool) for tool in tools)

    def since(self, attempt: int | None, seq: int) -> list[LiveEvent] | None:
        """The events after `seq` of this attempt, or `None` when they are not all here any more."""
        if attempt != self.attempt or seq > self.seq:
            return None
        missed = [event for event, _ in self._ring if event.seq > seq]
        return missed if len(missed) == self.seq - seq else None

    def snapshot(self) -> LiveEvent:
        """One event that replaces everything shown of this turn so far; carries the last event's number."""
        data = {
            "attempt": self.attempt,
            "seq": self.seq,
            "text": self.text,
            "segment": self.segment,
            "reasoning": "".join(self._reasoning),
            "tools": [dict(tool) for tool in self._tools.values()],
            "approval": self._approval,
        }
        return LiveEvent("turn.snapshot", data, attempt=self.attempt, seq=self.seq, **self._ids)

    def _remember(self, event: LiveEvent) -> None:
        name, data = event.name, event.data
        if name == "text.delta":
            self._text.append(data["text"])
        elif name == "reasoning.delta":
            self._reasoning.append(data["text"])
        elif name == "tool.started":
            self._tools[data["call_id"]] = dict(data)
            self._breaks.append(len(self._text))
        elif name == "tool.finished":
            self._tools.setdefault(data["call_id"], {}).update(data)
        elif name == "approval.requested":
            self._approval = data
        elif name == "approval.resolved":
            self._approval = None
        elif name == "turn.snapshot":
            self._restore(data)
            return
        size = FRAME_BYTES + _bytes(data["text"] if name.endswith(".delta") else event.frame)
        self._ring.append((event, size))
        self._ring_bytes += size
        while len(self._ring) > RING_EVENTS or self._ring_bytes > RING_BYTES:
            self._ring_bytes -= self._ring.popleft()[1]

    def _restore(self, data: dict[str, Any]) -> None:
        before = data["text"].removesuffix(data["segment"])
        self._text, self._breaks = [before, data["segment"]], [0, 1]
        self._reasoning, self._approval = [data["reasoning"]], data["approval"]
        self._tools = {tool["call_id"]: tool for tool in data["tools"]}
        self._ring.clear()
        self._ring_bytes = 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


async def _is_all_here(session_id: str) -> None:
    """The feeds of this process are all there are."""


class LiveTurns:
    """The feeds of the turns that run now, by session."""

    def __init__(self, bus: EventBus) -> None:
        self.bus = bus
        self._feeds: dict[str, TurnFeed] = {}
        self.look: Callable[[str], Awaitable[None]] = _is_all_here
        """Awaited before `get` where another process may run the session's turn."""

    def open(self, session_id: str, turn_id: str, attempt: int, channel: str) -> TurnFeed:
        """Begin the feed of an attempt."""
        feed = TurnFeed(self.bus, session_id=session_id, turn_id=turn_id, attempt=attempt, channel=channel)
        self._feeds[session_id] = feed
        return feed

    def put(self, feed: TurnFeed) -> None:
        """Show the feed of a turn that another process runs."""
        self._feeds[feed.session_id] = feed

    def close(self, feed: TurnFeed) -> None:
        """The attempt is over; does nothing to a feed that is not the session's."""
        if self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def all(self) -> list[TurnFeed]:
        """Every feed that is open."""
        return list(self._feeds.values())

    def get(self, session_id: str) -> TurnFeed | None:
        """The feed of the session's running turn."""
        return self._feeds.get(session_id)
