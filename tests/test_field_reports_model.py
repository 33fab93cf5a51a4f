"""What models and their windows did to other gateways; each test names the public report that is its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.command_text import command_text
from miniclaw.app import MiniClaw
from tests.support.agent import Zap, log_of, outcome, result_in, say
from tests.support.model import FakeModel, Message, Reply, Script, illegal, last_user
from tests.test_field_reports import asking, raw, users
from tests.test_limits import command


def size(messages: list[Message]) -> int:
    """About as many tokens as a server would count."""
    return len(json.dumps(messages, ensure_ascii=False)) // 4


def small(tokens: int, script: Script) -> Script:
    """A server that refuses what is longer than its window."""

    def answer(messages: list[Message], number: int) -> Any:
        if size(messages) > tokens:
            return {"status": 400, "message": f"maximum context length is {tokens} tokens"}
        return script(messages, number)

    return answer


def echo_or_sum_up(messages: list[Message], number: int) -> Reply:
    return {"text": "sum" if "Summarise" in messages[0]["content"] else f"echo: {last_user(messages)[:9]}"}


async def compacted(claw: MiniClaw, session_id: str) -> dict[str, Any]:
    queued = await claw.router.route(command("compact", session_id))
    return await outcome(claw, queued.turn_id)


@pytest.mark.parametrize("text", ["", "fine"])
async def test_an_end_that_speaks_of_calls_and_brings_none_leaves_no_call(tmp_path: Path, text: str) -> None:
    """openclaw/openclaw#21985: a phantom result with an empty id was stored, and every later request refused."""

    def script(messages: list[Message], number: int) -> Reply:
        return {"text": text if number == 1 else "fine", "calls": [], "finish": "tool_calls"}

    async with FakeModel(script) as model, asking(tmp_path, model) as claw:
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
        for _ in range(2):
            assert await say(claw, session_id=session_id) == "fine"
        log = [entry.message for entry in await log_of(claw, session_id)]
    assert [message["role"] for message in log] == ["user", "assistant"] * 2
    assert not any(message.get("tool_calls") for message in log)


@pytest.mark.parametrize("arguments", ["[1,2]", '"str"', "7", "true"])
async def test_arguments_that_are_no_object_are_told_to_the_model_and_the_history_stays_legal(
    tmp_path: Path, arguments: str
) -> None:
    """HKUDS/nanobot#2858: a list in their place crashed the turn."""

    def script(messages: list[Message], number: int) -> Reply:
        return {"calls": [("zap", arguments)]} if number == 1 else {"text": "sorry"}

    async with FakeModel(script) as model, asking(tmp_path, model) as claw:
        tool = Zap("read")
        claw.registry.register(tool)
        assert await say(claw) == "sorry"
        assert tool.ran == [] and "not a JSON object" in result_in(model.requests[1]["messages"])


async def test_a_turn_of_many_rounds_goes_on_in_a_small_window(tmp_path: Path) -> None:
    """HKUDS/nanobot#3131: no boundary was found in 60 messages without a user's, and the turn was stuck."""

    def script(messages: list[Message], number: int) -> Reply:
        return {"calls": [("zap", {"at": f"round {number}"})]} if number <= 65 else {"text": "done"}

    limits = {"context.max_tokens": 4000, "agent.max_iterations": 99, "agent.max_tool_calls": 99}
    async with FakeModel(small(4000, script)) as model, asking(tmp_path, model, limits) as claw:
        claw.registry.register(Zap("read", lambda: page()))
        assert await say(claw, "read it all") == "done"
        assert len(model.requests) == 66
        for request in model.requests:
            assert last_user(request["messages"]) == "read it all"
        last = model.requests[-1]["messages"]
        assert "round 65" in json.dumps(last[-2]) and "left out" in result_in(last[:4])


async def page() -> str:
    return "a line of the page. " * 100


async def test_a_history_of_many_windows_is_answered_and_can_be_summarised(tmp_path: Path) -> None:
    """HKUDS/nanobot#5849: the request for a summary was too long itself, and nothing but a new session helped."""
    texts = [f"{number} " + "word " * 600 for number in range(30)]
    async with FakeModel(small(4000, echo_or_sum_up)) as model:
        async with asking(tmp_path, model) as claw:
            session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
            for text in texts:
                await say(claw, text, session_id=session_id)
            assert size([entry.message for entry in await log_of(claw, session_id)]) > 5 * 4000
        # A restart forgets that the window was found to be smaller than the settings say.
        async with asking(tmp_path, model) as claw:
            assert await say(claw, "and now?", session_id=session_id) == "echo: and now?"
        async with asking(tmp_path, model) as claw:
            assert (await compacted(claw, session_id))["name"] == "command.result"
            assert await say(claw, "and then?", session_id=session_id) == "echo: and then?"
            assert users(model.requests[-1]["messages"]) == ["and then?"]


async def test_what_calls_used_together_does_not_shorten_a_history_that_fits(tmp_path: Path) -> None:
    """AstrBotDevs/AstrBot#9864: the sum over all calls was taken for the size of one, at 7 % of the window."""

    def script(messages: list[Message], number: int) -> Reply:
        used = {"prompt_tokens": 6000 * number, "completion_tokens": 1000 * number}
        return {"text": f"echo: {last_user(messages)}", "usage": used}

    async with FakeModel(script) as model, asking(tmp_path, model, {"context.max_tokens": 8000}) as claw:
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
        texts = [f"{number} " + "word " * 150 for number in range(6)]
        for text in texts:
            await say(claw, text, session_id=session_id)
    assert users(model.requests[-1]["messages"]) == texts
    assert len(model.requests) == 6, "nothing was asked beside the answers"


async def test_what_a_session_and_a_day_cost_is_told_where_one_asks(tmp_path: Path) -> None:
    """HKUDS/nanobot#1193: nobody could see what was used."""
    priced = {"prices": {"fake-chat": {"input": 1000, "output": 1000}}}
    async with FakeModel() as model, asking(tmp_path, model, priced) as claw, raw(claw) as client:
        for session in ("one", "two", "two"):
            session_id = (await claw.sessions.get_or_create("owner", "web", conversation=session)).session_id
            assert (await client.say("hi", session_id=session_id))["data"]["usage"]["cost"] == 0.01
        stats = await client.command("stats")
    assert all(row["ms"] > 0 for row in (*stats["turn"], *stats["session"], *stats["usage"]))
    told = command_text("stats", stats)
    turn, here, today = re.sub(r"\d+\.\d s", "some time", told).splitlines()
    assert turn == "回合 / turn: 7 + 3, 1 次 / calls, some time, $0.0100"
    assert here == "会话 / session: 14 + 6, 2 次 / calls, some time, $0.0200"
    assert today.endswith(" fake-chat: 21 + 9, 3 次 / calls, some time, $0.0300")


async def test_thoughts_go_back_with_their_calls_also_after_a_restart_and_a_summary(tmp_path: Path) -> None:
    """HKUDS/nanobot#3469, HKUDS/nanobot#3665: DeepSeek refused the history after a few questions."""
    refused: list[Message] = []

    def script(messages: list[Message], number: int) -> Reply:
        calls = [message for message in messages if message.get("tool_calls")]
        refused.extend(message for message in calls if message.get("reasoning_content") != "hmm")
        if refused:
            text = "The `reasoning_content` in the thinking mode must be passed back to the API."
            return {"status": 400, "message": text}
        if messages[-1]["role"] == "user" and "Summarise" not in messages[0]["content"]:
            return {"reasoning": "hmm", "calls": [("zap", {"at": last_user(messages)})]}
        return {"reasoning": "well", "text": "done"}

    async with FakeModel(script, strict=False) as model:
        for life in range(3):
            async with asking(tmp_path, model) as claw:
                claw.registry.register(Zap("read"))
                session_id = (
                    await claw.sessions.get_or_create("owner", "library", conversation="c")
                ).session_id
                if life == 2:
                    assert (await compacted(claw, session_id))["name"] == "command.result"
                for number in range(2):
                    assert await say(claw, f"{life} {number}", session_id=session_id) == "done"
                assert illegal([entry.message for entry in await log_of(claw, session_id)]) is None
        assert refused == []
        asked = [len(users(request["messages"])) for request in model.requests]
        assert asked == [1, 1, 2, 2, 3, 3, 4, 4, 1, 1, 1, 2, 2]
