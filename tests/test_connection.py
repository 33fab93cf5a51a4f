"""A connection as its peer sees it: what it gets, what it misses when it is slow, how it catches up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.gateway import connection as connection_module
from miniclaw.gateway.connection import Connection
from miniclaw.gateway.protocol import EventPayload, GatewayMessage, MessageType, new_id
from tests.support.agent import GUARD, DictatedProvider, eventually, outcome, send
from tests.support.claw import TOKEN, running_claw
from tests.support.client import raw_client, reply_to
from tests.support.model import FakeModel, Reply, last_user

Payload = dict[str, Any]
SOFT = 1000


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


class Peer:
    """The far end of a connection, which reads as fast as a test wants."""

    def __init__(self, claw: MiniClaw, user_id: str = "owner") -> None:
        self.frames: list[dict[str, Any]] = []
        self.unread = 0
        self.closed: list[int] = []
        self.connection: Connection = claw.terminal.open(self, user_id)

    def write(self, frame: str) -> None:
        self.frames.append(json.loads(frame))

    def backlog(self) -> int:
        return self.unread

    def close(self, code: int, reason: str) -> None:
        self.closed.append(code)

    @property
    def payloads(self) -> list[Payload]:
        return [frame["payload"] for frame in self.frames]

    def named(self, name: str) -> list[Payload]:
        return [payload for payload in self.payloads if payload.get("name") == name]

    def shown(self) -> str:
        """The running turn's text as a reader would show it."""
        text = ""
        for payload in self.payloads:
            if payload.get("name") == "turn.snapshot":
                text = payload["data"]["text"]
            elif payload.get("name") == "text.delta":
                text += payload["data"]["text"]
        return text

    async def command(self, name: str, **args: Any) -> Payload:
        """Send a command; the payload that answers it."""
        return await self._answered("command", {"name": name, "args": args})

    async def say(self, text: str) -> Payload:
        """Send a text; its receipt."""
        return await self._answered("text", {"text": text})

    async def _answered(self, msg_type: str, payload: Payload) -> Payload:
        msg_id = new_id("msg")
        await self.connection.handle(json.dumps({"msg_id": msg_id, "msg_type": msg_type, "payload": payload}))
        found: Payload = next((f["payload"] for f in self.frames if reply_to(f) == msg_id), {})
        return found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CATCH_UP_SECONDS", 0.01)


# --- slow readers -----------------------------------------------------------------------------------------


async def test_a_slow_reader_loses_deltas_gets_a_snapshot_once_it_reads_and_then_goes_on(
    tmp_path: Path,
) -> None:
    dictated = DictatedProvider()
    arguments = {"gateway.send_buffer_bytes": SOFT}
    async with running_claw(tmp_path, dictated, arguments=arguments) as claw:
        slow, quick = Peer(claw), Peer(claw)
        session_id = (await slow.say("go"))["session_id"]
        await quick.command("resume", session_id=session_id)
        dictated.say("one ")
        await eventually(lambda: slow.shown() == "one ")
        slow.unread = SOFT + 1
        for word in ("two ", "three "):
            dictated.say(word)
        await eventually(lambda: quick.shown() == "one two three ")
        slow.unread = SOFT // 2 + 1  # not read enough yet
        dictated.say("four ")
        await eventually(lambda: quick.shown() == "one two three four ")
        for _ in range(4):
            await asyncio.sleep(0.01)
        assert slow.shown() == "one " and slow.named("turn.snapshot") == []
        slow.unread = 0
        await eventually(lambda: slow.shown() == "one two three four ")
        dictated.say("five")
        await eventually(lambda: slow.shown() == "one two three four five")
        assert len(slow.named("turn.snapshot")) == 1
        assert quick.named("turn.snapshot")[1:] == []
        dictated.end()
        await eventually(lambda: slow.named("turn.finished"))


async def test_a_slow_reader_gets_every_event_that_is_no_delta_and_the_end(tmp_path: Path) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated, arguments={"gateway.send_buffer_bytes": SOFT}) as claw:
        slow = Peer(claw)
        await slow.say("go")
        await eventually(lambda: slow.named("turn.started"))
        slow.unread = SOFT + 1
        dictated.say("let me see")
        dictated.call("calculator", expression="1+1")
        await eventually(lambda: slow.named("tool.finished"))
        dictated.end("2")
        await eventually(lambda: slow.named("turn.finished"))
        assert slow.named("text.delta") == []
        slow.unread = 0
        for _ in range(4):
            await asyncio.sleep(0.01)
        assert slow.named("turn.snapshot") == []
        assert slow.named("turn.finished")[0]["data"]["text"] == "2"
        assert slow.closed == []


async def test_a_reader_that_does_not_read_at_all_is_closed_and_told_to_come_again(tmp_path: Path) -> None:
    async with running_claw(
        tmp_path, ScriptedProvider([]), arguments={"gateway.send_buffer_bytes": SOFT}
    ) as claw:
        stuck = Peer(claw)
        stuck.unread = 4 * SOFT
        assert (await stuck.command("ping"))["data"]["result"]["pong"] is True
        stuck.unread += 1
        before = len(stuck.frames)
        await stuck.command("ping")
        assert (stuck.closed, len(stuck.frames)) == ([1013], before)


async def test_a_connection_that_is_closed_while_it_lags_gets_nothing_more(tmp_path: Path) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated, arguments={"gateway.send_buffer_bytes": SOFT}) as claw:
        slow, other = Peer(claw), Peer(claw)
        session_id = (await slow.say("go"))["session_id"]
        await other.command("resume", session_id=session_id)
        slow.unread = SOFT + 1
        dictated.say("text")
        await eventually(lambda: other.shown() == "text")
        closed: list[str] = []
        claw.bus.subscribe("connection.closed", lambda topic, connection_id: closed.append(connection_id))
        for _ in range(2):
            claw.terminal.closed(slow.connection)
        assert closed == [slow.connection.connection_id]
        slow.unread, before = 0, len(slow.frames)
        dictated.end(" more")
        await eventually(lambda: other.named("turn.finished"))
        for _ in range(4):
            await asyncio.sleep(0.01)
        assert len(slow.frames) == before


# --- who gets what ----------------------------------------------------------------------------------------


async def test_events_go_to_connections_of_the_session_and_its_state_to_all_of_the_user(
    tmp_path: Path,
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo] * 2)) as claw:
        await claw.identities.ensure("ann")
        mine, elsewhere, anns = Peer(claw), Peer(claw), Peer(claw, "ann")
        await anns.say("hello")
        await elsewhere.command("new")
        accepted = await mine.say("go")
        await eventually(lambda: mine.named("turn.finished") and anns.named("turn.finished"))
        assert {p["turn_id"] for p in mine.payloads if p.get("turn_id")} == {accepted["turn_id"]}
        assert {p["name"] for p in elsewhere.payloads} == {"command.result", "session.updated"}
        for peer in (mine, elsewhere):
            updates = [p["data"] for p in peer.named("session.updated")]
            assert {u["session_id"] for u in updates} == {accepted["session_id"]}
            assert [u["phase"] for u in updates] == ["running", "running", "idle"]
            assert updates[-1]["title"] == "go"
        assert accepted["session_id"] not in json.dumps(anns.frames)


async def test_a_message_sent_to_a_session_reaches_the_connections_in_it(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        inside, outside = Peer(claw), Peer(claw)
        session_id = (await inside.say("go"))["session_id"]
        note = EventPayload(name="note", data={"x": 1})
        target = f"terminal:{session_id}"
        message = GatewayMessage(msg_id="n1", msg_type=MessageType.EVENT, target=target, payload=note)
        await claw.terminal.send(message)
        assert inside.named("note")[0]["data"] == {"x": 1}
        assert outside.named("note") == []


async def test_texts_and_queued_commands_go_to_the_current_session(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo] * 3)) as claw:
        peer = Peer(claw)
        first = (await peer.say("one"))["session_id"]
        assert (await peer.say("two"))["session_id"] == first
        second = (await peer.command("new"))["data"]["result"]["session_id"]
        assert (await peer.say("three"))["session_id"] == second != first
        await peer.command("resume", session_id=first)
        assert peer.connection.current == first
        await eventually(lambda: len(peer.named("turn.finished")) == 3)


async def test_a_binary_frame_is_refused_and_the_connection_lives(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        peer = Peer(claw)
        await peer.connection.handle(b"{}")
        assert peer.payloads[-1]["code"] == "bad_message"
        assert (await peer.command("ping"))["data"]["result"]["pong"] is True


# --- catching up ------------------------------------------------------------------------------------------


async def test_a_reader_that_knows_where_it_stood_gets_what_it_missed_and_any_other_a_snapshot(
    tmp_path: Path,
) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        first = Peer(claw)
        ids = {k: v for k, v in (await first.say("go")).items() if k in ("session_id", "turn_id")}
        for word in ("one ", "two ", "three"):
            dictated.say(word)
        await eventually(lambda: first.shown() == "one two three")
        cases: list[tuple[Payload, list[int]]] = [
            ({"attempt": 1, "after_seq": 2}, [3, 4]),
            ({"attempt": 1, "after_seq": 4}, []),
            ({"attempt": 1, "after_seq": 0}, [1, 2, 3, 4]),
        ]
        for known, missed in cases:
            reader = Peer(claw)
            await reader.command("resume", **ids, **known)
            assert [p["seq"] for p in reader.payloads if p.get("seq")] == missed
        for unknown in (
            {},
            {"attempt": 2, "after_seq": 1},
            {"attempt": 1, "after_seq": 99},
            {"after_seq": 1},
        ):
            reader = Peer(claw)
            await reader.command("resume", **ids, **unknown)
            (snapshot,) = [p for p in reader.payloads if p.get("seq")]
            assert snapshot["name"] == "turn.snapshot"
            assert (snapshot["data"]["text"], snapshot["data"]["seq"]) == ("one two three", 4)
        dictated.end()
        await eventually(lambda: first.named("turn.finished"))


async def test_a_turn_that_has_ended_gives_its_end_and_the_one_that_runs_a_snapshot_beside_it(
    tmp_path: Path,
) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        first = Peer(claw)
        ended = await first.say("one")
        dictated.end("first answer")
        await eventually(lambda: first.named("turn.finished"))
        running = await first.say("two")
        dictated.say("half")
        await eventually(lambda: first.shown() == "first answerhalf")
        reader = Peer(claw)
        args = {"session_id": ended["session_id"], "turn_id": ended["turn_id"]}
        result = await reader.command("resume", **args)
        assert result["data"]["result"]["turn_id"] == running["turn_id"]
        assert result["data"]["result"]["state"] == "running"
        events = [p for p in reader.payloads if p.get("seq")]
        assert [(p["name"], p["turn_id"]) for p in events] == [
            ("turn.finished", ended["turn_id"]),
            ("turn.snapshot", running["turn_id"]),
        ]
        assert events[0] == first.named("turn.finished")[0]
        dictated.end()
        await eventually(lambda: claw.mailbox.load["running"] == 0)


async def test_a_repeated_text_gets_the_first_ones_ids_and_starts_nothing(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo])
    async with running_claw(tmp_path, provider) as claw:
        peer = Peer(claw)
        frame = json.dumps({"msg_id": "same", "msg_type": "text", "payload": {"text": "once"}})
        for _ in range(3):
            await peer.connection.handle(frame)
        await eventually(lambda: peer.named("turn.finished"))
        receipts = peer.named("message.accepted")
        assert [r["data"]["status"] for r in receipts] == ["accepted", "duplicate", "duplicate"]
        assert len({(r["session_id"], r["turn_id"]) for r in receipts}) == 1
        assert len(provider.requests) == 1
        command = {"msg_id": "same", "msg_type": "command", "payload": {"name": "clear", "args": {}}}
        await peer.connection.handle(json.dumps(command))
        (refused,) = (f["payload"] for f in peer.frames if f["msg_type"] == "error")
        assert (refused["code"], refused["reply_to"]) == ("bad_message", "same")


# --- what a model may send --------------------------------------------------------------------------------


async def test_escapes_of_half_a_character_in_a_call_break_no_connection(tmp_path: Path) -> None:
    """A model writes `"\\ud83d"` in its arguments; readers of the turn and everybody else go on."""
    hold = asyncio.Event()

    def script(messages: list[Message], number: int) -> Reply:
        if number == 1:
            return {"calls": [("datetime", {"timezone": "\ud83d", "\ud83d": [{"a": "\0"}]})]}
        return {"text": "working", "hold": hold}

    async with FakeModel(script) as model:
        provider = OpenAIProvider("fake-chat", api_key="x", base_url=model.url)
        async with running_claw(tmp_path, provider, web=True) as claw, aiohttp.ClientSession() as http:
            assert claw.gateway is not None and claw.web is not None
            port = claw.gateway.port or 0
            async with raw_client(port) as asker, raw_client(port) as reader, raw_client(port) as other:
                receipt = await asker.receipt(await asker.send("text", {"text": "go"}))
                await asker.until(lambda f: f["payload"].get("name") == "text.delta")
                await reader.command("resume", {"session_id": receipt["session_id"]})
                snapshot = await reader.until(lambda f: f["payload"].get("name") == "turn.snapshot")
                arguments = snapshot["payload"]["data"]["tools"][0]["arguments"]
                assert arguments == {"timezone": "\ufffd", "\ufffd": [{"a": "\ufffd"}]}
                assert (await other.command("ping"))["pong"] is True
                url = f"http://127.0.0.1:{claw.web.port}/ws?token={TOKEN}"
                for query in ("", "&html=1"):
                    async with http.ws_connect(url + query) as socket:
                        resume = {"name": "resume", "args": {"session_id": receipt["session_id"]}}
                        await socket.send_json({"msg_id": "r", "msg_type": "command", "payload": resume})
                        while "turn.snapshot" not in (await socket.receive(GUARD)).data:
                            pass
                hold.set()
                for client in (asker, reader):
                    assert (await client.end(receipt["turn_id"]))["data"]["text"] == "working"
        await provider.close()
    assert model.refused == []


async def test_a_socket_that_closes_neither_stops_the_turn_nor_loses_its_answer(tmp_path: Path) -> None:
    dictated = DictatedProvider()
    async with running_claw(tmp_path, dictated) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as client:
            receipt = await client.receipt(await client.send("text", {"text": "go"}))
        await eventually(lambda: not claw.gateway or not claw.gateway.connections)
        dictated.end("still here")
        ended = await outcome(claw, receipt["turn_id"])
        assert ended["data"]["text"] == "still here"
        assert (await send(claw, "x", session_id="ses_none")).code == "session_not_found"
