"""Our MCP client and servers at a URL: both wires, lost sessions, cut streams, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client import MCPClient, http
from miniclaw.mcp.client.events import EventReader
from miniclaw.mcp.client.http import HttpLink
from miniclaw.mcp.protocol import MODERN
from tests.interop.mcp_fixture_server import fixture_server
from tests.support.mcp import http_peer
from tests.support.mcp_servers import helpful, serve_http, text_of, until

Answer = dict[str, Any] | web.StreamResponse
OK = {"content": [{"type": "text", "text": "ok"}]}
EVENTS = {"Content-Type": "text/event-stream"}


def connect(url: str, *, headers: dict[str, str] | None = None, **options: Any) -> MCPClient:
    given = {"start_seconds": 20.0, "call_seconds": 20.0, **options}
    return MCPClient(lambda: HttpLink(url, headers=headers), name="fake", **given)


class Fake:
    """A server with a handshake and sessions; `call` answers `tools/call`, `before` anything it wants to."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.sessions = 0
        self.call: Callable[[web.Request, dict[str, Any]], Any] = lambda request, message: OK
        self.before: Callable[[web.Request, dict[str, Any]], Any] = lambda request, message: None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        message = await request.json() if request.method == "POST" else {}
        method = str(message.get("method", ""))
        self.seen.append((request.method, method, dict(request.headers)))
        answer = await _awaited(self.before(request, message))
        if answer is None and request.method != "POST":
            return web.Response(status=405)
        if answer is None:
            answer = await self._answer(request, message)
        if isinstance(answer, web.StreamResponse):
            return answer
        headers = {"Mcp-Session-Id": f"s{self.sessions}"} if method == "initialize" else None
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": answer}, headers=headers)

    async def _answer(self, request: web.Request, message: dict[str, Any]) -> Answer:
        match message["method"]:
            case "server/discover":
                return web.Response(status=400, text="<html>no session</html>")
            case "initialize":
                self.sessions += 1
                return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            case "tools/call":
                result: Answer = await _awaited(self.call(request, message))
                return result
        if "id" not in message:
            return web.Response(status=202)
        return {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]}

    def count(self, method: str) -> int:
        return sum(one == method for _, one, _ in self.seen)


async def _awaited(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


async def stream(request: web.Request, text: str) -> web.StreamResponse:
    """An event stream that ends after this."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    await response.write(text.encode())
    await response.write_eof()
    return response


def saying(text: str, request: web.Request, message: dict[str, Any]) -> Any:
    return stream(request, text)


def event(message_id: Any, result: dict[str, Any] = OK, *, mark: str = "") -> str:
    return f"{mark}data: {json.dumps({'jsonrpc': '2.0', 'id': message_id, 'result': result})}\n\n"


@asynccontextmanager
async def faking() -> AsyncIterator[Fake]:
    fake = Fake()
    async with serve_http(fake.handle) as url:
        fake.url = f"{url}/mcp"
        yield fake


# --- both wires -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "version"), [("auto", MODERN), ("handshake", "2025-11-25")])
async def test_everything_that_a_server_offers_is_reached_on_both_wires(
    era: Any, version: str, tmp_path: Path
) -> None:
    steps: list[float] = []
    async with (
        http_peer(fixture_server()) as peer,
        connect(peer.url, era=era, host=helpful(tmp_path)) as client,
    ):
        assert client.version == version
        assert "simple text" in text_of(await client.call_tool("test_simple_text"))
        await client.call_tool("test_tool_with_progress", progress=lambda *step: steps.append(step[0]))
        assert len(steps) >= 3 and steps == sorted(steps)
        assert "accept" in text_of(await client.call_tool("test_elicitation", {"message": "?"}))
        assert "sampled" in text_of(await client.call_tool("test_sampling", {"prompt": "hello"}))
        results = await asyncio.gather(*(client.call_tool("test_simple_text") for _ in range(20)))
        assert len({text_of(result) for result in results}) == 1
        with pytest.raises(MCPError, match="no_such"):
            await client.call_tool("no_such")


@pytest.mark.parametrize("era", ["auto", "handshake"])
async def test_a_changed_list_is_told(era: Any) -> None:
    told: list[str] = []
    server = fixture_server()
    async with http_peer(server) as peer, connect(peer.url, era=era, changed=told.append):

        def is_told() -> bool:
            for session in server.sessions:
                session.changed("tools")
            return "tools" in told

        await until(is_told)
    assert set(told) == {"tools"}


async def test_the_headers_of_a_tool_that_changed_are_learnt_anew() -> None:
    seen: list[tuple[str | None, str | None]] = []
    properties: dict[str, Any] = {"where": {"type": "string"}}

    async def handle(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        result: dict[str, Any] = {"resultType": "complete"}
        match message["method"]:
            case "server/discover":
                result |= {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            case "tools/list":
                schema = {"type": "object", "properties": json.loads(json.dumps(properties))}
                result["tools"] = [{"name": "say", "inputSchema": schema}]
                properties["where"]["x-mcp-header"] = "Where"
            case "tools/call":
                seen.append((request.headers.get("Mcp-Name"), request.headers.get("Mcp-Param-Where")))
                if seen[-1][1] is None:
                    error = {"code": -32020, "message": "header"}
                    return web.json_response(
                        {"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400
                    )
                result |= OK
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async with serve_http(handle) as url, connect(url) as client:
        await client.list_tools()
        assert text_of(await client.call_tool("say", {"where": "文"})) == "ok"
    assert seen == [("say", None), ("say", "=?base64?5paH?=")]


# --- sessions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "text"), [(404, ""), (400, '{"error": "Missing session ID"}')])
async def test_a_lost_session_is_begun_again_once_for_all_calls(status: int, text: str) -> None:
    async with faking() as fake, connect(fake.url) as client:

        def lost(request: web.Request, message: dict[str, Any]) -> Answer | None:
            is_old = request.headers.get("Mcp-Session-Id") == "s1" and message.get("method") == "tools/call"
            return web.Response(status=status, text=text) if is_old else None

        fake.before = lost
        results = await asyncio.gather(*(client.call_tool("say") for _ in range(5)))
        assert [text_of(result) for result in results] == ["ok"] * 5
        assert fake.sessions == 2
        first = next(headers for _, method, headers in fake.seen if method == "initialize")
        assert "Mcp-Session-Id" not in first
    assert fake.seen[-1][0] == "DELETE" and fake.seen[-1][2]["Mcp-Session-Id"] == "s2"


async def test_a_server_that_forgets_every_session_is_not_asked_for_ever() -> None:
    async with faking() as fake, connect(fake.url) as client:
        fake.before = lambda request, message: (
            web.Response(status=404) if message.get("method") == "tools/call" else None
        )
        with pytest.raises(MCPUnavailable, match="forgotten the session"):
            await client.call_tool("say")
        assert fake.sessions == 2 and fake.count("tools/call") == 2


async def test_a_new_session_that_nobody_grants_fails_the_call_after_the_start_limit() -> None:
    never = asyncio.Event()

    async def hang(request: web.Request, message: dict[str, Any]) -> web.StreamResponse | None:
        if message.get("method") == "initialize":
            await never.wait()
        return web.Response(status=404) if message.get("method") == "tools/call" else None

    async with faking() as fake, connect(fake.url, start_seconds=0.5) as client:
        fake.before = hang
        with pytest.raises(MCPUnavailable, match=r"within 0\.5 s"):
            await client.call_tool("say")
        never.set()


# --- streams ----------------------------------------------------------------------------------------------


async def test_a_cut_stream_is_resumed_where_it_stopped() -> None:
    ids: list[Any] = []
    asked: list[str | None] = []

    async def call(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        ids.append(message["id"])
        return await stream(request, "id: e1\nretry: 10\ndata:\n\n")

    async def get(request: web.Request, message: dict[str, Any]) -> web.StreamResponse | None:
        mark = request.headers.get("Last-Event-ID")
        if request.method != "GET" or mark is None:
            return None
        asked.append(mark)
        done = len(asked) == 3
        return await stream(
            request, event(ids[0], mark="id: e9\n") if done else f"id: e{len(asked) + 1}\ndata:\n\n"
        )

    async with faking() as fake, connect(fake.url) as client:
        fake.call, fake.before = call, get
        assert text_of(await client.call_tool("say")) == "ok"
    assert asked == ["e1", "e2", "e3"]


async def test_a_stream_that_ends_without_an_answer_or_an_id_fails_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.01)
    async with faking() as fake, connect(fake.url) as client:
        for text in (": hello\n\n", "id: e1\ndata:\n\n", "data: rubbish\n\ndata: {}\n\n"):
            fake.call = partial(saying, text)
            with pytest.raises(MCPUnavailable, match="without an answer"):
                await client.call_tool("say")
        fake.call = lambda request, message: web.Response(status=202)
        with pytest.raises(MCPUnavailable, match="without an answer"):
            await client.call_tool("say")


async def test_questions_come_on_the_stream_of_their_call_and_are_answered_beside_it(tmp_path: Path) -> None:
    answered = asyncio.Event()
    sent: list[Any] = []

    async def call(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        question = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
        await response.write(f"data: {json.dumps(question)}\n\n".encode())
        await answered.wait()
        await response.write(event(message["id"]).encode())
        return response

    def take(request: web.Request, message: dict[str, Any]) -> web.StreamResponse | None:
        if message.get("id") != "q":
            return None
        sent.append(message["result"]["roots"][0]["uri"])
        answered.set()
        return web.Response(status=202)

    async with faking() as fake, connect(fake.url, host=helpful(tmp_path)) as client:
        fake.call, fake.before = call, take
        assert text_of(await client.call_tool("say")) == "ok"
    assert sent == [tmp_path.as_uri()]


async def test_the_general_stream_is_there_before_the_first_call_so_that_no_question_is_lost(
    tmp_path: Path,
) -> None:
    streams: list[web.StreamResponse] = []
    answered = asyncio.Event()

    async def general(request: web.Request, message: dict[str, Any]) -> web.StreamResponse | None:
        if request.method == "GET":
            await asyncio.sleep(0.05)
            response = web.StreamResponse(headers=EVENTS)
            await response.prepare(request)
            streams.append(response)
            await answered.wait()
            return response
        if message.get("id") == "q":
            answered.set()
            return web.Response(status=202)
        return None

    async def call(request: web.Request, message: dict[str, Any]) -> dict[str, Any]:
        for response in streams:
            await response.write(b'data: {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}\n\n')
        await asyncio.wait_for(answered.wait(), 5.0)
        return OK

    async with faking() as fake:
        fake.before, fake.call = general, call
        async with connect(fake.url, host=helpful(tmp_path)) as client:
            assert text_of(await client.call_tool("say")) == "ok"


async def test_twenty_megabytes_come_through_a_stream() -> None:
    large = {"content": [{"type": "text", "text": "x" * 20_000_000}]}
    async with faking() as fake, connect(fake.url) as client:
        fake.call = lambda request, message: stream(request, event(message["id"], large))
        assert len(text_of(await client.call_tool("say"))) == 20_000_000


async def test_a_call_that_is_given_up_is_cancelled_by_a_message() -> None:
    never = asyncio.Event()

    async def call(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    async with faking() as fake, connect(fake.url, call_seconds=0.2) as client:
        fake.call = call
        with pytest.raises(MCPUnavailable, match=r"within 0\.2 s"):
            await client.call_tool("say")
        await until(lambda: fake.count("notifications/cancelled") == 1)


@given(
    st.lists(st.sampled_from(["a", "", "b:c", " d", "é"]), min_size=1, max_size=3),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_events_are_read_wherever_the_bytes_are_cut(data: list[str], end: str, cuts: list[int]) -> None:
    lines = [
        "﻿: hello",
        "id: 1",
        "retry: 50",
        "event: message",
        *(f"data: {one}" for one in data),
        "",
        "data:y",
        "",
    ]
    raw = end.join([*lines, ""]).encode()
    reader = EventReader()
    found = []
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    for left, right in zip(edges, edges[1:], strict=False):
        found += reader.feed(raw[left:right])
    assert [one.data.decode() for one in found] == ["\n".join(data), "y"]
    assert reader.last_id == "1" and reader.retry == 0.05


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 502, 530])
async def test_a_server_out_of_order_is_told_by_its_status_and_not_taken_for_an_old_one(status: int) -> None:
    async with faking() as fake:
        fake.before = lambda request, message: web.Response(status=status, text="<html>")
        with pytest.raises(MCPUnavailable, match=f"status {status}"):
            async with connect(fake.url):
                raise AssertionError
        assert len(fake.seen) == 1


async def test_nobody_there_and_no_mcp_there_are_told() -> None:
    with pytest.raises(MCPUnavailable, match="cannot be reached"):
        async with connect("http://127.0.0.1:9/mcp"):
            raise AssertionError
    async with faking() as fake:
        fake.before = lambda request, message: web.Response(text="<html>hello", content_type="text/html")
        with pytest.raises(MCPUnavailable, match="no MCP server"):
            async with connect(fake.url):
                raise AssertionError


async def test_a_busy_server_is_asked_again_when_it_says_so() -> None:
    answers = [429, 503, 200]

    def busy(request: web.Request, message: dict[str, Any]) -> web.StreamResponse | None:
        if message.get("method") != "tools/call" or (status := answers.pop(0)) == 200:
            return None
        return web.Response(status=status, headers={"Retry-After": "0"})

    async with faking() as fake, connect(fake.url) as client:
        fake.before = busy
        assert text_of(await client.call_tool("say")) == "ok" and not answers
        fake.before = lambda request, message: web.Response(status=429, headers={"Retry-After": "3600"})
        with pytest.raises(MCPUnavailable, match="status 429"):
            await client.call_tool("say")


async def test_a_server_that_moved_is_followed_on_its_own_origin_only_so_that_no_token_goes_elsewhere() -> (
    None
):
    headers = {"Authorization": "Bearer secret"}
    async with faking() as fake, faking() as thief:

        def moved(request: web.Request, message: dict[str, Any]) -> web.StreamResponse | None:
            if request.path.endswith("/"):
                return None
            return web.Response(status=307, headers={"Location": request.path + "/"})

        fake.before = moved
        async with connect(fake.url, headers=headers) as client:
            assert text_of(await client.call_tool("say")) == "ok"
        fake.before = lambda request, message: web.Response(status=307, headers={"Location": thief.url})
        with pytest.raises(MCPUnavailable, match="moved to"):
            async with connect(fake.url, headers=headers):
                raise AssertionError
        assert not thief.seen


async def test_twenty_rounds_leave_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """nanobot 3638."""
    async with faking() as fake:
        before = len(asyncio.all_tasks())
        for _ in range(20):
            client = connect(fake.url)
            await client.__aenter__()
            await client.call_tool("say")
            await asyncio.create_task(client.close())  # from another task
        await until(lambda: len(asyncio.all_tasks()) <= before + 1)  # the server's own end of a connection
        assert fake.sessions == 20
