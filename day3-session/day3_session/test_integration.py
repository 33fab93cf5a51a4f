"""第 3 天接在第 1、2 天上：消息来了，会话找到或新建；网关重启，上一句还在。"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from day1_gateway import EventBus, GatewayMessage, MessageRouter, MessageType, TextPayload, event_message
from day2_channel import CLIChannel, pump
from day3_session import Entry, FileStorage, SessionManager


class Shop:
    """答第几句，并说出上一句。"""

    def __init__(self, directory: Path) -> None:
        self.sessions = SessionManager(FileStorage(directory), clock=time.time)

    async def answer(self, inbound: GatewayMessage) -> GatewayMessage:
        assert isinstance(inbound.payload, TextPayload)
        channel, _, user = inbound.source.partition(":")
        session = await self.sessions.get_or_create(user, channel, conversation=inbound.source)
        before = session.messages[-1].message["content"] if session.messages else "没有"
        message = {"role": "user", "content": inbound.payload.text}
        await self.sessions.append(session, [Entry(inbound.msg_id, 0, message)])
        return event_message("turn.finished", {"text": f"上一句：{before}"}, target=inbound.source)


@asynccontextmanager
async def shop(directory: Path, user: str, *lines: str) -> AsyncIterator[Shop]:
    shop, router = Shop(directory), MessageRouter()
    router.register(MessageType.TEXT, shop.answer)
    channel = CLIChannel(EventBus(), user=user, lines=lines)
    await channel.start()
    async with asyncio.timeout(5):
        await pump(channel, router)
    await channel.stop()
    yield shop


async def test_the_next_message_finds_the_session_of_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with shop(tmp_path, "alice", "4471 到哪了？", "它几号到？"):
        pass
    async with shop(tmp_path, "bob", "在吗？"):
        pass
    async with shop(tmp_path, "alice", "谢谢") as last:
        assert len(await last.sessions.list("alice")) == 1
    assert capsys.readouterr().out.splitlines() == [
        "上一句：没有",
        "上一句：4471 到哪了？",
        "上一句：没有",
        "上一句：它几号到？",
    ]
