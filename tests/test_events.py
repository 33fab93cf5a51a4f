"""The bus and the feeds on it: who gets an event, its frame, and how a late reader is brought up to date."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.gateway.events import (
    RING_BYTES,
    RING_EVENTS,
    EventBus,
    LiveEvent,
    LiveTurns,
    Subscription,
    TurnFeed,
)
from miniclaw.gateway.paced import SPENT_SECONDS, PacedNews
from miniclaw.gateway.protocol import EventPayload, GatewayMessage

TEXT = st.text(st.characters(codec="utf-8"))


class Recorder:
    """A handler that keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []

    def __call__(self, topic: str, event: Any) -> None:
        self.got.append((topic, event))


def live_event(name: str, data: dict[str, Any]) -> LiveEvent:
    return LiveEvent(name, data, session_id="ses_1", turn_id="turn_1", attempt=1, seq=3, target="web:ses_1")


def new_feed(bus: EventBus | None = None, *, attempt: int = 1) -> TurnFeed:
    return TurnFeed(bus or EventBus(), session_id="ses_1", turn_id="turn_1", attempt=attempt, channel="web")


# --- the bus ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("session.1", "session.1", True),
        ("session.1", "session.12", False),
        ("session.*", "session.1", True),
        ("session.*", "session.1.x", True),
        ("session.1.*", "session.1.x", True),
        ("session.1.*", "session.1", False),
        ("session.*", "session", False),
        ("session.*", "sessions.1", False),
        ("message.inbound", "message.outbound", False),
        ("message.*", "message.outbound", True),
    ],
)
def test_a_pattern_is_a_topic_or_everything_below_a_prefix(pattern: str, topic: str, matches: bool) -> None:
    bus, handler = EventBus(), Recorder()
    bus.subscribe(pattern, handler)
    bus.publish(topic, 1)
    assert handler.got == ([(topic, 1)] if matches else [])


@pytest.mark.parametrize("pattern", ["*", "*.a", "a.*.b", "a*", "a.*.*", "a.b*"])
def test_a_star_anywhere_else_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="only stand at the end"):
        EventBus().subscribe(pattern, Recorder())


def test_handlers_of_a_topic_run_in_order_of_subscription_each_once() -> None:
    bus = EventBus()
    ran: list[int] = []
    for number in range(3):
        bus.subscribe("a", lambda topic, event, number=number: ran.append(number))  # type: ignore[misc]
    bus.publish("a", None)
    assert ran == [0, 1, 2]


def test_a_failing_handler_is_logged_and_keeps_nothing_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, before, after, above = EventBus(), Recorder(), Recorder(), Recorder()

    def fails(topic: str, event: Any) -> None:
        raise RuntimeError("broken handler")

    bus.subscribe("a.b", before)
    bus.subscribe("a.b", fails)
    bus.subscribe("a.b", after)
    bus.subscribe("a.*", above)
    with caplog.at_level(logging.ERROR):
        bus.publish("a.b", 1)
    assert before.got == after.got == above.got == [("a.b", 1)]
    assert "a handler of a.b failed" in caplog.text
    assert "broken handler" in caplog.text


def test_a_closed_subscription_gets_nothing_and_may_be_closed_again() -> None:
    bus, closed, stays = EventBus(), Recorder(), Recorder()
    subscription = bus.subscribe("a", closed)
    bus.subscribe("a", stays)
    subscription.close()
    subscription.close()
    bus.publish("a", 1)
    assert closed.got == []
    assert stays.got == [("a", 1)]


def test_the_same_handler_twice_are_two_subscriptions() -> None:
    bus, handler = EventBus(), Recorder()
    first = bus.subscribe("a", handler)
    bus.subscribe("a", handler)
    first.close()
    bus.publish("a", 1)
    assert handler.got == [("a", 1)]


@pytest.mark.parametrize("pattern", ["a.b", "a.*"])
def test_a_handler_closed_while_an_event_is_handed_out_does_not_get_it_any_more(pattern: str) -> None:
    bus, later, stays = EventBus(), Recorder(), Recorder()
    subscriptions: list[Subscription] = []

    def closes(topic: str, event: Any) -> None:
        for subscription in subscriptions:
            subscription.close()

    subscriptions.append(bus.subscribe("a.b", closes))
    subscriptions.append(bus.subscribe(pattern, later))
    bus.subscribe(pattern, stays)
    bus.publish("a.b", 1)
    bus.publish("a.b", 2)
    assert later.got == []
    assert stays.got == [("a.b", 1), ("a.b", 2)]


def test_a_handler_that_subscribes_another_gives_it_the_next_event() -> None:
    bus, added = EventBus(), Recorder()

    def subscribes(topic: str, event: Any) -> None:
        if event == 1:
            bus.subscribe("a", added)

    bus.subscribe("a", subscribes)
    bus.publish("a", 1)
    bus.publish("a", 2)
    assert added.got == [("a", 2)]


# --- frames -----------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["text.delta", "turn.finished", "tool.started"]),
    st.fixed_dictionaries({"text": TEXT})
    | st.dictionaries(TEXT, TEXT | st.none() | st.lists(TEXT), max_size=4),
)
def test_a_frame_is_a_message_of_the_six_fields_whatever_its_text(name: str, data: dict[str, Any]) -> None:
    frame = live_event(name, data).frame
    assert set(json.loads(frame)) == {"msg_id", "msg_type", "source", "target", "payload", "timestamp"}
    message = GatewayMessage.model_validate_json(frame)
    assert message.payload == EventPayload(
        name=name, session_id="ses_1", turn_id="turn_1", attempt=1, seq=3, data=data
    )
    assert (message.msg_id, message.source, message.target) == ("turn_1.1.3", "gateway", "web:ses_1")


def test_a_frame_is_encoded_once_and_the_same_for_everybody() -> None:
    event = live_event("text.delta", {"text": "a"})
    assert event.frame is event.frame


def test_a_frame_with_other_data_keeps_id_and_number() -> None:
    event = live_event("turn.finished", {"text": "a"})
    plain, richer = json.loads(event.frame), json.loads(event.encode({"text": "a", "html": "<p>a</p>"}))
    assert richer["payload"]["data"] == {"text": "a", "html": "<p>a</p>"}
    for message in (plain, richer):
        del message["payload"]["data"], message["timestamp"]
    assert plain == richer


def test_one_text_that_is_no_delta_and_one_field_that_is_no_text_are_encoded_as_well() -> None:
    assert json.loads(live_event("x", {"text": None}).frame)["payload"]["data"] == {"text": None}
    assert json.loads(live_event("x", {"position": 1}).frame)["payload"]["data"] == {"position": 1}
    assert json.loads(live_event("x", {}).frame)["payload"]["data"] == {}


# --- a turn's feed ----------------------------------------------------------------------------------------


def test_events_are_numbered_from_one_and_published_under_the_session() -> None:
    bus, handler = EventBus(), Recorder()
    bus.subscribe("session.ses_1", handler)
    feed = new_feed(bus, attempt=2)
    feed.emit("turn.started", {})
    feed.emit("text.delta", {"text": "a"})
    assert [(event.name, event.attempt, event.seq) for _, event in handler.got] == [
        ("turn.started", 2, 1),
        ("text.delta", 2, 2),
    ]


@given(st.integers(0, 30), st.integers(-3, 40), st.sampled_from([None, 1, 2, 3]))
def test_a_reader_gets_exactly_the_events_it_missed_or_is_told_to_take_a_snapshot(
    emitted: int, seen: int, attempt: int | None
) -> None:
    feed = new_feed(attempt=2)
    for number in range(emitted):
        feed.emit("text.delta", {"text": str(number)})
    missed = feed.since(attempt, seen)
    if attempt == 2 and 0 <= seen <= emitted:
        assert missed is not None
        assert [event.seq for event in missed] == list(range(seen + 1, emitted + 1))
    else:
        assert missed is None


def test_only_the_last_events_are_kept() -> None:
    feed = new_feed()
    for _ in range(RING_EVENTS + 10):
        feed.emit("text.delta", {"text": "a"})
    kept = feed.since(1, 10)
    assert kept is not None and len(kept) == RING_EVENTS
    assert feed.since(1, 9) is None


def test_only_so_many_bytes_are_kept() -> None:
    feed = new_feed()
    for _ in range(100):
        feed.emit("tool.finished", {"call_id": "c", "content": "x" * 10_000})
    sizes = [feed.since(1, 100 - count) for count in range(100)]
    most = max(len(kept) for kept in sizes if kept is not None)
    assert most == RING_BYTES // (10_000 + 600)  # a frame is less than 600 bytes beside its content


@given(st.lists(TEXT, max_size=20), st.integers(1, 40_000))
def test_what_is_kept_never_exceeds_the_limit(texts: list[str], repeat: int) -> None:
    feed = new_feed()
    for text in texts:
        feed.emit("text.delta", {"text": text * repeat})
    for seen in range(feed.seq + 1):
        kept = feed.since(1, seen)
        if kept is not None:
            assert sum(len(event.data["text"].encode()) for event in kept) <= RING_BYTES


def test_an_event_larger_than_the_ring_makes_readers_take_a_snapshot_and_the_next_ones_are_kept() -> None:
    feed = new_feed()
    feed.emit("text.delta", {"text": "x" * (RING_BYTES + 1)})
    feed.emit("text.delta", {"text": "y"})
    assert feed.since(1, 0) is None
    kept = feed.since(1, 1)
    assert kept is not None and [event.data for event in kept] == [{"text": "y"}]


def test_a_snapshot_is_everything_shown_and_carries_the_last_number() -> None:
    feed = new_feed()
    feed.emit("turn.started", {})
    feed.emit("reasoning.delta", {"text": "hm"})
    feed.emit("reasoning.delta", {"text": "m"})
    feed.emit("text.delta", {"text": "Let me "})
    feed.emit("text.delta", {"text": "see."})
    feed.emit("tool.started", {"call_id": "c1", "name": "clock", "arguments": {}})
    feed.emit("approval.requested", {"approval_id": "apr_1"})
    feed.emit("tool.started", {"call_id": "c2", "name": "clock", "arguments": {}})
    feed.emit("tool.finished", {"call_id": "c1", "ok": True, "content": "noon", "ms": 1})
    feed.emit("text.delta", {"text": "Noon."})
    snapshot = feed.snapshot()
    assert (snapshot.name, snapshot.seq) == ("turn.snapshot", 10)
    assert snapshot.data == {
        "attempt": 1,
        "seq": 10,
        "text": "Let me see.Noon.",
        "segment": "Noon.",
        "reasoning": "hmm",
        "tools": [
            {"call_id": "c1", "name": "clock", "arguments": {}, "ok": True, "content": "noon", "ms": 1},
            {"call_id": "c2", "name": "clock", "arguments": {}},
        ],
        "approval": {"approval_id": "apr_1"},
    }
    assert feed.seq == 10


def test_an_approval_is_shown_while_it_is_open() -> None:
    feed = new_feed()
    seen = []
    for name in ("turn.started", "approval.requested", "approval.resolved"):
        feed.emit(name, {"approval_id": "apr_1"})
        seen.append((feed.approval, feed.snapshot().data["approval"]))
    question = {"approval_id": "apr_1"}
    assert seen == [(None, None), (question, question), (None, None)]


def test_a_later_snapshot_does_not_change_an_earlier_one() -> None:
    feed = new_feed()
    started = {"call_id": "c1", "name": "clock"}
    feed.emit("tool.started", started)
    first = feed.snapshot()
    frame = first.frame
    feed.emit("tool.finished", {"call_id": "c1", "ok": True})
    assert started == {"call_id": "c1", "name": "clock"}
    assert json.loads(first.encode(first.data))["payload"] == json.loads(frame)["payload"]


def test_what_earlier_attempts_stored_is_in_the_snapshot_and_is_no_event() -> None:
    bus, handler = EventBus(), Recorder()
    bus.subscribe("session.ses_1", handler)
    feed = new_feed(bus, attempt=2)
    feed.keep("Stored. ", [{"call_id": "c1", "name": "clock", "ok": True}])
    feed.emit("text.delta", {"text": "New."})
    assert len(handler.got) == 1
    data = feed.snapshot().data
    assert (data["text"], data["segment"], data["seq"]) == ("Stored. New.", "New.", 1)
    assert data["tools"] == [{"call_id": "c1", "name": "clock", "ok": True}]


def test_the_feed_of_a_session_is_the_one_that_was_opened_last_until_it_is_closed() -> None:
    live = LiveTurns(EventBus())
    assert live.get("ses_1") is None
    first = live.open("ses_1", "turn_1", 1, "web")
    second = live.open("ses_1", "turn_1", 2, "web")
    other = live.open("ses_2", "turn_2", 1, "ws")
    live.close(first)
    assert live.get("ses_1") is second
    assert live.all() == [second, other]
    live.close(second)
    live.close(second)
    assert live.get("ses_1") is None
    assert live.all() == [other]
    assert json.loads(other.emit("x", {}).frame)["target"] == "ws:ses_2"


async def test_news_that_costs_too_much_is_held_back_and_only_the_latest_of_each_key_is_sent() -> None:
    bus, last = EventBus(), asyncio.Event()
    got: list[str] = []

    def handler(topic: str, event: str) -> None:
        spend(SPENT_SECONDS)
        got.append(event)
        if len(got) == 21:
            last.set()

    bus.subscribe("user.ann", handler)
    news = PacedNews(bus)
    for phase in ("running", "idle"):
        for number in range(20):
            news.publish("user.ann", f"s{number}", f"s{number} {phase}")
    assert got == ["s0 running"]
    async with asyncio.timeout(30):
        await last.wait()
    assert sorted(got[1:]) == sorted(f"s{number} idle" for number in range(20))


async def test_news_that_costs_little_is_sent_at_once_and_that_of_others_too_while_some_is_held() -> None:
    bus, held = EventBus(), asyncio.Event()
    got: list[str] = []
    bus.subscribe("user.ann", lambda topic, event: got.append(event))

    def slow(topic: str, event: str) -> None:
        spend(SPENT_SECONDS)
        got.append(event)
        if event == "late":
            held.set()

    bus.subscribe("user.bob", slow)
    news = PacedNews(bus)
    news.publish("user.bob", "s1", "early")
    news.publish("user.bob", "s2", "late")
    for number in range(3):
        news.publish("user.ann", "s3", f"now {number}")
    assert got == ["early", "now 0", "now 1", "now 2"]
    async with asyncio.timeout(30):
        await held.wait()
    assert got[4:] == ["late"]


async def test_a_rename_or_delete_is_sent_behind_the_news_of_that_session_which_was_held() -> None:
    bus, last = EventBus(), asyncio.Event()
    got: list[str] = []

    def handler(topic: str, event: str) -> None:
        spend(SPENT_SECONDS)
        got.append(event)
        if event == "s2 idle":
            last.set()

    bus.subscribe("user.ann", handler)
    news = PacedNews(bus)
    for number in range(3):
        news.publish("user.ann", f"s{number}", f"s{number} idle")
    news.follow("user.ann", "s1", "s1 deleted")
    async with asyncio.timeout(30):
        await last.wait()
    assert got == ["s0 idle", "s1 idle", "s1 deleted", "s2 idle"]


def spend(seconds: float) -> None:
    """Take that much of the event loop."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
