"""合起来：记住、想起、截短、摘要。"""

import asyncio
import time
from pathlib import Path

import pytest

from day3_session import FileStorage, InMemoryStorage, SessionManager
from day4_agent import AgentConfig, LLMResponse, ModelError, ScriptedProvider, ToolCall
from day7_memory import LongTermMemory
from day7_memory.chat import MemoryChat, MemoryToolBox


def saying(content: str, **more: str) -> LLMResponse:
    call = ToolCall.of("c1", "memory_save", {"content": content, **more})
    return LLMResponse(tool_calls=(call,), finish="tool_calls")


def chat_of(provider: ScriptedProvider, root: Path, max_tokens: int = 128_000) -> MemoryChat:
    sessions = SessionManager(FileStorage(root / "sessions"), clock=time.time)
    return MemoryChat(provider, LongTermMemory(root), sessions, max_tokens=max_tokens)


async def test_what_is_saved_by_the_tool_is_recalled_after_a_restart(tmp_path: Path) -> None:
    provider = ScriptedProvider(
        [saying("快递只用顺丰", memory_type="procedural"), LLMResponse(text="记住了")]
    )
    first = await chat_of(provider, tmp_path).reply("alice", "记住，快递只用顺丰")
    assert (first.text, first.used_memories) == ("记住了", [])
    again = ScriptedProvider([LLMResponse(text="顺丰")])
    pieces: list[str] = []
    second = await chat_of(again, tmp_path).reply("alice", "快递用哪家？", show=pieces.append)
    assert [one["content"] for one in second.used_memories] == ["快递只用顺丰"]
    assert "快递只用顺丰" in again.requests[0][0]["content"]
    assert "".join(pieces) == second.text == "顺丰"
    assert [message["role"] for message in second.history] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant")
    ]


async def test_one_persons_memory_never_reaches_anothers_prompt(tmp_path: Path) -> None:
    await LongTermMemory(tmp_path).save("alice", "快递只用顺丰")
    provider = ScriptedProvider([LLMResponse(text="不知道")])
    reply = await chat_of(provider, tmp_path).reply("bob", "快递用哪家？")
    assert reply.used_memories == [] and "顺丰" not in str(provider.requests)


async def test_a_conversation_that_does_not_fit_is_summarised_and_the_log_kept(tmp_path: Path) -> None:
    long = "订单" * 60
    lines = [LLMResponse(text=f"回答{number}{long}") for number in range(3)]
    provider = ScriptedProvider([*lines, LLMResponse(text="摘要：客人问过订单"), LLMResponse(text="好")])
    chat = chat_of(provider, tmp_path, max_tokens=600)
    for number in range(3):
        await chat.reply("alice", f"问{number}{long}")
    reply = await chat.reply("alice", "然后呢？")
    summary, last = provider.requests[-2:]
    assert summary[1]["content"].startswith("user: 问0")
    assert "摘要：客人问过订单" in last[0]["content"]
    assert last[1]["role"] == "user" and not any("问0" in str(one["content"]) for one in last[1:])
    assert len(reply.history) == 8, "日志一句不少"


async def test_an_empty_summary_stands_for_nothing(tmp_path: Path) -> None:
    long = "订单" * 60
    lines = [LLMResponse(text=f"回答{number}{long}") for number in range(3)]
    provider = ScriptedProvider([*lines, LLMResponse(text=" "), LLMResponse(text="好")])
    chat = chat_of(provider, tmp_path, max_tokens=600)
    for number in range(3):
        await chat.reply("alice", f"问{number}{long}")
    assert (await chat.reply("alice", "然后呢？")).text == "好"
    assert "<summary>" not in provider.requests[-1][0]["content"]


async def test_a_summary_that_fails_loses_no_question_and_stops_nothing(tmp_path: Path) -> None:
    long = "订单" * 60
    lines = [LLMResponse(text=f"回答{number}{long}") for number in range(3)]
    broken = ModelError("model_error", "broken")
    provider = ScriptedProvider([*lines, broken, LLMResponse(text="好")])
    chat = chat_of(provider, tmp_path, max_tokens=600)
    for number in range(3):
        await chat.reply("alice", f"问{number}{long}")
    reply = await chat.reply("alice", "然后呢？")
    assert reply.text == "好" and reply.history[-2]["content"] == "然后呢？"
    assert provider.requests[-1][-1]["content"] == "然后呢？"


async def test_messages_of_one_person_wait_for_each_other(tmp_path: Path) -> None:
    first = asyncio.Event()

    async def slow(messages: object) -> LLMResponse:
        await asyncio.sleep(0)
        first.set()
        return LLMResponse(text="一")

    async def fast(messages: object) -> LLMResponse:
        assert first.is_set()
        return LLMResponse(text="二")

    chat = chat_of(ScriptedProvider([slow, fast]), tmp_path)
    replies = await asyncio.gather(chat.reply("alice", "1"), chat.reply("alice", "2"))
    assert [one.text for one in replies] == ["一", "二"]
    assert [message["content"] for message in replies[1].history] == ["1", "一", "2", "二"]


async def test_a_model_that_fails_leaves_the_question_and_the_next_turn_works(tmp_path: Path) -> None:
    provider = ScriptedProvider([ModelError("model_error", "broken"), LLMResponse(text="好了")])
    chat = chat_of(provider, tmp_path)
    with pytest.raises(ModelError):
        await chat.reply("alice", "4471 到哪了？")
    reply = await chat.reply("alice", "还在吗？")
    assert [message["content"] for message in reply.history] == ["4471 到哪了？", "还在吗？", "好了"]


async def test_a_limit_that_is_reached_is_said(tmp_path: Path) -> None:
    memory = LongTermMemory(tmp_path)
    sessions = SessionManager(InMemoryStorage(), clock=time.time)
    provider = ScriptedProvider([saying("a"), saying("b")])
    chat = MemoryChat(provider, memory, sessions, config=AgentConfig(max_iterations=2))
    shown: list[str] = []
    reply = await chat.reply("alice", "记住", show=shown.append)
    assert reply.text == "".join(shown) == "Stopped: a limit was reached."


async def test_what_cannot_be_saved_is_a_result_for_the_model(tmp_path: Path) -> None:
    box = MemoryToolBox(LongTermMemory(tmp_path), "alice")
    assert box.get_openai_tools()[0]["function"]["name"] == "memory_save"
    for name, arguments in (("memory_save", {"content": " "}), ("memory_save", {}), ("rm", {})):
        result = await box.execute(name, arguments)
        assert not result.ok and result.content.startswith("Error:")
    assert (await box.execute("memory_save", {"content": "住在杭州", "scope": "bob"})).ok
    assert len(await LongTermMemory(tmp_path).list("alice")) == 1


@pytest.mark.parametrize("summary", ["x", 5, [1], {"text": 5, "position": 1}, {"text": "x", "position": 99}])
async def test_a_summary_that_is_none_hides_nothing(tmp_path: Path, summary: object) -> None:
    provider = ScriptedProvider([LLMResponse(text="好")])
    sessions = SessionManager(FileStorage(tmp_path), clock=time.time)
    session = await sessions.get_or_create("alice", "chat", conversation="chat")
    await sessions.update(session, summary=summary)
    reply = await MemoryChat(provider, LongTermMemory(tmp_path), sessions).reply("alice", "在吗")
    assert reply.text == "好" and provider.requests[0][1]["content"] == "在吗"
