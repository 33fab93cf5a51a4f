"""小店的第一个网关：服务器和客户端在同一个进程里，不要密钥，不联网。"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from day1_gateway import (
    CommandPayload,
    ErrorPayload,
    EventBus,
    EventPayload,
    GatewayMessage,
    GatewayServer,
    MessageRouter,
    MessageType,
    ProtocolError,
    TextPayload,
    command_result,
    event_message,
)

ORDERS = {"4471": "已发货，顺丰速运，2 天后送达", "4472": "处理中"}


# region handlers
async def answer(inbound: GatewayMessage) -> GatewayMessage:
    """今天还没有智能体：话里出现哪个订单号，就答哪个。"""
    assert isinstance(inbound.payload, TextPayload)
    for number, state in ORDERS.items():
        if number in inbound.payload.text:
            data = {"text": f"订单 {number}：{state}"}
            return event_message("turn.finished", data, target=inbound.source)
    raise ProtocolError("not_found", "No order number that we know is in the text.")


async def command(inbound: GatewayMessage) -> GatewayMessage:
    """命令只有 `ping`。"""
    assert isinstance(inbound.payload, CommandPayload)
    if inbound.payload.name != "ping":
        raise ProtocolError("unknown_command", f"There is no command `{inbound.payload.name}`.")
    return command_result(inbound.msg_id, "ping", {"pong": True}, target=inbound.source)


# endregion


def text(msg_id: str, words: str) -> str:
    """一条文字消息的帧。"""
    frame = {"msg_id": msg_id, "msg_type": "text", "payload": {"text": words}}
    return json.dumps(frame, ensure_ascii=False)


async def ask(ws: ClientConnection, frame: str) -> None:
    """发一帧，打印回来的那一帧。"""
    await ws.send(frame)
    payload = GatewayMessage.model_validate_json(await ws.recv()).payload
    if isinstance(payload, ErrorPayload):
        print(f"> {frame}\n< 拒绝 {payload.code}")
    elif isinstance(payload, EventPayload):
        print(f"> {frame}\n< {payload.name} {json.dumps(payload.data, ensure_ascii=False)}")


async def main() -> None:
    """启动、对话、停止。"""
    bus, router = EventBus(), MessageRouter()
    router.register(MessageType.TEXT, answer)
    router.register(MessageType.COMMAND, command)

    def watch(topic: str, event: Any) -> None:
        print(f"[总线] {topic}")

    bus.subscribe("connection.*", watch)
    gateway = GatewayServer(router, bus, port=0)
    await gateway.start()
    try:
        async with connect(f"ws://127.0.0.1:{gateway.port}/") as ws:
            await ask(ws, text("m1", "订单 4471 到哪了？"))
            await ask(ws, text("m2", "那 9999 呢？"))
            await ask(ws, "{这不是 JSON")
            await ask(ws, '{"msg_id": "m3", "msg_type": "command", "payload": {"name": "ping"}}')
    finally:
        await gateway.stop()
    print(f"停止之后池里还有 {len(gateway.connections)} 个连接")


if __name__ == "__main__":
    asyncio.run(main())
