"""What a file, a server or a login may send that is wrong: it is refused alone, and nothing else is lost."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import ConfigError, MCPError, MCPUnavailable
from miniclaw.mcp.client import MCPClient, http, link, owner
from miniclaw.mcp.client.config import ServerConfig, read_servers, set_disabled
from miniclaw.mcp.client.fit import MAX_BYTES, MAX_DEPTH, fit_name, fit_schema
from miniclaw.mcp.client.http import HttpLink
from miniclaw.mcp.client.questions import MAX_SAMPLES, Questions
from miniclaw.mcp.client.servers import Servers
from miniclaw.mcp.client.tools import MAX_BLOCKS, RemoteTool, read_result
from miniclaw.tools.context import ToolContext
from miniclaw.tools.registry import ToolRegistry
from tests.support.agent import say, zap
from tests.support.claw import running_claw
from tests.support.mcp_servers import client_of, program, serve_http, text_of, until, write_config

# --- the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "env": {"PORT": 8080}, "args": [1]}, {"env": {"PORT": "8080"}, "args": ("1",)}),
        ({"command": "x", "disabled": True, "env": {"K": "${NOT_SET}"}}, {"disabled": True}),
        ({"url": "${NOT_SET}", "disabled": True}, {"disabled": True}),
        ({"command": "x\ud800"}, {"command": "x?"}),
        ({"url": "http://[::1"}, None),
        ({"url": "http://"}, None),
        ({"url": "http://a:b:c"}, None),
        ({"command": "x", "startSeconds": float("inf")}, None),
    ],
)
def test_an_entry_is_read_as_other_hosts_read_it_or_refused_alone(
    entry: dict[str, Any], expected: dict[str, Any] | None, tmp_path: Path
) -> None:
    write_config(tmp_path, good=["x"], odd=entry)
    found = read_servers(tmp_path / "mcp.json", {})
    assert "good" in found.servers and ("odd" in found.broken) is (expected is None)
    for name, value in (expected or {}).items():
        assert getattr(found.servers["odd"], name) == value
    set_disabled(tmp_path / "mcp.json", "odd", is_disabled=True)


def test_a_file_nested_too_deep_is_told(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("[" * 200_000, encoding="utf-8")
    with pytest.raises(ConfigError, match="not JSON"):
        read_servers(tmp_path / "mcp.json")


async def test_a_server_that_cannot_be_set_up_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("/" + "a" * 300, "/a\0b"):
        assert ServerConfig(command="x", args=(wrong, str(tmp_path))).directories() == [tmp_path]
    directories = ServerConfig.directories

    def broken(config: ServerConfig) -> list[Path]:
        if config.command == "odd":
            raise OSError
        return directories(config)

    monkeypatch.setattr(ServerConfig, "directories", broken)
    off = {"disabled": True}
    write_config(tmp_path, a={"command": "odd", **off}, b={"command": "x", **off})
    servers = Servers(tmp_path, ToolRegistry())
    await servers.start()
    assert {row["name"]: row["state"] for row in servers.status()} == {"a": "failed", "b": "off"}
    await servers.stop()


# --- tools ------------------------------------------------------------------------------------------------


def nested(levels: int, key: str = "properties") -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        found = {"type": "object", key: {"a": found}}
    return found


HUGE: dict[str, Any] = {"enum": ["y" * 10] * 20_000}
WRONG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"properties": {"x": {"format": [], "type": {"a": 1}, "enum": 5, "minimum": "a"}}}, {"x": {}}),
    ({"properties": {"x": {"type": [["a"]], "anyOf": [5], "description": 7}}}, {"x": {}}),
    ({"properties": {"x": {"anyOf": 5, "required": [{}], "items": "x"}}, "required": [{}]}, {"x": {}}),
    ({"properties": {"x": 5, "y": True}, "anyOf": 5, "required": "x"}, {"x": {}, "y": True}),
    ({"allOf": [{"required": [{}], "properties": 3}]}, {}),
    ({"properties": {"x": HUGE, "y": {}}}, {"x": {}, "y": {}}),
    ({"properties": {"x": {"default": float("nan")}}}, {"x": {}}),
    ({"properties": {"x": {"title": "\ud800"}}}, {"x": {"title": "?"}}),
    ({"properties": {"x" * MAX_BYTES: {}}}, {}),
]


@pytest.mark.parametrize(("schema", "properties"), WRONG)
def test_a_schema_that_is_wrong_or_too_large_loses_only_that(
    schema: dict[str, Any], properties: dict[str, Any]
) -> None:
    assert fit_schema(schema) == {"type": "object", "properties": properties}


def test_a_schema_has_bounds_in_depth_and_in_the_length_of_its_texts() -> None:
    for deep in (nested(490), {"properties": {"x": {"default": nested(480)}}}):
        written = json.dumps(fit_schema(deep))
        assert written.count("{") <= 2 * MAX_DEPTH + 6
    text = fit_schema({"properties": {"x": {"description": "d" * 3000}}})["properties"]["x"]["description"]
    assert len(text) == 1000


def test_names_beyond_ascii_do_not_depend_on_who_comes_first() -> None:
    names = {fit_name(server, "t", lambda name: False) for server in ("名字", "文件", "日本")}
    assert len(names) == 3


async def test_a_server_has_so_many_tools_and_one_that_is_wrong_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owner, "MAX_TOOLS", 3)

    def making(*args: Any, **options: Any) -> Any:
        if options["listed"]["name"] == "t1":
            raise TypeError
        return RemoteTool(*args, **options)

    monkeypatch.setattr(owner, "RemoteTool", making)
    body = """
def tools(message):
    at = int(message["params"].get("cursor", 0))
    reply(message, tools=[{"name": f"t{at}", "inputSchema": {}}], nextCursor=str(at + 1))
"""
    write_config(tmp_path, fake=program(tmp_path, body))
    monkeypatch.setattr("miniclaw.mcp.client.client.MAX_ROWS", 5)
    servers = Servers(tmp_path, ToolRegistry())
    await servers.start()
    await until(lambda: servers.status()[0]["state"] == "ready")
    (row,) = servers.status()
    await servers.stop()
    assert row["tools"] == ["mcp__fake__t0", "mcp__fake__t2"]
    assert row["error"].startswith("Only 2 of its 5 tools") and "t1 is left out" in caplog.text


# --- messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discovered", ["5", "'2026'", "[1]", "[{}]"])
async def test_messages_that_are_wrong_lose_none_that_come_with_them(discovered: str, tmp_path: Path) -> None:
    body = (
        f"def discover(message): reply(message, supportedVersions={discovered}, capabilities=3)"
        + """
def call(message):
    notes = [{"method": "notifications/cancelled", "params": {"requestId": one}} for one in ([1], {}, None)]
    notes += [{"id": {"a": 1}, "result": {}}, {"method": "notifications/progress", "params": {}}]
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "ok"}]}}
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **one}) + "\\n" for one in notes))
    print(json.dumps([5, answer]), flush=True)
"""
    )
    async with client_of(program(tmp_path, body), call_seconds=5.0) as client:
        assert text_of(await client.call_tool("say")) == "ok"


async def test_a_message_of_too_many_values_fails_its_call_at_once_and_a_long_text_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_VALUES", 1000)
    body = """
def call(message):
    if message["params"]["name"] == "say":
        return text(message, '",\\\\[{' * 9000)
    reply(message, content=[[]] * 9000)
"""
    async with client_of(program(tmp_path, body)) as client:
        with pytest.raises(MCPUnavailable, match="more than 1,000 values"):
            await client.call_tool("many")
        assert len(text_of(await client.call_tool("say"))) == 45_000


async def answer(request: web.Request, kind: str, asked: list[str]) -> web.StreamResponse:
    """A server that does one thing wrong in its calls."""
    asked.append(request.method)
    if request.method == "DELETE" or (request.method == "GET" and "Last-Event-ID" not in request.headers):
        return web.Response(status=405)
    message = await request.json() if request.method == "POST" else {"method": "tools/call"}
    result: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}, "content": []}
    if message["method"] == "tools/call":
        match kind:
            case "compressed":
                body = gzip.compress(
                    json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}).encode()
                )
                return web.Response(body=body, headers={"Content-Encoding": "gzip"})
            case "moved":
                return web.Response(status=307, headers={"Location": f"/{len(asked)}"})
            case "nowhere":
                return web.Response(status=307, headers={"Location": "http://[::1"})
            case "empty":
                text = f"id: e{len(asked)}\nretry: 0\ndata:\n\n"
                return web.Response(text=text, content_type="text/event-stream")
    elif message["method"] == "server/discover" or "id" not in message:
        return web.Response(status=400 if "id" in message else 202)
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


@pytest.mark.parametrize(
    ("kind", "expected", "requests"),
    [
        ("compressed", "compressed answers", 1),
        ("moved", "on and on", 6),
        ("nowhere", "no address", 1),
        ("empty", "without an answer", 6),
    ],
)
async def test_a_server_at_a_url_that_leads_on_and_on_is_left(
    kind: str, expected: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.01)
    asked: list[str] = []
    async with (
        serve_http(partial(answer, kind=kind, asked=asked)) as url,
        MCPClient(lambda: HttpLink(f"{url}/mcp"), start_seconds=5.0, call_seconds=5.0) as client,
    ):
        await until(lambda: "GET" in asked)
        asked.clear()
        with pytest.raises(MCPUnavailable, match=expected):
            await client.call_tool("say")
        assert len(asked) >= requests and asked.count("POST") <= 6


# --- questions --------------------------------------------------------------------------------------------


async def test_the_budget_of_a_turn_is_its_own_and_nobody_samples_outside_one() -> None:
    async def model(purpose: str, messages: list[dict[str, Any]]) -> LLMResponse:
        return LLMResponse(text="four")

    async def agreed(*shown: object) -> tuple[str, dict[str, Any]]:
        return "approved", {}

    questions = Questions()
    ask = {"messages": [{"role": "user", "content": {"type": "text", "text": "2+2?"}}]}

    def host(turn: str | None) -> Any:
        place: Any = {"user_id": "u", "scope": "u", "session_id": "s", "workspace": Path("w")}
        return questions.host("s", (), turn and ToolContext(turn_id=turn, confirm=agreed, ask=model, **place))  # type: ignore[arg-type]

    for _ in range(MAX_SAMPLES):
        for turn in ("a", "b"):
            await host(turn).answer("sampling/createMessage", ask)
        with pytest.raises(MCPError, match="Outside a turn"):
            await host(None).answer("sampling/createMessage", ask)
    for turn in ("a", "b"):
        with pytest.raises(MCPError, match="enough"):
            await host(turn).answer("sampling/createMessage", ask)
    wrong: list[Any] = [5, "x", [{}]]
    for required in wrong:
        with pytest.raises(MCPError, match="list of names"):
            await host("a").answer("elicitation/create", {"requestedSchema": {"required": required}})


async def test_a_result_has_so_many_parts_and_no_half_character() -> None:
    result = await read_result({"content": [{"type": "text", "text": "a\ud800"}] * 3000}, None)
    assert result.content.count("a?") == MAX_BLOCKS and "2,900 more parts" in result.content


async def test_progress_is_shown_where_the_person_is_but_not_too_often(tmp_path: Path) -> None:
    body = """
def call(message):
    token = message["params"]["_meta"]["progressToken"]
    for done in [float("nan"), *range(50)]:
        note = {"progressToken": token, "progress": done, "total": 50, "message": "half\\ud800"}
        send({"method": "notifications/progress", "params": note})
    text(message, "ok")
"""
    write_config(tmp_path, fake=program(tmp_path, body))
    provider = ScriptedProvider([zap("x", name="mcp__fake__say"), LLMResponse(text="done")])
    shown: list[Any] = []
    async with running_claw(tmp_path, provider, arguments={"approval.allow": ["mcp__fake__say"]}) as claw:
        claw.bus.subscribe("session.*", lambda topic, event: shown.append(event))
        await claw.servers.settle(10.0)
        await say(claw)
    told = [event.data for event in shown if event.name == "tool.progress"]
    assert 1 <= len(told) < 20
    assert told[0] == {"call_id": "c1", "progress": 0, "total": 50, "message": "half?"}
    assert json.loads(json.dumps(told, allow_nan=False)) == told
