"""MCP over Streamable HTTP: statuses, sessions, streams that are resumed, and the wire without a handshake."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.streams import EventStream
from tests.interop.mcp_fixture_server import fixture_server
from tests.support.agent import eventually
from tests.support.claw import TOKEN, running_claw
from tests.support.mcp import events, http_peer, meta
from tests.test_mcp import Slow

PING = {"id": 1, "method": "ping"}
MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
LIST = {"id": 1, "method": "tools/list", "params": {"_meta": meta()}}


# --- with a handshake -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (PING, {}, 200),
        ({"method": "notifications/initialized"}, {}, 202),
        ({"id": 9, "result": {}}, {}, 202),
        ({"id": 1, "method": "no/such"}, {}, 200),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', {}, 400),
        (PING, {"Content_Type": "text/plain"}, 415),
        (PING, {"Accept": "application/json"}, 406),
        (PING, {"Accept": "text/html"}, 406),
        (PING, {"Accept": "*/*"}, 200),
        (PING, {"Mcp_Session_Id": None}, 400),
        (PING, {"Mcp_Session_Id": "unknown"}, 404),
        (PING, {"X_User": "another"}, 404),
        (PING, {"MCP_Protocol_Version": "1999-01-01"}, 400),
        (PING, {"MCP_Protocol_Version": None}, 200),
    ],
)
async def test_a_post_has_the_status_that_its_fault_has(body: Any, headers: Any, status: int) -> None:
    async with http_peer(fixture_server()) as client:
        await client.greet()
        async with client.request(body=body, **headers) as response:
            assert response.status == status
            if status >= 400:
                assert (await response.json())["error"]["code"] in (-32700, -32600)
        assert (await client.ask("ping"))["result"] == {}


@pytest.mark.parametrize(
    ("verb", "headers", "status"),
    [
        ("GET", {"Accept": "application/json"}, 406),
        ("GET", {"Last_Event_ID": "p99.1"}, 400),
        ("GET", {"Last_Event_ID": "g.x"}, 400),
        ("GET", {"Mcp_Session_Id": "unknown"}, 404),
        ("GET", MODERN, 405),
        ("DELETE", MODERN, 405),
        ("PUT", {}, 405),
    ],
)
async def test_other_methods_have_theirs(verb: str, headers: Any, status: int) -> None:
    async with http_peer(fixture_server()) as client:
        await client.greet()
        given = {name.replace("-", "_"): value for name, value in headers.items()}
        async with client.request(verb, **given) as response:
            assert response.status == status
            assert (response.headers.get("Allow") is not None) == (status == 405)


async def test_a_deleted_session_is_gone_and_so_is_the_one_that_was_silent_longest() -> None:
    server = fixture_server()
    async with http_peer(server, sessions=2) as client:
        await client.greet()
        async with client.request("DELETE") as response:
            assert response.status == 204
        assert not list(server.sessions)
        async with client.request(body=PING) as response:
            assert response.status == 404
        known = []
        for _ in range(3):
            await client.greet()
            known.append(client.headers["Mcp-Session-Id"])
        assert len(server.sessions) == 2 and len(set(known)) == 3
        for session_id, status in zip(known, (404, 200, 200), strict=True):
            async with client.request(body=PING, Mcp_Session_Id=session_id) as response:
                assert response.status == status
        async with client.request("GET", Mcp_Session_Id=known[1]), client.request("GET"):
            body = {"id": 1, "method": "initialize", "params": {}}
            async with client.request(body=body) as response:  # those that are being read make no room
                assert response.status == 503


async def test_progress_comes_before_the_answer_on_the_stream_of_its_request() -> None:
    async with http_peer(fixture_server()) as client:
        await client.greet()
        params = {"name": "test_tool_with_progress", "_meta": {"progressToken": "t"}}
        reply = await client.ask("tools/call", params)
        assert [one["params"]["progress"] for one in reply["others"]] == [0, 50, 100]
        assert reply["result"]["content"][0]["text"] == "done"


async def test_a_broken_stream_is_resumed_behind_the_last_event_that_was_read() -> None:
    async with http_peer(fixture_server()) as client:
        await client.greet()
        params = {"name": "test_tool_with_progress", "_meta": {"progressToken": "t"}}
        body = {"id": 7, "method": "tools/call", "params": params}
        async with client.request(body=body) as response:
            event_id, message = await anext(events(response))
            assert message["params"]["progress"] == 0
            response.close()
        for _ in range(2):  # what was sent once can be sent again
            async with client.request("GET", Last_Event_ID=event_id) as response:
                rest = [message async for _, message in events(response)]
            assert [one["params"]["progress"] for one in rest[:-1]] == [50, 100]
            assert (rest[-1]["id"], rest[-1]["result"]["content"][0]["text"]) == (7, "done")


async def test_a_question_goes_over_the_stream_of_its_call_and_its_answer_comes_by_itself() -> None:
    async with http_peer(fixture_server()) as client:
        await client.greet(elicitation={})
        body = {"id": 7, "method": "tools/call", "params": {"name": "test_elicitation"}}
        async with client.request(body=body) as response:
            messages = events(response)
            _, asked = await anext(messages)
            answer = {"id": asked["id"], "result": {"action": "decline"}}
            async with client.request(body=answer) as taken:
                assert taken.status == 202
            _, reply = await anext(messages)
        assert "decline" in reply["result"]["content"][0]["text"]


async def test_what_belongs_to_no_request_comes_over_get() -> None:
    async with http_peer(fixture_server()) as client:
        await client.greet()
        for what in ("tool", "prompt"):  # before anybody listens, and while nobody does
            await client.ask("tools/call", {"name": f"test_trigger_{what}_change"})
            async with client.request("GET") as response:
                _, message = await anext(events(response))
                assert message["method"] == f"notifications/{what}s/list_changed"


async def test_a_slow_call_can_be_resumed_before_anything_was_sent() -> None:
    slow = Slow()
    async with http_peer(MCPServer(tools=[slow])) as client:
        await client.greet()
        body = {"id": 7, "method": "tools/call", "params": {"name": "slow"}}
        async with client.request(body=body) as response:
            first = await response.content.readline()
        slow.go.set()
        async with client.request("GET", Last_Event_ID=first.decode().removeprefix("id: ").strip()) as again:
            ((_, reply),) = [one async for one in events(again)]
        assert (reply["id"], slow.cancelled) == (7, 0)


async def test_a_stream_that_nobody_reads_is_bounded_and_keeps_its_end() -> None:
    stream = EventStream("p1")
    for number in range(5000):
        stream.put(b"%d" % number)
    stream.end()
    sent = [event async for event in stream.read(0, idle=1)]
    assert len(sent) == 1000 and sent[-1] == b"id: p1.5000\nevent: message\ndata: 4999\n\n"


@pytest.mark.parametrize("keeps", [True, False])
async def test_what_comes_while_an_event_is_on_its_way_is_sent_too(keeps: bool) -> None:
    stream = EventStream("p1", keeps=keeps)
    stream.put(b"0")
    sent = 0
    async for event in stream.read(0, idle=0.1):
        assert b"data: " in event
        sent += 1
        if sent < 5:
            stream.put(b"more")
        else:
            stream.end()
    assert (sent, stream.is_empty) == (5, not keeps)


# --- without a handshake ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "params", "status", "code"),
    [
        ({}, {}, 400, -32602),
        ({"MCP_Protocol_Version": None}, {"_meta": meta()}, 400, -32020),
        ({"Mcp_Method": None}, {"_meta": meta()}, 400, -32020),
        ({"Mcp_Method": "Tools/List"}, {"_meta": meta()}, 400, -32020),
        ({"Mcp_Method": " tools/list "}, {"_meta": meta()}, 200, None),
    ],
)
async def test_headers_and_body_of_a_request_say_the_same(
    headers: Any, params: Any, status: int, code: int | None
) -> None:
    async with http_peer(fixture_server()) as client:
        given = {**{k.replace("-", "_"): v for k, v in MODERN.items()}, **headers}
        body = {"id": 5, "method": "tools/list", "params": params}
        async with client.request(body=body, **given) as response:
            reply = await response.json()
        assert (response.status, reply["id"], reply.get("error", {}).get("code")) == (status, 5, code)


async def test_a_modern_answer_says_how_long_it_may_be_kept_and_errors_have_statuses() -> None:
    async with http_peer(fixture_server()) as client:
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            result = (await client.modern(method))["result"]
            assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (0, "private", "complete")
        assert (await client.modern("ping"))["status"] == 404
        lacking = await client.modern("tools/call", {"name": "test_missing_capability"})
        assert (lacking["status"], lacking["error"]["code"]) == (400, -32021)
        missing = await client.modern("resources/read", {"uri": "test://none"})
        assert (missing["status"], missing["error"]["code"]) == (400, -32602)
        progress = {"name": "test_tool_with_progress", "arguments": {}}
        assert (await client.modern("tools/call", progress))["others"] == []


async def test_a_modern_client_that_leaves_cancels_its_request() -> None:
    slow = Slow()
    server = MCPServer(tools=[slow])
    async with http_peer(server) as client:
        client.headers |= {**MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "slow"}
        body = {"id": 1, "method": "tools/call", "params": {"name": "slow", "_meta": meta()}}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), client.request(body=body):
                raise AssertionError("it was answered")
        await eventually(lambda: slow.cancelled == 1)
        assert not list(server.sessions)


async def test_twenty_clients_that_come_and_go_leave_nothing_behind() -> None:
    """HKUDS/nanobot#3638: a connection that another task closes must not leave a task that spins."""
    server = fixture_server()
    async with http_peer(server) as client:
        await client.modern("tools/list")
        before = len(asyncio.all_tasks())
        for _ in range(20):
            await client.modern("tools/call", {"name": "test_simple_text"})
            await client.greet()
            await client.ask("tools/call", {"name": "test_simple_text"})
            async with client.request("DELETE"):
                pass
        await eventually(lambda: len(asyncio.all_tasks()) <= before)
        assert not list(server.sessions)


# --- the gateway's own --------------------------------------------------------------------------------------


async def test_the_gateway_lets_in_who_has_a_token_and_comes_from_nowhere_else(tmp_path: Path) -> None:
    async with running_claw(tmp_path, web=True) as claw, aiohttp.ClientSession() as http:
        assert claw.web is not None
        url, known = f"http://127.0.0.1:{claw.web.port}", {"Authorization": f"Bearer {TOKEN}"}
        accept = {"Accept": "application/json, text/event-stream"}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({**known, "Origin": "http://evil.example.com"}, 403),
            ({**known, "Host": "evil.example.com"}, 421),
            ({**known, "Origin": url}, 200),
            (known, 200),
        ):
            async with http.post(f"{url}/mcp", json=hello, headers={**accept, **headers}) as response:
                assert response.status == status, headers
                if status == 401:
                    where = response.headers["WWW-Authenticate"].partition('resource_metadata="')[2][:-1]
        async with http.get(where) as response:
            assert (await response.json())["resource"] == f"{url}/mcp"
        sent = {**accept, **known, "Content-Type": "application/json"}
        async with http.post(f"{url}/mcp", data=io.BytesIO(b" " * 2_000_000), headers=sent) as response:
            assert response.status == 413
