"""`miniclaw chat` for a person at a terminal: rendered Markdown, the state, questions, local commands."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.cli.local import needs_yes
from miniclaw.cli.prompt import WordCompleter
from miniclaw.cli.rich_screen import Blocks, RichScreen
from miniclaw.cli.screen import Screen, State
from miniclaw.gateway.command_table import read_command
from miniclaw.gateway.protocol import CommandPayload, new_id
from miniclaw.tools.changes import changes_of
from tests.support.agent import eventually, outcome, send
from tests.support.claw import TOKEN, running_claw, server_process
from tests.support.core import command_message
from tests.support.model import FakeModel, Message, Reply
from tests.support.terminal import Terminal
from tests.test_cli import ENV

CLEVER = {**ENV, "TERM": "xterm-256color"}
PIECES = st.sampled_from(
    ["a", "\n", "\n\n", "```\n", "~~~", "- x", "1. y", "    code", "| a |", "中", " ", "# h\n"]
)


def plain(output: str) -> str:
    """What was written, without the control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)


@given(st.lists(PIECES, max_size=40), st.lists(st.integers(0, 60), max_size=8))
def test_blocks_joined_are_the_text_however_it_arrives(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    whole, parts = Blocks(), Blocks()
    expected = whole.feed(text)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    found = [block for a, b in zip(places, places[1:], strict=False) for block in parts.feed(text[a:b])]
    assert found == expected
    assert "".join(found) + parts.open == text
    assert all(block.strip() for block in found)


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("one\n\ntwo\n", ["one\n\n"]),
        ("```\na\n\nb\n```\n\nend\n", ["```\na\n\nb\n```\n\n"]),
        ("- a\n\n- b\n\n  more\n\nend\n", ["- a\n\n- b\n\n  more\n\n"]),
        ("| a |\n| - |\n| 1 |\n", []),
    ],
)
def test_a_block_ends_at_a_blank_line_but_not_inside_code_or_a_list(text: str, finished: list[str]) -> None:
    assert Blocks().feed(text) == finished


def test_a_reply_is_rendered_within_the_columns_and_wide_characters_count_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = RichScreen()
    text = "**重点**：" + "中文宽字符" * 20 + "\n\n| 城市 | 天气 |\n| --- | --- |\n| 杭州 | 晴 |\n\n`x`"
    for character in text:
        screen.show("text.delta", {"text": character})
    screen.show("turn.finished", {"text": text})
    shown = plain(capsys.readouterr().out)
    assert "**" not in shown and "| ---" not in shown
    assert "重点" in shown and "杭州" in shown
    assert max(map(cell_len, shown.splitlines())) <= 40


def test_a_write_is_shown_as_the_difference_that_it_makes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    lines = changes_of("write_file", {"path": "a.txt", "content": "one\nthree\n"}, tmp_path)
    assert [line for line in lines if line[0] in "+-"] == ["-two", "+three"]
    edit = {"path": "a.txt", "old_text": "x", "new_text": "y"}
    assert changes_of("edit_file", edit, tmp_path)[1:] == ["-x", "+y"]
    assert changes_of("write_file", {"path": "../a.txt", "content": "new"}, tmp_path)[1:] == ["+new"]
    assert changes_of("http_request", {"url": "x"}, tmp_path) == []
    long = changes_of("write_file", {"path": "b", "content": "x\n" * 500}, tmp_path)
    assert len(long) == 41 and long[-1] == "… 461"
    lines = [f"line {n}" for n in range(9000)]
    (tmp_path / "big").write_text("\n".join(lines), encoding="utf-8")
    lines[8000] = "x" * 9999
    (header, *shown) = changes_of("write_file", {"path": "big", "content": "\n".join(lines)}, tmp_path)
    assert header == "@@ 7999 @@" and shown[2] == "-line 8000" and len(shown) == 6 and len(shown[3]) == 301
    shown = changes_of("write_file", {"path": "big", "content": "z\n" * 3000}, tmp_path)
    assert shown[1] == "-line 0" and "… 9000 → 3000" in shown and shown[-2] == "+z" and len(shown) == 41


def test_commands_and_file_names_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    (tmp_path / "说明.txt").touch()
    monkeypatch.chdir(tmp_path)
    completer = WordCompleter([("model", ""), ("memories", ""), ("new", "")])

    def completed(text: str) -> list[str]:
        found = completer.get_completions(Document(text, len(text)), CompleteEvent())
        return [completion.text for completion in found]

    assert completed("/m") == ["/model", "/memories"]
    assert completed("read ./说") == ["明.txt"]
    assert completed("/model ./") == ["说明.txt"]
    assert completed("hello") == []


def test_costs_of_turns_add_up_and_one_without_a_price_makes_the_sum_unknown(tmp_path: Path) -> None:
    state = State(tmp_path, session_id="ses_1")
    state.count({"model": "m", "input_tokens": 10, "output_tokens": 2, "cost": 0.25})
    state.count({"input_tokens": 1, "output_tokens": 1, "cost": 0.5})
    assert state.line() == "idle · m · ↑11 ↓3 · $0.7500 · ses_1"
    state.count({"cost": "unknown"})
    state.count({"cost": 1.0})
    assert state.total_cost_usd is None


def test_a_person_sees_where_they_are_is_asked_before_clearing_and_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    out = tmp_path / "talk.md"
    with Terminal("chat", "--data-dir", str(tmp_path / "d"), env=CLEVER, columns=40) as terminal:
        terminal.wait_for("workspace:")
        terminal.wait_for("tools:")
        terminal.wait_for("›")
        terminal.type("37*43 等于多少\r")
        terminal.wait_for("1591\x1b[0m")  # bold: rendered
        terminal.wait_for("›")
        terminal.type("/memories clear\r")
        terminal.wait_for("Forget all memories? [y/n]")
        terminal.type("n\r")
        terminal.wait_for("›")
        terminal.type(f"/export {out}\r")
        terminal.wait_for("(2)")
        terminal.type("/trace\r")
        terminal.wait_for("calculator")
        terminal.wait_for("›")
        terminal.type("exit\r")
        assert terminal.exit_code() == 0
    assert "37*43 等于多少" in out.read_text(encoding="utf-8")
    with Terminal("chat", "--resume", "--data-dir", str(tmp_path / "d"), env=CLEVER, columns=40) as terminal:
        terminal.wait_for("idle")  # below the prompt
        terminal.type("\x1b[A")  # up: what was said in this session before
        terminal.wait_for("37*43")
        terminal.type("\x15/stats\r")
        terminal.wait_for("ses_")
        terminal.wait_for("›")
        terminal.type("\x04")
        assert terminal.exit_code() == 0


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_question_takes_commands_and_ends_when_it_is_settled_elsewhere(tmp_path: Path, term: str) -> None:
    options = ("--data-dir", str(tmp_path / "d"))
    with Terminal("chat", *options, env={**CLEVER, "TERM": term}) as terminal:
        terminal.wait_for("›")
        terminal.type("记住我住在杭州\r")
        terminal.wait_for("›")
        terminal.type("忘记我住在杭州\r")
        terminal.wait_for("[waiting_approval]")
        terminal.wait_for("Allow?")
        terminal.type("/approve apr_other always\r")
        terminal.wait_for("Allow?")
        terminal.type("/cancel\r")
        terminal.wait_for("(stopped)")
        terminal.wait_for("›")
        terminal.type("忘记我住在杭州\r")
        terminal.wait_for("Allow?")
        assert "Denied" in chat("--resume", *options, text="/deny\n").stdout
        terminal.wait_for("denied elsewhere")
        terminal.wait_for("›")
        terminal.type("忘记我住在杭州\r")
        terminal.wait_for("Allow?")
        with Terminal("chat", "--resume", *options, env={**CLEVER, "TERM": term}) as other:
            other.wait_for("waiting_approval")  # it goes on with the turn that runs
            other.wait_for("Allow?")
            other.type("n\r")
            other.wait_for("idle")
            other.type("exit\r")
            assert other.exit_code() == 0
        terminal.wait_for("denied elsewhere")
        terminal.wait_for("›")
        terminal.type("忘记我住在杭州\r")
        terminal.wait_for("Allow?")
        terminal.type("/approve session\r")
        terminal.wait_for("已经删除")
        terminal.wait_for("›")
        terminal.type("!clear  all\r")
        terminal.wait_for("Clear this conversation?")
        terminal.type("s\r")  # only yes is yes
        terminal.wait_for("›")
        terminal.type("/exit\r")
        assert terminal.exit_code() == 0
    assert "no longer sees" not in terminal.output


def test_what_clears_is_asked_for_however_it_is_typed() -> None:
    typed = ["/clear", "!clear", "/clear all", "/memories  clear", "!memories clear"]
    assert all(needs_yes(command) for text in typed if (command := read_command(text)))
    assert needs_yes(CommandPayload(name="memories", args={"query": "clear up"})) is None


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("Y", "once"),
        ("是", "once"),
        ("a", "always"),
        ("", "deny"),
        ("no", "deny"),
        (None, "deny"),
        ("/approve", "once"),
        ("/approve session", "session"),
        ("!approve id always", "always"),
        ("/approve apr_id", "once"),
        ("/approve other", None),
        ("/approve id forever", None),
        ("/deny", "deny"),
        ("/deny other", None),
        ("/cancel", "cancel"),
        ("/sessions", None),
        ("yess", None),
    ],
)
def test_an_answer_to_a_question_means_one_thing_or_is_asked_for_again(
    answer: str | None, decision: str | None
) -> None:
    assert Screen.decision(answer, {"short_id": "id", "approval_id": "apr_id"}) == decision


@pytest.mark.parametrize(
    ("answer", "filled"),
    [
        ("Ann", "Ann"),
        ("name=Ann", "name=Ann"),
        ("/approve id name=Ann", "name=Ann"),
        ("/approve id", ""),
        ("y", "y"),
        *((no, None) for no in (None, "", "n", "不", "/deny", "/cancel", "/approve other name=Ann")),
    ],
)
def test_what_is_typed_at_a_form_fills_it_in_unless_it_is_a_no(
    answer: str | None, filled: str | None
) -> None:
    form = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    asked = {"call_id": "ask_1", "arguments": {"form": form}, "short_id": "id", "approval_id": "apr_id"}
    assert Screen.filled(answer, asked) == filled
    assert Screen.filled(answer, {**asked, "call_id": "call_1"}) is None


def chat(*arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "miniclaw", "chat", *arguments]
    return subprocess.run(
        command, input=text, env={**ENV}, capture_output=True, encoding="utf-8", timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("term", "shown"),
    [("xterm", ["… 1 s · running", "idle · fake-chat"]), ("dumb", ["[running]", "[idle · fake-chat"])],
)
async def test_a_model_that_is_silent_is_seen_to_be_at_work(
    tmp_path: Path, term: str, shown: list[str]
) -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Event()

    async def script(messages: list[Message], number: int) -> Reply:
        await seen.wait()
        return {"text": "at last"}

    def talk() -> None:
        env = {
            **CLEVER,
            "TERM": term,
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": "fake-chat",
        }
        with Terminal("chat", "--data-dir", str(tmp_path), env=env, columns=40) as terminal:
            terminal.wait_for("›")
            terminal.type("go\r")
            terminal.wait_for(shown[0])
            loop.call_soon_threadsafe(seen.set)
            terminal.wait_for("at last")
            terminal.wait_for(shown[1])
            terminal.type("/compact\r")
            terminal.wait_for("running")
            terminal.wait_for(" messages were summarised")
            terminal.type("exit\r")
            assert terminal.exit_code() == 0

    async with FakeModel(script) as model:
        await asyncio.to_thread(talk)


async def test_a_terminal_that_is_attached_shows_the_same_as_one_with_a_gateway_of_its_own(
    tmp_path: Path,
) -> None:
    data, place = tmp_path / "d", tmp_path / "d" / "users" / "owner" / "workspace"
    place.mkdir(parents=True)
    (place / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    write = [("write_file", {"path": "a.txt", "content": "one\nthree\n"})]

    def script(messages: list[Message], number: int) -> Reply:
        return {"text": "written"} if messages[-1]["role"] == "tool" else {"calls": write}

    def talk(*arguments: str) -> list[str]:
        env = {
            **CLEVER,
            "TERM": "dumb",
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": "fake-chat",
        }
        with Terminal("chat", *arguments, env={**env, "MINICLAW_TOKEN": TOKEN}, columns=200) as terminal:
            terminal.wait_for("›")
            terminal.type("go\r")
            terminal.wait_for("Allow?")
            terminal.type("n\r")
            terminal.wait_for("written")
            terminal.wait_for("›")
            terminal.type("/trace\r")
            terminal.wait_for("total  2 model calls")
            terminal.type("exit\r")
            assert terminal.exit_code() == 0
        assert "\x1b" not in terminal.output
        return [line.strip() for line in terminal.output.splitlines()]

    async with FakeModel(script) as model:
        own = await asyncio.to_thread(talk, "--data-dir", str(data))
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "fake-chat"}
        async with server_process(data, env=env) as server:
            url = f"ws://127.0.0.1:{server.gateway_port}/"
            attached = await asyncio.to_thread(talk, "--data-dir", str(data))
            far = await asyncio.to_thread(talk, "--data-dir", str(tmp_path / "other"), "--connect", url)
    shown = [f"workspace: {place}", f"memory: {data}/users/owner/memory (0)", "-two", "+three"]
    for lines in (own, attached, far):
        assert "fake-chat" in lines[0] and [line for line in lines if line in shown] == shown
    assert f"gateway: {url}" in attached and f"gateway: {url}" in far


async def test_a_user_is_told_of_their_own_places_and_turns_alone(tmp_path: Path) -> None:
    async with running_claw(tmp_path) as claw:
        for user in ("bob", "ann"):
            await claw.identities.add(user)
        turn = (await send(claw, "1+1", user_id="bob")).turn_id
        await outcome(claw, turn)

        async def command(user: str, name: str, **args: str) -> dict[str, Any]:
            inbound = command_message(name, msg_id=new_id("msg"), user_id=user)
            payload = CommandPayload(name=name, args=args)
            receipt = await claw.router.route(inbound.model_copy(update={"payload": payload}))
            return receipt.result or {"code": receipt.code}

        assert (await command("bob", "trace", turn_id=str(turn)))["records"][0]["kind"] == "model"
        for user, wanted in (("ann", str(turn)), ("owner", str(turn)), ("bob", "*"), ("bob", "../x")):
            assert await command(user, "trace", turn_id=wanted) == {"code": "turn_not_found"}
        told = await command("bob", "about")
        assert (told["workspace"], told["memory"]) == ("users/bob/workspace", "users/bob/memory")
        assert (await command("owner", "about"))["memory"] == str(tmp_path / "users/owner/memory")


def test_piped_lines_with_json_are_events_a_line(tmp_path: Path) -> None:
    done = chat("--json", "--data-dir", str(tmp_path), text="37*43 等于多少\n/stats\n")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    names = [event["name"] for event in events]
    assert names[0] == "turn.started" and names[-2:] == ["command.result", "note"]
    assert {"tool.started", "tool.finished", "text.delta"} < set(names)
    (end,) = [event for event in events if event["name"] == "turn.finished"]
    assert "1591" in end["data"]["text"]
    assert end["seq"] == len(names) - 2


async def test_the_file_tools_of_a_user_work_where_the_settings_say(tmp_path: Path) -> None:
    place = tmp_path / "项目"
    place.mkdir()
    (place / "读我.txt").write_text("hello", encoding="utf-8")
    calls = [ToolCall.of("call_1", "list_files", {}), ToolCall.of("call_2", "read_file", {"path": "../d"})]
    model = ScriptedProvider([LLMResponse(tool_calls=tuple(calls)), LLMResponse(text="done")])
    arguments = {"users.owner.workspace": str(place)}
    async with running_claw(tmp_path / "d", model, arguments=arguments) as claw:
        await send(claw)
        await eventually(lambda: len(model.requests) == 2)
    results = {message["tool_call_id"]: message["content"] for message in model.requests[1][-2:]}
    assert "读我.txt" in results["call_1"] and "not allowed" in results["call_2"]
    assert not (tmp_path / "d" / "users" / "owner" / "workspace").exists()


def test_a_workspace_that_is_no_directory_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = chat(
        "--workspace", str(tmp_path / "no"), "--data-dir", str(tmp_path / "d"), "--once", "hi", text=""
    )
    assert done.returncode == 1 and "there is no directory" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


async def test_what_others_wrote_commands_no_terminal_wherever_it_is_shown(tmp_path: Path) -> None:
    hostile = "\x1b]52;c;cHduZWQ=\x07 \x9b31m"
    write = [("write_file", {"path": "a\x9b31m.txt", "content": f"{hostile} told"})]

    def script(messages: list[Message], number: int) -> Reply:
        return {"text": "over"} if messages[-1]["role"] == "tool" else {"calls": write}

    def talk() -> None:
        named = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "fake-chat"}
        assert "2" in chat("--data-dir", str(tmp_path), text="1+1 \x1b]52;c;x\x07 \x9b31mtitled\n").stdout
        env = {**CLEVER, **named}
        with Terminal("chat", "--resume", "--data-dir", str(tmp_path), env=env, columns=200) as terminal:
            terminal.wait_for("›")
            terminal.type("go\r")
            terminal.wait_for("Allow?")
            terminal.type("n\r")
            terminal.wait_for("over")
            for command, end in (("history", "assistant: over"), ("sessions", "titled"), ("trace", "total ")):
                terminal.wait_for("idle")
                terminal.type(f"/{command}\r")
                terminal.wait_for(end)
            terminal.type("exit\r")
            assert terminal.exit_code() == 0
        shown = terminal.output
        assert "]52;c;" in shown and "31mtitled" in shown and "a31m.txt" in shown
        assert "\x1b]52" not in shown and "\x9b" not in shown
        assert "\x1b[" in shown  # what is ours still has its colours

    async with FakeModel(script) as model:
        await asyncio.to_thread(talk)
