"""A conversation that outgrows its window: results are cleared, then a summary is made, once, and kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.proposals import INSTRUCTIONS as REMEMBER
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import ModelError
from miniclaw.memory.compaction import INSTRUCTIONS, STUB
from miniclaw.session.history import message_tokens
from tests.support.agent import say
from tests.support.claw import running_claw
from tests.support.model import illegal, last_user

WINDOW = 6000
BIG: dict[str, Any] = {"context.max_tokens": 100_000}
LONG = "the lake is deep and cold. " * 60
"""About 420 tokens."""


class Talks:
    """A model that answers at length and summarises when it is asked to."""

    def __init__(self, summary: str | ModelError = "They spoke of lakes.") -> None:
        self.summary = summary
        self.summarised: list[str] = []
        self.asked: list[list[Message]] = []

    def provider(self, most: int = 100) -> ScriptedProvider:
        return ScriptedProvider([self._answer] * most)

    async def _answer(self, messages: list[Message]) -> LLMResponse:
        if not messages[0]["content"].startswith(INSTRUCTIONS):
            assert illegal(messages) is None
            self.asked.append(messages)
            return LLMResponse(text=f"{last_user(messages)[:9]} {LONG}")
        self.summarised.append(messages[1]["content"])
        if isinstance(self.summary, ModelError):
            raise self.summary
        return LLMResponse(text=self.summary)


async def talk(claw: Any, session_id: str | None, numbers: range) -> None:
    for number in numbers:
        await say(claw, f"question {number}: {LONG}", session_id=session_id)


async def new_session(claw: Any) -> str:
    return str((await claw.sessions.get_or_create("owner", "library")).session_id)


def arguments(**more: Any) -> dict[str, Any]:
    return {"context.max_tokens": WINDOW, "agent.system_prompt": "You are brief.", **more}


async def test_the_oldest_turns_get_a_summary_that_a_restart_does_not_make_again(tmp_path: Path) -> None:
    talks = Talks()
    async with running_claw(tmp_path, talks.provider(), arguments=arguments()) as claw:
        session_id = await new_session(claw)
        await talk(claw, session_id, range(8))
    times = len(talks.summarised)
    assert 1 <= times <= 4  # not at each turn
    assert talks.summarised[0].startswith("user: question 0")
    if times > 1:
        assert talks.summarised[1].startswith("summary so far: They spoke of lakes.\nuser: question")
    async with running_claw(tmp_path, talks.provider(), arguments=arguments()) as claw:
        session = await claw.sessions.get(session_id)
        assert session is not None and len(session.messages) == 16, "the log was cut"
        await say(claw, "and now?", session_id=session_id)
    assert len(talks.summarised) == times
    assert "<summary>\nThey spoke of lakes.\n</summary>" in talks.asked[-1][0]["content"]
    assert last_user(talks.asked[-1]) == "and now?"
    assert not any("question 0" in str(m["content"]) for m in talks.asked[-1])


async def test_what_the_summary_stands_for_and_what_is_still_shown_are_the_whole_conversation(
    tmp_path: Path,
) -> None:
    talks = Talks()
    async with running_claw(tmp_path, talks.provider(), arguments=arguments()) as claw:
        session_id = await new_session(claw)
        number = 0
        while not talks.summarised:
            await talk(claw, session_id, range(number, number + 1))
            number += 1
    shown = [str(m["content"])[:10] for m in talks.asked[-1][1:] if m["role"] == "user"]
    in_summary = [f"question {n}" for n in range(number) if f"user: question {n}:" in talks.summarised[0]]
    assert in_summary + shown == [f"question {n}" for n in range(number)]
    assert shown and in_summary


@pytest.mark.parametrize("fails", [False, True])
async def test_what_one_request_cannot_show_is_summarised_in_several_and_nothing_unseen_is_passed_over(
    tmp_path: Path, fails: bool
) -> None:
    fact = "My ship is called KESTREL and lies in Bergen."
    talks, requests = Talks(), []
    async with running_claw(tmp_path, talks.provider(), arguments=arguments(**BIG)) as claw:
        session_id = await new_session(claw)
        await say(claw, f"question 0: {fact} {LONG * 4}", session_id=session_id)
        await talk(claw, session_id, range(1, 10))
    assert talks.summarised == []

    async def answer(messages: list[Message]) -> LLMResponse:
        requests.append(messages)
        if messages[0]["content"] == REMEMBER:
            seen = "KESTREL" in messages[1]["content"] and "question" in messages[1]["content"]
            return LLMResponse(text=json.dumps([{"content": fact}] if seen else []))
        if fails and talks.summarised and messages[0]["content"].startswith(INSTRUCTIONS):
            raise ModelError("model_error", "It broke.")
        return await talks._answer(messages)

    small = arguments(**{"context.max_tokens": 5000, "memory.automatic": "ask"})
    async with running_claw(tmp_path, ScriptedProvider([answer] * 40), arguments=small) as claw:
        await say(claw, "and now?", session_id=session_id)
        known = await claw.memory.list("owner")
        session = await claw.sessions.get(session_id)
        assert session is not None
        unseen = [m["content"][:10] for m in session.history().messages() if m["role"] == "user"]
    assert all(sum(map(message_tokens, messages)) <= 4500 for messages in requests)
    assert len(talks.summarised) >= (1 if fails else 2) and "question 0: My ship" in talks.summarised[0]
    assert all(text.startswith("summary so far: They spoke of lakes.") for text in talks.summarised[1:])
    in_summary = [f"question {n}" for n in range(10) for t in talks.summarised if f"user: question {n}:" in t]
    assert in_summary + unseen == [*(f"question {n}" for n in range(10)), "and now?"]
    assert [(record.content, record.status) for record in known] == [(fact, "proposed")]


@pytest.mark.parametrize(
    "summary", [ModelError("model_error", "It broke."), ModelError("model_auth", "No key."), "  "]
)
async def test_without_a_summary_the_turn_is_answered_and_it_is_not_asked_for_at_every_turn(
    tmp_path: Path, summary: str | ModelError
) -> None:
    talks = Talks(summary)
    async with running_claw(tmp_path, talks.provider(), arguments=arguments()) as claw:
        session_id = await new_session(claw)
        await talk(claw, session_id, range(12))
        session = await claw.sessions.get(session_id)
        assert session is not None and "summary" not in session.metadata
    assert len(talks.asked) == 12 and len(talks.summarised) <= 2
    assert last_user(talks.asked[-1]).startswith("question 11")


async def test_a_summary_that_does_not_come_takes_half_of_the_turns_time_and_is_counted_to_it(
    tmp_path: Path,
) -> None:
    talks, limit = Talks(), 1.0

    async def never(messages: list[Message]) -> LLMResponse:
        if messages[0]["content"].startswith(INSTRUCTIONS):
            await asyncio.Event().wait()
        if messages[-1]["role"] == "user":  # a step, which keeps what was spent by then
            return LLMResponse(tool_calls=(ToolCall("c1", "calculator", "{}", {"expression": "1+1"}),))
        return await talks._answer(messages)

    given = arguments(**{"agent.turn_timeout": limit, "memory.automatic": "off"})
    async with running_claw(tmp_path, ScriptedProvider([never] * 40), arguments=given) as claw:
        session_id = await new_session(claw)
        await talk(claw, session_id, range(8))
        session = await claw.sessions.get(session_id)
        assert session is not None
        metas = [entry.meta or {} for entry in session.messages]
        spent = [meta["spent"] for meta in metas if "spent" in meta]
        assert max(spent) >= limit / 2
        assert len(talks.asked) == 8 and not talks.summarised


async def test_a_hook_of_the_operator_can_be_against_it_and_hears_of_it(tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text(
        "seen = []\n"
        "def before(payload):\n    return 'not now' if 'no' in seen else None\n"
        "def after(payload):\n    open('heard.txt', 'a').write(payload['summary'])\n",
        encoding="utf-8",
    )
    hooks = {"after_compaction": [{"command": ["tee", "-a", "heard.json"]}]}
    talks = Talks()
    async with running_claw(tmp_path, talks.provider(), arguments=arguments(hooks=hooks)) as claw:
        await talk(claw, await new_session(claw), range(8))
    assert '"summary": "They spoke of lakes."' in (tmp_path / "heard.json").read_text(encoding="utf-8")

    against = Talks()
    hooks = {"before_compaction": [{"command": ["false"]}]}
    async with running_claw(tmp_path, against.provider(), arguments=arguments(hooks=hooks)) as claw:
        await talk(claw, await new_session(claw), range(8))
    assert against.summarised == [] and len(against.asked) == 8


async def test_old_results_are_cleared_before_anything_is_summarised(tmp_path: Path) -> None:
    asked: list[list[Message]] = []
    big = "0123456789 " * 300

    async def answer(messages: list[Message]) -> LLMResponse:
        asked.append(messages)
        assert illegal(messages) is None
        assert not messages[0]["content"].startswith(INSTRUCTIONS)
        if messages[-1]["role"] == "tool":
            return LLMResponse(text="read")
        call = ToolCall.of(f"call_{len(asked)}", "read_file", {"path": "big.txt"})
        return LLMResponse(tool_calls=(call,), finish="tool_calls")

    provider = ScriptedProvider([answer] * 40)
    async with running_claw(
        tmp_path, provider, arguments=arguments(**{"context.max_tokens": 16_000})
    ) as claw:
        session_id = await new_session(claw)
        workspace = tmp_path / "users" / "owner" / "workspace"
        workspace.mkdir(parents=True)
        (workspace / "big.txt").write_text(big, encoding="utf-8")
        for _ in range(16):
            await say(claw, "read it", session_id=session_id)
    results = [m["content"] for m in asked[-1] if m["role"] == "tool"]
    stubs = [text for text in results if text.startswith(STUB)]
    assert len(results) == 16, "turns were left out although clearing was enough"
    assert stubs == results[: len(stubs)] and len(results) - len(stubs) == 5
    assert "big.txt" in stubs[0]


async def test_a_window_far_too_small_and_a_result_larger_than_it_still_get_an_answer(tmp_path: Path) -> None:
    turns: list[int] = []

    async def answer(messages: list[Message]) -> LLMResponse:
        if messages[0]["content"].startswith(INSTRUCTIONS):
            return LLMResponse(text="short")
        turns.append(len(messages))
        if messages[-1]["role"] == "tool" or len(turns) < 20:
            return LLMResponse(text=LONG)
        call = ToolCall.of("call_1", "read_file", {"path": "big.txt"})
        return LLMResponse(tool_calls=(call,), finish="tool_calls")

    small = arguments(**{"context.max_tokens": 1000})
    async with running_claw(tmp_path, ScriptedProvider([answer] * 100), arguments=small) as claw:
        session_id = await new_session(claw)
        workspace = tmp_path / "users" / "owner" / "workspace"
        workspace.mkdir(parents=True)
        (workspace / "big.txt").write_text("汉字 " * 20_000, encoding="utf-8")
        for number in range(20):
            assert await say(claw, f"{number} {LONG}", session_id=session_id)
    assert len(turns) == 21
