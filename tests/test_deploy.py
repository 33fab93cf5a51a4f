"""What runs the gateway for months: systemd, containers, and the reference of its settings."""

from __future__ import annotations

import asyncio
import configparser
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from miniclaw.cli import main
from miniclaw.config import load_settings
from miniclaw.errors import ConfigError
from miniclaw.notify import Notifier
from scripts import configuration
from tests.support.claw import ServerProcess, server_process

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


# --- systemd ----------------------------------------------------------------------------------------------


@contextmanager
def manager(path: str) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as one:
        one.bind(path)
        one.settimeout(20)
        yield one


async def told(one: socket.socket) -> str:
    return (await asyncio.to_thread(one.recv, 1000)).decode()


async def test_systemd_is_told_when_the_gateway_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000"}
    with manager(path) as one:
        async with server_process(tmp_path / "data", env=env) as server:
            assert await told(one) == "READY=1"
            assert [await told(one) for _ in range(3)] == ["WATCHDOG=1"] * 3
            assert await server.terminate() == 0
            left = {await told(one)}
            while "STOPPING=1" not in left:
                left.add(await told(one))
            assert left <= {"WATCHDOG=1", "STOPPING=1"}


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
    ],
)
async def test_no_sign_of_life_is_given_where_none_is_asked_for(
    env: dict[str, str], seconds: float | None
) -> None:
    notifier = Notifier(env)
    assert notifier.watchdog_seconds == seconds
    notifier.send("READY=1")
    async with asyncio.timeout(5):
        await notifier.keep_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_a_socket_may_be_abstract_or_gone(caplog: pytest.LogCaptureFixture) -> None:
    name = f"miniclaw-test-{os.getpid()}"
    with manager(f"\0{name}") as one:
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).send("READY=1")
        assert one.recv(100) == b"READY=1"
    Notifier({"NOTIFY_SOCKET": f"@{name}"}).send("READY=1")
    assert "was not told READY=1" in caplog.text


def test_the_unit_asks_for_what_the_program_tells_and_starts_it_as_it_can_be_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "miniclaw.service", encoding="utf-8")
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "miniclaw"
    check_arguments(arguments, capsys)
    assert int(service["TimeoutStopSec"]) > load_settings(env={}).settings.limits.drain_seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "miniclaw.service").read_text(encoding="utf-8")
    unit = tmp_path / "miniclaw.service"
    unit.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", text), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "miniclaw.service" in line] == []


def check_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of a command: with `--help` behind them nothing is refused."""
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--help"])
    assert left.value.code == 0 and "usage: miniclaw serve" in capsys.readouterr().out


# --- containers -------------------------------------------------------------------------------------------


def instructions(name: str) -> list[str]:
    """The arguments of each such instruction of the Dockerfile, with continued lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return found


def test_the_image_copies_what_there_is_and_what_is_not_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for copied in instructions("COPY"):
        if copied.startswith("--from"):
            continue
        for name in copied.split()[:-1]:
            assert (ROOT / name).exists() and f"!{name}" in ignored, name
    assert ignored[0] == "*"
    program, *arguments = json.loads(instructions("CMD")[0])
    assert program == "miniclaw"
    check_arguments(arguments, capsys)


def test_the_container_runs_as_nobody_special_and_keeps_its_data_in_a_volume() -> None:
    assert instructions("USER") == ["10001"] and instructions("VOLUME") == ["/data"]
    assert "MINICLAW_HOME=/data" in instructions("ENV")[0]
    service = compose()["services"]["miniclaw"]
    assert service["volumes"] == ["data:/data"] and service["read_only"] is True
    exposed = instructions("EXPOSE")[0].split()
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in exposed]


def test_redis_is_there_on_demand_loses_nothing_and_the_image_can_speak_to_it() -> None:
    redis = compose()["services"]["redis"]
    assert redis["profiles"] == ["redis"] and "ports" not in redis
    assert redis["volumes"] == ["redis:/data"] and set(compose()["volumes"]) == {"data", "redis"}
    words = redis["command"].split()
    given = {name: value for name, value in itertools.pairwise(words) if name.startswith("--")}
    assert given == {
        **{"--appendonly": "yes", "--appendfsync": "always"},
        "--maxmemory-policy": "noeviction",
    }
    assert any('pip install --no-cache-dir ".[redis]"' in line for line in instructions("RUN"))


async def test_the_health_check_says_whether_the_gateway_is_ready(tmp_path: Path) -> None:
    (check,) = instructions("HEALTHCHECK")
    program, *arguments = json.loads(check.partition("CMD")[2])
    assert program == "python"

    async def code(server: ServerProcess) -> int | None:
        given = [argument.replace(":8080/", f":{server.web_port}/") for argument in arguments]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *given, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async with server_process(tmp_path) as server:
        assert await code(server) == 0
        await server.terminate()
        assert await code(server) != 0


# --- the reference ----------------------------------------------------------------------------------------


def test_the_reference_is_what_the_settings_say() -> None:
    written = configuration.TARGET.read_text(encoding="utf-8")
    assert written == configuration.page(), "run `make docs`"


def test_each_setting_in_the_reference_can_be_set_by_its_variable(tmp_path: Path) -> None:
    text = configuration.TARGET.read_text(encoding="utf-8")
    variables = re.findall(r"\| `([A-Z][A-Z0-9_]+)` \|", text)
    assert len(variables) > 80
    for variable in variables:
        try:
            load_settings(env={variable: "x"}, data_dir=str(tmp_path))
        except ConfigError as error:
            assert "there is no" not in str(error).lower(), variable
