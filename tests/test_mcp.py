"""MCP on stdio as a client sees it, whatever goes wrong on the way, and its codec."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import MCPError, StorageError
from miniclaw.mcp.call import Call
from miniclaw.mcp.headers import decode_value, encode_value, mirrored, mirrored_headers
from miniclaw.mcp.protocol import Notification, Request, Response, decode, encode_error, encode_result
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.stdio import Lines
from miniclaw.mcp.toolset import text_result
from tests.interop.mcp_fixture_server import fixture_server
from tests.support.mcp import Object, hello, mcp_serve, meta, piped, serving

ASKS: Object = {"elicitation": {}, "sampling": {}, "roots": {}}


class Slow:
    """Tools that wait until they are let go, and say whether they were cancelled."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.started = asyncio.Event()
        self.cancelled = 0

    async def list_tools(self, call: Call) -> list[Object]:
        return [{"name": "slow", "inputSchema": {"type": "object", "properties": {}}}]

    async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return text_result("late")


# --- the handshake ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "spoken"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-06-18"),
        ("2099-01-01", "2025-11-25"),
    ],
)
async def test_the_version_is_the_clients_or_our_newest(wanted: str, spoken: str) -> None:
    async with piped(fixture_server()) as (client, _):
        reply = await client.request(1, "initialize", hello(wanted))
        assert reply["result"]["protocolVersion"] == spoken


async def test_both_wires_are_served_on_one_connection() -> None:
    async with piped(fixture_server()) as (client, _):
        found = (await client.request(1, "server/discover", {"_meta": meta()}))["result"]
        assert found["supportedVersions"] == ["2026-07-28"] and found["resultType"] == "complete"
        await client.greet()
        assert (await client.request(2, "ping"))["result"] == {}
        assert (await client.request(3, "ping", {"_meta": meta()}))["error"]["code"] == -32601


async def test_a_question_is_a_request_with_a_handshake_and_a_round_without() -> None:
    async with piped(fixture_server()) as (client, _):
        await client.greet(**ASKS)
        name = "test_input_required_result_elicitation"
        client.send({"id": 1, "method": "tools/call", "params": {"name": name}})
        asked = await client.receive()
        assert asked["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"name": "Ann"}}
        client.send({"id": asked["id"], "result": answer})
        assert (await client.answer(1))["result"]["content"][0]["text"] == "Hello, Ann!"
        params = {"name": name, "_meta": meta(elicitation={})}
        first = (await client.request(2, "tools/call", params))["result"]
        assert first["resultType"] == "input_required" and set(first["inputRequests"]) == {"user_name"}
        again = {"inputResponses": {"user_name": answer}, "requestState": first["requestState"]}
        done = (await client.request(3, "tools/call", {**params, **again}))["result"]
        assert done["content"][0]["text"] == "Hello, Ann!" and done["resultType"] == "complete"


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state + "x",
        lambda state: "A" + state[1:] if state[0] != "A" else "B" + state[1:],
        lambda state: "ü",
        lambda state: 7,
    ],
)
async def test_a_state_that_is_not_ours_is_refused(change: Any) -> None:
    async with piped(fixture_server()) as (client, _):
        params = {"name": "test_input_required_result_multi_round", "_meta": meta(elicitation={})}
        state = (await client.request(1, "tools/call", params))["result"]["requestState"]
        answers = {"step1": {"action": "accept", "content": {}}}
        changed = {**params, "inputResponses": answers, "requestState": change(state)}
        assert (await client.request(2, "tools/call", changed))["error"]["code"] == -32602
        other = {**params, "arguments": {"x": 1}, "inputResponses": answers, "requestState": state}
        assert (await client.request(3, "tools/call", other))["error"]["code"] == -32602


async def test_a_client_that_cannot_be_asked_is_told_what_it_lacks() -> None:
    async with piped(fixture_server()) as (client, _):
        await client.greet()
        legacy = await client.call(1, "test_elicitation", message="?")
        assert legacy["error"]["code"] == -32602
        params = {"name": "test_elicitation", "_meta": meta()}
        error = (await client.request(2, "tools/call", params))["error"]
        assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"elicitation": {}}})


async def test_a_subscription_gets_what_it_asked_for_and_ends_when_it_is_cancelled() -> None:
    async with piped(fixture_server()) as (client, _):
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["test://static-text", "test://none"]}
        client.send(
            {"id": 1, "method": "subscriptions/listen", "params": {"notifications": wanted, "_meta": meta()}}
        )
        first = await client.receive()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["notifications"]["resourceSubscriptions"] == ["test://static-text"]
        for name in ("test_trigger_prompt_change", "test_trigger_tool_change"):
            await client.request(name, "tools/call", {"name": name, "_meta": meta()})
        tagged = {"_meta": {"io.modelcontextprotocol/subscriptionId": 1}}
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": tagged}
        assert client.others == [changed]
        client.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
        await client.request(2, "tools/call", {"name": "test_trigger_tool_change", "_meta": meta()})
        assert client.others == [changed]


# --- what goes wrong --------------------------------------------------------------------------------------


async def test_errors_have_their_codes_and_the_server_goes_on() -> None:
    async with piped(fixture_server()) as (client, _):
        assert (await client.request(1, "server/discover"))["error"]["code"] == -32602
        for line, code in (
            (b"rubbish", -32700),
            (b"[]", -32600),
            (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
            (b'{"jsonrpc":"2.0"}', -32600),
            (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
            (b"[" * 100_000, -32700),
            (b"\xff", -32700),
        ):
            client.send(line)
            reply = await client.receive()
            assert (reply["id"], reply["error"]["code"]) == (None, code)
        await client.greet()
        for method, params, code in (
            ("no/such", {}, -32601),
            ("subscriptions/listen", {}, -32601),
            ("tools/call", {"name": "nope"}, -32602),
            ("tools/call", {"name": 7}, -32602),
            ("tools/call", {"name": "echo", "arguments": []}, -32602),
            ("tools/list", {"cursor": "x"}, -32602),
            ("tools/list", {"cursor": "9" * 5000}, -32602),
            ("prompts/get", {"name": "nope"}, -32602),
            ("prompts/get", {"name": "test_simple_prompt", "arguments": {"a": 1}}, -32602),
            ("resources/read", {"uri": "test://none"}, -32002),
            ("resources/subscribe", {"uri": "test://none"}, -32002),
            ("logging/setLevel", {"level": "loud"}, -32602),
            ("completion/complete", {"ref": {}, "argument": {}}, -32602),
        ):
            assert (await client.request("x", method, params))["error"]["code"] == code, (method, params)
        for line in (b"", b"\r", b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":5,"method":"ping"}\r'):
            client.send(line)
        assert (await client.answer(5))["result"] == {}


async def test_a_handler_that_breaks_is_an_internal_error_and_no_more() -> None:
    class Broken(Slow):
        async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
            raise ZeroDivisionError if name == "slow" else MCPError(-32602, "no")

    class Unwritable(Slow):
        async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
            return {"content": [object()]}

    class Unreadable(Slow):
        async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
            raise StorageError("The disk is gone.")

    for tools, text in ((Broken(), "broke"), (Unwritable(), "broke"), (Unreadable(), "disk is gone")):
        async with piped(MCPServer(tools=[tools])) as (client, _):
            await client.greet()
            error = (await client.call(1, "slow"))["error"]
            assert error["code"] == -32603 and text in error["message"]
            assert (await client.request(2, "ping"))["result"] == {}


async def test_a_message_over_the_limit_is_a_parse_error_and_the_next_is_served() -> None:
    async with piped(fixture_server()) as (client, _):
        client.send(b'{"x":"' + b"x" * (17 * 1024 * 1024) + b'"}')
        assert (await client.receive())["error"]["code"] == -32700
        await client.greet()
        assert (await client.request(1, "ping"))["result"] == {}


async def test_an_answer_far_larger_than_a_pipe_arrives_whole_and_in_order() -> None:
    async with piped(fixture_server()) as (client, _):
        await client.greet()
        text = "\u4f60\u2028" * 1_000_000
        client.send(
            {"id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": text}}}
        )
        client.send({"id": 2, "method": "ping"})
        assert (await client.answer(1))["result"]["content"][0]["text"] == text
        assert (await client.answer(2))["result"] == {}
        assert client.others == []


async def test_a_slow_call_keeps_no_other_waiting_and_a_cancelled_one_is_not_answered() -> None:
    slow = Slow()
    async with piped(MCPServer(tools=[slow])) as (client, _):
        await client.greet()
        client.send({"id": 1, "method": "tools/call", "params": {"name": "slow"}})
        assert (await client.request(2, "ping"))["result"] == {}
        client.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
        for gone in (1, 2, "never", None, {"a": 1}):
            client.send({"method": "notifications/cancelled", "params": {"requestId": gone}})
        client.send({"method": "notifications/no/such"})
        client.send({"id": 77, "result": {}})
        assert (await client.request(3, "ping"))["result"] == {}
        assert (slow.cancelled, client.others) == (1, [])
        slow.go.set()
        assert (await client.call(1, "slow"))["result"]["content"][0]["text"] == "late"


async def test_a_request_that_is_cancelled_before_it_begins_frees_its_id() -> None:
    async with piped(fixture_server()) as (client, _):
        await client.greet()
        call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
        stop = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        client.write(call + b"\n" + json.dumps(stop).encode() + b"\n")
        assert (await client.request(2, "ping"))["result"] == {}
        assert (await client.request(1, "ping"))["result"] == {}
        assert client.others == []


async def test_a_client_that_goes_away_ends_the_server_its_calls_and_its_questions() -> None:
    slow = Slow()
    server = fixture_server()
    async with piped(MCPServer(tools=[slow])) as (client, task), piped(server) as (asked, other):
        for peer in (client, asked):
            await peer.greet(**ASKS)
        client.send({"id": 1, "method": "tools/call", "params": {"name": "slow"}})
        asked.send({"id": 1, "method": "tools/call", "params": {"name": "test_elicitation"}})
        assert (await asked.receive())["method"] == "elicitation/create"
        await slow.started.wait()
    assert task.done() and other.done() and slow.cancelled == 1
    assert not list(server.sessions)


async def test_a_client_that_does_not_read_any_more_ends_the_server() -> None:
    async with piped(fixture_server()) as (client, task):
        await client.greet()
        client.stop_reading()
        while not task.done():
            client.send({"id": 1, "method": "ping"})
            await asyncio.sleep(0.001)
        assert task.exception() is None


async def test_a_storm_of_notifications_and_requests_is_survived() -> None:
    async with piped(fixture_server()) as (client, _):
        await client.greet()
        for number in range(3000):
            client.send({"method": "notifications/progress", "params": {"progressToken": number}})
            client.send({"id": number, "method": "ping"})
        for number in range(3000):
            assert (await client.receive())["id"] == number


async def test_an_id_in_use_is_refused_and_the_first_call_goes_on() -> None:
    slow = Slow()
    async with piped(MCPServer(tools=[slow])) as (client, _):
        await client.greet()
        for _ in range(2):
            client.send({"id": 1, "method": "tools/call", "params": {"name": "slow"}})
        assert (await client.receive())["error"]["code"] == -32600
        slow.go.set()
        assert "result" in await client.answer(1)


async def test_log_messages_come_from_the_level_on_that_was_set() -> None:
    async with piped(fixture_server()) as (client, _):
        await client.greet()
        await client.request(1, "logging/setLevel", {"level": "warning"})
        await client.call(2, "test_tool_with_logging")
        assert client.others == []
        await client.request(3, "logging/setLevel", {"level": "debug"})
        await client.call(4, "test_tool_with_logging")
        assert [message["method"] for message in client.others] == ["notifications/message"] * 3


# --- the process ------------------------------------------------------------------------------------------

NOISY = '''
import os, subprocess, sys, warnings
print("a banner at import")
os.write(1, b"and past Python\\n")
warnings.warn("old")
from miniclaw.tools import tool

@tool(risk="read")
def shout(text: str) -> str:
    """Say it loudly."""
    print(text, flush=True)
    sys.__stdout__.write(text)
    os.write(1, text.encode())
    subprocess.run(["echo", text], check=True)
    return repr(sys.stdin.read())
'''


async def test_nothing_but_messages_is_ever_on_standard_output(tmp_path: Path) -> None:
    """sbroenne/mcp-server-excel#636, MarcusJellinghaus/mcp-workspace#14."""
    await asyncio.to_thread(os.makedirs, tmp_path / "tools")
    await asyncio.to_thread((tmp_path / "tools" / "noisy.py").write_text, NOISY, "utf-8")
    async with serving(mcp_serve(tmp_path, "--log-level", "debug")) as (client, _):
        await client.greet()
        assert "shout" in str(await client.request(1, "tools/list"))
        result = (await client.call(2, "shout", text="LOUD"))["result"]
        assert result == {"content": [{"type": "text", "text": "''"}], "isError": False}
        assert client.others == []


# --- the codec --------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_decoding_arbitrary_bytes_raises_only_protocol_errors(line: bytes) -> None:
    try:
        decode(line)
    except MCPError as error:
        assert error.code in (-32700, -32600)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=9), c, max_size=3),
    max_leaves=5,
)


@given(st.integers() | st.text(), st.text(), st.dictionaries(st.text(max_size=9), JSON, max_size=5))
def test_messages_survive_the_wire_and_keep_to_one_line(
    message_id: int | str, method: str, params: dict[str, Any]
) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}).encode()
    assert decode(line) == Request(message_id, method, params)
    line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
    assert decode(line) == Notification(method, params)
    reply = encode_result(message_id, params)
    assert reply.count(b"\n") == 0 and decode(reply) == Response(message_id, params, None)
    refused = decode(encode_error(message_id, MCPError(-32601, method)))
    assert isinstance(refused, Response) and refused.error == {"code": -32601, "message": method}


@given(st.lists(st.binary(max_size=30)), st.integers(1, 40))
def test_lines_are_the_same_however_the_stream_is_cut(parts: list[bytes], size: int) -> None:
    data = b"\n".join(parts) + b"\n"
    cut = Lines(20)
    lines = [line for at in range(0, len(data), size) for line in cut.feed(data[at : at + size])]
    assert lines == Lines(20).feed(data)
    assert all(line is None or len(line) <= 20 for line in lines)


@given(st.text())
def test_any_text_survives_a_header(text: str) -> None:
    value = encode_value(text)
    assert value.isascii() and "\n" not in value and decode_value(value) == text


def test_arguments_are_mirrored_where_the_schema_may_ask_for_it() -> None:
    def of(**annotated: Any) -> Object:
        return {"type": "object", "properties": {"a": {"type": "string", **annotated}}}

    nested = {"type": "object", "properties": {"in": of(**{"x-mcp-header": "A"})}}
    wanted = mirrored(nested)
    assert wanted == {("in", "a"): "A"}
    assert mirrored_headers(wanted, {"in": {"a": "ü"}}) == {"Mcp-Param-A": "=?base64?w7w=?="}
    assert mirrored_headers(wanted, {"in": {"a": None}}) == {} == mirrored_headers(wanted, {"in": 3})
    for bad in (
        of(**{"x-mcp-header": ""}),
        of(**{"x-mcp-header": "a b"}),
        of(**{"x-mcp-header": "A", "type": "number"}),
    ):
        assert mirrored(bad) is None
    assert mirrored({"type": "object", "items": of(**{"x-mcp-header": "A"})}) is None
    assert decode_value("=?base64?!?=") is None
