"""Our MCP client and servers that are programs: both wires, and whatever such a program does wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client import stdio
from miniclaw.mcp.client.host import Host
from tests.support.mcp_servers import (
    agree,
    children,
    client_of,
    descriptors,
    helpful,
    is_alive,
    program,
    text_of,
    until,
)

ROOT = Path(__file__).parent.parent
FIXTURE = [sys.executable, str(ROOT / "tests" / "interop" / "mcp_fixture_server.py"), "--stdio"]
FIXTURE_ENV = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubborn servers are ended sooner than in earnest."""
    monkeypatch.setattr(stdio, "EOF_SECONDS", 0.5)
    monkeypatch.setattr(stdio, "TERM_SECONDS", 0.2)


# --- both wires -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "version"), [("auto", "2026-07-28"), ("handshake", "2025-11-25")])
async def test_everything_that_a_server_offers_is_reached_on_both_wires(
    era: Any, version: str, tmp_path: Path
) -> None:
    steps: list[float] = []
    async with client_of(FIXTURE, env=FIXTURE_ENV, era=era, host=helpful(tmp_path)) as client:
        assert client.version == version and client.info["name"]
        names = {tool["name"] for tool in await client.list_tools()}
        assert {"test_simple_text", "test_elicitation", "test_sampling"} <= names
        assert "simple text" in text_of(await client.call_tool("test_simple_text"))
        await client.call_tool(
            "test_tool_with_progress", progress=lambda done, total, text: steps.append(done)
        )
        assert steps == sorted(steps) and len(steps) >= 3
        assert "accept" in text_of(await client.call_tool("test_elicitation", {"message": "?"}))
        assert "sampled" in text_of(await client.call_tool("test_sampling", {"prompt": "hello"}))
        assert (await client.call_tool("test_error_handling"))["isError"] is True
        uri = (await client.list_resources())[0]["uri"]
        assert (await client.read_resource(uri))["contents"]
        assert (await client.list_templates())[0]["uriTemplate"]
        prompt = next(one for one in await client.list_prompts() if not one.get("arguments"))
        assert (await client.get_prompt(prompt["name"]))["messages"]
        ref = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}
        assert isinstance(await client.complete(ref, "arg1", "t"), list)
        await client.ping()
        with pytest.raises(MCPError, match="no_such"):
            await client.call_tool("no_such")


async def test_a_changed_list_is_told_on_both_wires(tmp_path: Path) -> None:
    told: list[str] = []
    body = """
def call(message):
    send({"method": "notifications/tools/list_changed"})
    text(message, "ok")
"""
    async with client_of(program(tmp_path, body), changed=told.append) as client:
        await client.call_tool("say")
    assert told == ["tools"]


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("2024-11-05", True), ("2025-03-26", True), ("2025-06-18", True), ("1999", False)],
)
async def test_an_older_revision_is_taken_and_an_unknown_one_is_refused_with_both_named(
    version: str, is_taken: bool, tmp_path: Path
) -> None:
    body = f"def initialize(message): reply(message, protocolVersion={version!r}, capabilities={{}})"
    with contextlib.nullcontext() if is_taken else pytest.raises(MCPUnavailable, match="1999.*2025-11-25"):
        async with client_of(program(tmp_path, body)) as client:
            assert client.version == version


async def test_a_batch_is_read(tmp_path: Path) -> None:
    body = """
def call(message):
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}
    print(json.dumps([note, answer]), flush=True)
"""
    async with client_of(program(tmp_path, body)) as client:
        assert await client.call_tool("say") == {"content": []}


async def test_a_server_that_dies_of_the_modern_question_is_started_again_for_the_handshake(
    tmp_path: Path,
) -> None:
    body = "def discover(message): sys.exit(3)"
    async with client_of(program(tmp_path, body)) as client:
        assert client.version == "2025-11-25"
    with pytest.raises(MCPUnavailable, match="era"):
        async with client_of(program(tmp_path, body), era="modern"):
            raise AssertionError


@pytest.mark.parametrize("words", ["文件.txt", "a\u2028b\u2029c\x0b\x85d", "line\nline", "\ud83d\ude00"])
async def test_a_text_goes_there_and_back_unharmed(words: str, tmp_path: Path) -> None:
    body = "sys.stdout.reconfigure(encoding='utf-8')\n" + (
        "def send(message): print(json.dumps({'jsonrpc': '2.0', **message}, ensure_ascii=False), flush=True)"
    )
    async with client_of(program(tmp_path, body)) as client:
        expected = words.encode("utf-16", "surrogatepass").decode("utf-16")
        assert text_of(await client.call_tool("say", {"words": expected})) == expected


# --- what servers ask -------------------------------------------------------------------------------------

ASKS = """
asked = {}
def call(message):
    asked["call"] = message
    send({"id": 99, "method": "elicitation/create", "params": {"message": "?", "requestedSchema":
        {"type": "object", "properties": {"a": {"type": "string", "default": "d"}, "b": {"type": "boolean"}}}}})
def other(message):
    if message.get("id") == 99:
        text(asked["call"], json.dumps(message.get("result") or message["error"]["code"]))
"""


async def test_defaults_fill_what_the_user_left_out_and_the_time_to_think_is_not_the_calls(
    tmp_path: Path,
) -> None:
    thought = asyncio.Event()

    async def slow(params: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_later(0.5, thought.set)
        await thought.wait()
        return await agree(params)

    async with client_of(program(tmp_path, ASKS), call_seconds=0.3, host=Host(elicit=slow)) as client:
        answer = text_of(await client.call_tool("say"))
    assert answer == '{"action": "accept", "content": {"a": "d", "b": true}}'


async def test_a_question_that_is_taken_back_at_once_leaves_its_call_the_time_it_had(tmp_path: Path) -> None:
    body = """
def call(message):
    asks = {"jsonrpc": "2.0", "id": 99, "method": "elicitation/create", "params": {}}
    never = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}
    sys.stdout.write(json.dumps(asks) + "\\n" + json.dumps(never) + "\\n")
    sys.stdout.flush()
"""
    async with client_of(program(tmp_path, body), call_seconds=0.3, host=Host(elicit=agree)) as client:
        with pytest.raises(MCPUnavailable, match=r"within 0\.3 s"):
            await asyncio.wait_for(client.call_tool("say"), 10)


async def test_a_question_that_is_not_offered_is_refused_and_one_that_breaks_leaves_the_call_alive(
    tmp_path: Path,
) -> None:
    async def broken(params: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("boom")

    command = program(tmp_path, ASKS)
    async with client_of(command) as client:
        assert text_of(await client.call_tool("say")) == "-32601"
        assert text_of(await client.call_tool("say", host=Host(elicit=broken))) == "-32603"


# --- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", ["initialize", "discover"])
async def test_a_server_that_never_answers_is_given_up_after_the_start_limit_and_ended(
    silent: str, tmp_path: Path
) -> None:
    before = children()
    with pytest.raises(MCPUnavailable, match=r"within 0\.4 s of its start"):
        async with client_of(program(tmp_path, f"def {silent}(message): pass"), start_seconds=0.4):
            raise AssertionError
    assert children() == before


async def test_rubbish_banners_and_warnings_on_standard_output_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = r"""
import warnings
def begin():
    print("Starting server...\n\n2026-11-30 INFO ready", flush=True)
    sys.stdout.buffer.write(b"\xff\xfe\x00 \xef\xbb\xbf\n" + b"[1, 2\n" * 200); sys.stdout.flush()
def call(message):
    print("DEBUG a print in a tool")
    print('{"level": "info", "msg": "a log line that is JSON"}')
    text(message, "ok")
"""
    with caplog.at_level(logging.WARNING):
        async with client_of(program(tmp_path, body)) as client:
            assert text_of(await client.call_tool("say")) == "ok"
    assert [r.message for r in caplog.records if "prints what is no message" in r.message][1:]
    assert len(caplog.records) == 2


async def test_a_server_that_dies_in_a_call_fails_it_at_once_with_its_last_words(tmp_path: Path) -> None:
    body = """
def call(message):
    print("out of cheese", file=sys.stderr, flush=True)
    os._exit(7)
"""
    async with client_of(program(tmp_path, body)) as client:
        calls = [asyncio.ensure_future(client.call_tool("say")) for _ in range(3)]
        for call in calls:
            with pytest.raises(MCPUnavailable, match="exit code 7.*out of cheese"):
                await call
        with pytest.raises(MCPUnavailable):
            await client.list_tools()
        assert "exit code 7" in str(await client.ended())


async def test_what_was_answered_right_before_the_end_still_counts(tmp_path: Path) -> None:
    body = "def call(message):\n    text(message, 'last')\n    os._exit(0)"
    async with client_of(program(tmp_path, body)) as client:
        assert text_of(await client.call_tool("say")) == "last"


async def test_a_flood_on_standard_error_stops_nothing_and_is_not_kept(tmp_path: Path) -> None:
    body = """
def call(message):
    for _ in range(100):
        os.write(2, b"x" * 100_000)
    text(message, "ok")
"""
    link: list[Any] = []
    client = client_of(program(tmp_path, body))
    async with client:
        link.append(client.link)
        assert text_of(await client.call_tool("say")) == "ok"
        assert len(link[0]._errors) <= stdio.KEPT_STDERR


async def test_twenty_megabytes_are_read_and_what_is_over_the_limit_fails_only_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "def call(message): text(message, 'x' * message['params']['arguments'].get('size', 1))"
    async with client_of(program(tmp_path, body)) as client:
        assert len(text_of(await client.call_tool("say", {"size": 20_000_000}))) == 20_000_000
    monkeypatch.setattr(stdio, "MAX_LINE", 100_000)
    async with client_of(program(tmp_path, body)) as client:
        with pytest.raises(MCPUnavailable, match="more than 100,000 bytes"):
            await client.call_tool("say", {"size": 200_000})
        assert text_of(await client.call_tool("say")) == "x"


@pytest.mark.parametrize("cursor", ["'again'", "str(time.monotonic_ns())"])
async def test_a_list_without_an_end_is_cut(
    cursor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.mcp.client.client.MAX_PAGES", 50)
    body = f"def tools(message): reply(message, tools=[{{'name': 'say'}}], nextCursor={cursor})"
    async with client_of(program(tmp_path, body)) as client:
        assert len(await client.list_tools()) == (2 if "again" in cursor else 50)


async def test_an_empty_cursor_is_one_too_and_null_is_the_end(tmp_path: Path) -> None:
    body = """
def tools(message):
    more = "cursor" not in message.get("params", {})
    reply(message, tools=[{"name": "say"}], nextCursor="" if more else None)
"""
    async with client_of(program(tmp_path, body)) as client:
        assert len(await client.list_tools()) == 2


async def test_second_answers_late_answers_and_strange_ids_disturb_no_other_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = """
late = []
def call(message):
    words = message["params"]["arguments"].get("words")
    if words == "late":
        late.append(message)
        return
    for one in late:
        text(one, "late")
    for strange in (None, 4711, "server-error", [1], 1.5):
        send({"id": strange, "result": {}})
    send({"error": {"code": -32600, "message": "no id at all"}})
    answer = {"jsonrpc": "2.0", "id": str(message["id"])}
    twice = [{**answer, "result": {"content": [{"type": "text", "text": one}]}} for one in (words, "twice")]
    os.write(1, "".join(json.dumps(one) + "\\n" for one in twice).encode())
def other(message):
    if message["method"] == "notifications/cancelled":
        late.append(late[0])
"""
    async with client_of(program(tmp_path, body)) as client:
        task = asyncio.ensure_future(client.call_tool("say", {"words": "late"}))
        await client.list_tools()  # the call is there
        task.cancel()
        await asyncio.wait({task})
        for words in ("one", "two"):
            assert text_of(await client.call_tool("say", {"words": words})) == words
    assert not caplog.records


async def test_a_call_that_takes_too_long_is_given_up_told_to_the_server_and_prolonged_by_progress(
    tmp_path: Path,
) -> None:
    body = """
told = []
def call(message):
    words = message["params"]["arguments"]["words"]
    if words == "told":
        text(message, str(len(told)))
    if words == "steps":
        for step in range(4):
            time.sleep(0.2)
            token = message["params"]["_meta"]["progressToken"]
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
        text(message, "ok")
def other(message):
    if message["method"] == "notifications/cancelled":
        told.append(message)
"""
    async with client_of(program(tmp_path, body), call_seconds=0.5) as client:
        with pytest.raises(MCPUnavailable, match=r"within 0\.5 s"):
            await client.call_tool("say", {"words": "never"})
        await client.list_tools()  # meanwhile it is told
        assert text_of(await client.call_tool("say", {"words": "told"})) == "1"
        steps: list[float] = []
        result = await client.call_tool(
            "say", {"words": "steps"}, progress=lambda *step: steps.append(step[0])
        )
        assert text_of(result) == "ok" and steps == [0, 1, 2, 3]


# --- programs ---------------------------------------------------------------------------------------------


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MCPUnavailable, match="`no-such-program` was not found"):
        async with client_of(["no-such-program"]):
            raise AssertionError


async def test_a_server_gets_no_secret_of_ours_and_what_is_given_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    body = "def call(message): text(message, json.dumps(dict(os.environ)))"
    async with client_of(program(tmp_path, body), env={"GIVEN": "yes"}) as client:
        seen = text_of(await client.call_tool("say"))
    assert "secret" not in seen and '"GIVEN": "yes"' in seen and '"PATH"' in seen


STUBBORN = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-I", "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
def call(message):
    text(message, f"{os.getpid()} {child.pid}")
    sys.stdout.close()
    time.sleep(600)
"""


async def test_a_server_that_will_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    async with client_of(program(tmp_path, STUBBORN)) as client:
        pids = [int(pid) for pid in text_of(await client.call_tool("say")).split()]
        assert all(map(is_alive, pids))
    await until(lambda: not any(map(is_alive, pids)))


async def test_after_a_kill_9_of_the_gateway_no_server_is_left(tmp_path: Path) -> None:
    command = program(tmp_path, STUBBORN)
    code = f"""
import asyncio
from tests.support.mcp_servers import client_of, text_of
async def main():
    async with client_of({command!r}) as client:
        print(text_of(await client.call_tool("say")), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE, env=env, cwd=ROOT
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in (await owner.stdout.readline()).split()]
    assert len(pids) == 2 and all(map(is_alive, pids))
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    await until(lambda: not any(map(is_alive, pids)))
    assert owner.returncode == -signal.SIGKILL


async def test_twenty_rounds_leave_no_task_process_or_descriptor(tmp_path: Path) -> None:
    command = program(tmp_path)
    async with client_of(command) as client:  # what is made once is made
        await client.list_tools()
    before = children(), len(asyncio.all_tasks()), descriptors()
    for _ in range(20):
        async with client_of(command) as client:
            await client.call_tool("say")
    await until(lambda: (children(), len(asyncio.all_tasks()), descriptors()) == before)
    assert children() == before[0]


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    before = children()
    client = client_of(program(tmp_path, "def discover(message): pass"))
    task = asyncio.ensure_future(client.__aenter__())
    await until(lambda: children() != before)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == before
