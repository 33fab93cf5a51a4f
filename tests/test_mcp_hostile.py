"""What a file, a server or a login may send that is wrong: it is refused alone, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from miniclaw.errors import ConfigError
from miniclaw.mcp.client.config import ServerConfig, read_servers, set_disabled
from miniclaw.mcp.client.servers import Servers
from miniclaw.tools.registry import ToolRegistry
from tests.support.mcp_servers import write_config

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
