"""`ToolRegistry`: the lists for models, and calls that never raise."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from miniclaw.errors import ConfigError, ToolError
from miniclaw.tools import Risk, Tool, ToolBox, ToolContext, ToolRegistry, ToolResult, tool
from miniclaw.tools.paths import read_path


@tool(risk="read")
async def echo(text: str) -> str:
    """Say it again."""
    return text


@tool(risk="forbidden")
async def wipe() -> str:
    """Delete everything."""
    return "gone"


class Counter(Tool):
    """A tool with state and a schema of its own."""

    name = "count"
    description = "Count up."
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"by": {"type": "integer"}},
        "required": ["by"],
        "additionalProperties": False,
    }
    risk: Risk = "write"

    def __init__(self) -> None:
        self.total = 0

    async def execute(self, **kwargs: Any) -> ToolResult:
        self.total += kwargs["by"]
        return ToolResult(content=str(self.total))


def context(workspace: Path) -> ToolContext:
    return ToolContext(
        user_id="owner", scope="owner", session_id="ses_1", turn_id="turn_1", workspace=workspace
    )


def failing(error: BaseException, name: str = "fails") -> Tool:
    @tool(name=name)
    async def fail() -> str:
        raise error

    return fail


def test_the_registry_is_a_tool_box() -> None:
    box: ToolBox = ToolRegistry([echo])
    assert box.find("echo") is echo
    assert box.find("other") is None


def test_the_lists_for_models_are_built_once_until_something_changes() -> None:
    registry = ToolRegistry([echo])
    openai, mcp = registry.get_openai_tools(), registry.get_mcp_tools()
    assert registry.get_openai_tools() is openai
    assert registry.get_mcp_tools() is mcp
    registry.register(Counter())
    assert [entry["function"]["name"] for entry in registry.get_openai_tools()] == ["echo", "count"]
    assert [entry["name"] for entry in registry.get_mcp_tools()] == ["echo", "count"]
    changed = registry.get_openai_tools()
    registry.remove("nothing of that name")
    assert registry.get_openai_tools() is changed
    registry.remove("echo")
    assert [entry["function"]["name"] for entry in registry.get_openai_tools()] == ["count"]


def test_both_lists_have_the_shape_their_protocol_asks_for() -> None:
    registry = ToolRegistry([echo, Counter()])
    assert registry.get_openai_tools()[0] == {
        "type": "function",
        "function": {"name": "echo", "description": "Say it again.", "parameters": echo.parameters},
    }
    assert registry.get_mcp_tools() == [
        {
            "name": "echo",
            "description": "Say it again.",
            "inputSchema": echo.parameters,
            "annotations": {"readOnlyHint": True},
        },
        {
            "name": "count",
            "description": "Count up.",
            "inputSchema": Counter.parameters,
            "annotations": {"readOnlyHint": False},
        },
    ]


async def test_a_forbidden_tool_is_as_if_it_were_not_there() -> None:
    registry = ToolRegistry([echo, wipe])
    assert registry.names() == ["echo"]
    assert list(registry) == [echo]
    assert registry.find("wipe") is None
    assert "wipe" not in str(registry.get_openai_tools()) + str(registry.get_mcp_tools())
    result = await registry.execute("wipe", {})
    assert result.error == "There is no tool `wipe`. The tools are: echo."


async def test_a_call_whose_arguments_make_it_forbidden_is_refused() -> None:
    def risk(arguments: Mapping[str, Any]) -> Risk:
        return "forbidden" if arguments["path"] == "/" else "read"

    ran: list[str] = []

    @tool(risk=risk)
    async def look(path: str) -> str:
        ran.append(path)
        return path

    registry = ToolRegistry([look])
    assert (await registry.execute("look", {"path": "a"})).ok
    assert "forbidden" in (await registry.execute("look", {"path": "/"})).content
    assert ran == ["a"]
    assert registry.get_mcp_tools()[0]["annotations"] == {"readOnlyHint": False}


def test_two_tools_of_one_name_are_an_error_that_names_both_places() -> None:
    registry = ToolRegistry([echo, Counter()])

    @tool(name="echo")
    def other() -> None: ...

    with pytest.raises(ConfigError) as caught:
        registry.register(other)
    lines = [code.__code__.co_firstlineno for code in (echo.__wrapped__, other.__wrapped__)]  # type: ignore[attr-defined]  # set by update_wrapper
    assert f"{__file__}:{lines[0]} and {__file__}:{lines[1]}" in str(caught.value)
    remote = Counter()
    remote.origin = "MCP server `files`"
    with pytest.raises(ConfigError, match=r"test_tools_registry\.Counter and MCP server `files`"):
        registry.register(remote)
    assert registry.names() == ["echo", "count"]


@pytest.mark.parametrize("name", ["", "a b", "größe", "a" * 65, "a.b"])
def test_a_name_that_the_chat_api_would_refuse_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="use up to 64 letters"):
        ToolRegistry().register(name, "", {"type": "object"}, lambda: "")


async def test_a_function_can_be_registered_with_a_schema_written_by_hand() -> None:
    registry = ToolRegistry()
    registry.register("count", "Count.", Counter.parameters, lambda by: by + 1, compactable=True)
    made = registry.find("count")
    assert made is not None
    assert (made.description, made.risk, made.compactable) == ("Count.", "write", True)
    assert (await registry.execute("count", {"by": 1})).data == 2
    assert "`by`: should be of type integer" in (await registry.execute("count", {"by": "1"})).content


def test_a_registration_by_name_needs_parameters_and_a_handler() -> None:
    with pytest.raises(ConfigError, match="needs its parameters"):
        ToolRegistry().register("x")  # type: ignore[call-overload]  # what is refused


def test_a_parameter_may_not_hide_the_context() -> None:
    @tool
    def confused(tool_context: str, ctx: ToolContext) -> str:
        return tool_context

    with pytest.raises(ConfigError, match="give the parameter `tool_context` another name"):
        ToolRegistry([confused])


async def test_a_tool_with_state_is_called_with_checked_arguments() -> None:
    registry = ToolRegistry([Counter()])
    await registry.execute("count", {"by": 2})
    assert (await registry.execute("count", {"by": 3})).content == "5"
    assert not (await registry.execute("count", {"by": 3, "x": 1})).ok
    assert (await registry.execute("count", {"by": 1})).content == "6"


async def test_an_unknown_name_gets_a_suggestion() -> None:
    registry = ToolRegistry([echo, Counter()])
    assert (await registry.execute("ecko", {})).error == "There is no tool `ecko`. Did you mean `echo`?"
    assert (
        await registry.execute("?\x00", {})
    ).error == "There is no tool `?\ufffd`. The tools are: echo, count."
    assert (await ToolRegistry().execute("x", {})).error == "There is no tool `x`. The tools are: none."


async def test_a_path_out_of_the_workspace_names_the_foreign_tool_that_may_reach_it() -> None:
    class Foreign(Counter):
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
        origin = "the MCP server `files`"

        def __init__(self, name: str) -> None:
            self.name = name

    @tool(risk="read")
    def list_files(path: str) -> str:
        """List a directory."""
        return "/".join(read_path(path))

    others = [
        Foreign(f"mcp__files__{name}") for name in ("search_files", "list_directory", "list_more_of_it")
    ]
    alone, beside = ToolRegistry([list_files, Counter()]), ToolRegistry([list_files, *others])
    refused = (await alone.execute("list_files", {"path": "/srv/报告"})).content
    assert refused.endswith("Paths begin in the workspace, such as `a/b.md`.")
    hinted = (await beside.execute("list_files", {"path": "/srv/报告"})).content
    assert hinted.startswith(refused) and "Call `mcp__files__list_directory` with this path" in hinted
    assert "mcp__" not in (await beside.execute("list_files", {"path": "../x"})).content


async def test_a_tool_error_is_what_the_model_reads() -> None:
    result = await ToolRegistry([failing(ToolError("No such city. Try a bigger one."))]).execute("fails", {})
    assert result == ToolResult(
        ok=False,
        content="Error: No such city. Try a bigger one.",
        error="No such city. Try a bigger one.",
    )
    silent = await ToolRegistry([failing(ToolError())]).execute("fails", {})
    assert silent.error == "The tool refused and gave no reason."


async def test_an_unexpected_exception_shows_its_class_to_the_model_and_the_rest_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = await ToolRegistry([failing(ZeroDivisionError("password=hunter2"))]).execute("fails", {})
    assert not result.ok
    assert "`fails` failed inside (ZeroDivisionError)" in result.content
    assert "hunter2" not in result.content
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("tool fails failed\nTraceback")


class Mute(ToolError):
    def __str__(self) -> str:
        raise ValueError


ENDS = [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("error", ENDS, ids=repr)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_tool_cannot_end_the_program_or_the_turn(error: BaseException, in_thread: bool) -> None:
    def quit() -> str:
        raise error

    registry = ToolRegistry([tool(name="fails")(quit) if in_thread else failing(error)])
    result = await registry.execute("fails", {})
    assert not result.ok
    assert f"({type(error).__name__}: the tool tried to end the program)" in result.content


async def test_an_error_that_cannot_be_told_is_a_failed_result_too() -> None:
    result = await ToolRegistry([failing(Mute())]).execute("fails", {})
    assert result.error == "The tool refused and gave no reason."


@pytest.mark.parametrize("waits", [True, False])
async def test_a_task_that_a_tool_began_cannot_end_the_program(waits: bool) -> None:
    async def inner() -> None:
        raise SystemExit(1)

    async def outer() -> None:
        await asyncio.wait([asyncio.create_task(inner())])
        await inner()

    tasks: list[asyncio.Task[None]] = []

    @tool
    async def begins() -> str:
        tasks.append(asyncio.create_task(outer()))
        if waits:
            await tasks[0]
        return "begun"

    result = await ToolRegistry([begins]).execute("begins", {})
    assert result.ok is not waits
    (failure,) = await asyncio.gather(*tasks, return_exceptions=True)
    assert str(failure) == "A task of the tool failed inside (SystemExit: the tool tried to end the program)."
    assert not waits or str(failure) in result.content
    own = asyncio.create_task(inner())
    assert inspect.iscoroutine(own.get_coro()), "a task of the program is as it was"
    own.cancel()


async def test_no_trace_in_the_log_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    registry = ToolRegistry(
        [failing(ValueError("with key-12345"))], hide=lambda text: text.replace("key-12345", "[secret]")
    )
    await registry.execute("fails", {})
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "ValueError: with [secret]" in record.getMessage()
    assert record.exc_info is None and "key-12345" not in caplog.text


async def test_a_thread_that_hangs_is_not_joined_by_a_second_try() -> None:
    release, began = threading.Event(), []

    @tool(risk="read", timeout=0.05)
    def block() -> str:
        began.append(1)
        release.wait(30)
        return ""

    result = await ToolRegistry([block]).execute("block", {})
    release.set()
    assert "did not finish" in result.content
    assert began == [1]


async def test_when_all_threads_hang_a_call_says_so_at_once_until_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("miniclaw.tools.foreign.PLACES", 1)
    monkeypatch.setattr("miniclaw.tools.foreign._at_work", set())  # other tests leave some that hang
    monkeypatch.setattr("miniclaw.tools.foreign._abandoned", set())
    release, ended = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def block() -> str:
        release.wait(30)
        ended.set()
        return ""

    @tool(timeout=30)
    def quick() -> str:
        return "done"

    registry = ToolRegistry([block, quick])
    await registry.execute("block", {})
    assert "threads of tools are hung" in (await registry.execute("quick", {})).content
    release.set()
    await asyncio.to_thread(ended.wait, 30)
    async with asyncio.timeout(30):
        while not (result := await registry.execute("quick", {})).ok:
            await asyncio.sleep(0)
    assert result.content == "done"


async def test_a_tool_that_breaks_its_promise_about_results_fails_alone() -> None:
    class Liar(Counter):
        async def execute(self, **kwargs: Any) -> ToolResult:
            return "a text"  # type: ignore[return-value]  # the broken promise

    assert "`count` failed inside" in (await ToolRegistry([Liar()]).execute("count", {"by": 1})).content


async def test_a_call_that_takes_too_long_is_stopped() -> None:
    stopped = asyncio.Event()

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    registry = ToolRegistry([tool(timeout=0.01)(hang)])
    result = await registry.execute("hang", {})
    assert "`hang` did not finish within 0.01 s" in result.content
    assert stopped.is_set()
    by_default = await ToolRegistry([tool(hang)], default_timeout=0.02).execute("hang", {})
    assert "within 0.02 s" in by_default.content


async def test_a_thread_that_takes_too_long_does_not_hold_the_caller() -> None:
    release = threading.Event()

    @tool(timeout=0.01)
    def block() -> str:
        release.wait(5)
        return ""

    result = await ToolRegistry([block]).execute("block", {})
    release.set()
    assert "did not finish" in result.content


@pytest.mark.parametrize("timeout", [-1, 0, "5", float("nan")])
def test_a_time_limit_that_is_none_is_refused_when_the_tool_is_registered(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="its timeout has to be a number of seconds above 0"):
        ToolRegistry([tool(name="x", timeout=timeout)(lambda: "x")])


async def test_a_time_out_inside_a_tool_is_not_told_as_the_registrys() -> None:
    result = await ToolRegistry([failing(TimeoutError())]).execute("fails", {})
    assert "`fails` failed inside (TimeoutError)" in result.content


async def test_cancellation_passes_through() -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    task = asyncio.create_task(ToolRegistry([wait]).execute("wait", {}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def meet() -> int:
        async with asyncio.timeout(5):
            return await both.wait()

    registry = ToolRegistry([meet])
    results = await asyncio.gather(registry.execute("meet", {}), registry.execute("meet", {}))
    assert {result.data for result in results} == {0, 1}


async def test_each_call_is_logged_with_its_ids(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "miniclaw.tools")
    await ToolRegistry([echo]).execute("echo", {"text": "secret"}, context(tmp_path))
    [record] = caplog.records
    assert record.getMessage().startswith("tool echo finished in ")
    assert vars(record)["session_id"] == "ses_1"
    assert "secret" not in record.getMessage()


async def test_text_that_cannot_be_sent_is_replaced() -> None:
    class Raw(Counter):
        async def execute(self, **kwargs: Any) -> ToolResult:
            return ToolResult(ok=False, content="a\udc80b\x00", error="\ud800")

    result = await ToolRegistry([Raw()]).execute("count", {"by": 1})
    assert (result.content, result.error) == ("a\ufffdb\ufffd", "\ufffd")


async def test_a_long_result_is_cut_and_kept_whole_in_the_workspace(tmp_path: Path) -> None:
    text = "行\n" * 10
    registry = ToolRegistry([echo], result_chars=5, new_id=lambda prefix: f"{prefix}_1")
    result = await registry.execute("echo", {"text": text}, context(tmp_path / "not made yet"))
    assert result.content == (
        "行\n行\n行\n\n[These are the first 5 of 20 characters; 15 are left out."
        " The whole text is in the file `.results/ses_1-res_1.txt`; `read_file` shows it page by page.]"
    )
    assert (tmp_path / "not made yet/.results/ses_1-res_1.txt").read_text(encoding="utf-8") == text


async def test_a_result_of_just_the_limit_is_left_alone(tmp_path: Path) -> None:
    registry = ToolRegistry([echo], result_chars=5)
    assert (await registry.execute("echo", {"text": "12345"}, context(tmp_path))).content == "12345"
    assert not list(tmp_path.iterdir())


async def test_a_long_result_without_a_place_to_keep_it_is_only_cut() -> None:
    result = await ToolRegistry([echo], result_chars=2).execute("echo", {"text": "1234"})
    assert result.content == "12\n\n[These are the first 2 of 4 characters; 2 are left out.]"


async def test_long_errors_are_cut_too() -> None:
    registry = ToolRegistry([failing(ToolError("x" * 50))], result_chars=10)
    assert (await registry.execute("fails", {})).error == "x" * 10


async def test_a_result_that_cannot_be_kept_is_cut_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".results").write_text("in the way", encoding="utf-8")
    registry = ToolRegistry([echo], result_chars=2)
    result = await registry.execute("echo", {"text": "1234"}, context(tmp_path))
    assert result.content.endswith("2 are left out. They could not be kept and are lost.]")
    assert "could not be kept" in caplog.text


async def test_a_result_is_not_kept_outside_the_workspace(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    workspace.mkdir()
    (workspace / ".results").symlink_to(outside)
    registry = ToolRegistry([echo], result_chars=2)
    result = await registry.execute("echo", {"text": "1234"}, context(workspace))
    assert result.content.endswith("2 are left out. They could not be kept and are lost.]")
    assert not list(outside.iterdir())


async def test_only_the_latest_whole_results_are_kept(tmp_path: Path) -> None:
    directory = tmp_path / ".results"
    directory.mkdir()
    for number in range(205):
        path = directory / f"old{number:03}.txt"
        path.write_text("", encoding="utf-8")
        os.utime(path, (number, number))
    registry = ToolRegistry([echo], result_chars=2, new_id=lambda prefix: f"{prefix}_new")
    await registry.execute("echo", {"text": "1234"}, context(tmp_path))
    left = {path.name for path in directory.iterdir()}
    assert len(left) == 200
    assert {"ses_1-res_new.txt", "old204.txt"} <= left
    assert "old005.txt" not in left
