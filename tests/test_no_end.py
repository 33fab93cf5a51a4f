"""What has no end, or far too many parts, ends within its bounds; what is damaged harms nothing beside it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from miniclaw.agent import sse
from miniclaw.agent.answer import AnswerBuilder
from miniclaw.agent.demo import DemoProvider
from miniclaw.agent.failures import explain
from miniclaw.agent.masking import mask
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.overflow import overflow_in
from miniclaw.agent.providers import MOST_CALLS, MOST_CHARS, LLMChunk, LLMResponse, whole
from miniclaw.agent.quirks import Quirks
from miniclaw.agent.report import MOST_CHARS as MOST_REPORTED
from miniclaw.agent.report import read_report, retry_after
from miniclaw.agent.responses import ResponsesAssembler
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.agent.sse import EventReader
from miniclaw.agent.stream import ChatAssembler
from miniclaw.errors import ModelError
from miniclaw.tools import ToolContext, ToolRegistry
from miniclaw.tools.builtins import builtin_tools
from tests.support.agent import eventually, say, send
from tests.support.claw import running_claw
from tests.support.inside import mailbox_of


async def repeated(chunk: LLMChunk) -> AsyncIterator[LLMChunk]:
    while True:
        yield chunk


@pytest.mark.parametrize("chunk", [LLMChunk("x" * 1000), LLMChunk("", "x" * 1000), LLMChunk(hidden=1000)])
async def test_an_answer_that_nobody_watches_is_broken_off_when_it_has_no_end(chunk: LLMChunk) -> None:
    with pytest.raises(ModelError, match="no end"):
        await whole(repeated(chunk))


def test_arguments_count_though_they_are_not_shown() -> None:
    assembler, size = ChatAssembler(), 0
    for number in range(50):
        part: dict[str, Any] = {"index": 0, "function": {"arguments": "x" * 1000}}
        if number == 0:
            part |= {"id": "a", "function": {"name": "zap", "arguments": '{"a": "'}}
        chunk = assembler.feed({"choices": [{"delta": {"tool_calls": [part]}}]})
        assert chunk is not None and not chunk.text
        size += chunk.hidden
    assert size == 49 * 1000 + len('{"a": "') < MOST_CHARS


def test_of_very_many_calls_in_an_answer_the_first_are_taken() -> None:
    assembler = ChatAssembler()
    for number in range(MOST_CALLS + 500):
        call = {"index": number, "id": f"c{number}", "function": {"name": "zap", "arguments": "{}"}}
        assembler.feed({"choices": [{"delta": {"tool_calls": [call]}}]})
    assembler.feed({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    calls = assembler.finish().tool_calls
    assert [call.id for call in calls] == [f"c{number}" for number in range(MOST_CALLS)]


def test_an_event_of_many_lines_is_not_read_again_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    read, tries = sse._whole, list[int]()

    def counted(data: bytes) -> Any:
        tries.append(len(data))
        return read(data)

    monkeypatch.setattr(sse, "_whole", counted)
    lines = ["{", *(f'"key{number}": {number},' for number in range(5000)), '"end": 1}']
    event = "".join(f"data: {line}\n" for line in lines) + "\n"
    reader = EventReader()
    (value,) = reader.feed(event.encode())
    assert value["end"] == 1 and len(value) == 5001
    assert sum(tries) < 40 * len(event)


async def test_a_damaged_row_keeps_neither_the_server_nor_others_from_their_answers(tmp_path: Path) -> None:
    async def echo(messages: list[dict[str, Any]]) -> LLMResponse:
        return LLMResponse(text=f"echo {messages[-1]['content'][:3]}")

    provider = ScriptedProvider([echo] * 9)
    async with running_claw(tmp_path, provider) as claw:
        damaged = (await send(claw, "one")).session_id
        sound = (await send(claw, "two")).session_id
        await eventually(
            lambda: not mailbox_of(claw).is_busy(damaged or "") and not mailbox_of(claw).is_busy(sound or "")
        )
    database = sqlite3.connect(tmp_path / "miniclaw.db")
    for table, column in (("entries", "body"), ("sessions", "metadata"), ("turns", "message")):
        rows = database.execute(f"SELECT {column} FROM {table} WHERE session_id = ?", (damaged,)).fetchall()
        bad = str(rows[0][0]).encode()
        place = max(1, len(bad) - 6)
        bad = bad[:place] + b"\xe1" + bad[place:]
        database.execute(
            f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE session_id = ? AND {column} = ?",
            (bad, damaged, rows[0][0]),
        )
    database.execute("UPDATE turns SET state = 'running' WHERE session_id = ?", (sound,))
    database.execute("UPDATE turns SET state = 'running' WHERE session_id = ?", (damaged,))
    database.commit()
    database.close()
    async with running_claw(tmp_path, provider) as claw:
        assert (await say(claw, "three", session_id=sound)).startswith("echo")
        assert (await say(claw, "four", session_id=damaged)).startswith("echo")
        assert {session.session_id for session in await claw.sessions.list("owner")} == {damaged, sound}


async def test_a_command_ends_though_a_task_of_a_tool_does_not() -> None:
    script = (
        "import asyncio, sys\nfrom miniclaw.cli.start import run_async\n"
        "async def stubborn():\n    while True:\n        try:\n            await asyncio.sleep(100)\n"
        "        except asyncio.CancelledError:\n            pass\n"
        "async def main():\n    task = asyncio.create_task(stubborn())\n    await asyncio.sleep(0)\n    return 7\n"
        "sys.exit(run_async(main()))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=dict(os.environ))
    async with asyncio.timeout(30):
        assert await process.wait() == 7


async def test_commands_that_are_begun_at_once_are_all_answered(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MINICLAW_"))}
    env |= {"MINICLAW_PROJECT": "", "MINICLAW_MODEL__PROBE_LOCAL": "false", "MINICLAW_HOME": str(tmp_path)}
    command = (sys.executable, "-m", "miniclaw", "chat", "--once", "hello")
    processes = [
        await asyncio.create_subprocess_exec(
            *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    told = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told


@pytest.mark.parametrize("word", ["content ", "system ", "blank ", "consecutive ", "unknown name "])
def test_a_refusal_that_repeats_a_long_question_is_read_for_its_beginning_only(word: str) -> None:
    said = word * 20_000
    report = read_report({"detail": [{"loc": ["body", said], "msg": said, "input": said}], "code": said})
    assert max(len(report.message), len(report.code), len(report.param)) <= MOST_REPORTED
    Quirks().learn(report, {"messages": [], "model": "m"})


@pytest.mark.parametrize("text", ["1" * 50_000, "1" * 50_000 + "x", "9." * 30_000])
def test_a_time_of_very_many_digits_is_none(text: str) -> None:
    assert retry_after({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": text}, float) is None
    assert read_report({"error": {"message": "no", "details": [{"retryDelay": text}]}}).delay is None


async def test_a_refusal_without_an_end_is_read_for_its_beginning_only() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b"x" * 65536)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider = OpenAIProvider(
        "m", api_key="x", base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", max_retries=0
    )
    try:
        async with asyncio.timeout(30):
            with pytest.raises(ModelError):
                await provider.chat([{"role": "user", "content": "hi"}])
            with pytest.raises(ModelError):
                await provider.models()
    finally:
        await provider.close()
        await runner.cleanup()


@pytest.mark.parametrize("before", ["", "<think>", "<think>so</think>"])
def test_blanks_count_though_they_are_held_back_and_are_not_looked_at_again(before: str) -> None:
    assembler, size = ChatAssembler(AnswerBuilder("m", offered={"zap": {}})), 0
    assembler.feed({"choices": [{"delta": {"content": before}}]})
    for _ in range(30_000):
        chunk = assembler.feed({"choices": [{"delta": {"content": " " * 20}}]})
        size += chunk.hidden + len(chunk.text) + len(chunk.reasoning) if chunk else 0
    assert size >= 20 * 30_000
    assembler.feed({"choices": [{"delta": {"content": "end"}, "finish_reason": "stop"}]})
    assembler.rest()
    assert assembler.finish().text.strip().endswith("end") or before == "<think>"


def test_thoughts_in_very_many_pieces_are_put_together_at_the_end() -> None:
    pieces = [{"type": "reasoning.text", "index": 0, "text": "x" * 16} for _ in range(30_000)]
    assembler = ChatAssembler()
    chunk = assembler.feed({"choices": [{"delta": {"reasoning_details": pieces}}]})
    assert chunk is not None and len(chunk.reasoning) == 16 * 30_000
    assembler.feed({"choices": [{"delta": {"content": "end"}, "finish_reason": "stop"}]})
    details = (assembler.finish().provider_data or {})["details"]
    assert details == [{"type": "reasoning.text", "index": 0, "text": "x" * 16 * 30_000}]


async def test_the_demo_model_looks_for_a_sum_in_the_beginning_of_a_question_only() -> None:
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
    response = await DemoProvider().chat([{"role": "user", "content": "(+" * 50_000}], tools)
    assert not response.tool_calls
    response = await DemoProvider().chat([{"role": "user", "content": "What is (2+3)*4?"}], tools)
    assert response.tool_calls[0].arguments == {"expression": "(2+3)*4"}


def test_items_and_unknown_fields_of_calls_count_too() -> None:
    responses, chat, sizes = ResponsesAssembler(AnswerBuilder("m")), ChatAssembler(), [0, 0]
    for number in range(20):
        item = {"type": "reasoning", "id": "x" * 1000}
        event = {"type": "response.output_item.added", "output_index": number, "item": item}
        part = {"index": 0, "id": "c", f"key{number}": "x" * 1000}
        for place, chunk in enumerate(
            (responses.feed(event), chat.feed({"choices": [{"delta": {"tool_calls": [part]}}]}))
        ):
            assert chunk is not None
            sizes[place] += chunk.hidden
    assert min(sizes) >= 20_000


async def test_an_edit_that_would_make_a_file_too_large_is_refused_before_it_is_made(tmp_path: Path) -> None:
    registry = ToolRegistry(builtin_tools())
    context = ToolContext(user_id="a", scope="a", session_id="s", turn_id="t", workspace=tmp_path)
    await registry.execute("write_file", {"path": "a.txt", "content": "a" * 50_000}, context)
    edit = {"path": "a.txt", "old_text": "a", "new_text": "b" * 12_000, "replace_all": True}
    result = await registry.execute("edit_file", edit, context)
    assert not result.ok and "are allowed" in result.content
    await registry.execute("write_file", {"path": "n.txt", "content": "\n" * 100_000}, context)
    edit = {"path": "n.txt", "old_text": "\n", "new_text": "x", "replace_all": True}
    result = await registry.execute("edit_file", edit, context)
    assert result.ok and result.data["replaced"] == 100_000 and result.data["lines"] == list(range(1, 11))


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_a_refusal_made_to_be_slow_to_read_is_read_at_once(size: int) -> None:
    text = "contains 1 tokens " * (size // 54) + "exceed " * (size // 21) + "1" * (size // 3)
    assert overflow_in(read_report({"error": {"message": text}}), 400) is None


def test_a_wait_beyond_all_years_is_still_told() -> None:
    report = read_report({"error": {"message": "slow down"}})
    error = explain(report, 429, wait=99_999_999_999_999.0, now=1_800_000_000.0)
    assert error.code == "model_rate_limited" and "free again at 20" in str(error)


@pytest.mark.parametrize(
    ("written", "secret"),
    [
        ('{"X-API-Key": "HEADERSECRET12345678"}', "HEADERSECRET"),
        ('{"X-Auth-Key": "AUTHKEYSECRET123"}', "AUTHKEYSECRET"),
        ('{"url": "https://a.example/x?api_key=URLSECRET12345678&b=1"}', "URLSECRET"),
        ('{"password": "PW\\"quotedRESTOFPASSWORD", "b": 1}', "RESTOF"),
        ('{"password": "\\"quotedfirst1"}', "quotedfirst1"),
        ('{"args": "{\\"token\\": \\"abcSECRET123\\", \\"c\\": 1}"}', "SECRET123"),
        ('{"token": "cut offSECRET', "SECRET"),
    ],
)
def test_a_secret_is_masked_however_its_key_is_written_and_to_its_end(written: str, secret: str) -> None:
    shown = mask(written)
    assert secret not in shown and "[secret]" in shown
    if written.endswith("}"):
        assert json.loads(shown).keys() == json.loads(written).keys()
