"""运行：pytest exercises/test_3_break.py"""

import asyncio

import pytest
from websockets.asyncio.client import connect

from day1_gateway import ErrorPayload, EventBus, GatewayMessage, GatewayServer, MessageRouter, MessageType
from ex_3_break import FRAMES

HINTS = {
    "bad_json": "提示：是合法的 JSON 还不够，最外层要是一个对象。",
    "bad_message": "提示：拼错一个字段名。",
    "unsupported": "提示：一条写得完全正确、却没有人管的消息。",
    "internal": "提示：让处理函数出错的那个命令。",
}


async def crash(inbound: GatewayMessage) -> None:
    raise RuntimeError("crash")


async def code_of(frame: str) -> str:
    router = MessageRouter()
    router.register(MessageType.COMMAND, crash)
    gateway = GatewayServer(router, EventBus(), port=0)
    await gateway.start()
    try:
        async with asyncio.timeout(5), connect(f"ws://127.0.0.1:{gateway.port}/") as ws:
            await ws.send(frame)
            payload = GatewayMessage.model_validate_json(await ws.recv()).payload
            assert isinstance(payload, ErrorPayload)
            assert gateway.connections, "坏帧不该断开连接"
            return payload.code
    finally:
        await gateway.stop()


@pytest.mark.parametrize("code", HINTS)
async def test_the_frame_gets_this_error_and_the_connection_lives(code: str) -> None:
    assert FRAMES[code], HINTS[code]
    assert await code_of(FRAMES[code]) == code, HINTS[code]
