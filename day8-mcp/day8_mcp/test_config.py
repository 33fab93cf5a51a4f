"""`mcp.json`：抄得过来，坏一个不连累别的。"""

import json
from pathlib import Path
from typing import Any

import pytest

from day5_tools import ConfigError
from day8_mcp import read_servers


def write(directory: Path, servers: Any) -> Path:
    path = directory / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8-sig")
    return path


def test_the_form_of_other_hosts_is_read_and_variables_are_filled_in(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "shop": {
                "command": "python",
                "args": ["server.py"],
                "env": {"KEY": "${SHOP_KEY}"},
                "autoApprove": [],
            },
            "web": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${SHOP_KEY}"}},
        },
    )
    found = read_servers(path, {"SHOP_KEY": "k"})
    assert found.broken == {}
    assert found.servers["shop"].env == {"KEY": "k"} and found.servers["shop"].args == ("server.py",)
    assert found.servers["web"].headers["Authorization"] == "Bearer k" and not found.servers["web"].trusted


def test_a_wrong_entry_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    servers = {
        "good": {"command": "x"},
        "both": {"command": "x", "url": "y"},
        "none": {},
        "typed": {"command": "x", "args": 5},
        "unset": {"command": "${NOT_SET}"},
    }
    found = read_servers(write(tmp_path, servers), {})
    assert list(found.servers) == ["good"]
    assert "either" in found.broken["both"] and "either" in found.broken["none"]
    assert "args" in found.broken["typed"] and "NOT_SET is not set" in found.broken["unset"]


def test_a_wrong_entry_is_told_without_the_secrets_in_it(tmp_path: Path) -> None:
    servers = {
        "web": {"url": "https://x.example/mcp", "headers": "Bearer ${TOKEN}"},
        "shop": {"command": "x", "env": ["KEY=${TOKEN}"]},
    }
    found = read_servers(write(tmp_path, servers), {"TOKEN": "sk-secret"})
    assert "headers" in found.broken["web"] and "env" in found.broken["shop"]
    assert "sk-secret" not in str(found)


def test_no_file_is_no_servers_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    assert read_servers(tmp_path / "mcp.json").servers == {}
    deep = "[" * 100_000 + "]" * 100_000
    for text in ("{", "[]", "{}", '{"mcpServers": 5}', deep):
        (tmp_path / "mcp.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="mcpServers"):
            read_servers(tmp_path / "mcp.json")
