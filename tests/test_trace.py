"""The trace: a record a call, in a file a turn, without secrets, kept for some days, and shown by a command."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from miniclaw.agent.masking import mask, secrets_of
from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.agent.trace import FLUSH_RECORDS, MOST_BUFFERED, TraceStore
from miniclaw.cli import main
from miniclaw.memory.context import PERSONA
from miniclaw.memory.tokens import estimate_tokens
from miniclaw.settings import GatewaySettings, ModelSettings, Settings, TraceSettings
from tests.support.agent import Zap, outcome, say, send, zap
from tests.support.claw import TOKEN, running_claw
from tests.support.core import FakeClock
from tests.test_limits import trace_of

DONE = LLMResponse(text="done")
DAY = 86_400.0


def store(directory: Path, clock: FakeClock, **settings: Any) -> TraceStore:
    return TraceStore(directory, TraceSettings(**settings), secrets={'odd"secret\\'}, clock=clock)


def files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.jsonl"))


# --- what is recorded -------------------------------------------------------------------------------------


async def test_each_call_leaves_a_record_with_what_it_was_for_and_what_it_took(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), DONE])) as claw:
        claw.registry.register(Zap("read"))
        receipt = await send(claw, "hello")
        await outcome(claw, receipt.turn_id)
        prompt, asked, ran, answered = await trace_of(claw)
        assert len(files(tmp_path / "traces")) == 1
    assert [layer["name"] for layer in prompt["layers"]][0] == "persona"
    for record in (prompt, asked, ran, answered):
        assert (record["turn_id"], record["session_id"]) == (receipt.turn_id, receipt.session_id)
        assert (record["user_id"], record["attempt"], record["purpose"]) == ("owner", 1, "answer")
    assert asked["prompt"] == answered["prompt"] == prompt["prompt"] and len(prompt["prompt"]) == 8
    assert (asked["model"], asked["asked_for"], asked["error"], asked["cost"]) == (
        "scripted",
        ["zap"],
        None,
        "unknown",
    )
    assert (ran["name"], ran["arguments"], ran["ok"], ran["result"]) == ("zap", {"at": "a"}, True, "zapped a")


async def test_the_version_of_a_prompt_is_that_of_what_stays_the_same_from_turn_to_turn(
    tmp_path: Path,
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([DONE] * 3)) as claw:
        await say(claw, "tea")
        await claw.memory.save("owner", "tea is drunk from cups", source="user")
        await say(claw, "tea")
        first, second = (r for r in await trace_of(claw) if r["kind"] == "prompt")
    assert len(second["layers"]) > len(first["layers"]) and first["prompt"] == second["prompt"]
    arguments = {"agent.system_prompt": "You are a pirate."}
    async with running_claw(tmp_path / "2", ScriptedProvider([DONE]), arguments=arguments) as claw:
        await say(claw, "tea")
        (other,) = (r for r in await trace_of(claw) if r["kind"] == "prompt")
    assert other["prompt"] != first["prompt"]


async def test_each_model_call_leaves_a_line_in_the_log_with_purpose_session_and_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """HKUDS/nanobot#5266: a million tokens in two hours, and nothing that said what they were for."""
    with caplog.at_level(logging.INFO, "miniclaw.agent.trace"):
        async with running_claw(
            tmp_path, ScriptedProvider([DONE]), arguments={"trace.enabled": False}
        ) as claw:
            receipt = await send(claw)
            await outcome(claw, receipt.turn_id)
            assert await trace_of(claw) == []
    (line,) = [record.getMessage() for record in caplog.records if record.name == "miniclaw.agent.trace"]
    assert line.startswith(f"model scripted for answer in session {receipt.session_id}: ")
    assert " in, " in line and " out, " in line


async def test_secrets_are_masked_in_arguments_results_and_prompts(tmp_path: Path) -> None:
    async def leak() -> str:
        return f"the token is {TOKEN} and sk-abcdefghijklmnop1234"

    call = ToolCall.of("c1", "leak", {"password": "hunter2", "at": "Bearer abcdef.123456"})
    script = [LLMResponse(tool_calls=(call,)), DONE]
    async with running_claw(tmp_path, ScriptedProvider(script)) as claw:
        tool = Zap("read", leak, "leak")
        tool.parameters = {"type": "object", "properties": {}}
        claw.registry.register(tool)
        await say(claw, f"use {TOKEN}")
        await claw.traces.close()
    (path,) = (tmp_path / "traces").rglob("*.jsonl")
    text = path.read_text(encoding="utf-8")
    for secret in (TOKEN, "sk-abcdefghijklmnop1234", "hunter2", "abcdef.123456"):
        assert secret not in text
    assert text.count("[secret]") >= 4 and all(json.loads(line) for line in text.splitlines())


WORDS = st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from('\n\t"\\')


@given(st.text(WORDS, min_size=8, max_size=20), st.text(WORDS, max_size=20))
def test_a_known_secret_is_masked_however_json_writes_it_and_the_line_stays_json(
    secret: str, rest: str
) -> None:
    line = json.dumps({"text": f"{rest}{secret}{rest}", "api_key": secret}, ensure_ascii=False)
    masked = mask(line, [json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1]])
    assert secret not in str(json.loads(masked)) or secret in "[secret]" or set(secret) <= set("[secret]")


def test_a_short_word_is_no_secret_and_the_settings_know_theirs() -> None:
    settings = Settings(
        model=ModelSettings(api_key=SecretStr("local")),
        gateway=GatewaySettings(token=SecretStr("one-long-token other-long-token")),
    )
    assert secrets_of(settings, "more-of-them", "short") == {
        "one-long-token",
        "other-long-token",
        "more-of-them",
    }


# --- how it is kept ---------------------------------------------------------------------------------------


async def test_records_are_written_when_the_store_is_closed_and_a_secret_with_quotes_is_masked(
    tmp_path: Path,
) -> None:
    traces = store(tmp_path, FakeClock())
    traces.add("turn_a", {"n": 1})
    traces.add("turn_b", {"n": 2, "what": 'an odd"secret\\ here'})
    traces.add("turn_a", {"n": 3})
    assert files(tmp_path) == [], "nothing is written on the way of a turn"
    await traces.close()
    await traces.close()
    assert files(tmp_path) == ["2027-01-15/turn_a.jsonl", "2027-01-15/turn_b.jsonl"]
    lines = (tmp_path / "2027-01-15/turn_a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 3]
    assert "an [secret] here" in (tmp_path / "2027-01-15/turn_b.jsonl").read_text(encoding="utf-8")


async def test_days_beyond_those_to_keep_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    clock = FakeClock()
    traces = store(tmp_path, clock, keep_days=2)
    (tmp_path / "notes").mkdir()
    for number in range(4):
        traces.add(f"turn_{number}", {"n": number})
        await traces.close()
        clock.advance(DAY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2027-01-17", "2027-01-18", "notes"]


async def test_what_waits_is_bounded_and_a_disk_that_refuses_costs_only_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "traces").write_text("a file where the directory should be", encoding="utf-8")
    traces = store(tmp_path / "traces", FakeClock())
    for _ in range(MOST_BUFFERED + FLUSH_RECORDS + 5):
        traces.add("turn_a", {})
    assert len(traces._waiting) == MOST_BUFFERED  # the first ones are being written
    with caplog.at_level(logging.WARNING):
        await traces.close()
    assert "the trace could not be written" in caplog.text


# --- how it is shown --------------------------------------------------------------------------------------


async def recorded(tmp_path: Path) -> str:
    """Two turns; the id of the first."""
    prices = {"prices": {"scripted": {"input": 3, "output": 3}}}
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), DONE, DONE]), arguments=prices) as claw:
        claw.registry.register(Zap("read"))
        receipt = await send(claw, "hello")
        await outcome(claw, receipt.turn_id)
        await claw.traces.close()
        await say(claw, "again")
    return receipt.turn_id or ""


async def test_the_command_shows_a_turn_call_by_call_with_its_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn_id = await recorded(tmp_path)
    assert main(["trace", turn_id, "--data-dir", str(tmp_path), "--prompt"]) == 0
    output = capsys.readouterr().out
    head, _, first, ran, _, total = output.splitlines()[:6]
    assert head.startswith(f"turn {turn_id} of session ses_")
    assert first.split()[:3] == ["model", "scripted", "answer"] and first.endswith("zap")
    assert ran.split()[:2] == ["tool", "zap"] and ran.endswith('ok  {"at": "a"}')
    assert total.startswith("total  2 model calls") and "unknown" not in total
    persona = estimate_tokens(PERSONA)
    assert f"## persona (about {persona} tokens)\nYou are miniClaw" in output
    sizes = re.search(
        r"# prompt \w{8} \(answer\): about (\d+) tokens \+ about (\d+) of the tools' schemas", output
    )
    assert sizes is not None and int(sizes[1]) > persona and int(sizes[2]) > 100


async def test_the_command_shows_the_newest_turn_by_itself_and_records_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn_id = await recorded(tmp_path)
    (path,) = [path for path in (tmp_path / "traces").rglob("*.jsonl") if path.stem != turn_id]
    with path.open("a", encoding="utf-8") as file:
        file.write('{"cut by a cra')
    assert main(["trace", "--json", "--data-dir", str(tmp_path)]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["turn_id"] for record in records} == {path.stem}
    assert [record["kind"] for record in records] == ["prompt", "model"]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b"])
async def test_what_ends_a_line_elsewhere_ends_no_record(
    tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([zap(f"a{mark}b"), DONE])) as claw:
        claw.registry.register(Zap("read"))
        await say(claw, f"hello{mark}you")
        await claw.traces.close()
    assert main(["trace", "--json", "--data-dir", str(tmp_path)]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]
    assert [record["kind"] for record in records] == ["prompt", "model", "tool", "model"]


@pytest.mark.parametrize("turn", [[], ["turn_nothing"], ["../../etc/passwd"]])
def test_a_turn_without_a_trace_is_an_error_in_one_sentence(
    tmp_path: Path, turn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *turn, "--data-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("miniclaw: ") and error.count("\n") == 1


async def test_a_deleted_session_takes_the_traces_of_its_turns_with_it(tmp_path: Path) -> None:
    provider = ScriptedProvider([LLMResponse(text="one"), LLMResponse(text="two")])
    async with running_claw(tmp_path, provider) as claw:
        kept, gone = [await send(claw), await send(claw)]
        for receipt in (kept, gone):
            await outcome(claw, receipt.turn_id)
        assert gone.session_id is not None and gone.session_id != kept.session_id
        await claw.sessions.delete(gone.session_id)
    assert (
        files(tmp_path / "traces")[0].endswith(f"/{kept.turn_id}.jsonl")
        and len(files(tmp_path / "traces")) == 1
    )
