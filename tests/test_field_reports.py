"""What broke other gateways in the field must hold here; each test names the public report that is its reason."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.session.models import Entry
from tests.support.agent import Zap, eventually, log_of, outcome, say, send
from tests.support.claw import TOKEN, running_claw
from tests.support.client import RawClient, raw_client
from tests.support.model import FakeModel, Reply, illegal, last_user
from tests.test_webhook_generic import hooked, post

AUTH = {"Authorization": f"Bearer {TOKEN}"}


async def answer(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


async def hang(messages: list[Message]) -> LLMResponse:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def asking(
    tmp_path: Path, model: FakeModel, arguments: dict[str, Any] | None = None, *, web: bool = False
) -> AsyncIterator[MiniClaw]:
    """A gateway whose model refuses what a strict one would refuse."""
    openai = {"model.base_url": model.url, "model.api_key": "x", "model.name": "fake-chat"}
    async with running_claw(tmp_path, web=web, arguments={**openai, **(arguments or {})}) as claw:
        yield claw
    assert model.refused == [], "the model was sent an illegal history"


def raw(claw: MiniClaw, token: str = TOKEN) -> contextlib.AbstractAsyncContextManager[RawClient]:
    assert claw.gateway is not None
    return raw_client(claw.gateway.port or 0, token)


def api(claw: MiniClaw, path: str) -> str:
    assert claw.web is not None
    return f"http://127.0.0.1:{claw.web.port}/api/{path}"


def users(messages: list[Message]) -> list[Any]:
    return [message["content"] for message in messages if message["role"] == "user"]


CALL = {"id": "c9", "type": "function", "function": {"name": "zap", "arguments": "{}"}}


# --- orphaned results, trimming, corrupt logs -------------------------------------------------------------


async def test_what_was_asked_before_interrupted_turns_is_still_known_after_many_of_them(
    tmp_path: Path,
) -> None:
    """HKUDS/nanobot#3689: each interrupt cut more of the history; openclaw/openclaw#9958: it killed the session."""

    def script(messages: list[Message], number: int) -> Reply:
        if last_user(messages).startswith("job"):
            return {"calls": [("zap", {"at": last_user(messages)}), ("zap", {"at": "more"})]}
        return {"text": "I was at work"}

    allowed = {"approval.allow": ("zap",)}
    async with FakeModel(script) as model, asking(tmp_path, model, allowed) as claw:
        tool = Zap("write", asyncio.Event().wait)
        claw.registry.register(tool)
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
        for number in range(3):
            receipt = await send(claw, f"job {number}", session_id=session_id)
            await eventually(partial(tool.ran.__contains__, f"job {number}"))
            await claw.commands.cancel(receipt.turn_id or "", "owner")
            assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
        assert await say(claw, "what were you doing?", session_id=session_id) == "I was at work"
        sent = model.requests[-1]["messages"]
        assert illegal([entry.message for entry in await log_of(claw, session_id)]) is None
    assert users(sent) == ["job 0", "job 1", "job 2", "what were you doing?"]


async def test_an_orphaned_result_at_the_end_of_a_long_log_costs_no_question(tmp_path: Path) -> None:
    """HKUDS/nanobot#4203: the trimmed history was empty then, and the model had no context at all."""
    log: list[Message] = [
        {"role": "user", "content": "long ago " * 4000},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c9", "content": "done"},
        {"role": "user", "content": "my question"},
        {"role": "tool", "tool_call_id": "nobody", "content": "an orphan"},
    ]
    async with FakeModel() as model, asking(tmp_path, model, {"context.max_tokens": 1500}) as claw:
        session = await claw.sessions.get_or_create("owner", "library")
        await claw.sessions.append(session, [Entry("t", n, m, 0.0) for n, m in enumerate(log)])
        await say(claw, "and now?", session_id=session.session_id)
        assert users(model.requests[-1]["messages"]) == ["my question", "and now?"]


async def test_the_stored_log_only_grows_however_small_the_models_window_is(tmp_path: Path) -> None:
    """AstrBotDevs/AstrBot#8972: the trimmed history was written over the whole one, in a long task with tools too."""
    lengths: list[int] = []
    result = "word " * 150

    def script(messages: list[Message], number: int) -> Reply:
        is_task = last_user(messages) == "task"
        return {"calls": [("zap", {"at": str(number)})]} if is_task and len(lengths) < 8 else {"text": "ok"}

    async with FakeModel(script) as model, asking(tmp_path, model, {"context.max_tokens": 900}) as claw:
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id

        async def work() -> str:
            stored = await claw.sessions.storage.load(session_id)
            lengths.append(len(stored.messages) if stored else 0)
            return result

        claw.registry.register(Zap("read", work))
        texts = [f"{number} " + "word " * 100 for number in range(4)]
        for number, text in enumerate(texts, 1):
            await say(claw, text, session_id=session_id)
            assert len(await log_of(claw, session_id)) == 2 * number
        await say(claw, "task", session_id=session_id)
        sent = model.requests[-1]["messages"]
        assert users(sent) == ["task"], "nothing had to be left out"
        assert result not in [m["content"] for m in sent], "nothing had to be shortened"
        log = [entry.message for entry in await log_of(claw, session_id)]
    assert users(log) == [*texts, "task"]
    assert lengths == list(range(10, 26, 2)), "a call and a result more at each step"
    assert [m["content"] for m in log if m["role"] == "tool"] == [result] * 8


async def test_a_message_without_content_can_be_listed_searched_and_exported(tmp_path: Path) -> None:
    """AstrBotDevs/AstrBot#1166: the history view crashed with a KeyError on messages that only call tools."""
    async with running_claw(tmp_path, ScriptedProvider([answer]), web=True) as claw:
        session = await claw.sessions.get_or_create("owner", "web")
        log: list[Message] = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c9"},
        ]
        await claw.sessions.append(session, [Entry("t", n, m, 0.0) for n, m in enumerate(log)])
        async with aiohttp.ClientSession(headers=AUTH) as http:
            for path in ("/messages", "/export", "/export?format=json", "?query=look"):
                where = f"sessions{path}" if path[0] == "?" else f"sessions/{session.session_id}{path}"
                async with http.get(api(claw, where)) as response:
                    assert (response.status, "look" in await response.text()) == (200, True), path
        await say(claw, "and?", session_id=session.session_id)


async def test_one_corrupt_session_silences_no_other_and_not_even_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """openclaw/openclaw#15037: one bad transcript stopped every channel."""
    stop = {"limits.drain_seconds": 0}
    async with running_claw(tmp_path, ScriptedProvider([answer, answer, hang]), arguments=stop) as claw:
        good, bad = await send(claw, "good"), await send(claw, "bad")
        await outcome(claw, good.turn_id), await outcome(claw, bad.turn_id)
        left = await send(claw, "left open", session_id=bad.session_id)
        await eventually(lambda: claw.live.get(bad.session_id or ""))
    with sqlite3.connect(tmp_path / "miniclaw.db") as database:
        database.execute("UPDATE entries SET body = '{\"half' WHERE turn_id = ?", (bad.turn_id,))
        database.execute("UPDATE sessions SET metadata = '{' WHERE session_id = ?", (bad.session_id,))
        database.execute("UPDATE turns SET message = '{' WHERE turn_id = ?", (left.turn_id,))
    database.close()
    async with running_claw(tmp_path, ScriptedProvider([answer] * 2)) as claw:
        assert await say(claw, "still there?", session_id=good.session_id) == "echo: still there?"
        assert await say(claw, "and you?", session_id=bad.session_id) == "echo: and you?"
        async with raw(claw) as client:
            assert len((await client.command("sessions"))["sessions"]) == 2
    assert f"turn {left.turn_id} " in caplog.text


@pytest.mark.parametrize(
    "refusal",
    [
        "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each id.",
        "No endpoints found that support tool use with this content.",
        "reasoning_content is missing in assistant tool call message at index 2; 'stream_options' is not supported",
    ],
)
async def test_a_session_whose_history_the_model_refuses_takes_neither_model_nor_tools_from_the_others(
    tmp_path: Path, refusal: str
) -> None:
    """openclaw/openclaw#15037: the refusals of one session put the model out of use for all channels."""

    def script(messages: list[Message], number: int) -> Reply:
        is_bad = last_user(messages) == "bad"
        return {"status": 400, "message": refusal} if is_bad else {"text": "fine"}

    async with FakeModel(script) as model, FakeModel() as other:
        fallback = {"model.fallback": [{"base_url": other.url, "api_key": "x", "name": "other"}]}
        async with asking(tmp_path, model, fallback) as claw:
            assert await say(claw, "good") == "fine"
            for _ in range(3):
                ended = await outcome(claw, (await send(claw, "bad")).turn_id)
                assert ended["name"] == "turn.failed"
            assert await say(claw, "good") == "fine"
        first, last = model.requests[0], model.requests[-1]
        assert {**first, "messages": []} == {**last, "messages": []} and first["tools"]
        assert other.requests == []


# --- identity of sessions ---------------------------------------------------------------------------------


async def test_conversations_with_similar_names_are_sessions_of_their_own_for_ever(tmp_path: Path) -> None:
    """HKUDS/nanobot#4057: `a_b` and `a:b` shared a file; HKUDS/nanobot#899: names came back changed from a list."""
    names = ["a_b", "a:b", "a/b", "a b", "A_b", "a__b", "a\x1fb", "..", "甲_乙", "webhook:a_b"]
    found: list[list[str]] = []
    for life in range(2):
        async with hooked(tmp_path, [answer] * len(names)) as (claw, http, url):
            receipts: list[dict[str, Any]] = []
            for name in names:
                body = {"text": f"{life} in {name}", "session": name}
                receipts.append((await post(http, url, body, message_id=f"{life}{len(receipts)}"))[1])
            for receipt in receipts:
                await outcome(claw, receipt["turn_id"])
            found.append([receipt["session_id"] for receipt in receipts])
            if life:
                async with raw(claw, await claw.identities.new_token("monitor")) as client:
                    listed = [row["session_id"] for row in (await client.command("sessions"))["sessions"]]
                    assert sorted(listed) == sorted(found[0])
                    for name, session_id in zip(names, found[0], strict=True):
                        assert (await client.command("resume", {"session_id": session_id}))["title"]
                        page = await client.command("history", {"session_id": session_id})
                        assert users(page["messages"]) == [f"0 in {name}", f"1 in {name}"]
    assert found[0] == found[1] and len(set(found[0])) == len(names)
