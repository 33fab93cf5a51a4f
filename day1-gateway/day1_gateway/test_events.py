"""总线：按主题分发，坏的处理函数不伤别人。"""

import logging
from typing import Any

import pytest

from day1_gateway import EventBus, Subscription


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


def test_a_handler_gets_its_topic_and_no_other(bus: EventBus) -> None:
    got: list[tuple[str, Any]] = []
    bus.subscribe("connection.opened", lambda topic, event: got.append((topic, event)))
    bus.publish("connection.opened", 1)
    bus.publish("connection.closed", 2)
    assert got == [("connection.opened", 1)]


def test_a_prefix_gets_everything_below_it(bus: EventBus) -> None:
    got: list[str] = []
    bus.subscribe("session.*", lambda topic, _: got.append(topic))
    for topic in ("session.1", "session.1.text", "session", "sessions.1"):
        bus.publish(topic, None)
    assert got == ["session.1", "session.1.text"]


def test_a_failing_handler_does_not_hurt_the_next(bus: EventBus, caplog: pytest.LogCaptureFixture) -> None:
    got: list[int] = []

    def broken(topic: str, event: Any) -> None:
        raise RuntimeError("broken")

    bus.subscribe("a", broken)
    bus.subscribe("a", lambda _, event: got.append(event))
    with caplog.at_level(logging.ERROR):
        bus.publish("a", 7)
    assert got == [7]
    assert "a handler of a failed" in caplog.text


def test_who_is_closed_while_an_event_is_handed_out_does_not_get_it(bus: EventBus) -> None:
    got: list[int] = []
    second: list[Subscription] = []
    bus.subscribe("a", lambda *_: second[0].close())
    second.append(bus.subscribe("a", lambda _, event: got.append(event)))
    bus.publish("a", 1)
    second[0].close()
    assert got == []


@pytest.mark.parametrize("pattern", ["*", "a*", "*.a", "a.*.b", "a.*.*"])
def test_a_star_anywhere_else_is_refused(bus: EventBus, pattern: str) -> None:
    with pytest.raises(ValueError, match="may only stand at the end"):
        bus.subscribe(pattern, lambda *_: None)
