"""The demo model: every phrase that it advertises does what it says, with the real tools."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.demo import _HELP, DemoProvider
from miniclaw.agent.providers import Message
from miniclaw.app import MiniClaw
from tests.support.agent import outcome, question, say, send
from tests.support.claw import running_claw

CHINESE, ENGLISH = 0, 1
ADVERTISED = (
    ("37*43 等于多少", "现在几点", "记住我住在杭州", "我住在哪里", "忘记我住在哪里", "讲一个长一点的故事"),
    (
        "what is 37*43",
        "what time is it",
        "remember that I live in Hangzhou",
        "where do I live?",
        "forget where I live",
        "tell me a long story",
    ),
)
KNOWN = ("我住在杭州", "I live in Hangzhou")
LANGUAGES = pytest.mark.parametrize("language", [CHINESE, ENGLISH], ids=["chinese", "english"])


@asynccontextmanager
async def demo(tmp_path: Path) -> AsyncIterator[MiniClaw]:
    async with running_claw(tmp_path, DemoProvider(pace=0)) as claw:
        yield claw


async def tools_of(claw: MiniClaw, text: str) -> tuple[str, list[tuple[str, bool]]]:
    """The answer and the tools that ran for it."""
    ended = await outcome(claw, (await send(claw, text)).turn_id)
    data: dict[str, Any] = ended["data"]
    return data["text"], [(tool["name"], tool["ok"]) for tool in data["tools"]]


@LANGUAGES
def test_the_phrases_tried_here_are_those_of_the_help(language: int) -> None:
    said = re.findall(r"`([^`]+)`", _HELP[language])
    assert [phrase for phrase in said if not phrase.startswith((".env", "OPENAI_"))] == list(
        ADVERTISED[language]
    )


@LANGUAGES
async def test_the_calculator_is_called(tmp_path: Path, language: int) -> None:
    async with demo(tmp_path) as claw:
        assert await tools_of(claw, ADVERTISED[language][0]) == ("37*43 = **1591**", [("calculator", True)])


@LANGUAGES
async def test_the_clock_is_called(tmp_path: Path, language: int) -> None:
    async with demo(tmp_path) as claw:
        text, tools = await tools_of(claw, ADVERTISED[language][1])
    assert tools == [("datetime", True)]
    assert re.fullmatch(r"(现在是：|It is now: )\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, .*", text)


@LANGUAGES
async def test_what_it_is_told_is_remembered_known_in_another_session_and_forgotten_after_a_yes(
    tmp_path: Path, language: int
) -> None:
    remember, ask, forget = ADVERTISED[language][2:5]
    async with demo(tmp_path) as claw:
        text, tools = await tools_of(claw, remember)
        assert KNOWN[language] in text and tools == [("memory_save", True)]
        assert [record.content for record in await claw.memory.list("owner")] == [KNOWN[language]]
        text, tools = await tools_of(claw, ask)
        assert KNOWN[language] in text and tools == []
        for decision, left in (("deny", 1), ("once", 0)):
            receipt = await send(claw, forget)
            asked = await question(claw)
            assert asked.tool == "memory_delete"
            await claw.desk.decide(asked.approval_id, "owner", "deny" if decision == "deny" else "once")
            text = (await outcome(claw, receipt.turn_id))["data"]["text"]
            assert ("没有做成" in text or "did not work" in text) == (decision == "deny")
            assert len(await claw.memory.list("owner")) == left
        text, tools = await tools_of(claw, forget)
        assert text in ("没有找到这样的记忆。", "There is no such memory.") and tools == [
            ("memory_search", True)
        ]
        assert await say(claw, ask) == _HELP[language]


@LANGUAGES
async def test_the_story_is_long_and_streamed(tmp_path: Path, language: int) -> None:
    async with demo(tmp_path) as claw:
        pieces: list[str] = []
        claw.bus.subscribe(
            "session.*",
            lambda topic, event: pieces.append(event.data["text"]) if event.name == "text.delta" else None,
        )
        text = await say(claw, ADVERTISED[language][5])
    assert "".join(pieces) == text and len(pieces) > 100
    assert text.count("### ") == 12


@LANGUAGES
async def test_anything_else_gets_the_help_which_names_the_way_to_a_real_model(
    tmp_path: Path, language: int
) -> None:
    async with demo(tmp_path) as claw:
        assert await say(claw, ("你好", "hello")[language]) == _HELP[language]
    assert "OPENAI_API_KEY" in _HELP[language]


async def test_a_tool_that_fails_is_said_so(tmp_path: Path) -> None:
    async with demo(tmp_path) as claw:
        assert await say(claw, "1/0 等于多少") == "没有做成：" + (
            await say(claw, "what is 1/0")
        ).removeprefix("That did not work: ")


@pytest.mark.parametrize("text", ["记住", "remember", "forget", "忘记 ", "3", "1+", "2026-01"])
async def test_half_a_phrase_breaks_nothing(tmp_path: Path, text: str) -> None:
    async with demo(tmp_path) as claw:
        assert await say(claw, text)


async def test_without_tools_or_a_question_it_says_what_it_is() -> None:
    provider = DemoProvider(pace=0)
    question: list[Message] = [{"role": "user", "content": "what is 37*43"}]
    assert (await provider.chat(question)).text == _HELP[ENGLISH]
    assert (await provider.chat([])).text == _HELP[CHINESE]
    assert (await provider.chat([{"role": "user", "content": "???é"}])).text == _HELP[CHINESE]


async def test_it_is_known_as_a_demo_and_has_one_model() -> None:
    provider = DemoProvider()
    assert provider.info.demo
    assert await provider.models() == [provider.info.name]
    assert provider.with_model("gpt-5") is provider
    usage = (await provider.chat([{"role": "user", "content": "hello"}])).usage
    assert usage.calls == 1 and usage.input_tokens and usage.output_tokens
    await provider.close()
