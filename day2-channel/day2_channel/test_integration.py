"""第 2 天接在第 1 天上：三条渠道，一张路由表，一条总线。"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from day1_gateway import EventBus, GatewayMessage, MessageRouter, MessageType, TextPayload, event_message
from day2_channel import Channel, WebChatChannel, pump


class Lines(Channel):
    """说完预定的话就结束的渠道。"""

    name = "lines"

    def __init__(self, *said: tuple[str, str]) -> None:
        self._said = list(said)
        self.sent: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def receive(self) -> GatewayMessage:
        if not self._said:
            raise EOFError
        who, text = self._said.pop(0)
        payload = TextPayload(text=text)
        return GatewayMessage(msg_id=text, msg_type=MessageType.TEXT, source=f"lines:{who}", payload=payload)

    async def send(self, message: GatewayMessage) -> None:
        if message.target == "lines:broken":
            raise ConnectionError("gone")
        self.sent.append(message.target.removeprefix("lines:") + " " + message.payload.data["text"])  # type: ignore[union-attr] # 只有事件


def router_of(handler: object) -> MessageRouter:
    router = MessageRouter()
    router.register(MessageType.TEXT, handler)  # type: ignore[arg-type] # 测试里的处理函数
    return router


async def echo(inbound: GatewayMessage) -> GatewayMessage:
    return event_message("turn.finished", {"text": inbound.msg_id}, target=inbound.source)


async def test_the_messages_of_one_person_are_answered_in_order_while_others_are_served() -> None:
    first, bob = asyncio.Event(), asyncio.Event()

    async def slow(inbound: GatewayMessage) -> GatewayMessage:
        if inbound.msg_id == "a1":
            await bob.wait()  # 只有 bob 不用等 a1，这里才等得到
            first.set()
        elif inbound.msg_id == "a2":
            assert first.is_set()
        else:
            bob.set()
        return await echo(inbound)

    channel = Lines(("alice", "a1"), ("alice", "a2"), ("bob", "b1"))
    async with asyncio.timeout(5):
        await pump(channel, router_of(slow))
    assert channel.sent == ["bob b1", "alice a1", "alice a2"]


async def test_an_answer_that_cannot_be_sent_does_not_stop_the_channel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel = Lines(("broken", "x1"), ("alice", "a1"))
    async with asyncio.timeout(5):
        await pump(channel, router_of(echo))
    assert channel.sent == ["alice a1"]
    assert "could not be answered" in caplog.text


async def test_cancelling_the_pump_cancels_what_it_is_doing() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(inbound: GatewayMessage) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.create_task(pump(Lines(("alice", "a1")), router_of(hang)))
    async with asyncio.timeout(5):
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cancelled.is_set()


async def test_a_web_page_talks_to_the_router_of_day_one() -> None:
    bus = EventBus()
    channel = WebChatChannel(bus, port=0)
    await channel.start()
    pumping = asyncio.create_task(pump(channel, router_of(echo)))
    base = f"http://127.0.0.1:{channel.port}"
    async with asyncio.timeout(5), aiohttp.ClientSession(base) as http, http.ws_connect("/ws") as ws:
        client = (await ws.receive_json())["payload"]["data"]["client"]
        async with http.post("/api/messages", json={"client": client, "text": "4471"}) as response:
            msg_id = (await response.json())["msg_id"]
        assert (await ws.receive_json())["payload"]["data"] == {"text": msg_id}
    pumping.cancel()
    await channel.stop()


@pytest.mark.parametrize("taken", [True, False])
def test_a_port_that_will_not_do_is_told_in_one_line(taken: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1] if taken else 99999)
        done = subprocess.run(
            [sys.executable, "example/chat.py", "--port", port],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=30,
            check=False,
        )
    assert done.returncode == 2 and done.stderr.startswith(f"--port {port}")
    assert len(done.stderr.splitlines()) == 1
