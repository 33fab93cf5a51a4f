"""Own tools and hooks: files that are used without a restart, code of others that breaks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.delegate import DelegateTool
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.config import load_settings
from miniclaw.errors import ConfigError
from miniclaw.settings import Hook, Moment, Settings
from miniclaw.timer_tool import ScheduleTool
from miniclaw.toolbox import tools_of
from miniclaw.tools import Tool, ToolContext, ToolRegistry, ToolResult, tool
from miniclaw.tools.hooks import Hooks
from miniclaw.tools.loading import OwnTools
from tests.support.agent import result_in, say, zap
from tests.support.claw import running_claw
from tests.support.core import command_message

EXAMPLES = Path(__file__).parent.parent / "examples" / "tools"

GREET = '''
from miniclaw.tools import tool

@tool(risk="read")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"{WORD} {name}"

WORD = "hello"
'''


def write(directory: Path, name: str, text: str, *, at: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text, encoding="utf-8")
    if at:
        os.utime(path, ns=(at, at))
    return path


def none() -> list[EntryPoint]:
    return []


def own(registry: ToolRegistry, directory: Path, packages: Callable[[], list[EntryPoint]] = none) -> OwnTools:
    return OwnTools(registry, directory, packages=packages)


# --- files ------------------------------------------------------------------------------------------------


async def test_a_file_that_is_added_changed_or_removed_is_seen_at_the_next_list(tmp_path: Path) -> None:
    registry = ToolRegistry()
    tools = own(registry, tmp_path / "tools")
    assert registry.get_openai_tools() == []
    write(tmp_path / "tools", "greet.py", GREET, at=1)
    listed = registry.get_openai_tools()
    assert [one["function"]["name"] for one in listed] == ["greet"]
    assert registry.get_openai_tools() is listed
    assert (await registry.execute("greet", {"name": "ann"})).content == "hello ann"
    write(tmp_path / "tools", "greet.py", GREET.replace('"hello"', '"你好"'), at=2)
    registry.get_openai_tools()
    assert (await registry.execute("greet", {"name": "ann"})).content == "你好 ann"
    (tmp_path / "tools" / "greet.py").unlink()
    assert registry.get_openai_tools() == []
    assert tools.problems == ()


CLASS = """
from miniclaw.tools import Tool, ToolResult, tool

@tool
def beside(x: int = 1) -> str:
    return ""

S = {'type': 'object'}

class W(Tool):
    name = "w"
    description = "d"
    parameters = {"type": "object", "properties": {}}
    async def execute(self, **given):
        return ToolResult(content="x")
    <wrong>

w = W()
"""


@pytest.mark.parametrize(
    "wrong",
    [
        "name = None",
        "name = 5",
        "description = None",
        "parameters = None",
        "parameters = {}",
        "parameters = {'type': 'array', 'items': {'type': 'string'}}",
        "parameters = S | {'properties': ['a']}",
        "parameters = S | {'required': 5}",
        "parameters = S | {'required': 'a'}",
        "parameters = S | {'properties': {'a': 'the city'}}",
        "parameters = S | {'properties': {'a': {'type': 'str'}}}",
        "parameters = S | {'properties': {'a': {'type': 'string', 'required': True}}}",
        "parameters = S | {'properties': {'a': {'enum': 'a|b'}}}",
        "parameters = S | {'properties': {'a': {'enum': {1, 2}}}}",
        "parameters = S | {'properties': {'a': {'items': {'anyOf': {}}}}}",
        "parameters = S | {'$defs': {'a': 5}}",
        "aliases = None",
        "aliases = 'roll'",
        "aliases = ('r', 'r')",
        "risk = None",
        "@property\n    def name(self):\n        raise SystemExit(3)",
    ],
)
async def test_a_class_with_a_mistake_is_one_problem_and_the_rest_is_there(
    tmp_path: Path, wrong: str
) -> None:
    write(tmp_path, "b_good.py", GREET)
    registry = ToolRegistry()
    tools = own(registry, tmp_path)
    write(tmp_path, "a_bad.py", CLASS.replace("<wrong>", wrong))
    for _ in range(2):
        assert [one["function"]["name"] for one in registry.get_openai_tools()] == ["greet"]
        assert [problem.source for problem in tools.problems] == [f"{tmp_path.name}/a_bad.py"]
        await registry.reload()
    write(tmp_path, "a_bad.py", CLASS.replace("<wrong>", "aliases = ('roll',)"))
    await registry.reload()
    assert registry.names() == ["beside", "w", "greet"] and not tools.problems


async def test_a_link_to_nothing_is_reported_and_an_editors_lock_is_passed_over(tmp_path: Path) -> None:
    """Emacs links `.#greet.py` to a name that is no file while greet.py is edited."""
    write(tmp_path, "greet.py", GREET)
    (tmp_path / ".#greet.py").symlink_to("ann@host.1")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    registry = ToolRegistry()
    (problem,) = own(registry, tmp_path).problems
    assert problem.source.endswith("loop.py")
    assert registry.names() == ["greet"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def broken(:\n", "line 1: SyntaxError"),
        ("\nimport nothing_of_that_name\n", "line 2: ModuleNotFoundError"),
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("from miniclaw.tools import tool\n@tool\ndef f(a): ...\n", "needs a type annotation"),
        (GREET.replace("def greet", "def taken"), "Two tools are called `taken`"),
        (GREET + "\ngreet.name = 'no name'\n", "use up to 64 letters"),
        ("raise KeyboardInterrupt\n", "line 1: KeyboardInterrupt tries to end the program"),
        ("import asyncio\nraise asyncio.CancelledError\n", "line 2: CancelledError tries to end the program"),
        (b"\xff\xfe\x00", "SyntaxError"),
        (
            GREET.replace("def greet", "def other") + "\nother.risk = 'nonsense'\n",
            "there is no risk `nonsense`",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_reported_and_the_rest_is_there(
    tmp_path: Path, text: str | bytes, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(name="taken")
    def builtin() -> str:
        """Be there first."""
        return ""

    write(tmp_path, "a_good.py", GREET)
    bad = tmp_path / "b_bad.py"
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    write(tmp_path, "c_good.py", GREET.replace("def greet", "def wave"))
    registry = ToolRegistry([builtin])
    (problem,) = own(registry, tmp_path).problems
    assert problem.source == f"{tmp_path.name}/b_bad.py"
    assert error in problem.error
    assert registry.names() == ["taken", "greet", "wave"]
    assert problem.source in caplog.text
    loaded = [getattr(module, "__file__", None) for module in sys.modules.values()]
    assert str(bad) not in loaded or error.startswith(("Two tools", "use up to", "there is no risk"))


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.py")
    (tmp_path / "b.py").symlink_to("/dev/zero")
    write(tmp_path, "c.py", GREET)
    registry = ToolRegistry()
    for problem in own(registry, tmp_path).problems:
        assert problem.error.endswith(f"`{problem.source}` is no regular file")
    assert registry.names() == ["greet"]


def test_a_problem_shows_no_secret_and_nothing_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    write(tmp_path / "tools", "a.py", "raise ValueError(f'key-12345 {__file__}')\n")
    registry = ToolRegistry(hide=lambda text: text.replace("key-12345", "[secret]"))
    (problem,) = own(registry, tmp_path / "tools").problems
    assert (problem.source, problem.error) == ("tools/a.py", "line 1: ValueError: [secret] tools/a.py")
    assert "[secret]" in caplog.text and "key-12345" not in caplog.text


HANGS = "import threading\nthreading.Event().wait()\n"


def test_a_file_that_hangs_when_it_is_loaded_is_reported_and_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.foreign.LOADING", 1.0)
    write(tmp_path, "a.py", HANGS)
    write(tmp_path, "b.py", GREET)
    registry = ToolRegistry()
    (problem,) = own(registry, tmp_path).problems
    assert "took more than 1 s" in problem.error
    assert registry.names() == ["greet"]


def test_while_a_changed_file_is_loaded_the_old_tools_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.loading.GRACE", 0.0)
    write(tmp_path, "greet.py", GREET)
    registry = ToolRegistry()
    tools = own(registry, tmp_path)
    GATE.clear()
    waits = f"import {__name__} as here\nhere.GATE.wait(8)\n"
    write(tmp_path, "greet.py", waits + GREET.replace("def greet", "def wave"))
    for _ in range(3):
        assert [one["function"]["name"] for one in registry.get_openai_tools()] == ["greet"]
    GATE.set()
    loading = tools._loading
    assert loading is not None
    loading.result(30)
    assert [one["function"]["name"] for one in registry.get_openai_tools()] == ["wave"]


GATE = threading.Event()


def test_of_a_file_with_a_clash_no_tool_is_there(tmp_path: Path) -> None:
    write(tmp_path, "a.py", GREET)
    write(tmp_path, "b.py", GREET.replace("def greet", "def wave") + GREET.replace("WORD", "greet_word"))
    registry = ToolRegistry()
    (problem,) = own(registry, tmp_path).problems
    assert registry.names() == ["greet"]
    at = tmp_path.name
    assert f": {at}/a.py:4 and {at}/b.py:13." in problem.error, (
        "the place in the data directory, not the server's"
    )


def test_tools_in_a_list_or_dict_of_a_file_are_found(tmp_path: Path) -> None:
    text = CLASS.replace("<wrong>", "").replace("w = W()", "all = [W()]; more = {'b': beside}; del beside")
    write(tmp_path, "many.py", text)
    registry = ToolRegistry()
    assert not own(registry, tmp_path).problems and sorted(registry.names()) == ["beside", "w"]


def test_only_what_a_file_makes_itself_is_its_tool(tmp_path: Path) -> None:
    write(tmp_path, "_helper.py", GREET)
    write(tmp_path, "notes.txt", GREET)
    write(
        tmp_path,
        "mine.py",
        "from __future__ import annotations\n"
        "from pydantic import BaseModel\n"
        "from miniclaw.tools import Tool, ToolResult, tool\n"
        "from miniclaw.tools.builtins.order_status_tool import get_order_status\n"
        "class Point(BaseModel):\n    x: int\n"
        "class Many(Tool):\n    name = 'many'\n    description = ''\n    parameters = {'type': 'object'}\n"
        "    async def execute(self, **kwargs): return ToolResult(content='many')\n"
        "many = also = Many()\n"
        "@tool\ndef place(point: Point) -> int:\n    return point.x\n",
    )
    registry = ToolRegistry()
    assert own(registry, tmp_path).problems == ()
    assert registry.names() == ["many", "place"]


async def test_a_module_beside_the_tools_is_imported_and_read_anew_when_it_changes(tmp_path: Path) -> None:
    file = write(tmp_path, "_five_words.py", "WORD = 'one'\n", at=1)
    write(tmp_path, "greet.py", "from _five_words import WORD\n" + GREET.replace('WORD = "hello"', ""))
    write(
        tmp_path,
        "later.py",
        GREET.replace("def greet", "def later").replace("return", "import _five_words; return"),
    )
    registry = ToolRegistry()
    assert own(registry, tmp_path).problems == ()
    assert (await registry.execute("greet", {"name": "ann"})).content == "one ann"
    assert (await registry.execute("later", {"name": "ann"})).content == "hello ann"
    write(tmp_path, file.name, "WORD = 'two'\n", at=2)
    registry.get_openai_tools()
    assert (await registry.execute("greet", {"name": "ann"})).content == "two ann"


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are texts there")
def test_a_file_whose_name_is_no_utf8_is_read_too(tmp_path: Path) -> None:
    write(tmp_path, os.fsdecode("骰子.py".encode("gbk")), GREET)
    registry = ToolRegistry()
    assert own(registry, tmp_path).problems == () and registry.names() == ["greet"]


def test_packages_whose_list_cannot_be_read_are_one_problem(tmp_path: Path) -> None:
    def packages() -> list[EntryPoint]:
        raise ValueError("entry_points.txt of nothing")

    write(tmp_path, "greet.py", GREET)
    registry = ToolRegistry()
    (problem,) = own(registry, tmp_path, packages).problems
    assert problem.source == "packages (miniclaw.tools)" and "entry_points.txt of nothing" in problem.error
    assert registry.names() == ["greet"]


async def test_a_reload_reads_everything_anew_off_the_loop(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.py",
        "import threading\nfrom miniclaw.tools import tool\nname = threading.current_thread().name\n"
        "@tool\ndef where() -> str:\n    return name\n",
    )
    registry = ToolRegistry()
    tools = own(registry, tmp_path)
    before = registry.find("where")
    await tools.reload()
    assert registry.find("where") is not before
    assert (await registry.execute("where", {})).content != "MainThread"


# --- packages ---------------------------------------------------------------------------------------------


class Shout(Tool):
    name = "shout"
    description = "Shout."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}

    async def execute(self, **kwargs: Any) -> ToolResult:
        return ToolResult(content="!")


def make_tools() -> list[Tool]:
    return [Shout()]


ONE = Shout()
NO_TOOL = [1]


@pytest.mark.parametrize("name", ["Shout", "make_tools", "ONE"])
def test_a_package_offers_tools_by_an_entry_point(tmp_path: Path, name: str) -> None:
    registry = ToolRegistry()
    point = EntryPoint("x", f"{__name__}:{name}", "miniclaw.tools")
    assert own(registry, tmp_path, lambda: [point]).problems == ()
    assert registry.names() == ["shout"]


@pytest.mark.parametrize("value", ["no_such_package", f"{__name__}:NO_TOOL", f"{__name__}:nothing"])
def test_a_package_that_cannot_be_used_is_reported_by_its_name(tmp_path: Path, value: str) -> None:
    registry = ToolRegistry()
    (problem,) = own(registry, tmp_path, lambda: [EntryPoint("bad", value, "miniclaw.tools")]).problems
    assert problem.source == f"{value} (miniclaw.tools: bad)"


# --- in a running gateway ---------------------------------------------------------------------------------


async def call_greet(messages: list[Message]) -> LLMResponse:
    return LLMResponse(tool_calls=(ToolCall.of("c1", "greet", {"name": "ann"}),), finish="tool_calls")


async def told(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"I was told: {result_in(messages)}")


async def test_a_file_dropped_into_tools_is_used_in_the_next_turn_without_a_restart(tmp_path: Path) -> None:
    provider = ScriptedProvider([call_greet, told, call_greet, told, call_greet, told])
    async with running_claw(tmp_path, provider) as claw:
        assert "there is no tool" in (await say(claw)).lower()
        write(tmp_path / "tools", "greet.py", GREET, at=1)
        assert await say(claw) == "I was told: hello ann"
        write(tmp_path / "tools", "greet.py", GREET.replace('"hello"', '"moin"'), at=2)
        assert await say(claw) == "I was told: moin ann"


async def test_a_tool_its_skill_and_a_limit_are_all_there_in_the_very_next_turn(tmp_path: Path) -> None:
    offered: list[list[str]] = []

    class Recorded(ScriptedProvider):
        async def chat(self, messages: Any, tools: Any = None) -> LLMResponse:
            offered.append([one["function"]["name"] for one in tools])
            return await super().chat(messages, tools)

    provider = Recorded([LLMResponse(text="done")] * 4)
    async with running_claw(tmp_path, provider) as claw:
        await say(claw)
        (session,) = await claw.sessions.list("owner")
        sid, file = session.session_id, tmp_path / "skills" / "greeter.md"
        write(tmp_path / "tools", "greet.py", GREET)
        head = "---\nname: greeter\ndescription: greets\nrequired_tools: greet\nallowed-tools: greet\n---\nSay hi."
        write(file.parent, file.name, head)
        await say(claw, session_id=sid)
        assert "- greeter: greets" in provider.requests[-1][0]["content"]
        assert (loaded := await claw.sessions.get(sid)) is not None
        await claw.sessions.update(loaded, skills=["greeter"])
        await say(claw, session_id=sid)
        file.write_text("---\nname: greeter\ndescription: [\n---\n", encoding="utf-8")
        events = [event async for event in claw.ask("again", session_id=sid)]
        assert "greeter cannot be read" in events[-1]["data"]["warning"]
        assert offered[-2:] == [["load_skill", "read_skill_file", "greet"]] * 2


def test_no_own_tool_takes_the_name_of_one_that_only_a_gateway_has(tmp_path: Path) -> None:
    assert {DelegateTool.name, ScheduleTool.name} == {"delegate", "schedule"}
    write(tmp_path / "tools", "a.py", GREET.replace("def greet", "def schedule"))
    write(tmp_path / "tools", "b.py", GREET.replace('"read"', '"read", aliases=("delegate",)'))
    registry = tools_of(Settings(), tmp_path)
    assert registry.source is not None
    told = {problem.source: problem.error for problem in registry.source.problems}
    assert told == {
        "tools/a.py": "`schedule` is the name of a built-in tool. Rename yours.",
        "tools/b.py": "`delegate` is the name of a built-in tool. Rename yours.",
    }
    assert not {"schedule", "delegate", "greet"} & set(registry.names())


async def test_a_gateway_starts_with_a_file_that_names_a_tool_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "tools", "bus.py", GREET.replace("def greet", "def schedule"))
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        assert isinstance(claw.registry.find("schedule"), ScheduleTool)


async def test_the_command_tools_lists_problems_and_reloads_for_admins_only(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        write(tmp_path / "tools", "bad.py", "1/0\n")

        async def tools(user_id: str, msg_id: str, **args: Any) -> dict[str, Any]:
            message = command_message("tools", msg_id=msg_id, user_id=user_id)
            payload = message.payload.model_copy(update={"args": args})
            receipt = await claw.commands.handle(message.model_copy(update={"payload": payload}))
            assert receipt.result is not None
            return receipt.result

        assert (await tools("owner", "m1"))["problems"] == []
        (problem,) = (await tools("owner", "m2", action="reload"))["problems"]
        assert problem == {"source": "tools/bad.py", "error": "line 1: ZeroDivisionError: division by zero"}
        await claw.identities.add("ann")
        with pytest.raises(Exception, match="Only an admin"):
            await tools("ann", "m3", action="reload")
        of_ann = await tools("ann", "m4")
        assert len(of_ann["tools"]) > 10 and of_ann["problems"] == []


async def test_no_result_shows_a_secret_of_the_settings_or_the_token(tmp_path: Path) -> None:
    env = {"TAVILY_API_KEY": "tvly-secret-1", "OPENAI_API_KEY": "sk-secret-22"}
    loaded = load_settings(env=env, data_dir=str(tmp_path))
    registry = tools_of(loaded.settings, tmp_path, token="minted-token-333")
    workspace = tmp_path / "w"
    write(workspace, "leak.txt", "tvly-secret-1 sk-secret-22 minted-token-333")
    context = ToolContext(user_id="a", scope="a", session_id="s", turn_id="t", workspace=workspace)
    result = await registry.execute("read_file", {"path": "leak.txt"}, context)
    assert result.content == "[secret] [secret] [secret]"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_can_be_copied_and_work(tmp_path: Path, example: Path) -> None:
    directory = tmp_path / "tools"
    write(directory, example.name, example.read_text(encoding="utf-8"))
    registry = tools_of(Settings(), tmp_path)
    assert registry.source is not None and registry.source.problems == ()
    assert len(registry.names()) > len(tools_of(Settings(), tmp_path / "other").names())


# --- the command line -------------------------------------------------------------------------------------


def miniclaw(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MINICLAW_", "TAVILY", "SEARX"))
    }
    return subprocess.run(
        [sys.executable, "-m", "miniclaw", "tools", *arguments, "--data-dir", str(data_dir)],
        env={**clean, "MINICLAW_PROJECT": ""},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_tools_are_listed_and_called_from_the_command_line(tmp_path: Path) -> None:
    write(tmp_path / "tools", "greet.py", GREET)
    write(tmp_path / "tools", "bad.py", "1/0")
    listed = json.loads(miniclaw(tmp_path, "list", "--json").stdout)
    greet = next(row for row in listed["tools"] if row["name"] == "greet")
    assert (greet["risk"], greet["description"]) == ("read", "Greet somebody.")
    assert greet["parameters"]["required"] == ["name"]
    assert [problem["source"] for problem in listed["problems"]] == ["tools/bad.py"]
    plain = miniclaw(tmp_path, "list")
    assert "greet" in plain.stdout and "ZeroDivisionError" in plain.stdout and plain.stderr == ""
    called = miniclaw(tmp_path, "call", "greet", '{"name": "安"}')
    assert (called.returncode, called.stdout) == (0, "hello 安\n")


def test_what_a_tool_prints_is_not_in_the_output(tmp_path: Path) -> None:
    text = GREET.replace("    return", "    print('called')\n    return")
    write(tmp_path / "tools", "greet.py", "print('loaded')\n" + text)
    write(tmp_path / "tools", "wave.py", text.replace("def greet", "async def wave"))
    for name in ("greet", "wave"):
        done = miniclaw(tmp_path, "call", name, '{"name": "ann"}', "--json")
        assert json.loads(done.stdout)["content"] == "hello ann"
        assert done.stderr == "loaded\ncalled\n"


def test_a_call_that_fails_exits_with_1_and_says_why(tmp_path: Path) -> None:
    failed = miniclaw(tmp_path, "call", "readFile", '{"path": "../x"}')
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "`..` is not allowed" in failed.stderr
    whole = json.loads(miniclaw(tmp_path, "call", "calculator", '{"expression": "1/0"}', "--json").stdout)
    assert whole == {
        "ok": False,
        "content": "Error: Division by zero.",
        "data": None,
        "error": "Division by zero.",
    }
    for wrong in (("call", "nothing"), ("call", "calculator", "{"), ("call", "calculator", "[]")):
        done = miniclaw(tmp_path, *wrong)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("miniclaw: ")


async def test_a_call_that_writes_needs_the_data_directory_for_itself(tmp_path: Path) -> None:
    arguments = ("call", "write_file", '{"path": "a.txt", "content": "x"}')
    async with running_claw(tmp_path, ScriptedProvider([])):
        busy = await asyncio.to_thread(miniclaw, tmp_path, *arguments)
        assert busy.returncode == 1 and "Another miniclaw is running" in busy.stderr
        reading = await asyncio.to_thread(miniclaw, tmp_path, "call", "list_files")
        assert reading.returncode == 0
    assert (await asyncio.to_thread(miniclaw, tmp_path, *arguments)).returncode == 0
    assert (tmp_path / "users" / "owner" / "workspace" / "a.txt").read_bytes() == b"x"


# --- hooks ------------------------------------------------------------------------------------------------


def seen(payload: dict[str, Any]) -> None:
    CALLS.append(payload)


async def no(payload: dict[str, Any]) -> str | None:
    return f"not {payload['arguments']['at']}" if payload["arguments"].get("at") != "ok" else None


def breaks(payload: dict[str, Any]) -> None:
    raise ValueError


def quits(payload: dict[str, Any]) -> None:
    sys.exit(3)


async def quits_too(payload: dict[str, Any]) -> None:
    raise KeyboardInterrupt


async def quits_in_a_task(payload: dict[str, Any]) -> None:
    await asyncio.create_task(asyncio.to_thread(quits, payload))


async def cancels(payload: dict[str, Any]) -> None:
    raise asyncio.CancelledError


def blocks(payload: dict[str, Any]) -> None:
    threading.Event().wait()


def leaks(payload: dict[str, Any]) -> str:
    if payload.get("raises"):
        raise ValueError("key-12345")
    return "not with key-12345"


def answers_badly(payload: dict[str, Any]) -> object:
    class Answer:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    return Answer()


async def ends(payload: dict[str, Any]) -> None:
    raise GeneratorExit


async def goes_on(payload: dict[str, Any]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


class Calls:
    async def __call__(self, payload: dict[str, Any]) -> str:
        payload["arguments"].clear()
        return "not so"


calls = Calls()


def changes(payload: dict[str, Any]) -> None:
    payload["arguments"]["more"].append("x")


async def hangs(payload: dict[str, Any]) -> None:
    await asyncio.Event().wait()


CALLS: list[dict[str, Any]] = []


@tool(name="zap", risk="read")
def zap_tool(at: str = "") -> str:
    """Zap."""
    CALLS.append({"ran": at})
    return f"zapped {at}"


def hooked(tmp_path: Path, **moments: list[Hook]) -> ToolRegistry:
    CALLS.clear()
    given: dict[Moment, tuple[Hook, ...]] = {moment: tuple(hooks) for moment, hooks in moments.items()}  # type: ignore[misc]
    return ToolRegistry([zap_tool], hooks=Hooks(given, tmp_path))


def python(code: str, **more: Any) -> Hook:
    return Hook(command=(sys.executable, "-c", code), **more)


def call(name: str, **more: Any) -> Hook:
    return Hook(call=f"{__name__}:{name}", **more)


async def test_a_callable_is_told_of_a_call_before_and_after_it(tmp_path: Path) -> None:
    registry = hooked(tmp_path, before_tool=[call("seen")], after_tool=[call("seen")])
    context = ToolContext(user_id="ann", scope="ann", session_id="s", turn_id="t", workspace=tmp_path)
    assert (await registry.execute("zap", {"at": "x"}, context)).content == "zapped x"
    about = {"tool": "zap", "arguments": {"at": "x"}, "user_id": "ann", "session_id": "s", "turn_id": "t"}
    assert CALLS == [
        {"moment": "before_tool", **about},
        {"ran": "x"},
        {"moment": "after_tool", **about, "ok": True, "content": "zapped x"},
    ]


async def test_a_callable_blocks_a_call_with_its_reason(tmp_path: Path) -> None:
    registry = hooked(tmp_path, before_tool=[call("no"), call("seen")])
    refused = await registry.execute("zap", {"at": "x"})
    assert refused.content == "Error: `zap` was not run: not x"
    assert CALLS == [], "neither the tool nor the next hook runs"
    assert (await registry.execute("zap", {"at": "ok"})).ok


async def test_a_result_can_be_withheld(tmp_path: Path) -> None:
    registry = hooked(tmp_path, after_tool=[call("no")])
    result = await registry.execute("zap", {"at": "x"})
    assert CALLS == [{"ran": "x"}]
    assert result.content == "Error: `zap` has run, but its result is withheld: not x"


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (
            lambda: python(
                'import json, sys; p = json.load(sys.stdin); sys.exit(f\'no {p["arguments"]["at"]}\')'
            ),
            "no 猫",
        ),
        (lambda: python("import sys; sys.exit(2)"), "says no (exit code 2)"),
        (lambda: Hook(command=("no-such-program",)), "failed (ToolError)"),
        (lambda: Hook(command=("sleep", "600"), timeout=0.2), "was killed: it took more than 0.2 s"),
        (lambda: call("breaks"), "failed (ValueError)"),
        (lambda: call("quits"), "failed (SystemExit)"),
        (lambda: call("quits_too"), "failed (KeyboardInterrupt)"),
        (lambda: call("quits_in_a_task"), "failed (ToolError)"),
        (lambda: call("cancels"), "failed (CancelledError)"),
        (lambda: call("hangs", timeout=0.05), "failed (TimeoutError)"),
        (lambda: call("blocks", timeout=0.05), "failed (TimeoutError)"),
        (lambda: call("goes_on", timeout=0.05), "failed (TimeoutError)"),
        (lambda: call("answers_badly"), "failed (RuntimeError)"),
        (lambda: call("ends"), "failed (ToolError)"),
        (lambda: call("calls"), "not so"),
    ],
)
async def test_a_hook_that_refuses_breaks_or_hangs_blocks(
    tmp_path: Path, hook: Callable[[], Hook], reason: str
) -> None:
    """A guard that cannot answer has not said yes."""
    registry = hooked(tmp_path, before_tool=[hook()])
    async with asyncio.timeout(30):
        result = await registry.execute("zap", {"at": "猫"})
    assert reason in result.content
    assert CALLS == []


async def test_a_command_that_ends_well_lets_the_call_run_and_knows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = "import os, sys; sys.exit('leak' if 'sk-secret' in str(os.environ) else 0)"
    assert (await hooked(tmp_path, before_tool=[python(code)]).execute("zap", {})).ok


async def test_a_hook_changes_nothing_of_what_it_is_told_and_any_text_reaches_a_command(
    tmp_path: Path,
) -> None:
    payload = {"arguments": {"more": ["\ud83d"]}}
    hooks = Hooks({"before_turn": (call("changes"), python("import sys; sys.exit(0)"))}, tmp_path)
    assert await hooks.run("before_turn", payload) is None
    assert payload == {"arguments": {"more": ["\ud83d"]}}


async def test_a_hook_with_tools_is_told_of_those_only(tmp_path: Path) -> None:
    registry = hooked(tmp_path, before_tool=[call("breaks", tools=("other",))])
    assert (await registry.execute("zap", {})).ok


async def test_other_moments_have_their_hooks_too(tmp_path: Path) -> None:
    CALLS.clear()
    hooks = Hooks({"before_turn": (call("seen"), call("breaks"))}, tmp_path)
    assert "breaks` failed" in (await hooks.run("before_turn", {"text": "hi"}) or "")
    assert CALLS == [{"moment": "before_turn", "text": "hi"}]
    assert await hooks.run("after_compaction", {}) is None


async def test_a_hook_that_waits_is_cancelled_with_its_turn(tmp_path: Path) -> None:
    hooks = Hooks({"before_turn": (call("waits"),)}, tmp_path)
    WAITING.clear()
    turn = asyncio.create_task(hooks.run("before_turn", {}))
    await WAITING.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


async def waits(payload: dict[str, Any]) -> None:
    WAITING.set()
    await asyncio.Event().wait()


WAITING = asyncio.Event()


async def test_no_secret_is_in_the_reason_of_a_hook_or_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks({"before_turn": (call("leaks"),)}, tmp_path)
    ToolRegistry(hooks=hooks, hide=lambda text: text.replace("key-12345", "[secret]"))
    assert await hooks.run("before_turn", {}) == "not with [secret]"
    assert "failed (ValueError)" in (await hooks.run("before_turn", {"raises": True}) or "")
    assert "ValueError: [secret]" in caplog.text and "key-12345" not in caplog.text


HANGING_HOOK = """
import asyncio, sys
from pathlib import Path
from miniclaw.settings import Hook
from miniclaw.tools.hooks import Hooks

hooks = Hooks({"before_turn": (Hook(call="guard.py:check", timeout=0.05),)}, Path(sys.argv[1]))
print(asyncio.run(hooks.run("before_turn", {})))
"""


def test_a_hook_that_hangs_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    write(tmp_path, "guard.py", "import threading\ndef check(payload):\n    threading.Event().wait()\n")
    done = subprocess.run(
        [sys.executable, "-c", HANGING_HOOK, str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=True,
    )
    assert "failed (TimeoutError)" in done.stdout


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import sys\nsys.exit(1)\n", r"line 2: SystemExit"),
        ("raise KeyboardInterrupt\n", "line 1: KeyboardInterrupt"),
        ("import asyncio\nraise asyncio.CancelledError\n", "line 2: CancelledError"),
        ("def check(:\n", "line 1: SyntaxError"),
        ("raise ValueError('key-12345')\n", r"\(line 1: ValueError\)\.$"),
        (HANGS, "took more than 1 s"),
    ],
)
def test_a_broken_file_of_a_hook_is_a_config_error_at_the_start(
    tmp_path: Path, text: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.foreign.LOADING", 1.0)
    write(tmp_path, "guard.py", text)
    with pytest.raises(ConfigError, match=error):
        Hooks({"before_tool": (Hook(call="guard.py:check"),)}, tmp_path)


async def test_a_callable_may_stand_in_a_file_of_the_data_directory(tmp_path: Path) -> None:
    write(tmp_path, "guard.py", "def check(payload):\n    return 'by the file'\n")
    hooks = Hooks({"before_tool": (Hook(call="guard.py:check"),)}, tmp_path)
    assert await hooks.run("before_tool", {"tool": "zap"}) == "by the file"


@pytest.mark.parametrize(
    "name", ["nothing.py:check", "no_such_module:x", f"{__name__}:nothing", "x", f"{__name__}:CALLS"]
)
def test_a_callable_that_is_not_there_is_a_config_error_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="The hook"):
        Hooks({"before_tool": (Hook(call=name),)}, tmp_path)


def test_hooks_come_from_the_file_and_there_are_none_by_default(tmp_path: Path) -> None:
    assert load_settings(env={}, data_dir=str(tmp_path)).settings.hooks == {}
    write(
        tmp_path,
        "miniclaw.toml",
        '[[hooks.before_tool]]\ncommand = ["true"]\ntools = ["zap"]\ntimeout = 3\n'
        '[[hooks.after_turn]]\ncall = "guard.py:check"\n',
    )
    hooks = load_settings(env={}, data_dir=str(tmp_path)).settings.hooks
    assert hooks == {
        "before_tool": (Hook(command=("true",), tools=("zap",), timeout=3),),
        "after_turn": (Hook(call="guard.py:check"),),
    }
    for wrong in (
        "[[hooks.before_tool]]\n",
        '[[hooks.before_lunch]]\ncall = "a:b"\n',
        '[[hooks.before_tool]]\ncall = "a:b"\ncommand = ["x"]\n',
    ):
        write(tmp_path, "miniclaw.toml", wrong)
        with pytest.raises(ConfigError, match="hooks"):
            load_settings(env={}, data_dir=str(tmp_path))


async def test_a_hook_of_the_config_guards_a_running_gateway(tmp_path: Path) -> None:
    code = (
        "import json, sys; sys.exit('no writing on Sundays' if json.load(sys.stdin)['tool'] == 'zap' else 0)"
    )
    hooks = {"hooks": {"before_tool": [{"command": [sys.executable, "-c", code]}]}}

    async def call_zap(messages: list[Message]) -> LLMResponse:
        return zap("x")

    async with running_claw(tmp_path, ScriptedProvider([call_zap, told]), arguments=hooks) as claw:
        claw.registry.register(zap_tool)
        assert await say(claw) == "I was told: Error: `zap` was not run: no writing on Sundays"
