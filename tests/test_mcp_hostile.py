"""What a file, a server or a login may send that is wrong: it is refused alone, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from miniclaw.errors import ConfigError
from miniclaw.mcp.client import owner
from miniclaw.mcp.client.config import ServerConfig, read_servers, set_disabled
from miniclaw.mcp.client.fit import MAX_BYTES, MAX_DEPTH, fit_name, fit_schema
from miniclaw.mcp.client.servers import Servers
from miniclaw.mcp.client.tools import RemoteTool
from miniclaw.tools.registry import ToolRegistry
from tests.support.mcp_servers import program, until, write_config

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
