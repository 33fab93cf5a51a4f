"""`miniclaw eval`: tasks of a file against a model, each in a gateway of its own, with checks that can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from miniclaw.cli import main
from miniclaw.cli.eval_command import CHECKS, read_tasks
from tests.support.model import FakeModel, Message, Reply, Script, last_user

TASKS = Path(__file__).parent.parent / "examples" / "tasks.yaml"

WEATHER = {
    "name": "weather",
    "description": "The weather.",
    "parameters": {"city": {"type": "string"}},
    "needs": {"city": "^Paris$"},
    "result": "17 degrees",
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENAI_API_KEY", "OPENAI_MODEL", "MINICLAW_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield


async def run_eval(
    tmp_path: Path, script: Script, tasks: list[dict[str, Any]], *more: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, FakeModel]:
    """Run the command in a thread, against a strict model server; the exit code and the server."""
    path = tmp_path / "tasks.yaml"
    path.write_text(yaml.safe_dump({"tasks": tasks}, allow_unicode=True), encoding="utf-8")
    async with FakeModel(script, strict=True) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        argv = ["eval", str(path), "--data-dir", str(tmp_path / "home"), *more]
        code = await asyncio.to_thread(main, argv)
    assert model.refused == []
    return code, model


def asks_weather(messages: list[Message], number: int) -> Reply:
    """Ask for the weather, then say what came of it."""
    if messages[-1]["role"] == "tool":
        return {"text": f"I was told: {messages[-1]['content']}"}
    return {"calls": [("weather", {"city": last_user(messages)})]}


async def test_a_task_passes_or_fails_by_what_the_model_did_and_the_table_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect = {"contains": "17 degrees", "called": [{"tool": "weather", "args": {"city": "Paris"}}]}
    tasks = [
        {"id": "right", "prompt": "Paris", "tools": [WEATHER], "expect": expect},
        {"id": "wrong", "prompt": "Rome", "tools": [WEATHER], "expect": expect},
    ]
    code, model = await run_eval(tmp_path, asks_weather, tasks, monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert code == 1 and lines[0] == "model fake-chat" and lines[-1] == "1 of 2 passed"
    assert lines[2].split()[:4] == ["right", "yes", "2", "20"]
    assert lines[3].split()[:2] == ["wrong", "no"] and "no call of weather" in lines[3]
    assert "check the arguments" in lines[3]
    assert not (tmp_path / "home").exists(), "tasks leave nothing in the user's data"


async def test_several_turns_share_a_session_and_a_refused_call_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = {**WEATHER, "risk": "write"}
    tasks = [
        {"id": "no", "turns": ["Paris", "Paris"], "tools": [write], "expect": {"contains": "said no"}},
        {"id": "yes", "prompt": "Paris", "approve": "yes", "tools": [write], "expect": {"contains": "17"}},
    ]
    code, model = await run_eval(tmp_path, asks_weather, tasks, "--json", monkeypatch=monkeypatch)
    result = json.loads(capsys.readouterr().out)
    assert code == 0 and result["passed"] == 2
    assert [task["tools"] for task in result["tasks"]] == [["weather", "weather"], ["weather"]]
    assert [m["role"] for m in model.requests[3]["messages"]].count("user") == 2


async def test_only_the_offered_tools_are_there_and_only_the_named_task_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[dict[str, Any]] = [
        {
            "id": "a",
            "prompt": "x",
            "offer": ["calculator"],
            "tools": [WEATHER],
            "expect": {"not_called": "*"},
        },
        {"id": "b", "prompt": "x"},
    ]
    script: Script = lambda messages, number: {"text": "hi"}  # noqa: E731
    code, model = await run_eval(tmp_path, script, tasks, "--only", "a", monkeypatch=monkeypatch)
    assert code == 0 and "1 of 1 passed" in capsys.readouterr().out
    assert [tool["function"]["name"] for tool in model.requests[0]["tools"]] == ["calculator", "weather"]
    code, _ = await run_eval(tmp_path, script, tasks, "--only", "z", monkeypatch=monkeypatch)
    assert code == 1 and "There is no task `z`; there are: a, b." in capsys.readouterr().err


async def test_a_turn_that_fails_is_a_task_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script: Script = lambda messages, number: {"status": 401}  # noqa: E731
    code, _ = await run_eval(tmp_path, script, [{"id": "a", "prompt": "x"}], monkeypatch=monkeypatch)
    assert code == 1 and "turn.failed: model_auth" in capsys.readouterr().out


SEEN: dict[str, Any] = {
    "text": "It is 42, not 41.",
    "calls": [("a", {"n": 1}), ("b", {"n": 2})],
    "stopped_by": "tokens",
}


@pytest.mark.parametrize(
    ("check", "passes", "fails"),
    [
        ("contains", ["42", "IT IS"], ["42", "43"]),
        ("lacks", "43", "42"),
        ("regex", r"4\d", [r"4\d", "^42"]),
        ("called", ["a", {"tool": "b", "args": {"n": 2}}], ["b", "a"]),
        ("called", "b", {"tool": "b", "args": {"n": "3"}}),
        ("not_called", "c", ["c", "b"]),
        ("not_called", [], "*"),
        ("stopped_by", "tokens", "money"),
        ("max_tool_calls", 2, 1),
    ],
)
def test_each_check_can_pass_and_can_fail(check: str, passes: Any, fails: Any) -> None:
    assert CHECKS[check](passes, SEEN) == ""
    assert CHECKS[check](fails, SEEN) != ""


@pytest.mark.parametrize(
    "text",
    [
        "tasks: 3",
        "- a",
        "tasks: [{prompt: x}]",
        "tasks: [{id: a, hope: x}]",
        "tasks: [{id: a, expect: {luck: 1}}]",
        "{",
    ],
)
def test_a_file_that_holds_no_tasks_is_an_error_in_one_sentence(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["eval", str(path), "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("miniclaw: ")


def test_the_example_tasks_cover_what_they_promise() -> None:
    tasks = read_tasks(TASKS)
    assert len(tasks) == 10 and len({task.id for task in tasks}) == 10
    assert all(task.expect for task in tasks)
    assert {task.id.rpartition("-")[2] for task in tasks} == {"zh", "en"}
