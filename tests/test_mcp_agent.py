"""What miniClaw offers to MCP clients: the agent, its tools, sessions, memories and skills."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.agent.providers import LLMProvider, LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.cli.link import open_link
from miniclaw.cli.mcp_stdio import StdioParts
from miniclaw.config import LoadedSettings, load_settings
from miniclaw.mcp.ask import AskAgent
from miniclaw.mcp.server import MCPServer
from miniclaw.rundir import RunDir
from miniclaw.tools.base import Tool
from tests.support.agent import DictatedProvider, Zap, eventually, outcome, question, result_in, zap
from tests.support.claw import TOKEN, running_claw
from tests.support.mcp import HttpPeer, Object, Peer, events, mcp_serve, meta, piped, serving
from tests.test_approval import AsksForm

DONE = LLMResponse(text="done")
ASK: Object = {"name": "ask_agent", "arguments": {"text": "go"}}
SUM: Object = {"name": "ask_agent", "arguments": {"text": "37*43 等于多少"}}
"""What the demo model answers at once."""


@asynccontextmanager
async def mcp(
    tmp_path: Path, provider: LLMProvider, tools: Sequence[Tool] = (), **arguments: Any
) -> AsyncIterator[tuple[MiniClaw, HttpPeer]]:
    """A gateway and a client at its `/mcp`."""
    given = {name.replace("__", "."): value for name, value in arguments.items()}
    given |= {"limits.drain_seconds": 0}
    async with (
        running_claw(tmp_path, provider, web=True, arguments=given) as claw,
        aiohttp.ClientSession() as http,
    ):
        for tool in tools:
            claw.registry.register(tool)
        assert claw.web is not None
        url = f"http://127.0.0.1:{claw.web.port}/mcp"
        yield claw, HttpPeer(http, url, {"Authorization": f"Bearer {TOKEN}"})


def loaded_for(tmp_path: Path) -> LoadedSettings:
    """Settings as a process of its own would read them."""
    return load_settings(env={}, data_dir=str(tmp_path), arguments={"model.probe_local": False})


@asynccontextmanager
async def on_stdio(tmp_path: Path, *, idle_seconds: float = 60.0) -> AsyncIterator[Peer]:
    """A greeted client of the parts that `miniclaw mcp serve` serves."""
    async with (
        StdioParts(loaded_for(tmp_path), idle_seconds=idle_seconds) as parts,
        piped(parts.server()) as (client, _),
    ):
        await client.greet()
        yield client


def ids_in(result: Object) -> tuple[str, str]:
    """Session and turn of an answer."""
    content = result["structuredContent"]
    assert result["content"][1]["text"] == f"session_id: {content['session_id']}"
    return content["session_id"], content["turn_id"]


# --- ask_agent --------------------------------------------------------------------------------------------


async def test_the_answer_is_shown_while_it_grows_and_its_session_goes_on(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with mcp(tmp_path, model) as (claw, client):
        await client.greet()
        body = {"id": 1, "method": "tools/call", "params": {**ASK, "_meta": {"progressToken": "p"}}}
        async with client.request(body=body) as response:
            messages = events(response)
            model.say("half ")
            shown = ""
            while shown != "half ":
                _, message = await anext(messages)
                assert message["method"] == "notifications/progress"
                shown = message["params"]["message"]
            model.end("done")
            *_, (_, last) = [one async for one in messages]
        assert last["result"]["content"][0]["text"] == "half done"
        session_id, turn_id = ids_in(last["result"])
        turn = claw.turns.get(turn_id)
        assert turn is not None and (turn.channel, turn.user_id) == ("mcp", "owner")
        model.end("again")
        more = {"name": "ask_agent", "arguments": {"text": "and?", "session_id": session_id}}
        result = (await client.ask("tools/call", more))["result"]
        assert result["content"][0]["text"] == "again" and ids_in(result)[0] == session_id
        assert "half done" in str(model.requests[-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": "go", "session_id": "ses_none"}, "session"),
        ({"text": " "}, "text"),
        ({"text": 7}, "text"),
        ({}, "text"),
    ],
)
async def test_what_cannot_be_asked_is_an_error_for_the_model(
    tmp_path: Path, arguments: Object, words: str
) -> None:
    async with mcp(tmp_path, ScriptedProvider([])) as (_, client):
        await client.greet()
        result = (await client.ask("tools/call", {"name": "ask_agent", "arguments": arguments}))["result"]
        assert result["isError"] is True and words in result["content"][0]["text"]


async def test_half_a_character_is_refused_and_names_what_is_wrong(tmp_path: Path) -> None:
    async with mcp(tmp_path, ScriptedProvider([])) as (_, client):
        await client.greet()
        asked: list[tuple[str, Object]] = [
            ("tools/call", {"name": "ask_agent", "arguments": {"text": "a\ud800"}}),
            ("resources/read", {"uri": "miniclaw://memories/\ud800"}),
            ("resources/read", {"uri": "miniclaw://sessions/\ud800"}),
        ]
        for method, params in asked:
            answer = await client.ask(method, params)
            code = answer["error"]["code"] if "error" in answer else None
            assert code in (-32602, -32002) or answer["result"]["isError"], answer


async def test_when_the_gateway_stops_the_session_to_go_on_with_is_named() -> None:
    class Gone:
        sent: Object

        async def send(self, frame: Object) -> None:
            self.sent = frame

        async def frames(self) -> AsyncIterator[Object]:
            data = {"reply_to": self.sent["msg_id"], "session_id": "ses_1", "turn_id": "t"}
            yield {"msg_type": "event", "payload": {"name": "message.accepted", "data": data}}

    @asynccontextmanager
    async def door(user: str) -> AsyncIterator[Gone]:
        yield Gone()

    async with piped(MCPServer(tools=[AskAgent(door)])) as (client, _):
        await client.greet()
        result = (await client.request(1, "tools/call", {"name": "ask_agent", "arguments": {"text": "go"}}))[
            "result"
        ]
        assert result["isError"] is True and "session_id ses_1" in result["content"][0]["text"]


async def test_a_cancelled_question_cancels_the_turn_and_a_lost_client_does_not(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with mcp(tmp_path, model) as (claw, client):
        await client.greet()
        for lost in (False, True):
            body = {"id": 5, "method": "tools/call", "params": {**ASK, "_meta": {"progressToken": 1}}}
            async with client.request(body=body) as response:
                await anext(events(response))
                (feed,) = claw.live.all()
                if lost:
                    response.close()
                    model.end("kept")
                else:
                    stop = {"method": "notifications/cancelled", "params": {"requestId": 5}}
                    async with client.request(body=stop) as taken:
                        assert taken.status == 202
                    assert [one async for one in events(response)] == []
                ended = await outcome(claw, feed.turn_id)
                assert ended["name"] == ("turn.finished" if lost else "turn.cancelled")


async def test_a_client_that_leaves_without_a_handshake_cancels_the_turn(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with mcp(tmp_path, model) as (claw, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.modern("tools/call", ASK)
        (feed,) = claw.live.all()
        assert (await outcome(claw, feed.turn_id))["name"] == "turn.cancelled"


async def test_on_stdio_the_turn_goes_on_when_the_client_leaves(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with running_claw(tmp_path, model) as claw:
        async with on_stdio(tmp_path) as client:
            client.send({"id": 1, "method": "tools/call", "params": ASK})
            await eventually(claw.live.all)
        (feed,) = claw.live.all()
        model.end("kept")
        assert (await outcome(claw, feed.turn_id))["name"] == "turn.finished"


@pytest.mark.parametrize(("action", "ran"), [("accept", ["a"]), ("decline", [])])
async def test_the_agents_question_goes_to_the_person_at_the_client(
    tmp_path: Path, action: str, ran: list[str]
) -> None:
    tool = Zap()
    async with mcp(tmp_path, ScriptedProvider([zap("a"), DONE]), [tool]) as (_, client):
        await client.greet(elicitation={})
        async with client.request(body={"id": 1, "method": "tools/call", "params": ASK}) as response:
            messages = events(response)
            _, asked = await anext(messages)
            assert asked["method"] == "elicitation/create" and "`zap`" in asked["params"]["message"]
            async with client.request(body={"id": asked["id"], "result": {"action": action}}):
                pass
            _, reply = await anext(messages)
        assert reply["result"]["content"][0]["text"] == "done" and tool.ran == ran


async def test_without_a_handshake_the_turn_waits_for_the_round_that_brings_the_answer(
    tmp_path: Path,
) -> None:
    tool = Zap()
    async with mcp(tmp_path, ScriptedProvider([zap("a"), zap("b"), DONE]), [tool]) as (claw, client):
        first = (await client.modern("tools/call", ASK, elicitation={}))["result"]
        waiting = await question(claw)
        assert set(first["inputRequests"]) == {waiting.approval_id} and tool.ran == []
        state, answers = first["requestState"], {waiting.approval_id: {"action": "accept"}}
        again = {**ASK, "inputResponses": answers, "requestState": state}
        second = (await client.modern("tools/call", again, elicitation={}))["result"]
        waiting = await question(claw)
        assert set(second["inputRequests"]) == {waiting.approval_id} and tool.ran == ["a"]
        answers = {waiting.approval_id: {"action": "accept"}}
        again = {**ASK, "inputResponses": answers, "requestState": second["requestState"]}
        last = (await client.modern("tools/call", again, elicitation={}))["result"]
        assert (last["resultType"], last["content"][0]["text"], tool.ran) == ("complete", "done", ["a", "b"])


@pytest.mark.parametrize(("content", "said"), [({"age": 7}, "{'age': 7}"), ({"age": "old"}, "denied")])
async def test_a_form_that_a_tool_of_the_agent_asks_for_is_filled_in_at_the_client(
    tmp_path: Path, content: Object, said: str
) -> None:
    model = ScriptedProvider([zap("a"), DONE])
    async with mcp(tmp_path, model, [AsksForm("read")]) as (_, client):
        first = (await client.modern("tools/call", ASK, elicitation={}))["result"]
        ((key, asked),) = first["inputRequests"].items()
        assert asked["params"]["requestedSchema"]["required"] == ["age"]
        answers = {key: {"action": "accept", "content": content}}
        again = {**ASK, "inputResponses": answers, "requestState": first["requestState"]}
        last = (await client.modern("tools/call", again, elicitation={}))["result"]
        assert last["content"][0]["text"] == "done" and said in result_in(model.requests[-1])


async def test_where_nobody_can_be_asked_the_write_is_denied_with_the_way_to_allow_it(tmp_path: Path) -> None:
    tool, model = Zap(), ScriptedProvider([zap("a"), DONE])
    async with mcp(tmp_path, model, [tool]) as (_, client):
        await client.greet()
        assert (await client.ask("tools/call", ASK))["result"]["content"][0]["text"] == "done"
        assert tool.ran == [] and "approval.allow" in str(model.requests[-1])


async def test_a_question_that_was_answered_elsewhere_is_withdrawn(tmp_path: Path) -> None:
    tool = Zap()
    async with mcp(tmp_path, ScriptedProvider([zap("a"), DONE]), [tool]) as (claw, client):
        await client.greet(elicitation={})
        async with client.request(body={"id": 1, "method": "tools/call", "params": ASK}) as response:
            messages = events(response)
            _, asked = await anext(messages)
            await claw.desk.decide((await question(claw)).approval_id, "owner", "once")
            _, withdrawn = await anext(messages)
            assert withdrawn["params"] == {"requestId": asked["id"]}
            _, reply = await anext(messages)
        assert reply["result"]["content"][0]["text"] == "done" and tool.ran == ["a"]


# --- tools by policy --------------------------------------------------------------------------------------


async def test_tools_that_change_something_are_listed_for_those_who_can_be_asked(tmp_path: Path) -> None:
    tools = [Zap(name="free"), Zap(name="never"), Zap("read", name="look"), Zap(name="zap")]
    rules = {"approval__allow": ("free",), "approval__deny": ("never",)}
    async with mcp(tmp_path, ScriptedProvider([]), tools, **rules) as (_, client):
        await client.greet()

        async def listed(reply: Object) -> set[str]:
            return {tool["name"] for tool in reply["result"]["tools"]} & {"free", "never", "look", "zap"}

        assert await listed(await client.ask("tools/list")) == {"free", "look"}
        assert await listed(await client.modern("tools/list", elicitation={})) == {"free", "look", "zap"}
        names = {tool["name"] for tool in (await client.modern("tools/list"))["result"]["tools"]}
        assert {"ask_agent", "calculator", "memory_search"} <= names
        denied = await client.modern("tools/call", {"name": "never"}, elicitation={})
        assert denied["result"]["isError"] is True and tools[1].ran == []
        assert not {"delegate", "load_skill"} & names


@pytest.mark.parametrize(("action", "ran"), [("accept", ["x"]), ("cancel", [])])
async def test_a_write_tool_runs_after_the_person_at_the_client_said_yes(
    tmp_path: Path, action: str, ran: list[str]
) -> None:
    tool = Zap()
    async with mcp(tmp_path, ScriptedProvider([]), [tool]) as (_, client):
        call: Object = {"name": "zap", "arguments": {"at": "x"}}
        first = (await client.modern("tools/call", call, elicitation={}))["result"]
        (asked,) = first["inputRequests"].values()
        assert '{"at": "x"}' in asked["params"]["message"] and tool.ran == []
        answers = {"approval": {"action": action}}
        again = {**call, "inputResponses": answers, "requestState": first["requestState"]}
        last = (await client.modern("tools/call", again, elicitation={}))["result"]
        assert (tool.ran, last["isError"]) == (ran, action != "accept")
        await client.greet()
        assert (await client.ask("tools/call", call))["result"]["isError"] is True and tool.ran == ran


# --- resources, prompts, completion -----------------------------------------------------------------------


async def test_sessions_and_memories_are_the_users_own_and_can_be_watched(tmp_path: Path) -> None:
    async with mcp(tmp_path, ScriptedProvider([DONE, DONE])) as (claw, client):
        await client.greet()
        session_id, _ = ids_in((await client.ask("tools/call", ASK))["result"])
        kept = await claw.memory.save("owner", "lives in Hangzhou", source="user")
        uri = f"miniclaw://sessions/{session_id}"
        listed = {one["uri"]: one for one in (await client.ask("resources/list"))["result"]["resources"]}
        assert set(listed) == {uri, f"miniclaw://memories/{kept.memory_id}"}
        (session,) = (await client.ask("resources/read", {"uri": uri}))["result"]["contents"]
        assert "done" in session["text"] and session["mimeType"] == "text/markdown"
        memory = {"uri": f"miniclaw://memories/{kept.memory_id}"}
        assert "Hangzhou" in str((await client.ask("resources/read", memory))["result"])
        assert len((await client.ask("resources/templates/list"))["result"]["resourceTemplates"]) == 2
        for template, name, value, found in (
            ("miniclaw://sessions/{session_id}", "session_id", session_id[:6], session_id),
            ("miniclaw://sessions/{session_id}", "session_id", "GO", session_id),
            ("miniclaw://memories/{memory_id}", "memory_id", "hang", kept.memory_id),
        ):
            ref = {"type": "ref/resource", "uri": template}
            params = {"ref": ref, "argument": {"name": name, "value": value}}
            completion = (await client.ask("completion/complete", params))["result"]["completion"]
            assert completion["values"] == [found]
        async with client.request("GET") as general:
            await client.ask("resources/subscribe", {"uri": uri})
            more = {"name": "ask_agent", "arguments": {"text": "on", "session_id": session_id}}
            await client.ask("tools/call", more)
            _, message = await anext(events(general))
            assert message["params"] == {"uri": uri}
        client.headers["Authorization"] = f"Bearer {await claw.identities.add('ann')}"
        await client.greet()
        assert (await client.ask("resources/list"))["result"]["resources"] == []
        for hidden in (uri, memory["uri"], "miniclaw://memories/../../x", "file:///etc/passwd"):
            assert (await client.ask("resources/read", {"uri": hidden}))["error"]["code"] == -32002
        assert (await client.ask("resources/subscribe", {"uri": uri}))["error"]["code"] == -32002


async def test_skills_are_prompts_that_take_a_task(tmp_path: Path) -> None:
    async with mcp(tmp_path, ScriptedProvider([])) as (_, client):
        await client.greet()
        prompts = (await client.ask("prompts/list"))["result"]["prompts"]
        assert {"customer-service", "daily-summary"} <= {prompt["name"] for prompt in prompts}
        assert all(prompt["arguments"][0]["name"] == "task" for prompt in prompts)
        params = {"name": "daily-summary", "arguments": {"task": "今天"}}
        (message,) = (await client.ask("prompts/get", params))["result"]["messages"]
        assert message["content"]["text"].endswith("\n\n今天") and len(message["content"]["text"]) > 100
        ref = {"type": "ref/prompt", "name": "daily-summary"}
        params = {"ref": ref, "argument": {"name": "task", "value": ""}}
        assert (await client.ask("completion/complete", params))["result"]["completion"]["values"]


# --- on stdio ---------------------------------------------------------------------------------------------


async def test_stdio_asks_the_gateway_that_runs_and_reads_what_it_holds(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([DONE])) as claw, on_stdio(tmp_path) as client:
        result = (await client.request(1, "tools/call", ASK))["result"]
        session_id, turn_id = ids_in(result)
        assert result["content"][0]["text"] == "done" and claw.turns.get(turn_id) is not None
        (listed,) = (await client.request(2, "resources/list"))["result"]["resources"]
        assert listed["uri"] == f"miniclaw://sessions/{session_id}"
        assert "done" in str(await client.request(3, "resources/read", {"uri": listed["uri"]}))


async def test_stdio_runs_a_gateway_of_its_own_only_from_the_first_question_on(tmp_path: Path) -> None:
    async with on_stdio(tmp_path) as client:
        assert (await client.request(1, "resources/list"))["result"]["resources"] == []
        assert RunDir(tmp_path).running() is None
        for number in (2, 3):
            client.send({"id": number, "method": "tools/call", "params": SUM})
        ended: set[object] = set()
        while len(ended) < 2:
            message = await client.receive()
            ended |= {message["id"]}
            assert message["result"]["isError"] is False
        assert RunDir(tmp_path).running() is not None
        assert len((await client.request(4, "resources/list"))["result"]["resources"]) == 2
    assert RunDir(tmp_path).running() is None


async def test_a_gateway_of_its_own_makes_room_when_nobody_uses_it(tmp_path: Path) -> None:
    directory = RunDir(tmp_path)
    async with on_stdio(tmp_path, idle_seconds=0.1) as client:
        first, _ = ids_in((await client.request(1, "tools/call", SUM))["result"])
        async with open_link(loaded_for(tmp_path), connect=None, user_id="owner") as (_, _, attached):
            assert attached
            for _ in range(100):  # together longer than it is kept for nobody
                async with open_link(loaded_for(tmp_path), connect=None, user_id="owner") as (_, _, again):
                    assert again
        await eventually(lambda: not directory.is_held())
        second, _ = ids_in((await client.request(2, "tools/call", SUM))["result"])
        assert first != second


async def test_of_two_clients_that_ask_at_once_one_starts_the_gateway_for_both(tmp_path: Path) -> None:
    async with on_stdio(tmp_path) as one, on_stdio(tmp_path) as two:
        for client in (one, two):
            client.send({"id": 1, "method": "tools/call", "params": SUM})
        for client in (one, two):
            assert (await client.answer(1))["result"]["isError"] is False


async def test_calls_at_once_share_the_directory_and_a_gateway_of_its_own_waits_for_them(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "slow.py").write_text(
        f"""
from pathlib import Path
from miniclaw.tools import tool
from miniclaw.tools.context import ToolContext
@tool(risk="write")
def slow(path: str, tool_context: ToolContext) -> str:
    "Says that it runs and reads a pipe."
    Path({str(tmp_path / "runs")!r}).touch()
    return Path(path).read_text(encoding="utf-8")
""",
        encoding="utf-8",
    )
    os.mkfifo(pipe := tmp_path / "pipe")
    async with on_stdio(tmp_path) as client:
        slow = {"name": "slow", "arguments": {"path": str(pipe)}}
        client.send({"id": "slow", "method": "tools/call", "params": {**slow, **ACCEPTED}})
        await eventually((tmp_path / "runs").exists)
        for n in range(3):
            write = {"name": "write_file", "arguments": {"path": f"{n}", "content": "hi"}}
            client.send({"id": n, "method": "tools/call", "params": {**write, **ACCEPTED}})
        for _ in range(3):
            assert (await client.receive())["result"]["isError"] is False
        client.send({"id": "agent", "method": "tools/call", "params": SUM})
        assert (await client.call("c", "calculator", expression="1+1"))["result"]["isError"] is False
        await asyncio.to_thread(pipe.write_text, "end", "utf-8")
        ended = [await client.receive() for _ in range(2)]
        assert [one["id"] for one in ended] == ["slow", "agent"]
        assert not any(one["result"]["isError"] for one in ended)


ACCEPTED: Object = {"_meta": meta(elicitation={}), "inputResponses": {"approval": {"action": "accept"}}}
WRITE: Object = {"name": "write_file", "arguments": {"path": "a.txt", "content": "hi"}, **ACCEPTED}


async def listed(client: Peer) -> set[str]:
    """The tools that a client sees which can ask."""
    listing = await client.request("l", "tools/list", {"_meta": meta(elicitation={})})
    return {tool["name"] for tool in listing["result"]["tools"]}


@pytest.mark.parametrize("holder", ["gateway", "other client"])
async def test_what_changes_something_on_stdio_is_done_by_who_holds_the_directory(
    tmp_path: Path, holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # it is no way to this machine
    file = tmp_path / "users" / "owner" / "workspace" / "a.txt"
    async with AsyncExitStack() as stack:
        if holder == "gateway":
            await stack.enter_async_context(running_claw(tmp_path, ScriptedProvider([]), web=True))
        else:
            other = await stack.enter_async_context(on_stdio(tmp_path))
            assert (await other.request(1, "tools/call", SUM))["result"]["isError"] is False
        client = await stack.enter_async_context(on_stdio(tmp_path))
        assert {"write_file", "memory_save"} <= await listed(client)
        asked = (await client.request(1, "tools/call", {**WRITE, "inputResponses": {}}))["result"]
        assert list(asked["inputRequests"]) == ["approval"] and not await asyncio.to_thread(file.exists)
        answered = {**WRITE, "requestState": asked["requestState"]}
        result = (await client.request(2, "tools/call", answered))["result"]
        assert result["isError"] is False and await asyncio.to_thread(file.read_text, "utf-8") == "hi"


async def test_what_a_holder_without_http_would_have_to_do_is_not_offered(tmp_path: Path) -> None:
    async with on_stdio(tmp_path) as client:
        async with running_claw(tmp_path, ScriptedProvider([])):
            tools = await listed(client)
            assert "read_file" in tools and not {"write_file", "memory_save"} & tools
            refused = (await client.request(1, "tools/call", WRITE))["result"]
            assert refused["isError"] is True and "--port" in refused["content"][0]["text"]
        assert "write_file" in await listed(client)
        assert (await client.request(2, "tools/call", WRITE))["result"]["isError"] is False


async def test_a_process_answers_at_once_uses_its_tools_and_ends_with_its_input(tmp_path: Path) -> None:
    async with serving(mcp_serve(tmp_path)) as (client, _):
        await client.greet()
        call = {"name": "calculator", "arguments": {"expression": "37*43"}}
        result = (await client.request(1, "tools/call", call))["result"]
        assert result == {"content": [{"type": "text", "text": "1591"}], "isError": False}
        bad = {"name": "calculator", "arguments": {"expression": "import os"}}
        assert (await client.request(2, "tools/call", bad))["result"]["isError"] is True


async def test_http_by_itself_serves_one_directory_and_says_where_it_is_served(tmp_path: Path) -> None:
    command = mcp_serve(tmp_path, "--http", "--port", "0")
    env = {**os.environ, "MINICLAW_TOKEN": TOKEN, "MINICLAW_MODEL__PROBE_LOCAL": "false"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, env=env)
    try:
        assert process.stdout is not None
        url, token = [(await process.stdout.readline()).decode().split()[-1] for _ in range(2)]
        async with aiohttp.ClientSession() as http:
            client = HttpPeer(http, url, {"Authorization": f"Bearer {token}"})
            assert (await client.modern("server/discover"))["status"] == 200
        second = await asyncio.create_subprocess_exec(*command, stdout=pipe, env=env)
        said, _ = await second.communicate()
        assert second.returncode == 0 and url in said.decode()
    finally:
        process.terminate()
        assert await process.wait() == 0
