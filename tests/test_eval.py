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
from miniclaw.cli.eval_tasks import Expect, Seen, problems, read_tasks
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


@pytest.mark.parametrize(
    ("check", "passes", "fails"),
    [
        ("contains", ["42", "IT IS"], ["42", "43"]),
        ("lacks", "43", 42),
        ("regex", r"4\d", [r"4\d", "^42"]),
        ("called", ["a", {"tool": "b", "args": {"n": 2}}], ["b", "a"]),
        ("called", "b", {"tool": "b", "args": {"n": "3"}}),
        ("not_called", "c", ["c", "b"]),
        ("not_called", [], "*"),
        ("stopped_by", "tokens", "money"),
        ("max_tool_calls", 2, 1),
        ("memory", ["tea", "^she LIKES"], ["tea", "coffee"]),
        ("files", ["a.txt", "sub/b.md"], ["a.txt", "c.txt"]),
        ("files", {"a.txt": "^hello$", "sub/b.md": ""}, {"a.txt": "goodbye"}),
    ],
)
def test_each_check_can_pass_and_can_fail(check: str, passes: Any, fails: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.txt", "sub/b.md"):
        (tmp_path / name).write_text("Hello", encoding="utf-8")
    seen = Seen(
        text="It is 42, not 41.",
        calls=[("a", {"n": 1}), ("b", {"n": 2})],
        stopped_by="tokens",
        memories=["She likes tea."],
        workspace=tmp_path,
    )
    assert list(problems(Expect.model_validate({check: passes}), seen)) == []
    assert len(list(problems(Expect.model_validate({check: fails}), seen))) == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tasks: 3", "holds no tasks"),
        ("- a", "holds no tasks"),
        ("tasks: [{prompt: x}]", "task 1.id: Field required"),
        ("tasks: [{id: a, prompt: x}, {id: b, prompt: x, hope: x}]", "task 2.hope: there is no such key"),
        ("tasks: [{id: a, prompt: x, expect: {luck: 1}}]", "task 1.expect.luck: there is no such key"),
        ("tasks: [{id: a, prompt: x, expect: {regex: '('}}]", "task 1.expect.regex.0: `(` is no expression"),
        (
            "tasks: [{id: a, prompt: x, expect: {memory: '['}}]",
            "task 1.expect.memory.0: `[` is no expression",
        ),
        ("tasks: [{id: a, prompt: x, expect: {max_tool_calls: many}}]", "task 1.expect.max_tool_calls: "),
        (
            "tasks: [{id: a, prompt: x, expect: {called: {args: {a: b}}}}]",
            "task 1.expect.called.0.tool: Field",
        ),
        ("tasks: [{id: a, prompt: x, expect: {files: [../b]}}]", "`../b` is no path in the workspace"),
        ("tasks: [{id: a}]", "task 1: it needs a `prompt`"),
        ("tasks: [{id: a, prompt: x}, {id: a, prompt: y}]", "task 2.id: there is a task `a` already"),
        ("tasks:\n  - id: a\n  {", "line 3: this is no YAML: "),
    ],
)
def test_a_file_of_tasks_that_is_wrong_is_one_sentence_that_says_where(
    tmp_path: Path, text: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["eval", str(path), "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"miniclaw: `{path}`") and place in said and said.count("\n") == 1


async def test_what_must_be_remembered_and_written_is_looked_for_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the settings give the owner a workspace: a task must not write there."""

    def script(messages: list[Message], number: int) -> Reply:
        if messages[-1]["role"] == "tool":
            return {"text": "done"}
        save = {"content": "Likes tea", "context": "Said so."}
        return {"calls": [("memory_save", save), ("write_file", {"path": "n.md", "content": "# Notes"})]}

    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "miniclaw.toml").write_text(
        f'[users.owner]\nworkspace = "{tmp_path}"\n', encoding="utf-8"
    )
    task = {"id": "a", "prompt": "x", "approve": True}
    right = {**task, "expect": {"memory": "likes tea", "files": {"n.md": "^# notes"}}}
    wrong = {**task, "id": "b", "expect": {"memory": "coffee", "files": ["m.md"]}}
    code, _ = await run_eval(tmp_path, script, [right, wrong], monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert code == 1 and lines[2].split()[:2] == ["a", "yes"]
    assert "no memory fits /coffee/; there are ['Likes tea']; there is no file m.md" in lines[3]
    assert not (tmp_path / "n.md").exists()


async def test_a_task_that_passes_less_often_than_in_an_earlier_run_is_a_fall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [{"id": name, "prompt": name, "expect": {"contains": "yes"}} for name in ("steady", "moody")]

    def answers(*words: str) -> Script:
        left = iter(words)
        return lambda messages, number: {"text": next(left)}

    more = ["--runs", "2", "--json"]
    first = answers("no", "no", "yes", "no")
    code, _ = await run_eval(tmp_path, first, tasks, *more, monkeypatch=monkeypatch)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(capsys.readouterr().out, encoding="utf-8")
    found = json.loads(earlier.read_text(encoding="utf-8"))
    assert code == 1 and found["shares"] == {"steady": 0.0, "moody": 0.5} and len(found["tasks"]) == 4
    compared = ["--runs", "2", "--compare", str(earlier)]
    same = answers("no", "no", "yes", "no")
    code, _ = await run_eval(tmp_path, same, tasks, *compared, monkeypatch=monkeypatch)
    assert code == 0 and "moody                   50%  was  50%\n" in capsys.readouterr().out
    worse = answers("yes", "yes", "no", "no")
    code, _ = await run_eval(tmp_path, worse, tasks, *compared, monkeypatch=monkeypatch)
    shown = capsys.readouterr().out.splitlines()
    assert code == 1 and shown[-3:-1] == [
        "steady                 100%  was   0%",
        "moody                    0%  was  50%  fell",
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"tasks": [{"id": "other", "passed": true}]}'])
def test_what_is_compared_with_must_be_an_earlier_output(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "earlier.json").write_text(text, encoding="utf-8")
    assert main(["eval", str(TASKS), "--compare", str(tmp_path / "earlier.json")]) == 1
    assert f"`{tmp_path / 'earlier.json'}`" in capsys.readouterr().err


def test_the_example_tasks_cover_what_they_promise() -> None:
    tasks = read_tasks(TASKS)
    assert len(tasks) == 10 and len({task.id for task in tasks}) == 10
    assert all(task.expect != Expect() for task in tasks)
    assert {task.id.rpartition("-")[2] for task in tasks} == {"zh", "en"}
