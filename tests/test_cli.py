"""The commands as a person or a script runs them: real processes, real terminals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from miniclaw.cli.chat import readable
from tests.support.claw import TOKEN, server_process
from tests.support.model import FakeModel, Reply
from tests.support.terminal import Terminal

ENV = {"MINICLAW_MODEL__PROBE_LOCAL": "false", "LANG": "C.UTF-8", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}


def run(
    *arguments: str, data_dir: Path, env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command, *rest = arguments
    return subprocess.run(
        [sys.executable, "-m", "miniclaw", command, "--data-dir", str(data_dir), *rest],
        env={**os.environ, **ENV, **(env or {})},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


def test_once_prints_an_answer_and_exits_0_with_the_demo_model(tmp_path: Path) -> None:
    done = run("chat", "--once", "37*43 等于多少", data_dir=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1591" in done.stdout.splitlines()[-1]


def test_what_is_typed_is_answered_though_it_is_no_unicode(tmp_path: Path) -> None:
    """HKUDS/nanobot#2846: an emoji came from a Windows console in two halves and crashed the write."""
    assert readable("a \ud83d\udc08 \ud83d \udc08 \0 猫") == "a 🐈 \ufffd \ufffd \ufffd 猫"
    broken = os.fsdecode(b"/help me \xf0\x9f")
    assert run("chat", "--once", f"/{broken}", data_dir=tmp_path).returncode == 0
    piped = run(
        "chat", data_dir=tmp_path, stdin=f"/{broken}\n/history\n", env={"PYTHONIOENCODING": "utf-8:strict"}
    )
    assert (piped.returncode, piped.stderr) == (0, "") and "/help me \ufffd" in piped.stdout


def test_once_with_json_prints_one_object_with_the_promised_fields(tmp_path: Path) -> None:
    done = run("chat", "--json", "--once", "记住我住在杭州", data_dir=tmp_path)
    row = json.loads(done.stdout)
    names = "text session_id turn_id stopped_by usage tools used_memories saved_memories error"
    assert list(row) == names.split()
    assert row["error"] is None and len(row["saved_memories"]) == 1 and "杭州" in row["text"]
    again = json.loads(run("chat", "--json", "--once", "我住在哪里?", data_dir=tmp_path).stdout)
    assert [m["memory_id"] for m in again["used_memories"]] == row["saved_memories"]
    assert "杭州" in again["text"] and again["session_id"] != row["session_id"]


def test_an_answer_tells_how_many_memories_it_saved_and_used(tmp_path: Path) -> None:
    asked = [
        run("chat", "--once", text, data_dir=tmp_path, env={"LC_ALL": locale}).stdout.splitlines()[-1]
        for text, locale in [("记住我住在杭州", "C"), ("我住在哪里?", "C"), ("我住在哪里?", "zh_CN.UTF-8")]
    ]
    assert asked == ["1 memory saved", "1 memory used", "有 1 条记忆插入"]


def test_a_write_tool_without_anybody_to_ask_is_denied_and_runs_when_it_is_allowed(tmp_path: Path) -> None:
    run("chat", "--once", "记住我住在杭州", data_dir=tmp_path)
    denied = run("chat", "--once", "忘记我住在杭州", data_dir=tmp_path)
    assert "--allow memory_delete" in denied.stdout
    allowed = run("chat", "--once", "忘记我住在杭州", "--allow", "memory_delete", data_dir=tmp_path)
    assert "已经删除" in allowed.stdout
    assert list(tmp_path.glob("users/owner/memory/*.md")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["chat", "--once", "x", "--session", "ses_none"], 1, "There is no such session"),
        (["chat", "--once", "x", "--connect", "ws://127.0.0.1:1/"], 1, "cannot be reached"),
        (["chat", "--once", "x", "--config", "/nowhere.toml"], 1, "/nowhere.toml"),
        (["chat", "--once", "x", "--user-id", "Bad User"], 1, "is no user id"),
        (["chat", "--nonsense"], 2, "unrecognized arguments"),
        (["serve", "--port", "70000"], 2, "a port is 0 to 65535"),
        (["mcp"], 2, "required"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_the_right_exit_code(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = run(*arguments, data_dir=tmp_path)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_key_in_the_config_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "miniclaw.toml").write_text("[agent]\nmax_iteration = 3\n", encoding="utf-8")
    done = run("chat", "--once", "x", data_dir=tmp_path)
    assert done.returncode == 1
    assert "agent.max_iteration" in done.stderr and "miniclaw.toml" in done.stderr


async def test_once_exits_1_when_the_turn_failed_and_says_why(tmp_path: Path) -> None:
    async with FakeModel(lambda messages, number: {"status": 401}) as model:
        done = await in_thread(tmp_path, "chat", "--once", "x", env={"OPENAI_BASE_URL": model.url})
        assert done.returncode == 1 and "OPENAI_API_KEY" in done.stderr
        done = await in_thread(tmp_path, "chat", "--json", "--once", "x", env={"OPENAI_BASE_URL": model.url})
        assert json.loads(done.stdout)["error"]["code"] == "model_auth"


async def test_a_model_that_never_stops_calling_is_stopped_and_once_exits_1(tmp_path: Path) -> None:
    def script(messages: object, number: int) -> Reply:
        return {"calls": [("calculator", {"expression": f"{number}+1"})]}

    async with FakeModel(script) as model:
        env = {"OPENAI_BASE_URL": model.url, "MINICLAW_AGENT__MAX_ITERATIONS": "3"}
        done = await in_thread(tmp_path, "chat", "--json", "--once", "算", env=env)
        row = json.loads(done.stdout)
        assert (done.returncode, row["stopped_by"], row["error"]) == (1, "iterations", None)
        assert "模型调用次数" in row["text"] and row["usage"]["calls"] == 3
        assert len(model.requests) == 3


async def test_without_a_model_name_the_first_chat_model_of_the_servers_list_is_used(tmp_path: Path) -> None:
    async with FakeModel() as model:
        done = await in_thread(tmp_path, "chat", "--once", "hello", env={"OPENAI_BASE_URL": model.url})
        assert done.stdout.strip() == "echo: hello"
        assert model.requests[0]["model"] == "fake-chat"


async def in_thread(data_dir: Path, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command while fakes of this process answer it."""
    return await asyncio.to_thread(run, *arguments, data_dir=data_dir, env=env)


async def test_chat_attaches_to_the_gateway_that_runs_on_the_same_directory(tmp_path: Path) -> None:
    env = {**ENV, "MINICLAW_TOKEN": TOKEN}
    async with server_process(tmp_path, env=ENV) as server:
        done = await in_thread(tmp_path, "chat", "--once", "37*43", env=env)
        assert done.returncode == 0 and "1591" in done.stdout
        url = f"ws://127.0.0.1:{server.gateway_port}/"
        done = await in_thread(tmp_path / "other", "chat", "--once", "2+2", "--connect", url, env=env)
        assert done.returncode == 0 and "4" in done.stdout
        done = await in_thread(
            tmp_path / "other",
            "chat",
            "--once",
            "2+2",
            "--connect",
            url,
            env={**env, "MINICLAW_TOKEN": "wrong"},
        )
        assert done.returncode == 1 and "401" in done.stderr
        second = await in_thread(tmp_path, "serve", "--port", "0", "--gateway-port", "0", env=env)
        assert second.returncode == 1 and "Another miniclaw is running" in second.stderr


@pytest.mark.parametrize("target", ["/dev/full", "a reader that has gone"])
def test_an_output_that_cannot_be_written_ends_the_program(tmp_path: Path, target: str) -> None:
    command = [
        sys.executable,
        "-m",
        "miniclaw",
        "chat",
        "--data-dir",
        str(tmp_path),
        "--once",
        "讲一个长一点的故事",
    ]
    options: dict[str, Any] = {"env": {**os.environ, **ENV}, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    if target == "/dev/full":
        with open(target, "w", encoding="utf-8") as full:
            done = subprocess.run(command, stdout=full, timeout=60, check=False, **options)
        assert done.returncode == 1 and "No space left" in done.stderr
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.wait(60) == 1
        assert "Traceback" not in process.stderr.read()


def test_a_double_slash_sends_a_text_that_begins_with_a_slash(tmp_path: Path) -> None:
    done = run("chat", data_dir=tmp_path, stdin="//help\n/history\n")
    assert done.returncode == 0 and "user: /help" in done.stdout


async def test_what_only_an_own_gateway_can_do_is_refused_when_one_is_running(tmp_path: Path) -> None:
    async with server_process(tmp_path, env=ENV):
        done = await in_thread(tmp_path, "chat", "--once", "x", "--user-id", "bob", env=ENV)
        assert done.returncode == 1 and "--user-id" in done.stderr
        for elsewhere in ([], ["--connect", "ws://127.0.0.1:1/"]):
            options = ["--workspace", str(tmp_path), *elsewhere]
            done = await in_thread(tmp_path, "chat", "--once", "x", *options, env=ENV)
            assert done.returncode == 1 and "[users.owner] workspace" in done.stderr
        done = await in_thread(tmp_path, "chat", "--once", "x", "--model", "nope", env=ENV)
        assert done.returncode == 1 and "no model `nope`" in done.stderr


async def test_a_models_text_cannot_command_the_terminal(tmp_path: Path) -> None:
    async with FakeModel(lambda messages, number: {"text": "\x1b]0;pwned\x07\x1b[2Jhi\x9b2J"}) as model:
        done = await in_thread(tmp_path, "chat", "--once", "x", env={"OPENAI_BASE_URL": model.url})
        assert done.stdout == "]0;pwned[2Jhi2J\n"


def test_piped_lines_are_answered_one_after_the_other_in_one_session(tmp_path: Path) -> None:
    done = run("chat", data_dir=tmp_path, stdin="1+1\n\n2+2\n/sessions\n/exit\n5+5\n")
    assert done.returncode == 0
    assert "1+1 = **2**" in done.stdout and "2+2 = **4**" in done.stdout and "5+5" not in done.stdout
    assert done.stdout.count("ses_") == 1


def test_a_skill_is_switched_on_before_anything_was_said(tmp_path: Path) -> None:
    done = run("chat", data_dir=tmp_path, stdin="/skills customer-service\n")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("● ") == 1


def test_the_models_are_shown_before_anything_was_said(tmp_path: Path) -> None:
    done = run("chat", data_dir=tmp_path, stdin="/model\n")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("model: miniclaw-demo")


def test_resume_goes_on_with_the_latest_session(tmp_path: Path) -> None:
    first = json.loads(run("chat", "--json", "--once", "1+1", data_dir=tmp_path).stdout)
    again = json.loads(run("chat", "--json", "--resume", "--once", "2+2", data_dir=tmp_path).stdout)
    assert again["session_id"] == first["session_id"]


def test_the_first_ctrl_c_ends_the_turn_and_the_second_the_program_with_130(tmp_path: Path) -> None:
    with Terminal("chat", "--data-dir", str(tmp_path), env={**ENV, "TERM": "xterm"}) as terminal:
        terminal.wait_for("›")
        terminal.type("讲一个长一点的故事\r")
        terminal.wait_for("### 1")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        terminal.wait_for("›")
        terminal.type("37*43 等于多少\r")
        terminal.wait_for("1591")
        terminal.wait_for("›")
        terminal.type("\x03")
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.output


async def test_a_second_ctrl_c_leaves_a_turn_that_does_not_stop_with_130(tmp_path: Path) -> None:
    """The gateway is frozen, so nothing answers the cancel that the first one sent."""

    def press_twice() -> int:
        with Terminal("chat", "--data-dir", str(tmp_path), env={**ENV, "TERM": "xterm"}) as terminal:
            terminal.wait_for("›")
            terminal.type("go\r")
            terminal.wait_for("word word")
            server.send_signal(signal.SIGSTOP)
            terminal.type("\x03")
            terminal.wait_for("^C")
            return terminal.exit_code(press="\x03")  # a system may hand two quick signals over as one

    endless: Reply = {"forever": {"content": "word "}, "pause": 0.05}
    async with (
        FakeModel(lambda messages, number: endless) as model,
        server_process(tmp_path, env={**ENV, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x"}) as server,
    ):
        try:
            code = await asyncio.to_thread(press_twice)
            assert code in (130, -signal.SIGINT)  # a shell says 130 of both
        finally:
            server.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(("typed", "shown", "left"), [("y", "已经删除", 0), ("", "没有做成", 1)])
def test_a_person_is_asked_before_a_write_and_only_yes_lets_it_run(
    tmp_path: Path, typed: str, shown: str, left: int
) -> None:
    """HKUDS/nanobot#5013: people want to be asked before something is done."""
    run("chat", "--once", "记住我住在杭州", data_dir=tmp_path)
    with Terminal("chat", "--data-dir", str(tmp_path), env={**ENV, "TERM": "dumb"}) as terminal:
        terminal.wait_for("›")
        terminal.type("忘记我住在杭州\r")
        terminal.wait_for("Allow?")
        terminal.type(f"{typed}\r")
        terminal.wait_for(shown)
        terminal.wait_for("›")
        terminal.type("/exit\r")
        assert terminal.exit_code() == 0
    assert len(list(tmp_path.glob("users/owner/memory/mem_*"))) == left


def test_an_embedded_chat_shows_question_marks_where_the_encoding_has_no_such_letter(tmp_path: Path) -> None:
    for more in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "miniclaw", "chat", "--data-dir", str(tmp_path), *more],
            input="1+1 红\n/model\n",
            env={**os.environ, **ENV, "PYTHONIOENCODING": "latin-1:strict", "PYTHONUTF8": "0"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
        assert "model" in done.stdout


@pytest.mark.parametrize("before", ["", "1+1\n"])
def test_ctrl_c_leaves_a_chat_whose_pipe_stays_open(tmp_path: Path, before: str) -> None:
    command = [sys.executable, "-m", "miniclaw", "chat", "--data-dir", str(tmp_path)]
    pipe = subprocess.PIPE
    options = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": {**os.environ, **ENV}}
    # A shell lets what it runs in the background pass over Ctrl+C, and this may be run by one.
    options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, encoding="utf-8", **options) as process:  # type: ignore[call-overload]
        try:
            process.stdin.write(f"{before}/model\n")
            process.stdin.flush()
            assert any(line.startswith("model: ") for line in process.stdout)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read() == ""
        finally:
            process.kill()
