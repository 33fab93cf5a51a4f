"""HTML for live readers: rendered once for all of them, whoever comes, leaves or asks again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.gateway.events import EventBus, LiveEvent, LiveTurns, TurnFeed
from miniclaw.gateway.live import LiveHtml
from miniclaw.gateway.markdown import render_markdown
from tests.support.agent import GUARD, DictatedProvider, eventually
from tests.support.claw import TOKEN, running_claw

Payload = dict[str, Any]


class Stage:
    """A running turn and readers of its HTML."""

    def __init__(
        self, turn_id: str = "turn_1", *, live: LiveTurns | None = None, html: LiveHtml | None = None
    ) -> None:
        self.live = live or LiveTurns(EventBus())
        self.html = html or LiveHtml(self.live)
        self.feed: TurnFeed = self.live.open("ses_1", turn_id, 1, "web")

    def emit(self, event_name: str, /, *, readers: int = 1, **data: Any) -> list[Payload]:
        """Emit an event; what each of the readers gets, which is the same."""
        event = self.feed.emit(event_name, data)
        got = [self.html.frames(event) for _ in range(readers)]
        assert all(frames is got[0] for frames in got)
        return [json.loads(frame)["payload"] for frame in got[0]] if got else []

    def write(self, text: str, *, readers: int = 1) -> list[Payload]:
        return self.emit("text.delta", text=text, readers=readers)

    def read(self, event: LiveEvent) -> list[Payload]:
        """One reader is sent an event again."""
        return [json.loads(frame)["payload"] for frame in self.html.frames(event)]


def blocks(payloads: list[Payload]) -> list[tuple[int, str]]:
    return [(p["data"]["index"], p["data"]["html"]) for p in payloads if p["name"] == "text.block"]


def names(payloads: list[Payload]) -> list[str]:
    return [payload["name"] for payload in payloads]


@given(
    st.lists(
        st.sampled_from(["# A\n", "one\n", "\n", "- x\n", "```\nc\n```\n", "**b", "** tail"]), max_size=12
    )
)
def test_the_blocks_of_a_text_joined_are_its_html_and_come_behind_the_deltas_that_end_them(
    pieces: list[str],
) -> None:
    stage = Stage()
    stage.emit("turn.started", text="go")
    got = [payload for piece in pieces for payload in stage.write(piece, readers=2)]
    got += stage.emit("turn.finished", text="".join(pieces))
    found = blocks(got)
    assert [index for index, _ in found] == list(range(len(found)))
    assert "".join(html for _, html in found) == render_markdown("".join(pieces))
    assert [p["data"]["text"] for p in got if p["name"] == "text.delta"] == pieces
    if pieces and "".join(pieces).strip():
        assert got[-1]["data"]["html"] == render_markdown("".join(pieces))
    for payload in got:
        assert payload["turn_id"] == "turn_1" and payload["attempt"] == 1 and payload["seq"] >= 1


def test_a_tool_ends_the_text_before_it_and_blocks_begin_anew_behind_it() -> None:
    stage = Stage()
    stage.write("let me *see*")
    got = stage.emit("tool.started", call_id="c", name="f", arguments={})
    assert names(got) == ["text.block", "tool.started"]
    assert blocks(got) == [(0, "<p>let me <em>see</em></p>\n")]
    stage.emit("tool.finished", call_id="c", ok=True)
    stage.write("# Found\n")
    got = stage.write("it\n\n") + stage.emit("turn.finished", text="# Found\nit")
    assert [index for index, _ in blocks(got)] == [1]
    assert names(stage.emit("tool.started", call_id="d", name="f", arguments={})) == ["tool.started"]


def test_a_reader_that_comes_late_gets_the_blocks_of_everything_at_the_next_delta() -> None:
    stage = Stage()
    for text in ("# A\n", "b\n\n", "c"):
        stage.write(text, readers=0)
    got = stage.write("d\n\n")
    assert blocks(got) == [(0, "<h1>A</h1>\n"), (1, "<p>b</p>\n"), (2, "<p>cd</p>\n")]
    assert names(got)[0] == "text.delta"


def test_text_behind_a_tool_that_nobody_read_is_rendered_without_what_stood_before_it() -> None:
    stage = Stage()
    stage.write("before\n\n", readers=0)
    stage.emit("tool.started", call_id="c", name="f", arguments={}, readers=0)
    stage.write("behi", readers=0)
    assert blocks(stage.write("nd\n\n")) == [(0, "<p>behind</p>\n")]


@pytest.mark.parametrize("end", ["text.delta", "tool.started", "turn.finished"])
def test_a_text_whose_end_nobody_read_is_not_rendered_as_part_of_the_next(end: str) -> None:
    stage = Stage()
    tool: Payload = {"call_id": "c", "name": "f", "arguments": {}}
    stage.write("one\n\n")
    stage.write("two\n\nthree", readers=0)
    stage.emit("tool.started", readers=0, **tool)
    stage.write("behind", readers=0)
    data = {"text.delta": {"text": " it\n\n"}, "tool.started": tool, "turn.finished": {"text": "behind"}}[end]
    said = "behind it" if end == "text.delta" else "behind"
    assert blocks(stage.emit(end, **data)) == [(0, f"<p>{said}</p>\n")]


@pytest.mark.parametrize("end", ["tool.started", "turn.finished"])
def test_text_that_was_written_while_nobody_read_is_in_the_last_block(end: str) -> None:
    stage = Stage()
    stage.write("one ")
    stage.write("two", readers=0)
    data = {"call_id": "c", "name": "f", "arguments": {}} if end == "tool.started" else {"text": "one two"}
    assert blocks(stage.emit(end, **data)) == [(0, "<p>one two</p>\n")]


def test_a_snapshot_for_one_reader_carries_html_and_takes_no_block_from_another() -> None:
    stage = Stage()
    stage.write("# A\n")
    stage.write("b")
    (snapshot,) = stage.read(stage.feed.snapshot())
    assert (snapshot["data"]["html"], snapshot["data"]["rest"]) == (["<h1>A</h1>\n"], "b")
    assert snapshot["data"]["text"] == "# A\nb"
    assert blocks(stage.write("c\n\n")) == [(1, "<p>bc</p>\n")]


def test_events_sent_again_to_one_reader_take_no_block_from_another() -> None:
    stage = Stage()
    stage.write("before ")
    stage.emit("tool.started", call_id="c", name="f", arguments={})
    stage.write("# A\n")
    stage.write("b")
    missed = stage.feed.since(1, 0)
    assert missed is not None
    got = [payload for event in missed for payload in stage.read(event)]
    assert [n for n in names(got) if n != "text.block"] == [
        "text.delta",
        "tool.started",
        "text.delta",
        "text.delta",
    ]
    assert blocks(stage.write("c\n\n")) == [(1, "<p>bc</p>\n")]
    assert blocks(stage.emit("turn.finished", text="x")) == []


def test_events_sent_again_to_the_first_reader_are_followed_by_each_block_once() -> None:
    stage = Stage()
    for text in ("# A\n", "b", "c"):
        stage.write(text, readers=0)
    missed = stage.feed.since(1, 1)
    assert missed is not None
    got = [payload for event in missed for payload in stage.read(event)]
    assert names(got) == ["text.delta", "text.delta", "text.block"]
    assert (got[-1]["data"]["html"], got[-1]["data"]["rest"]) == ("<h1>A</h1>\n", "bc")
    assert blocks(stage.write("d\n\n")) == [(1, "<p>bcd</p>\n")]


def test_another_attempt_begins_anew() -> None:
    stage = Stage()
    stage.write("first try\n\n")
    stage.feed = stage.live.open("ses_1", "turn_1", 2, "web")
    assert names(stage.emit("tool.started", call_id="c", name="f", arguments={})) == ["tool.started"]
    assert blocks(stage.write("second\n\n")) == [(0, "<p>second</p>\n")]


@pytest.mark.parametrize("data", [{"code": "internal", "message": "broken"}, {"text": ""}])
def test_an_end_without_text_is_sent_as_it_is(data: Payload) -> None:
    stage = Stage()
    got = stage.emit("turn.failed" if "code" in data else "turn.cancelled", **data)
    assert [payload["data"] for payload in got] == [data]


def test_readers_that_leave_in_the_middle_leave_nothing_behind() -> None:
    live = LiveTurns(EventBus())
    html = LiveHtml(live)
    for number in range(20):
        stage = Stage(f"turn_{number}", live=live, html=html)
        stage.write("half ")
        stage.emit("turn.finished", text="half", readers=0)
        live.close(stage.feed)
    assert len(html._renderings) <= 1
    running = Stage("turn_x", live=live, html=html)
    running.write("x")
    assert set(html._renderings) == {"turn_x"}


async def test_browsers_that_leave_in_the_middle_of_an_answer_leave_no_rendering_behind(
    tmp_path: Path,
) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated, web=True) as claw, aiohttp.ClientSession() as http:
        assert claw.web is not None
        url = f"http://127.0.0.1:{claw.web.port}/ws?token={TOKEN}&html=1"
        hub = claw.web.hub
        for number in range(3):
            async with http.ws_connect(url) as socket:
                text = {"text": "go"}
                await socket.send_json({"msg_id": f"m{number}", "msg_type": "text", "payload": text})
                dictated.say("half ")
                while "text.delta" not in (await socket.receive(GUARD)).data:
                    pass
                assert len(hub.html._renderings) == 1
            await eventually(lambda: not hub.bus._handlers.get("user.owner"))
            dictated.end("an answer")
            await eventually(lambda: claw.mailbox.load["running"] == 0)
        async with http.ws_connect(url) as socket:
            await socket.send_json({"msg_id": "last", "msg_type": "text", "payload": {"text": "go"}})
            dictated.end("whole")
            while "turn.finished" not in (await socket.receive(GUARD)).data:
                pass
        assert hub.html._renderings == {}
