"""The documents are true: commands run, links resolve, both languages keep step."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from miniclaw.cli import parser_of
from tests.support.mcp import serving
from tests.support.model import FakeModel

ROOT = Path(__file__).parent.parent
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def console_blocks(path: Path) -> list[tuple[str, str]]:
    """Command and shown output of each fenced `console` block."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


COURSE = ROOT / "docs" / "course.md"
"""What it shows is checked by `scripts/sync_docs.py` and done by `scripts/course.py`."""
COMMANDS = sorted({pair for path in DOCS if path != COURSE for pair in console_blocks(path)})


@pytest.mark.parametrize(("command", "output"), COMMANDS)
def test_a_command_in_the_documents_does_what_is_shown(command: str, output: str, tmp_path: Path) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        targets = re.findall(
            r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert arguments[0] in targets
        dry = subprocess.run(
            ["make", "-n", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60
        )
        assert dry.returncode == 0
        return
    assert program == ".venv/bin/miniclaw", f"no test knows how to run `{command}`"
    home = {"MINICLAW_PROJECT": "", "MINICLAW_HOME": str(tmp_path), "MINICLAW_MODEL__PROBE_LOCAL": "false"}
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "MINICLAW_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "miniclaw", *arguments],
        env={**clean, **home},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert without_times(done.stdout) == without_times(output)


SHELL = {
    path: lines
    for path in DOCS
    if path != COURSE
    and (
        lines := [
            line.partition("  #")[0].strip()
            for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
            for line in block.splitlines()
        ]
    )
}
"""The lines of each document's `sh` blocks."""
NOT_HERE = {
    r"claude mcp add": "another program; the command that it is given is run by the test of MCP configurations",
    r"sudo (useradd|python3|cp|systemctl)": "changes the whole machine",
    r"docker compose": "needs an engine; tests/test_deploy.py looks at what it is given",
    r"python -m venv|\.venv/bin/pip install": "takes packages from the net; `make run` does so in .ci/run",
    r"export MINICLAW_REDIS_URL|miniclaw (doctor|serve)": "of many gateways, with Redis: tests/test_redis.py",
    r"miniclaw chat --connect": "needs another gateway: tests/test_cli.py",
}
"""Lines that no test runs as they are, and why."""


def is_run(path: Path, line: str) -> bool:
    reasons = [pattern for pattern in NOT_HERE if re.match(pattern, line)]
    return not reasons or ("MINICLAW_REDIS_URL" in reasons[0] and path.stem != "scale")


@pytest.mark.parametrize("path", [p for p in SHELL if any(is_run(p, line) for line in SHELL[p])])
async def test_the_shell_commands_of_the_documents_run_one_after_the_other(
    path: Path, tmp_path: Path
) -> None:
    """As they are written, in a directory with `.venv/bin/miniclaw`, against a model server of the tests."""
    program = tmp_path / ".venv" / "bin" / "miniclaw"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m miniclaw "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "问题.txt").write_text("一\n二\n", encoding="utf-8")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MINICLAW_"))}
    async with FakeModel() as model:
        env = {
            **{**clean, "HOME": str(tmp_path), "OPENAI_BASE_URL": model.url, "MINICLAW_PROJECT": ""},
            **{"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            **{"MINICLAW_GATEWAY__PORT": "0", "MINICLAW_WEB__PORT": "0"},
        }
        turn_id = ""
        if path.stem in ("operations", "troubleshooting"):  # for them there must be something
            said = await run_line("miniclaw chat --once hello --json", tmp_path, env)
            turn_id = json.loads(said)["turn_id"]
        for line in SHELL[path]:
            if is_run(path, line):
                here = line.replace("/backups/", f"{tmp_path}/").replace("turn_…", turn_id)
                assert await run_line(here, tmp_path, env), line


async def run_line(line: str, directory: Path, env: dict[str, str]) -> str:
    """What a line of shell prints, told `y`; a gateway is to stop as soon as it says where it listens."""
    is_server, pipe = "serve" in line, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(
        f"exec {line}" if is_server else line, cwd=directory, env=env, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(60):
            process.stdin.write(b"y\n")
            process.stdin.close()
            said = await process.stdout.readuntil(b"?token=") if is_server else b""
            if is_server:
                process.terminate()
            said += await process.stdout.read()
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    assert code == 0, (line, said)
    return said.decode()


def test_what_is_said_not_to_run_here_stands_in_a_document_and_names_what_there_is() -> None:
    lines = [line for path in SHELL for line in SHELL[path] if not is_run(path, line)]
    for pattern in NOT_HERE:
        assert any(re.match(pattern, line) for line in lines), pattern
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name for line in lines for name in re.findall(r"\.\[(\w+)\]", line)}
    assert extras and extras <= set(project["optional-dependencies"])
    files = {name for line in lines for name in re.findall(r"\bdeploy/\S+", line)}
    assert files and all((ROOT / name).is_file() for name in files)


def named_commands() -> list[str]:
    """Every `miniclaw …` of the documents, in a block or within a sentence; `a|b` is two."""
    found: dict[str, None] = {}
    for path in DOCS:
        text = path.read_text(encoding="utf-8")
        spans = re.findall(r"`((?:\.venv/bin/)?miniclaw [^`\n]*)`", text)
        for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
            spans += re.findall(r"^(?:.*[|$] )?((?:\.venv/bin/)?miniclaw [a-z].*)$", block, re.MULTILINE)
        for span in spans:
            *words, last = shlex.split(span, comments=True)
            found |= dict.fromkeys(shlex.join([*words, one]) for one in last.split("|"))
    return list(found)


@pytest.mark.parametrize("command", named_commands())
def test_each_command_that_the_documents_name_is_one_of_the_programs(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *arguments = shlex.split(command)
    try:
        parser_of(arguments).parse_args(arguments)
    except SystemExit:  # a sentence may leave out what a command is given
        assert "the following arguments are required" in capsys.readouterr().err


def without_times(text: str) -> str:
    return re.sub(r"\d+ ms", "N ms", text).strip()


def test_every_test_that_the_documents_name_exists() -> None:
    for path in DOCS:
        for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", path.read_text(encoding="utf-8")):
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), (path.name, name)


def test_every_link_and_picture_of_the_documents_is_there() -> None:
    links = [(p, t) for p in DOCS for t in re.findall(r"\]\(([^)#]+)[^)]*\)", p.read_text(encoding="utf-8"))]
    local = [(p, t) for p, t in links if not t.startswith(("http://", "https://"))]
    missing = [f"{path.name}: {target}" for path, target in local if not (path.parent / target).exists()]
    assert missing == []


def test_both_readmes_have_the_same_shape() -> None:
    chinese, english = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.en.md"))
    for pattern in (r"^#+ ", r"^- \*\*", r"^```", r"\]\("):
        count = [len(re.findall(pattern, text, re.MULTILINE)) for text in (chinese, english)]
        assert count[0] == count[1], pattern
    assert console_blocks(ROOT / "README.md") == console_blocks(ROOT / "README.en.md")


def test_the_example_environment_names_only_settings_that_exist(tmp_path: Path) -> None:
    from miniclaw.config import FLAT_NAMES, load_settings

    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    names = re.findall(r"^#?([A-Z][A-Z0-9_]*)=", text, re.MULTILINE)
    aliases = {"OPENAI_API_BASE", "OPENAI_API_MODEL"}
    assert set(FLAT_NAMES) - aliases <= set(names)
    for name in names:
        if "__" in name:
            load_settings(env={name: "1" if "RUNNING" in name else "monitor"}, data_dir=str(tmp_path))
        else:
            assert name in FLAT_NAMES or name == "MINICLAW_HOME"


def test_each_run_time_dependency_has_its_reason() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[<>=; ]", line)[0].lower() for line in project["dependencies"]}
    table = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = {name.lower() for name in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)}
    assert needed == explained


def mcp_commands() -> list[list[str]]:
    """The command of each client's configuration in docs/mcp.md."""
    text = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    found: list[list[str]] = []
    for kind, block in re.findall(r"```(json|toml|sh)\n(.*?)```", text, re.DOTALL):
        if kind == "sh":
            found.append(shlex.split(block.partition(" -- ")[2]))
            continue
        (servers,) = (json.loads(block) if kind == "json" else tomllib.loads(block)).values()
        if command := servers.get("miniclaw", {}).get("command"):
            found.append([command, *servers["miniclaw"]["args"]])
    return found


async def test_each_clients_mcp_configuration_starts_the_server_as_it_is_written(tmp_path: Path) -> None:
    """As a desktop program starts it: nothing of the shell's environment but the home directory."""
    commands = mcp_commands()
    assert len(commands) == 5
    (written,) = {tuple(command) for command in commands}
    python, *arguments = written
    assert python == "/home/me/miniOpenClaw/.venv/bin/python" and Path(python).is_absolute()
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "SYSTEMROOT") if name in os.environ}
    env = {**kept, "MINICLAW_PROJECT": "", "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    async with serving(command=(sys.executable, *arguments), env=env) as (client, _):
        assert (await client.greet())["result"]["serverInfo"]["name"] == "miniclaw"
        assert "ask_agent" in str(await client.request(1, "tools/list"))


def test_nothing_says_to_install_a_strangers_package_of_our_name() -> None:
    """We are on no registry: what is there under that name is not ours."""
    files = [
        *DOCS,
        *ROOT.glob("day*/*.md"),
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "miniclaw").rglob("*.py"),
    ]
    bare = re.compile(r"pip\w* install[^\n`]*?[\s'\"]miniclaw")
    assert [p.name for p in files if p.is_file() and bare.search(p.read_text(encoding="utf-8"))] == []
