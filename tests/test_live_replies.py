"""What a push channel shows while a turn runs, and that its end is one answer whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from miniclaw.channel.questions import question_markdown, question_text
from miniclaw.config import DeliverySettings
from miniclaw.db import Database
from miniclaw.errors import DeliveryError
from miniclaw.gateway.events import EventBus, TurnFeed
from miniclaw.gateway.live_replies import LiveReplies
from miniclaw.gateway.protocol import ReplyTarget
from miniclaw.identity import Identities
from miniclaw.session.models import Turn
from miniclaw.session.outbox import Delivery, Outbox, insert_deliveries
from miniclaw.session.turns import TurnStore
from tests.support.core import FakeClock, open_database, text_message

GUARD = 10.0
QUICK = DeliverySettings(timeout=GUARD, retry_base=0.001)


class Plain:
    """A push channel that can only send."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.news = asyncio.Event()

    def note(self, what: str, text: str) -> None:
        self.said.append((what, text))
        self.news.set()

    async def until(self, count: int) -> list[tuple[str, str]]:
        async with asyncio.timeout(GUARD):
            while len(self.said) < count:
                self.news.clear()
                await self.news.wait()
        return self.said

    def split(self, text: str) -> list[str]:
        return [text]

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        self.note("deliver", text)
        return None


class Streaming(Plain):
    """A channel that can do everything; what it refuses or holds up is set by the test."""

    stream_seconds = 0.0

    def __init__(self, outbox: Outbox, database: Database) -> None:
        super().__init__()
        self.outbox = outbox
        self.database = database
        self.fault: Exception | None = None
        self.handle: str | None = "h1"
        self.hold: asyncio.Event | None = None

    async def begin_stream(self, target: ReplyTarget, text: str, *, key: str, **_: Any) -> str | None:
        rows = self.database.read("SELECT state, handle FROM deliveries WHERE key = ?", (key,))
        self.note("begin", f"{text} {rows}")
        if self.fault is not None:
            raise self.fault
        return self.handle

    async def update_stream(self, target: ReplyTarget, handle: str, text: str) -> None:
        self.note("update begins", f"{handle} {text}")
        if self.hold is not None:
            await self.hold.wait()
        if self.fault is not None:
            raise self.fault
        self.note("update", text)

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        self.note("deliver", f"{handle} {text}")
        if self.fault is not None:
            raise self.fault
        return handle

    async def ask_approval(
        self, target: ReplyTarget, question: dict[str, Any], *, repeat: bool
    ) -> str | None:
        self.note("ask", question["tool"])
        return "card1"

    async def close_approval(
        self, target: ReplyTarget, handle: str, question: dict[str, Any], decision: str
    ) -> None:
        self.note("close", f"{handle} {question['tool']} {decision}")


class Desk:
    """Database, outbox and the live side of one turn on the channel `push`."""

    def __init__(self, database: Database) -> None:
        clock = FakeClock()
        self.database = database
        self.outbox = Outbox(database, clock=clock)
        self.turns = TurnStore(database, Identities(database, clock=clock), clock=clock)
        self.bus = EventBus()
        self.clock = clock

    async def begin(self, channel: Plain, attempt: int = 1) -> tuple[LiveReplies, TurnFeed, Turn]:
        target = ReplyTarget(conversation="C1", message_id="m1")
        inbound = text_message(channel="push", conversation="C1", reply_to=target)
        accepted = await self.turns.accept(inbound, lambda session_id: None)
        turn = self.turns.get(accepted.turn_id)
        assert turn is not None
        replies = LiveReplies(
            self.bus, self.turns, self.outbox, {"push": channel}, settings=QUICK, clock=self.clock
        )
        replies.start()
        feed = TurnFeed(
            self.bus, session_id=turn.session_id, turn_id=turn.turn_id, attempt=attempt, channel="push"
        )
        feed.emit("turn.started", {"text": turn.text})
        return replies, feed, turn

    def row(self, turn: Turn) -> tuple[str, str | None, int] | None:
        rows = self.database.read(
            "SELECT state, handle, uncertain FROM deliveries WHERE key = ?", (f"{turn.turn_id}.0",)
        )
        return tuple(rows[0]) if rows else None


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_database(tmp_path) as database:
        yield Desk(database)


def delta(feed: TurnFeed, text: str) -> None:
    feed.emit("text.delta", {"text": text})


async def test_the_row_is_open_before_the_first_text_shows_and_gets_the_handle_after(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "Hel")
    assert (await channel.until(1)) == [("begin", "Hel [('streaming', None)]")]
    delta(feed, "lo")
    await channel.until(3)
    assert channel.said[1:] == [("update begins", "h1 Hello"), ("update", "Hello")]
    assert desk.row(turn) == ("streaming", "h1", 0)
    await replies.stop()


async def test_text_behind_a_tool_is_shown_below_the_text_before_it(desk: Desk) -> None:
    """AstrBotDevs/AstrBot#6743: an empty card came first, and the text behind a tool was lost in the old one."""
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, _ = await desk.begin(channel)
    for number in range(2):
        feed.emit("tool.started", {"call_id": f"c{number}", "name": "zap", "arguments": {}})
        feed.emit(
            "tool.finished", {"call_id": f"c{number}", "name": "zap", "ok": True, "content": "", "ms": 1}
        )
        delta(feed, f"text {number}.")
        await channel.until(1 + 2 * number)
    assert channel.said[0] == ("begin", "text 0. [('streaming', None)]")
    assert channel.said[-1] == ("update", "text 0.\n\ntext 1.")
    await replies.stop()


async def test_a_slow_platform_gets_the_newest_text_only(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, _ = await desk.begin(channel)
    channel.hold = asyncio.Event()
    for text in ("a", "b"):
        delta(feed, text)
        await channel.until(1 if text == "a" else 2)
    for _ in range(500):
        delta(feed, "c")
    channel.hold.set()
    await channel.until(5)
    assert [text for what, text in channel.said if what == "update"] == ["ab", "ab" + "c" * 500]
    await replies.stop()


async def test_the_end_waits_for_the_update_that_is_on_its_way_and_nothing_comes_after_it(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, turn = await desk.begin(channel)
    channel.hold = asyncio.Event()
    delta(feed, "a")
    await channel.until(1)
    delta(feed, "b")
    await channel.until(2)
    delta(feed, "c")
    feed.emit("turn.finished", {"text": "abc"})
    settled = asyncio.ensure_future(replies.settled(turn.turn_id))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not settled.done()
    channel.hold.set()
    async with asyncio.timeout(GUARD):
        await settled
    assert channel.said[-1] == ("update", "ab")
    await replies.stop()


async def test_a_waiting_answer_of_the_conversation_is_not_overtaken_by_a_streamed_one(desk: Desk) -> None:
    target = ReplyTarget(conversation="C1")
    waiting = Delivery(
        key="turn_0.0",
        n=0,
        part=0,
        turn_id="turn_0",
        user_id="ann",
        channel="push",
        account="",
        conversation="C1",
        target=target,
        text="first",
    )
    await desk.database.write(lambda c: insert_deliveries(c, [waiting]))
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "a")
    feed.emit("approval.requested", {"approval_id": "apr_1", "tool": "x", "arguments": {}})
    await channel.until(1)
    assert channel.said == [("ask", "x")] and desk.row(turn) is None
    await replies.stop()


async def test_a_resumed_turn_goes_on_in_the_message_that_is_there(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "a")
    await channel.until(1)
    await replies.stop()
    await desk.outbox.keep_stream(f"{turn.turn_id}.0", "h1")
    second = Streaming(desk.outbox, desk.database)
    again = LiveReplies(desk.bus, desk.turns, desk.outbox, {"push": second}, settings=QUICK, clock=desk.clock)
    again.start()
    feed = TurnFeed(desk.bus, session_id=turn.session_id, turn_id=turn.turn_id, attempt=2, channel="push")
    feed.emit("turn.started", {"text": "x"})
    delta(feed, "new")
    await second.until(2)
    assert second.said == [("update begins", "h1 new"), ("update", "new")]
    await again.stop()


async def test_a_crash_while_the_first_text_was_shown_leaves_an_end_that_is_marked(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    channel.fault = DeliveryError("cut", unknown=True)
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "a")
    await channel.until(1)
    async with asyncio.timeout(GUARD):
        await replies.settled(turn.turn_id)
    assert desk.row(turn) == ("streaming", None, 1)
    channel.fault = None
    feed = TurnFeed(desk.bus, session_id=turn.session_id, turn_id=turn.turn_id, attempt=2, channel="push")
    feed.emit("turn.started", {"text": "x"})
    delta(feed, "again")
    async with asyncio.timeout(GUARD):
        await replies.settled(turn.turn_id)
    assert len(channel.said) == 1  # not shown a second time: the end comes, and says that it may be a repeat
    await replies.stop()


@pytest.mark.parametrize("fault", [DeliveryError("429"), None])
async def test_a_platform_that_surely_shows_nothing_leaves_an_unmarked_end(
    desk: Desk, fault: Exception | None
) -> None:
    channel = Streaming(desk.outbox, desk.database)
    channel.fault, channel.handle = fault, None
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "a")
    await channel.until(1)
    async with asyncio.timeout(GUARD):
        await replies.settled(turn.turn_id)
    assert desk.row(turn) == ("streaming", None, 0)
    await replies.stop()


async def test_an_update_that_fails_is_made_good_by_the_next(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, _ = await desk.begin(channel)
    delta(feed, "a")
    await channel.until(1)
    channel.fault = DeliveryError("429")
    delta(feed, "b")
    await channel.until(2)
    channel.fault = None
    delta(feed, "c")
    await channel.until(4)
    assert channel.said[-1] == ("update", "abc")
    await replies.stop()


async def test_a_channel_that_breaks_is_shown_no_more_and_hurts_nobody(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Streaming(desk.outbox, desk.database)
    channel.fault = RuntimeError("a bug")
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "a")
    await channel.until(1)
    async with asyncio.timeout(GUARD):
        await replies.settled(turn.turn_id)
    delta(feed, "b")
    assert "is not shown any more" in caplog.text
    await replies.stop()


async def test_a_question_is_shown_with_buttons_and_its_decision_takes_their_place(desk: Desk) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, _ = await desk.begin(channel)
    question = {
        "approval_id": "apr_1",
        "short_id": "abc123",
        "tool": "write_file",
        "arguments": {"path": "x"},
    }
    feed.emit("approval.requested", question)
    await channel.until(1)
    feed.emit("approval.resolved", {"approval_id": "apr_1", "decision": "approved"})
    await channel.until(2)
    assert channel.said == [("ask", "write_file"), ("close", "card1 write_file approved")]
    await replies.stop()


@pytest.mark.parametrize(("fault", "left"), [(None, None), (DeliveryError("429"), "h1")])
async def test_what_was_said_before_a_question_is_a_message_of_its_own_if_it_can_be(
    desk: Desk, fault: Exception | None, left: str | None
) -> None:
    channel = Streaming(desk.outbox, desk.database)
    replies, feed, turn = await desk.begin(channel)
    delta(feed, "Well")
    await channel.until(1)
    channel.fault = fault
    feed.emit("approval.requested", {"approval_id": "apr_1", "tool": "zap", "arguments": {}})
    await channel.until(3)
    assert channel.said[1:] == [("deliver", "h1 Well"), ("ask", "zap")]
    await replies.stop()
    assert desk.row(turn) == ("streaming", left, 0)


async def test_without_buttons_a_question_is_a_text_that_names_the_commands(desk: Desk) -> None:
    channel = Plain()
    replies, feed, _ = await desk.begin(channel)
    question = {
        "approval_id": "apr_1",
        "short_id": "abc123",
        "tool": "write_file",
        "arguments": {"text": "字" * 5000},
    }
    feed.emit("approval.requested", question)
    feed.emit("approval.resolved", {"approval_id": "apr_1", "decision": "approved"})
    [(what, text)] = await channel.until(1)
    assert what == "deliver" and "write_file" in text
    assert "/approve abc123" in text and "/deny abc123" in text
    assert len(text.encode()) < 2000  # of WeCom's 2,048, beyond which it cuts off
    await replies.stop()


class Refusing(Plain):
    """A channel that fails as it is told before it sends."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = list(faults)

    def send(self, what: str, repeat: bool) -> str:
        self.note(f"{what}{' again' if repeat else ''}", "")
        if self.faults:
            raise self.faults.pop(0)
        return "h1"

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        return self.send(f"deliver {key}", repeat)


class Buttons(Refusing):
    async def ask_approval(
        self, target: ReplyTarget, question: dict[str, Any], *, repeat: bool
    ) -> str | None:
        return self.send("ask", repeat)

    async def close_approval(
        self, target: ReplyTarget, handle: str, question: dict[str, Any], decision: str
    ) -> None:
        self.note("close", "")


LIMITED = DeliveryError("429", retry_after=0.0)
UNKNOWN = DeliveryError("cut", unknown=True)
REFUSED = DeliveryError("no blocks", permanent=True)


@pytest.mark.parametrize(
    ("channel", "sent"),
    [
        (Refusing(LIMITED, DeliveryError("down")), ["deliver apr_1.0"] * 3),
        (Refusing(UNKNOWN, LIMITED), ["deliver apr_1.0"] + ["deliver apr_1.0 again"] * 2),
        (Buttons(LIMITED, LIMITED), ["ask"] * 3),
        (Buttons(UNKNOWN, LIMITED), ["ask", "ask again", "ask again"]),
        (Buttons(REFUSED, UNKNOWN), ["ask", "deliver apr_1.0", "deliver apr_1.0 again"]),
    ],
)
async def test_a_question_is_asked_until_it_has_arrived(
    desk: Desk, channel: Refusing, sent: list[str]
) -> None:
    replies, feed, _ = await desk.begin(channel)
    feed.emit("approval.requested", {"approval_id": "apr_1", "tool": "zap", "arguments": {}})
    assert [what for what, _ in await channel.until(len(sent))] == sent
    await replies.stop()


@pytest.mark.parametrize(("channel", "sent"), [(Refusing(), "deliver apr_1.0"), (Buttons(), "ask")])
async def test_a_question_of_an_earlier_attempt_is_a_repeat(desk: Desk, channel: Refusing, sent: str) -> None:
    replies, feed, _ = await desk.begin(channel)
    feed.emit("approval.requested", {"approval_id": "apr_1", "tool": "zap", "arguments": {}, "again": True})
    assert [what for what, _ in await channel.until(1)] == [f"{sent} again"]
    await replies.stop()


@pytest.mark.parametrize("end", ["approval.resolved", "turn.finished"])
async def test_a_question_that_is_closed_is_not_asked_again(desk: Desk, end: str) -> None:
    channel = Buttons(*[DeliveryError("429", retry_after=1e9)] * 2)
    replies, feed, turn = await desk.begin(channel)
    feed.emit("approval.requested", {"approval_id": "apr_1", "tool": "zap", "arguments": {}})
    await channel.until(1)
    feed.emit(end, {"approval_id": "apr_1", "decision": "denied", "text": ""})
    async with asyncio.timeout(GUARD):
        await replies.settled(turn.turn_id)
    assert channel.said == [("ask", "")]
    await replies.stop()


@pytest.mark.parametrize(("show", "shown"), [(question_text, 500), (question_markdown, 3000)])
@pytest.mark.parametrize("rest", [0, 1, 77])
@pytest.mark.parametrize("is_summary", [True, False])
def test_a_question_says_how_much_of_it_is_not_shown(
    show: Callable[[dict[str, Any]], str], shown: int, rest: int, is_summary: bool
) -> None:
    asked: dict[str, Any] = {"approval_id": "apr_1", "short_id": "a1", "tool": "t", "arguments": {"x": ""}}
    about = "x" * (shown + rest)
    if is_summary:
        asked["summary"] = about
    else:
        asked["arguments"] = {"x": "x" * (shown + rest - len(str(asked["arguments"])))}
    text = show(asked).removesuffix("\n\n/approve a1  ·  /deny a1")
    assert text.endswith(f"… (+{rest} characters)") if rest else "characters)" not in text


@pytest.mark.parametrize("show", [question_text, question_markdown])
@pytest.mark.parametrize(
    "about", ["[x]: <hidden>", "![me](u)", "a\n```\n[x]: y\n````\n# z", "|a|\n|-|", "<!-- x"]
)
@pytest.mark.parametrize("field", ["summary", "arguments"])
def test_a_question_names_the_tool_and_shows_what_it_is_about_as_it_is(
    show: Callable[[dict[str, Any]], str], about: str, field: str
) -> None:
    asked = {"approval_id": "apr_1", "tool": "memory_delete", "arguments": {}, field: about}
    tokens = MarkdownIt().parse(show(asked))
    [code] = [token.content for token in tokens if token.type == "fence"]
    assert code.replace("\u200b", "") == f"{about}\n"
    assert "memory_delete" in tokens[1].content
