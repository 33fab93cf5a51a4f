"""The MCP servers of `mcp.json` in a gateway: their tools among ours, faults of one, changes while it runs."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.cli import main
from miniclaw.cli.mcp_servers import server_rows
from miniclaw.config import load_settings
from miniclaw.errors import ConfigError, MCPUnavailable
from miniclaw.gateway.command_table import read_command
from miniclaw.mcp.client import owner, stdio
from miniclaw.mcp.client.config import ServerConfig, read_servers, set_disabled
from miniclaw.mcp.client.fit import fit_name, fit_schema
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.servers import Servers
from miniclaw.mcp.client.tools import RemoteTool, read_result
from miniclaw.tools.context import ToolContext
from miniclaw.tools.registry import ToolRegistry
from tests.support.agent import say
from tests.support.claw import port_of, running_claw
from tests.support.client import raw_client
from tests.support.mcp_servers import children, is_alive, program, serve_http, until, write_config


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "EOF_SECONDS", 0.5)
    monkeypatch.setattr(owner, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(owner, "LONGEST_PAUSE", 0.05)


class Running:
    """Servers of a data directory with a registry."""

    def __init__(self, data_dir: Path) -> None:
        self.registry = ToolRegistry()
        self.servers = Servers(data_dir, self.registry)

    async def __aenter__(self) -> Running:
        await self.servers.start()
        await self.servers.settle(20.0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.servers.stop()

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.servers.status() if row["name"] == name)


def context(tmp_path: Path) -> ToolContext:
    return ToolContext(
        user_id="owner", scope="owner", session_id="s", turn_id="t", workspace=tmp_path / "workspace"
    )


# --- tools ------------------------------------------------------------------------------------------------


async def test_a_servers_tools_are_ours_and_ask_unless_a_trusted_server_says_that_they_read(
    tmp_path: Path,
) -> None:
    body = """
def tools(message):
    hints = {"readOnlyHint": True}
    reply(message, tools=[{"name": "read", "inputSchema": {"type": "object"}, "annotations": hints},
                          {"name": "write", "inputSchema": {"type": "object"}},
                          {"name": "task", "execution": {"taskSupport": "required"}}])
"""
    command = program(tmp_path, body)
    entry = {"command": command[0], "args": command[1:]}
    write_config(
        tmp_path, strange=entry, friend={**entry, "trusted": True, "autoApprove": ["of another host"]}
    )
    async with Running(tmp_path) as running:
        risks = {tool.name: tool.risk for tool in running.registry}
        assert risks == {
            "mcp__strange__read": "write",
            "mcp__strange__write": "write",
            "mcp__friend__read": "read",
            "mcp__friend__write": "write",
        }
        result = await running.registry.execute("mcp__friend__read", {"words": "文件"}, context(tmp_path))
        assert result.ok and result.content == "文件"
    assert list(running.registry) == []


async def test_a_servers_resources_and_prompts_are_one_tool(tmp_path: Path) -> None:
    body = """
def initialize(message):
    reply(message, protocolVersion="2025-11-25", capabilities={"tools": {}, "resources": {}, "prompts": {}},
          serverInfo={"name": "fake", "version": "1"})
def other(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "resources/list":
        reply(message, resources=[{"uri": "memo://菜单", "name": "menu", "description": "this week's menu"}])
    elif method == "resources/templates/list":
        reply(message, resourceTemplates=[{"uriTemplate": "memo://{day}", "name": "day"}])
    elif method == "prompts/list":
        reply(message, prompts=[{"name": "greet", "arguments": [{"name": "who"}]}])
    elif method == "resources/read" and params["uri"] == "memo://菜单":
        reply(message, contents=[{"uri": params["uri"], "text": "noodles"}])
    elif method == "prompts/get":
        words = "Greet " + params["arguments"]["who"]
        reply(message, messages=[{"role": "user", "content": {"type": "text", "text": words}}])
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32002, "message": "There is no such thing"}})
"""
    command = program(tmp_path, body)
    entry = {"command": command[0], "args": command[1:]}
    write_config(tmp_path, fake=entry, few={**entry, "tools": ["say"]})
    async with Running(tmp_path) as running:
        names = running.registry.names()
        assert "mcp__fake__library" in names and "mcp__few__library" not in names

        async def ask(**arguments: object) -> str:
            result = await running.registry.execute("mcp__fake__library", arguments, context(tmp_path))
            return result.content

        assert await ask(action="list") == (
            "Resources:\n- memo://菜单: this week's menu\nResources with a place to fill in:\n"
            "- memo://{day}: day\nPrompts:\n- greet (who)"
        )
        assert await ask(action="read", uri="memo://菜单") == "[resource memo://菜单]\nnoodles"
        assert "Greet Lin" in await ask(action="prompt", name="greet", arguments={"who": "Lin"})
        assert "There is no such thing" in await ask(action="read", uri="memo://x")
        assert "needs `uri`" in await ask(action="read")


async def test_a_server_of_resources_alone_has_its_one_tool_as_long_as_it_has_resources(
    tmp_path: Path,
) -> None:
    offer = tmp_path / "offer.json"
    body = f"""
def offered():
    return json.load(open({str(offer)!r}))
def initialize(message):
    reply(message, protocolVersion="2025-11-25", capabilities=offered()["capabilities"],
          serverInfo={{"name": "fake", "version": "1"}})
def tools(message):
    if "tools" not in offered()["capabilities"]:
        return discover(message)
    reply(message, tools=[{{"name": name, "inputSchema": {{"type": "object"}}}} for name in offered()["tools"]])
def other(message):
    if message.get("method") == "resources/read":
        os._exit(1)
    if message.get("method") == "resources/list":
        send({{"method": "notifications/tools/list_changed"}})
    if "id" in message:
        reply(message)
"""
    command = program(tmp_path, body)

    def offers(capabilities: str, *tools: str) -> None:
        offer.write_text(
            json.dumps({"capabilities": dict.fromkeys(capabilities.split(), {}), "tools": tools}),
            encoding="utf-8",
        )

    offers("resources")
    write_config(
        tmp_path, fake=command, few={"command": command[0], "args": command[1:], "tools": ["library"]}
    )
    async with Running(tmp_path) as running:

        async def then(*names: str, **arguments: str) -> None:
            if arguments:
                await running.registry.execute("mcp__fake__library", arguments, context(tmp_path))
            await until(
                lambda: (
                    running.row("fake")["tools"] == list(names) and running.row("fake")["state"] == "ready"
                )
            )

        await then("mcp__fake__library")
        assert running.row("few")["tools"] == ["mcp__few__library"]
        offers("tools resources", "say")
        await then("mcp__fake__say", "mcp__fake__library", action="list")
        offers("tools resources")
        await then("mcp__fake__library", action="list")
        offers("tools", "say")
        await then("mcp__fake__say", "mcp__fake__library", action="list")
        await then("mcp__fake__say", action="read", uri="memo://x")  # began again, without resources
        offers("prompts")
        await running.servers.act("disable", "fake")
        await running.servers.act("enable", "fake")
        await then("mcp__fake__library")
        offers("tools")
        await then(action="read", uri="memo://x")


async def test_a_changed_list_is_read_anew_and_swapped(tmp_path: Path) -> None:
    body = """
names = ["say"]
def tools(message):
    reply(message, tools=[{"name": name, "inputSchema": {"type": "object"}} for name in names])
def call(message):
    names[:] = ["say", "more.of-it"]
    send({"method": "notifications/tools/list_changed"})
    text(message, "ok")
"""
    write_config(tmp_path, fake=program(tmp_path, body))
    async with Running(tmp_path) as running:
        before = running.registry.get_openai_tools()
        await running.registry.execute("mcp__fake__say", {}, context(tmp_path))
        await until(lambda: running.registry.names() == ["mcp__fake__say", "mcp__fake__more_of-it"])
        assert running.registry.get_openai_tools() is not before


@pytest.mark.parametrize(
    ("server", "tool", "expected"),
    [
        ("fs", "read_file", "mcp__fs__read_file"),
        ("a.b", "c d/e", "mcp__a_b__c_d_e"),
        ("文件", "读", "mcp________0645afb9"),
        ("s" * 40, "t" * 40, None),
    ],
)
def test_names_are_fitted_to_what_models_take(server: str, tool: str, expected: str | None) -> None:
    name = fit_name(server, tool, lambda name: False)
    assert len(name) <= 64 and name.isascii() and (expected is None or name == expected)
    if expected and server.isascii():
        assert fit_name(server, tool, lambda taken: taken == name).startswith(f"{name}_")


def test_two_tools_with_one_fitted_name_are_both_there(tmp_path: Path) -> None:
    first = fit_name("s", "a.b", lambda name: False)
    second = fit_name("s", "a b", lambda name: name == first)
    assert first != second and first == "mcp__s__a_b" and second.startswith("mcp__s__a_b_")


def test_references_are_inlined_circles_cut_and_nothing_is_fetched() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "id": {"type": "string", "format": "weird", "x-note": 1},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
        },
        "properties": {
            "id": {"$ref": "#/$defs/id", "description": "who"},
            "node": {"$ref": "#/$defs/node"},
            "far": {"$ref": "http://127.0.0.1:9/schema.json"},
            "$schema": {"type": "string"},
            "x-ray": {"type": "string", "enum": ["$ref"]},
        },
        "required": ["id"],
    }
    assert fit_schema(schema) == {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "who"},
            "node": {"type": "object", "properties": {"next": {}}},
            "far": {},
            "$schema": {"type": "string"},
            "x-ray": {"type": "string", "enum": ["$ref"]},
        },
        "required": ["id"],
    }


@pytest.mark.parametrize("schema", [None, [], {}, {"type": "string"}, {"properties": 3, "required": 4}])
def test_whatever_a_server_calls_a_schema_becomes_an_object(schema: Any) -> None:
    assert fit_schema(schema) == {"type": "object", "properties": {}}


def test_a_choice_at_the_top_becomes_all_its_parameters_and_a_schema_that_explodes_any_object() -> None:
    one, two = ({"properties": {name: {"type": "string"}}, "required": [name]} for name in "ab")
    assert fit_schema({"oneOf": [one, two]})["properties"].keys() == {"a", "b"}
    assert fit_schema({"allOf": [one, two]})["required"] == ["a", "b"]
    levels = {f"l{n}": {"properties": {c: {"$ref": f"#/$defs/l{n + 1}"} for c in "abcd"}} for n in range(20)}
    assert fit_schema({"$defs": levels, "$ref": "#/$defs/l0"}) == {"type": "object", "properties": {}}


async def test_content_of_every_kind_is_read_and_bytes_go_to_the_workspace(tmp_path: Path) -> None:
    data = base64.b64encode(b"bytes").decode()
    blocks = [
        {"type": "text", "text": "words"},
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "audio", "data": "no base64!", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "description": "an a"},
        {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": data, "mimeType": "text/csv"}},
        {"type": "new"},
        "no block",
    ]
    result = await read_result({"content": blocks}, context(tmp_path))
    for part in ("words", "not base64", "file:///a (a): an a", "[resource file:///t]\ninside", "'new'"):
        assert part in result.content
    kept = sorted((tmp_path / "workspace" / ".results").iterdir())
    assert [path.suffix for path in kept] == [".csv", ".png"] or [path.suffix for path in kept] == [
        ".png",
        ".csv",
    ]
    assert all(path.read_bytes() == b"bytes" and path.name in result.content for path in kept)


async def test_data_without_words_and_failures_are_read() -> None:
    assert (await read_result({"structuredContent": {"a": 1}}, None)).content == '{"a": 1}'
    failed = await read_result({"content": [{"type": "text", "text": "no"}], "isError": True}, None)
    assert not failed.ok and failed.error == "no"
    assert (await read_result({"content": "rubbish"}, None)).content == "(no output)"


async def test_a_long_result_is_kept_whole_in_the_workspace(tmp_path: Path) -> None:
    write_config(tmp_path, fake=program(tmp_path))
    async with Running(tmp_path) as running:
        result = await running.registry.execute("mcp__fake__say", {"words": "x" * 50_000}, context(tmp_path))
    (kept,) = (tmp_path / "workspace" / ".results").iterdir()
    assert len(result.content) < 25_000 and kept.name in result.content and kept.stat().st_size == 50_000


def test_a_result_that_is_not_as_promised_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    listed = {"name": "t", "outputSchema": {"properties": {"n": {"type": "integer"}}}}
    tool = RemoteTool(None, "t", server_name="s", listed=listed, is_trusted=False)  # type: ignore[arg-type]
    tool._check({"structuredContent": {"n": 1}})
    assert not caplog.records
    tool._check({"structuredContent": {"n": "one"}})
    assert "not as promised" in caplog.text


# --- the file ---------------------------------------------------------------------------------------------


def test_one_wrong_entry_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    write_config(
        tmp_path,
        good=["python"],
        remote={"type": "http", "url": "https://x.test/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        missing={"command": "x", "env": {"KEY": "${NOT_SET}"}},
        neither={"args": []},
        both={"command": "x", "url": "http://x.test"},
        old={"type": "sse", "url": "http://x.test/sse"},
        odd=["x", [3]],
        wrong=3,
    )
    found = read_servers(tmp_path / "mcp.json", {"TOKEN": "t"})
    assert found.servers.keys() == {"good", "remote"}
    assert found.servers["remote"].headers == {"Authorization": "Bearer t"}
    assert found.broken.keys() == {"missing", "neither", "both", "old", "odd", "wrong"}
    assert "NOT_SET" in found.broken["missing"] and "either" in found.broken["both"]


@pytest.mark.parametrize("name", ["url", "serverUrl", "httpUrl"])
def test_an_entry_as_other_hosts_write_it_is_read(name: str, tmp_path: Path) -> None:
    write_config(tmp_path, far={name: "https://a.test/mcp"}, near={"command": "x", "args": None, "env": None})
    found = read_servers(tmp_path / "mcp.json")
    assert not found.broken and found.servers["far"].url == "https://a.test/mcp"
    assert (found.servers["near"].args, found.servers["near"].env) == ((), {})


def test_variables_have_defaults_and_no_file_is_no_servers(tmp_path: Path) -> None:
    assert not read_servers(tmp_path / "mcp.json").servers
    write_config(tmp_path, a={"command": "${env:A}", "args": ["${B:-b}", "$C"]})
    assert read_servers(tmp_path / "mcp.json", {"A": "a"}).servers["a"] == ServerConfig(
        command="a", args=("b", "$C")
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": 3}'])
async def test_a_file_that_cannot_be_read_is_told_and_nothing_else_fails(text: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_servers(tmp_path / "mcp.json")
    async with Running(tmp_path) as running:
        assert running.row("mcp.json")["state"] == "failed"


def test_switching_keeps_what_else_is_in_the_file(tmp_path: Path) -> None:
    write_config(tmp_path, a={"command": "x", "autoApprove": ["y"]})
    set_disabled(tmp_path / "mcp.json", "a", is_disabled=True)
    entry = json.loads((tmp_path / "mcp.json").read_text(encoding="utf-8"))["mcpServers"]["a"]
    assert entry == {"command": "x", "autoApprove": ["y"], "disabled": True}
    with pytest.raises(ConfigError, match="no MCP server `b`"):
        set_disabled(tmp_path / "mcp.json", "b", is_disabled=True)


# --- while it runs ----------------------------------------------------------------------------------------


async def test_a_gateway_starts_with_ten_servers_of_which_three_are_broken_and_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = program(tmp_path)
    silent = program(tmp_path, "def initialize(message): pass", "silent")
    write_config(
        tmp_path,
        **{f"good{n}": good for n in range(7)},
        missing=["no-such-program"],
        dying=program(tmp_path, "def begin(): sys.exit('no licence')", "dying"),
        silent={"command": silent[0], "args": silent[1:], "startSeconds": 0.8},
    )
    async with running_claw(tmp_path) as claw:
        await claw.servers.settle(20.0)
        rows = {row["name"]: row for row in claw.servers.status()}
        assert {name for name, row in rows.items() if row["state"] == "ready"} == {
            f"good{n}" for n in range(7)
        }
        assert "was not found" in rows["missing"]["error"]
        assert "no licence" in rows["dying"]["error"]
        assert "did not answer within 0.8 s" in rows["silent"]["error"]
        assert "mcp__good3__say" in claw.registry.names()
        for name in ("missing", "dying", "silent"):
            assert f"MCP server {name}:" in caplog.text
    assert children() == set()


async def test_the_first_turn_waits_for_servers_that_start_soon_and_not_long_for_slow_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ScriptedProvider([LLMResponse(text="done")] * 2)
    write_config(tmp_path, soon=program(tmp_path))
    async with running_claw(tmp_path, provider) as claw:
        await say(claw)
        assert "mcp__soon__say" in claw.registry.names()
    monkeypatch.setattr("miniclaw.mcp.client.servers.SETTLE_SECONDS", 0.05)
    write_config(tmp_path, slow=program(tmp_path, "def discover(message): pass"))
    async with running_claw(tmp_path, provider) as claw:
        await say(claw)
        assert claw.servers.status()[0]["state"] == "starting"
    assert children() == set()


async def test_a_server_switched_off_is_gone_with_its_tools_and_nothing_goes_on(tmp_path: Path) -> None:
    """AstrBot 9068, nanobot 3638: ended from another task than its own."""
    write_config(tmp_path, fake=program(tmp_path), other=program(tmp_path))
    async with Running(tmp_path) as running:
        tasks = len(asyncio.all_tasks())
        both = children()
        for _ in range(3):
            rows = (await running.servers.act("disable", "fake"))["servers"]
            assert [row["state"] for row in rows] == ["off", "ready"]
            assert running.registry.names() == ["mcp__other__say"] and len(children()) == len(both) - 1
            await running.servers.act("enable", "fake")
            await until(lambda: running.row("fake")["state"] == "ready")
            await until(lambda: len(asyncio.all_tasks()) == tasks)
        assert len(children()) == len(both)


@pytest.mark.parametrize("told", [None, (), (Path("/elsewhere"),)])
def test_a_server_is_told_of_the_workspace_and_of_what_its_command_line_names(
    tmp_path: Path, told: tuple[Path, ...] | None
) -> None:
    """server-filesystem takes the roots in the place of its arguments, and people's files name those."""
    arguments = ("-y", "server", str(tmp_path), str(tmp_path / "none"), "relative")
    config = ServerConfig(command="npx", args=arguments, roots=told)
    servers = Servers(tmp_path / "data", ToolRegistry())
    workspace = tmp_path / "data" / "users" / "owner" / "workspace"
    roots = servers._hosts("files", config)(None).roots
    assert roots == ((workspace, tmp_path) if told is None else told)


async def test_a_reload_begins_again_only_what_changed(tmp_path: Path) -> None:
    command = program(tmp_path, "def call(message): text(message, str(os.getpid()))")
    write_config(tmp_path, same=command, changed=command)
    async with Running(tmp_path) as running:

        async def pid(name: str) -> str:
            return (await running.registry.execute(f"mcp__{name}__say", {}, context(tmp_path))).content

        before = [await pid(name) for name in ("same", "changed")]
        write_config(tmp_path, same=command, changed=[*command, "more"], new=command)
        await running.servers.act("reload")
        await until(lambda: all(row["state"] == "ready" for row in running.servers.status()))
        after = [await pid(name) for name in ("same", "changed")]
        assert after[0] == before[0] and after[1] != before[1]
        assert len(running.registry.names()) == 3


async def test_ten_falls_leave_one_process_and_the_tools_stay(tmp_path: Path) -> None:
    """hermes-agent 57228."""
    body = "def call(message):\n    text(message, str(os.getpid()))\n    os._exit(1)"
    write_config(tmp_path, fake=program(tmp_path, body))
    guard_and_server = 2
    async with Running(tmp_path) as running:
        pids = set()
        for round_ in range(10):
            await until(
                lambda round_=round_: (
                    running.row("fake")["state"] == "ready" and running.row("fake")["restarts"] == round_
                )
            )
            result = await running.registry.execute("mcp__fake__say", {}, context(tmp_path))
            pids.add(int(result.content))
        await until(lambda: running.row("fake")["restarts"] == 10 and running.row("fake")["state"] == "ready")
        assert len(pids) == 10 and not any(map(is_alive, pids))
        assert len(children()) == guard_and_server


async def test_a_call_to_a_server_that_is_down_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "FIRST_PAUSE", 60.0)
    monkeypatch.setattr(owner, "LONGEST_PAUSE", 60.0)
    write_config(tmp_path, fake=program(tmp_path, "def call(message): os._exit(9)"))
    async with Running(tmp_path) as running:
        first = await running.registry.execute("mcp__fake__say", {}, context(tmp_path))
        await until(lambda: running.row("fake")["state"] == "waiting")
        second = await running.registry.execute("mcp__fake__say", {}, context(tmp_path))
    assert "exit code 9" in str(first.error) and "does not run" in str(second.error)


@pytest.fixture
async def flaky() -> Any:
    """A server over HTTP that answers with `status`, where that is not 200; its URL and itself."""

    class Flaky:
        status = 200
        url = ""

        async def handle(self, request: web.Request) -> web.Response:
            if self.status != 200:
                return web.Response(status=self.status, text="<html>out of order</html>")
            message = await request.json() if request.can_read_body else {}
            results: dict[str, Any] = {
                "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}},
                "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
                "tools/call": {"content": [{"type": "text", "text": "ok"}]},
            }
            if request.method == "GET" or message.get("method") == "server/discover":
                return web.Response(status=405)
            if "id" not in message:
                return web.Response(status=202)
            return web.json_response(
                {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
            )

    flaky = Flaky()
    async with serve_http(flaky.handle) as url:
        flaky.url = f"{url}/mcp"
        yield flaky


async def test_a_server_that_answers_530_leaves_the_gateway_and_the_others_alone(
    tmp_path: Path, flaky: Any
) -> None:
    """nanobot 5300."""
    flaky.status = 530
    write_config(tmp_path, remote={"url": flaky.url}, fake=program(tmp_path))
    async with running_claw(tmp_path) as claw:
        await until(lambda: len(claw.registry.names()) and "mcp__fake__say" in claw.registry.names())
        row = next(row for row in claw.servers.status() if row["name"] == "remote")
        assert "status 530" in row["error"] and row["state"] in ("waiting", "starting")
        flaky.status = 200
        await until(lambda: "mcp__remote__say" in claw.registry.names())


async def test_a_server_over_http_that_was_away_is_used_again_without_anybodys_help(
    tmp_path: Path, flaky: Any
) -> None:
    """AstrBot 3670."""
    write_config(tmp_path, remote={"url": flaky.url})
    async with Running(tmp_path) as running:

        async def call() -> Any:
            return await running.registry.execute("mcp__remote__say", {}, context(tmp_path))

        assert (await call()).ok
        flaky.status = 502
        assert "status 502" in str((await call()).error) and "502" in running.row("remote")["error"]
        flaky.status = 200
        assert (await call()).ok and running.row("remote")["error"] == ""


async def test_a_server_that_wants_a_login_says_how(tmp_path: Path, flaky: Any) -> None:
    flaky.status = 401
    own = {"url": flaky.url, "headers": {"Authorization": "Bearer wrong"}}
    write_config(tmp_path, remote=own)
    async with Running(tmp_path) as running:
        assert running.row("remote")["state"] == "login" and "wants a login" in running.row("remote")["error"]


async def test_a_call_while_nothing_is_connected_is_no_crash(tmp_path: Path) -> None:
    config = ServerConfig(command="x", disabled=True)
    one = owner.Owner("x", config, ToolRegistry(), lambda context: Host(), tmp_path, owner.default_client)
    with pytest.raises(MCPUnavailable, match="does not run"):
        await one.call("t", {}, None)


# --- what people see --------------------------------------------------------------------------------------


async def test_the_command_lists_reads_anew_and_switches_for_admins_only(tmp_path: Path) -> None:
    write_config(tmp_path, fake=program(tmp_path))
    async with (
        running_claw(tmp_path, ScriptedProvider([]), web=True) as claw,
        raw_client(port_of(claw)) as client,
    ):
        await until(lambda: claw.servers.status()[0]["state"] == "ready")
        (row,) = (await client.command("mcp"))["servers"]
        assert row["tools"] == ["mcp__fake__say"] and row["version"] == "2025-11-25"
        off = await client.command("mcp", {"action": "disable", "name": "fake"})
        assert off["servers"][0]["state"] == "off" and "mcp__fake__say" not in claw.registry.names()
        assert (await client.command("mcp", {"action": "enable", "name": "no"}))["code"] == "not_found"
        token = await claw.identities.add("guest")
        assert claw.web is not None
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
            async with http.get(f"{claw.web.url}/api/mcp") as response:
                assert await response.json() == {"servers": []}
        async with raw_client(port_of(claw), token=token) as guest:
            assert (await guest.command("mcp"))["code"] == "forbidden"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("/mcp", {}),
        ("/mcp reload", {"action": "reload"}),
        ("/mcp enable a b", {"action": "enable", "name": "a b"}),
    ],
)
def test_the_command_is_read_from_typed_text(text: str, args: dict[str, str]) -> None:
    command = read_command(text)
    assert command is not None and (command.name, command.args) == ("mcp", args)


async def test_a_running_gateway_tells_the_command_line_how_its_servers_are(tmp_path: Path) -> None:
    write_config(tmp_path, fake=program(tmp_path))
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        await until(lambda: claw.servers.status()[0]["state"] == "ready")
        loaded = load_settings(env={}, data_dir=str(tmp_path))
        assert await server_rows(loaded) == claw.servers.status()


def test_the_command_line_lists_and_checks_and_the_doctor_names_what_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICLAW_MODEL__PROBE_LOCAL", "false")
    for name in ("MINICLAW_GATEWAY__PORT", "MINICLAW_WEB__PORT"):
        monkeypatch.setenv(name, "none")
    here = ["--data-dir", str(tmp_path)]
    assert main(["mcp", "list", *here]) == 0 and "no MCP servers" in capsys.readouterr().out
    write_config(
        tmp_path,
        good=program(tmp_path),
        bad=["no-such-program"],
        wrong={},
        off={"command": "x", "disabled": True},
    )
    assert main(["mcp", "list", *here]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "1 tools, 2025-11-25" in lines["good"] and "was not found" in lines["bad"]
    assert "either" in lines["wrong"] and "off" in lines["off"]
    assert main(["mcp", "check", *here, "good"]) == 0
    shown = capsys.readouterr().out
    assert "good: fake 1, revision 2025-11-25" in shown and "tool      say" in shown
    for name, reason in (
        ("bad", "was not found"),
        ("wrong", "either"),
        ("none", "there are: bad, good, off"),
    ):
        assert main(["mcp", "check", *here, name]) == 1
        assert reason in capsys.readouterr().err
    assert main(["mcp", "login", *here, "good"]) == 1 and "is a program" in capsys.readouterr().err
    main(["doctor", "--json", *here])
    found = {
        c["result"].partition(":")[0]: c for c in json.loads(capsys.readouterr().out) if c["name"] == "mcp"
    }
    assert {name: check["state"] for name, check in found.items()} == {
        "bad": "warning",
        "good": "ok",
        "off": "ok",
        "wrong": "warning",
    }
    assert "mcp check bad" in found["bad"]["mend"]


def test_the_configuration_in_the_documents_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "mcp.md").read_text(encoding="utf-8")
    (block,) = (one for one in re.findall(r"```json\n(.*?)```", text, re.DOTALL) if "trusted" in one)
    (tmp_path / "mcp.json").write_text(block, encoding="utf-8")
    found = read_servers(tmp_path / "mcp.json", {"TRACKER_TOKEN": "t"})
    assert not found.broken and found.servers.keys() == {"files", "git", "tracker"}
