"""`run_command` and the programs of hooks: no shell, no secrets, no end that is missed."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from miniclaw.errors import ToolError
from miniclaw.settings import ToolSettings
from miniclaw.tools import ToolContext, ToolRegistry, ToolResult
from miniclaw.tools.builtins import builtin_tools, run_command_tool
from miniclaw.tools.process import Finished, clean_environment, run_program
from tests.support.source import tree_of

GUARD = 30.0
SECRETS = {
    "OPENAI_API_KEY": "sk-secret",
    "MINICLAW_TOKEN": "secret-token",
    "AWS_SESSION_TOKEN": "secret-session",
    "BASH_ENV": "/tmp/secret",
    "PATH": os.environ["PATH"],
    "LANG": "zh_CN.GBK",
}


async def run(tmp_path: Path, *command: str, environ: Mapping[str, str] = SECRETS, **more: Any) -> ToolResult:
    registry = ToolRegistry([run_command_tool(bwrap="", environ=environ)])
    context = ToolContext(
        user_id="ann", scope="ann", session_id="s", turn_id="t", workspace=tmp_path / "workspace"
    )
    async with asyncio.timeout(GUARD):
        return await registry.execute("run_command", {"command": list(command), **more}, context)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_it_is_not_there_unless_the_operator_wants_it_and_then_asks_each_time() -> None:
    """HKUDS/nanobot#3504: no reading of the text of a command can hold it; approval and sandbox do."""
    assert "run_command" not in ToolRegistry(builtin_tools()).names()
    tool = ToolRegistry(builtin_tools(ToolSettings(run_command=True))).find("run_command")
    assert tool is not None
    assert (tool.asks_always, tool.idempotent) == (True, False)
    for command in (["ls"], ["echo", "$HOME"], ["cat", "../x"], ["true"]):
        assert tool.risk_of({"command": command}) == "write"


async def test_a_program_runs_in_the_workspace_and_tells_its_end(tmp_path: Path) -> None:
    done = await run(tmp_path, *python("import os; print(os.getcwd()); open('made.txt', 'w')"))
    assert done.content == f"{tmp_path / 'workspace'}\n[exit code 0]"
    assert (tmp_path / "workspace" / "made.txt").exists()
    failed = await run(tmp_path, *python("import sys; print('oh', file=sys.stderr); sys.exit(3)"))
    assert (failed.ok, failed.content, failed.data) == (False, "oh\n[exit code 3]", {"exit_code": 3})


async def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    text = "$HOME; echo x > made.txt | `id` && *"
    done = await run(tmp_path, "echo", text)
    assert done.content == f"{text}\n[exit code 0]"
    assert list((tmp_path / "workspace").iterdir()) == []


async def test_a_child_gets_no_secret_of_our_environment(tmp_path: Path) -> None:
    """HKUDS/nanobot#4783: command line programs got all of `os.environ` with its keys."""
    done = await run(tmp_path, "env")
    assert "secret-" not in done.content and "sk-secret" not in done.content
    names = {line.partition("=")[0] for line in done.content.splitlines()[:-1]}
    assert names <= {"PATH", "LANG", "HOME", "TERM", "PYTHONIOENCODING", "PWD"}


async def test_a_login_shell_finds_no_profile_with_secrets(tmp_path: Path) -> None:
    """HKUDS/nanobot#4518: `bash -l` took them from the profile again."""
    home = tmp_path / "home"
    home.mkdir()
    for name in (".bash_profile", ".profile", ".bashrc"):
        (home / name).write_text("export STOLEN=secret-of-the-profile\n", encoding="utf-8")
    for command in (["bash", "-lc", "env"], ["bash", "-ic", "env"], ["sh", "-lc", "env"]):
        done = await run(tmp_path, *command, environ={**SECRETS, "HOME": str(home)})
        assert f"HOME={tmp_path / 'workspace'}" in done.content
        assert "secret-of-the-profile" not in done.content


async def test_output_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """NousResearch/hermes-agent#60760: a GBK console could not take a child's emoji, and the gateway died."""
    done = await run(
        tmp_path, *python("import sys; sys.stdout.buffer.write('🐈 猫'.encode() + b'\\xff\\x00')")
    )
    assert done.content == "🐈 猫\ufffd\ufffd\n[exit code 0]"


def opens_text(call: ast.Call) -> bool:
    """Whether a file is read or written as text, as far as the call shows it."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [str(value.value) for value in given if isinstance(value, ast.Constant)]
    if any(re.fullmatch("[rwax]b?[+]?b?", mode) and "b" in mode for mode in modes):
        return False
    is_built_in = isinstance(call.func, ast.Name) and name == "open"
    is_of_a_path = name == "open" and any(re.fullmatch("[rwax][+t]*", mode) for mode in modes)
    return is_built_in or is_of_a_path or name in ("read_text", "write_text", "fdopen")


def test_no_text_of_a_file_or_a_child_is_read_without_naming_its_encoding() -> None:
    """NousResearch/hermes-agent#52649: one emoji in a child's output broke the start again and again."""
    package = Path(__file__).parent.parent / "miniclaw"
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(tree_of(path.read_text(encoding="utf-8"))):
            names = {word.arg for word in node.keywords} if isinstance(node, ast.Call) else set()
            if names & {"text", "universal_newlines"} and "stdout" in names and "encoding" not in names:
                found.append(f"{path.name}:{getattr(node, 'lineno', 0)}")
            if isinstance(node, ast.Attribute) and node.attr in (
                "getoutput",
                "popen",
                "create_subprocess_shell",
            ):
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call) and opens_text(node) and "encoding" not in names:
                found.append(f"{path.name}:{node.lineno}")
    assert found == []


async def test_what_takes_too_long_or_writes_too_much_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = await run(tmp_path, "sh", "-c", "echo begun; sleep 600", seconds=1)
    assert "was killed: it took more than 1 s. It wrote:\nbegun" in slow.content
    monkeypatch.setattr(sys.modules[run_command_tool.__module__], "MAX_BYTES", 1_000)
    endless = await run(tmp_path, "yes")
    assert "was killed: it wrote more than 1,000 bytes" in endless.content
    assert len(endless.content) < 1_300


async def test_it_reads_nothing_of_our_standard_input(tmp_path: Path) -> None:
    assert (await run(tmp_path, "cat")).content == "[exit code 0]"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-program"], "cannot be started: No such file"),
        (["/etc"], "cannot be started: Permission denied"),
        (["echo", "a\0b"], "an argument holds a NUL"),
        ([], "Invalid arguments"),
        (["x"] * 201, "Invalid arguments"),
        (["x" * 3_000_000], "cannot be started"),
    ],
)
async def test_what_cannot_be_started_is_a_failed_result(
    tmp_path: Path, command: list[str], reason: str
) -> None:
    result = await run(tmp_path, *command)
    assert not result.ok
    assert reason in result.content


@pytest.mark.parametrize(
    ("argument", "reason"), [("a\0b", "an argument holds a NUL"), ("x" * 3_000_000, "Argument list too long")]
)
async def test_in_the_sandbox_it_is_the_command_that_cannot_be_started(
    tmp_path: Path, argument: str, reason: str
) -> None:
    registry = ToolRegistry([run_command_tool(bwrap=shutil.which("bwrap") or sys.executable)])
    context = ToolContext(user_id="a", scope="a", session_id="s", turn_id="t", workspace=tmp_path)
    result = await registry.execute("run_command", {"command": ["echo", argument]}, context)
    assert f"`echo` cannot be started: {reason}" in result.content


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state != "Z"
    return False


GRANDCHILD = "sleep 600 & echo $!; {end}"


async def gone(pid: int) -> None:
    async with asyncio.timeout(GUARD):
        while is_alive(pid):
            await asyncio.sleep(0.01)


async def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """A child in the background holds the pipe open; nobody may wait for it."""
    done = await run(tmp_path, "sh", "-c", GRANDCHILD.format(end="exit 0"))
    assert done.ok
    await gone(int(done.content.split()[0]))


async def test_a_cancelled_call_ends_the_whole_group(tmp_path: Path) -> None:
    out = tmp_path / "workspace" / "pid"
    call = asyncio.create_task(
        run(tmp_path, "sh", "-c", GRANDCHILD.format(end="echo $! > .pid; mv .pid pid; wait"))
    )
    async with asyncio.timeout(GUARD):
        while not out.exists():
            await asyncio.sleep(0.01)
    pid = int(out.read_text(encoding="utf-8"))
    assert is_alive(pid)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gone(pid)


async def test_a_call_cancelled_while_its_program_starts_ends_the_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "workspace" / "pid"
    started, start = asyncio.Event(), asyncio.create_subprocess_exec

    async def slow(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*args, **options)
        async with asyncio.timeout(GUARD):
            while not out.exists():
                await asyncio.sleep(0.01)
            started.set()
            await asyncio.sleep(0)
        return process

    monkeypatch.setattr("asyncio.create_subprocess_exec", slow)
    call = asyncio.create_task(
        run(tmp_path, "sh", "-c", GRANDCHILD.format(end="echo $! > .pid; mv .pid pid; wait"))
    )
    async with asyncio.timeout(GUARD):
        await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gone(int(out.read_text(encoding="utf-8")))


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
async def test_a_child_that_left_the_group_ends_with_a_call_that_takes_too_long(tmp_path: Path) -> None:
    code = "import os, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    result = await run(tmp_path, *python(start), seconds=3)
    assert "took more than 3 s" in result.content
    await gone(int((tmp_path / "workspace" / "pid").read_text(encoding="utf-8")))


async def test_a_program_that_left_its_group_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.process.LAST_WORDS", 0.1)
    code = "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(600)\nprint('parent', flush=True)"
    reading = asyncio.create_task(
        run(tmp_path, *python(code.replace("time.sleep", "print(os.getpid(), flush=True); time.sleep")))
    )
    done = await reading
    assert "parent" in done.content
    for word in done.content.split():
        if word.isdigit() and is_alive(int(word)):
            os.kill(int(word), 9)


async def test_a_program_reads_what_it_is_given(tmp_path: Path) -> None:
    env = clean_environment(tmp_path, {})
    assert env["PATH"]
    text = "好" * 100_000
    done = await run_program(
        python("import sys; print(len(sys.stdin.read()))"),
        cwd=tmp_path,
        env={**env, "PYTHONUTF8": "1"},
        seconds=GUARD,
        max_bytes=100,
        text=text,
    )
    assert done == Finished(code=0, output="100000\n")


async def test_elsewhere_than_on_unix_no_program_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.process.sys.platform", "win32")
    with pytest.raises(ToolError, match="Linux and macOS only"):
        await run_program(["true"], cwd=tmp_path, env={}, seconds=5, max_bytes=10)


# --- the sandbox ------------------------------------------------------------------------------------------


async def test_the_sandbox_is_given_the_workspace_and_nothing_else_to_write(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n', encoding="utf-8")
    fake.chmod(0o755)
    workspace = tmp_path / "workspace"
    registry = ToolRegistry([run_command_tool(bwrap=str(fake), environ=SECRETS)])
    context = ToolContext(user_id="a", scope="a", session_id="s", turn_id="t", workspace=workspace)
    result = await registry.execute("run_command", {"command": ["ls", "-l"]}, context)
    words = result.content.splitlines()[:-1]
    assert words[:3] == ["--unshare-all", "--die-with-parent", "--new-session"]
    assert "--share-net" not in words
    writable = [
        words[n + 1] for n, word in enumerate(words) if word in ("--bind", "--bind-try", "--dev-bind")
    ]
    assert writable == [str(workspace)]
    assert words[-3:] == ["--", "ls", "-l"]
    assert not any(word in ("/", "/home", "/root", "/etc", str(tmp_path)) for word in words)


BWRAP = shutil.which("bwrap") or ""


@pytest.mark.skipif(not BWRAP, reason="bubblewrap is not installed")
async def test_in_the_sandbox_there_is_no_network_no_home_and_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret of the data directory", encoding="utf-8")
    registry = ToolRegistry([run_command_tool(bwrap=BWRAP, environ=SECRETS)])
    workspace = tmp_path / "workspace"
    context = ToolContext(user_id="a", scope="a", session_id="s", turn_id="t", workspace=workspace)
    script = (
        f"pwd; cat {tmp_path}/token; ls /root /home; cat /proc/net/dev | wc -l; touch made /usr/made; env"
    )
    result = await registry.execute("run_command", {"command": ["sh", "-c", script]}, context)
    lines = result.content.splitlines()
    assert lines[0] == "/workspace"
    assert "3" in lines, "more than the loopback interface"
    assert "secret" not in result.content
    assert (workspace / "made").exists()
    assert not Path("/usr/made").exists()
