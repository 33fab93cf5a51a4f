"""第 4 天接第 3 天：会话是循环的记忆，每一步先存下再走下一步。"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from day3_session import Entry, FileStorage, Session, SessionManager
from day4_agent import AgentConfig, AgentRuntime, Finished, ScriptedProvider, SessionTranscript
from day4_agent.scripted import Script
from day4_agent.test_support import OrderBox, call, says, wants


async def say(manager: SessionManager, session: Session, turn_id: str, text: str, *script: Script) -> str:
    """在会话里说一句；回答也存进会话。"""
    provider = ScriptedProvider(script)
    step = 0

    async def store(message: dict[str, Any]) -> None:
        nonlocal step
        await manager.append(session, [Entry(turn_id, step, message)])
        step += 1

    history = [entry.message for entry in session.messages]
    transcript = SessionTranscript(history, system="你是客服", store=store)
    await transcript.append({"role": "user", "content": text})
    answer = ""
    async with asyncio.timeout(5):
        async for event in AgentRuntime(provider, AgentConfig()).run(transcript, OrderBox()):
            if isinstance(event, Finished):
                await transcript.append(event.response.to_message())
                answer = event.response.text
    return answer


def roles(session: Session) -> list[str]:
    return [entry.message["role"] for entry in session.messages]


async def test_a_talk_goes_on_after_a_restart(tmp_path: Path) -> None:
    manager = SessionManager(FileStorage(tmp_path), clock=lambda: 1.0)
    session = await manager.get_or_create("lin", "cli", conversation="shop")
    assert await say(manager, session, "t1", "4471 到哪了", wants(call()), says("在路上")) == "在路上"

    restarted = SessionManager(FileStorage(tmp_path), clock=lambda: 2.0)
    again = await restarted.get_or_create("lin", "cli", conversation="shop")
    assert again.session_id == session.session_id
    assert roles(again) == ["user", "assistant", "tool", "assistant"]
    assert await say(restarted, again, "t2", "谢谢", says("不客气")) == "不客气"
    assert roles(again)[-2:] == ["user", "assistant"]
    assert all(entry.message["role"] != "system" for entry in again.messages)


async def test_a_turn_that_broke_off_leaves_a_session_that_can_go_on(tmp_path: Path) -> None:
    manager = SessionManager(FileStorage(tmp_path), clock=lambda: 1.0)
    session = await manager.get_or_create("lin", "cli", conversation="shop")
    began = asyncio.Event()

    async def hang(_: object) -> Any:
        asyncio.get_running_loop().call_soon(began.set)
        return wants(call(name="hang"))

    task = asyncio.create_task(say(manager, session, "t1", "4471 到哪了", hang))
    async with asyncio.timeout(5):
        await began.wait()
        while roles(session) != ["user", "assistant"]:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    again = await SessionManager(FileStorage(tmp_path), clock=lambda: 2.0).get(session.session_id)
    assert again is not None and roles(again) == ["user", "assistant"]
    assert await say(manager, again, "t2", "还在吗", says("在")) == "在"
