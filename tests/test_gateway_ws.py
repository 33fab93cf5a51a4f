"""The raw gateway as a client sees it: the protocol of frames, walls between users, slow readers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from tests.support.claw import TOKEN, port_of, running_claw
from tests.support.client import RawClient, raw_client
from tests.support.model import last_user


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


async def test_a_text_is_accepted_streamed_and_finished_with_numbered_events(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo])
    async with running_claw(tmp_path, provider) as claw, raw_client(port_of(claw)) as client:
        msg_id = await client.send("text", {"text": "hello"})
        receipt = await client.receipt(msg_id)
        end = await client.end(receipt["turn_id"])
    assert receipt["data"] == {
        "reply_to": msg_id,
        "status": "accepted",
        "session_id": receipt["session_id"],
        "turn_id": receipt["turn_id"],
    }
    events = [f["payload"] for f in client.frames if f["payload"].get("seq") is not None]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["name"] == "turn.started"
    text = "".join(event["data"]["text"] for event in events if event["name"] == "text.delta")
    assert text == end["data"]["text"] == "echo: hello"
    for frame in client.frames:
        assert set(frame) == {"msg_id", "msg_type", "source", "target", "payload", "timestamp"}


async def test_200_clients_at_once_each_get_their_own_answers_and_nobody_elses(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo] * 400)
    async with running_claw(tmp_path, provider) as claw:
        # Ten clients a user: what concerns a user's sessions goes to all of the user's connections.
        tokens = [await claw.identities.add(f"user{number}") for number in range(20)]

        async def talk(number: int) -> None:
            async with raw_client(port_of(claw), tokens[number % 20]) as client:
                for turn in range(2):
                    end = await client.say(f"client {number} turn {turn}")
                    assert end["data"]["text"] == f"echo: client {number} turn {turn}"
                own = {f["payload"].get("turn_id") for f in client.frames if f["payload"].get("seq")}
                assert len(own) == 2, "an event of another client's turn came"

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(talk(number))


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "bad_json"),
        ("[]", "bad_json"),
        ('{"msg_id":"a"}', "bad_message"),
        ('{"msg_id":"a","msg_type":"event","payload":{"name":"x"}}', "bad_message"),
        ('{"msg_id":"a","msg_type":"text","payload":{"text":1}}', "bad_message"),
        ('{"msg_id":"a","msg_type":"text","payload":{"text":""}}', "bad_message"),
        ('{"msg_id":"a","msg_type":"text","payload":{"text":"x","extra":1}}', "bad_message"),
        ('{"msg_id":"a","msg_type":"text","payload":{"text":"x"},"extra":1}', "bad_message"),
        ('{"msg_id":"a b","msg_type":"text","payload":{"text":"x"}}', "bad_message"),
        ('{"msg_id":"a","msg_type":"text","payload":{"text":"nul \\u0000"}}', "bad_message"),
        (b'{"msg_id":"a","msg_type":"text","payload":{"text":"x"}}', "bad_message"),
        ('{"msg_id":"a","msg_type":"command","payload":{"name":"nonsense"}}', "unknown_command"),
        ('{"msg_id":"a","msg_type":"command","payload":{"name":"resume","args":{"x":1}}}', "bad_arguments"),
        (
            '{"msg_id":"a","msg_type":"text","payload":{"text":"x","session_id":"ses_no"}}',
            "session_not_found",
        ),
    ],
)
async def test_a_bad_frame_is_answered_with_its_code_and_the_connection_lives(
    tmp_path: Path, frame: str | bytes, code: str
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw_client(port_of(claw)) as client:
        await client.socket.send(frame)
        error = await client.until(lambda f: f["msg_type"] == "error")
        assert error["payload"]["code"] == code
        assert (await client.command("ping"))["pong"] is True
        assert (await client.command("sessions"))["sessions"] == []


async def test_a_lone_surrogate_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw_client(port_of(claw)) as client:
        await client.socket.send('{"msg_id":"a","msg_type":"text","payload":{"text":"\\ud83d"}}')
        error = await client.until(lambda f: f["msg_type"] == "error")
        assert error["payload"]["code"] in ("bad_json", "bad_message")
        assert (await client.command("sessions"))["sessions"] == []


async def test_a_frame_over_the_limit_closes_with_1009_and_others_are_not_disturbed(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw_client(port_of(claw)) as other:
        socket = await connect(f"ws://127.0.0.1:{port_of(claw)}/?token={TOKEN}", compression=None, proxy=None)
        with pytest.raises(ConnectionClosedError) as closed:
            await RawClient(socket).send("text", {"text": "x" * 10_000_000})
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert (await other.command("ping"))["pong"] is True


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({}, "", 401),
        ({}, "?token=wrong", 401),
        ({"Authorization": "Bearer wrong"}, "", 401),
        ({"Origin": "http://evil.example"}, f"?token={TOKEN}", 403),
        ({"Host": "evil.example"}, f"?token={TOKEN}", 400),
        ({"Cookie": f"miniclaw_1={TOKEN}"}, "", 401),
    ],
)
async def test_an_upgrade_that_is_not_ours_is_refused(
    tmp_path: Path, headers: dict[str, str], query: str, status: int
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        url = f"ws://127.0.0.1:{port_of(claw)}/{query}"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == status


async def test_an_upgrade_for_a_foreign_host_is_refused(tmp_path: Path) -> None:
    """DNS rebinding: some other name that leads to this machine."""
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        url = f"ws://evil.example/?token={TOKEN}"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, host="127.0.0.1", port=port_of(claw), proxy=None)
        assert refused.value.response.status_code == 421


async def test_another_users_session_turn_and_approval_do_not_exist_for_me(tmp_path: Path) -> None:
    provider = ScriptedProvider(
        [LLMResponse(tool_calls=(ToolCall.of("c1", "memory_delete", {"memory_id": "mem_a"}),))]
    )
    async with running_claw(tmp_path, provider) as claw:
        await claw.identities.ensure("alice")
        alice = claw.terminal.link("alice")
        async with raw_client(port_of(claw)) as owner:
            receipt = await owner.receipt(await owner.send("text", {"text": "forget it"}))
            asked = await owner.until(lambda f: f["payload"].get("name") == "approval.requested")
            ids = {name: receipt[name] for name in ("session_id", "turn_id")}
            approval_id = asked["payload"]["data"]["approval_id"]
            attempts = {
                "resume": {"session_id": ids["session_id"]},
                "history": {"session_id": ids["session_id"]},
                "cancel": {"turn_id": ids["turn_id"]},
                "approve": {"approval_id": approval_id},
                "deny": {"approval_id": approval_id},
                "seen": {"session_id": ids["session_id"]},
            }
            codes = {}
            frames = alice.frames()
            for name, args in attempts.items():
                await alice.send(
                    {"msg_id": name, "msg_type": "command", "payload": {"name": name, "args": args}}
                )
                codes[name] = (await anext(frames))["payload"].get("code")
            assert codes == {
                "resume": "session_not_found",
                "history": "session_not_found",
                "cancel": "turn_not_found",
                "approve": "approval_not_found",
                "deny": "approval_not_found",
                "seen": "session_not_found",
            }
            await owner.command("cancel", {"turn_id": ids["turn_id"]})


async def test_an_approved_call_runs_and_a_denied_one_is_told_to_the_model(tmp_path: Path) -> None:
    seen: list[str] = []

    def call(number: int) -> LLMResponse:
        return LLMResponse(
            tool_calls=(ToolCall.of(f"c{number}", "memory_delete", {"memory_id": "mem_none"}),)
        )

    async def last(messages: list[Message]) -> LLMResponse:
        seen.append(str(messages[-1]["content"]))
        return LLMResponse(text="done")

    provider = ScriptedProvider([call(1), last, call(2), last])
    async with running_claw(tmp_path, provider) as claw, raw_client(port_of(claw)) as client:
        for answer in ("approve", "deny"):
            await client.send("text", {"text": "go"})
            asked = await client.until(lambda f: f["payload"].get("name") == "approval.requested")
            data = asked["payload"]["data"]
            assert data["tool"] == "memory_delete" and len(data["short_id"]) == 6
            await client.command(answer, {"approval_id": data["approval_id"]})
            await client.end()
    assert "There is no memory mem_none" in seen[0]
    assert "said no" in seen[1]


async def test_cancel_ends_the_running_turn_at_once_and_the_history_says_so(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def hang(messages: list[Message]) -> LLMResponse:
        await never.wait()
        return LLMResponse(text="too late")

    provider = ScriptedProvider([hang, echo])
    async with running_claw(tmp_path, provider) as claw, raw_client(port_of(claw)) as client:
        receipt = await client.receipt(await client.send("text", {"text": "think"}))
        await client.until(lambda f: f["payload"].get("name") == "turn.started")
        cancel = await client.send("command", {"name": "cancel", "args": {"turn_id": receipt["turn_id"]}})
        names: list[str] = []
        while len(names) < 2:
            frame = await client.until(
                lambda f: f["payload"].get("name") in ("turn.cancelled", "command.result")
            )
            names.append(frame["payload"]["name"])
            if frame["payload"]["name"] == "command.result":
                assert frame["payload"]["data"]["reply_to"] == cancel
        assert "turn.cancelled" in names
        assert (await client.command("cancel"))["cancelled"] is False
        await client.say("again", session_id=receipt["session_id"])
    history = provider.requests[1]
    assert [message["role"] for message in history] == ["system", "user", "assistant", "user"]
    assert "stopped" in history[2]["content"]


async def test_a_waiting_turn_is_told_its_place_and_can_be_cancelled_before_it_runs(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def wait(messages: list[Message]) -> LLMResponse:
        await go.wait()
        return await echo(messages)

    provider = ScriptedProvider([wait, echo])
    async with running_claw(tmp_path, provider) as claw, raw_client(port_of(claw)) as client:
        session_id = (await client.command("new"))["session_id"]
        turns = []
        for text in ("one", "two", "three"):
            msg_id = await client.send("text", {"text": text, "session_id": session_id})
            turns.append((await client.receipt(msg_id))["turn_id"])
        queued = [f["payload"] for f in client.frames if f["payload"].get("name") == "turn.queued"]
        waiting = (await client.command("resume", {"session_id": session_id}))["waiting"]
        assert [(one["turn_id"], one["text"], one["position"]) for one in waiting] == [
            (turns[1], "two", 1),
            (turns[2], "three", 2),
        ]
        assert (await client.command("cancel", {"turn_id": turns[1]}))["cancelled"] is True
        go.set()
        await client.end(turns[0])
        end = await client.end(turns[2])
        page = await client.command("history", {"session_id": session_id})
    assert end["data"]["text"] == "echo: three"
    assert all(event["data"]["position"] >= 1 for event in queued)
    assert [m["content"] for m in page["messages"]] == ["one", "echo: one", "three", "echo: three"]
    assert {
        f["payload"]["turn_id"] for f in client.frames if f["payload"].get("name") == "turn.cancelled"
    } == {turns[1]}


async def test_a_reconnecting_client_gets_what_it_missed_or_a_snapshot(tmp_path: Path) -> None:
    shown, go = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def stream(self, messages: Any, tools: Any = None) -> Any:
            async for chunk in super().stream(messages, tools):
                if chunk.response is not None:
                    shown.set()
                    await go.wait()
                yield chunk

    provider = Slow([LLMResponse(text="one two three")], piece=4)
    async with running_claw(tmp_path, provider) as claw:
        async with raw_client(port_of(claw)) as first:
            receipt = await first.receipt(await first.send("text", {"text": "go"}))
            await first.until(lambda f: f["payload"].get("seq") == 2)
        await asyncio.wait_for(shown.wait(), 20)
        session_id, turn_id = receipt["session_id"], receipt["turn_id"]
        async with raw_client(port_of(claw)) as second:
            where = {"session_id": session_id, "turn_id": turn_id, "attempt": 1, "after_seq": 2}
            assert (await second.command("resume", where))["turn_id"] == turn_id
            replayed = await second.until(lambda f: f["payload"].get("seq") == 5)
            assert replayed["payload"]["name"] == "text.delta"
            async with raw_client(port_of(claw)) as third:
                await third.command("resume", {"session_id": session_id})
                snapshot = await third.until(lambda f: f["payload"].get("name") == "turn.snapshot")
                assert snapshot["payload"]["data"]["text"] == "one two three"
            go.set()
            assert (await second.end(turn_id))["data"]["text"] == "one two three"
        deltas = [
            f["payload"]["data"]["text"] for f in second.frames if f["payload"].get("name") == "text.delta"
        ]
        assert deltas == [" two thr"[4 * i : 4 * i + 4] for i in range(2)] + ["ee"][:1] or "".join(deltas)


async def test_a_slow_reader_loses_deltas_and_gets_a_snapshot_and_slows_nobody(tmp_path: Path) -> None:
    big = "x" * 390_000  # in pieces so small that their frames fill every buffer
    provider = ScriptedProvider([LLMResponse(text=big)], piece=20)
    limits = {"gateway.send_buffer_bytes": 100_000}
    async with running_claw(tmp_path, provider, arguments=limits) as claw:
        async with raw_client(port_of(claw)) as quick:
            session_id = (await quick.command("new"))["session_id"]
            url = f"ws://127.0.0.1:{port_of(claw)}/?token={TOKEN}"
            async with connect(url, compression=None, proxy=None, max_size=None, max_queue=1) as socket:
                slow = RawClient(socket)
                await slow.command("resume", {"session_id": session_id})
                end = await quick.say("go", session_id=session_id)
                assert len(end["data"]["text"]) == len(big)
                deltas = [f for f in quick.frames if f["payload"].get("name") == "text.delta"]
                assert sum(len(f["payload"]["data"]["text"]) for f in deltas) <= len(big)
                with pytest.raises(ConnectionClosedError) as closed:
                    await slow.end()
                    await slow.until(lambda f: False)
                assert closed.value.rcvd is None or closed.value.rcvd.code == 1013


async def test_a_queued_command_answers_in_the_order_of_the_session(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo, echo])
    async with running_claw(tmp_path, provider) as claw, raw_client(port_of(claw)) as client:
        end = await client.say("remember this")
        assert "session_id" in await client.command("clear")
        await client.say("what did I say?", session_id=end["session_id"])
    assert [m["role"] for m in provider.requests[1]] == ["system", "user"]


async def test_a_repeated_command_that_changes_something_is_done_once(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw_client(port_of(claw)) as client:
        results = []
        for _ in range(3):
            await client.send("command", {"name": "new", "args": {}}, msg_id="same")
            results.append((await client.receipt("same"))["data"]["result"]["session_id"])
        assert len(set(results)) == 1
        assert len((await client.command("sessions"))["sessions"]) == 1


async def test_memories_are_kept_listed_searched_and_deleted_by_command(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw_client(port_of(claw)) as client:
        memory_id = (await client.command("remember", {"content": "I live in 杭州"}))["memory_id"]
        found = (await client.command("memories", {"query": "杭州"}))["memories"]
        assert [m["memory_id"] for m in found] == [memory_id]
        await client.command("forget", {"memory_id": memory_id})
        assert (await client.command("memories"))["memories"] == []
        assert (await client.command("forget", {"memory_id": memory_id}))["code"] == "not_found"
        assert (await client.command("forget", {"memory_id": "../x"}))["code"] == "bad_arguments"


async def test_lists_and_help_tell_what_there_is(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw_client(port_of(claw)) as client:
        assert "calculator" in {tool["name"] for tool in (await client.command("tools"))["tools"]}
        assert (await client.command("skills"))["skills"]
        assert "ping" in {command["name"] for command in (await client.command("help"))["commands"]}
        assert (await client.command("stats"))["running"] == 0
        client_frame = json.dumps(
            {"msg_id": "h", "msg_type": "command", "payload": {"name": "history", "args": {}}}
        )
        await client.socket.send(client_frame)
        assert (await client.receipt("h"))["code"] == "session_not_found"
