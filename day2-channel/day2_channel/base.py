"""渠道是什么：一条进来的路，一条出去的路。还有把消息从渠道搬到路由的泵。"""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, Final
from weakref import WeakValueDictionary

from day1_gateway import EventBus, GatewayMessage, MessageRouter, MessageType, TextPayload, new_id, now

logger = logging.getLogger(__name__)

QUEUE: Final = 1024  # 渠道和泵之间最多放多少条；再多就在渠道那边等
IN_FLIGHT: Final = 1000  # 一个渠道同时在办的消息；再多就留在队列里


def spoken(source: str, text: str, *, msg_id: str = "") -> GatewayMessage:
    """有人在某个渠道里说的一句话。"""
    kind, payload = MessageType.TEXT, TextPayload(text=text)
    msg_id = msg_id or new_id("msg")
    return GatewayMessage(msg_id=msg_id, msg_type=kind, source=source, payload=payload, timestamp=now())


class Channel(ABC):
    """人或程序找到智能体的一种办法。`name` 独一无二，`source` 和 `target` 都以它开头。"""

    name: str

    @abstractmethod
    async def start(self) -> None:
        """打开要监听的东西。"""

    @abstractmethod
    async def stop(self) -> None:
        """停止监听，关掉开着的；可以多次调用。"""

    @abstractmethod
    async def receive(self) -> GatewayMessage:
        """下一条消息，有了就返回；再也不会有了就抛出 `EOFError`。"""

    @abstractmethod
    async def send(self, message: GatewayMessage) -> None:
        """发给 `target` 说的那个人；人已经走了不算错。"""


class ConnectionChannel(Channel, ABC):
    """对面有人一直在的渠道。进来的消息放上总线；总线上 `message.outbound` 里属于它的，它送出去。"""

    def __init__(self, bus: EventBus) -> None:
        self.bus = bus
        self._queue: asyncio.Queue[GatewayMessage | None] = asyncio.Queue(QUEUE)
        self._outbound = bus.subscribe("message.outbound", self._on_outbound)

    async def stop(self) -> None:
        self._outbound.close()

    async def receive(self) -> GatewayMessage:
        inbound = await self._queue.get()
        if inbound is None:
            self._queue.put_nowait(None)  # 再问一次，答案一样
            raise EOFError(f"channel {self.name} has ended")
        return inbound

    async def submit(self, inbound: GatewayMessage) -> None:
        """交一条消息给泵；泵忙不过来就在这里等。"""
        await self._queue.put(inbound)
        self.bus.publish("message.inbound", inbound)

    async def send(self, message: GatewayMessage) -> None:
        self._write(message)

    def _on_outbound(self, topic: str, message: Any) -> None:
        if message.target.startswith(f"{self.name}:"):
            self._write(message)

    @abstractmethod
    def _write(self, message: GatewayMessage) -> None:
        """写出去，从不等待：总线的处理函数里也要能用。"""


async def pump(channel: Channel, router: MessageRouter) -> None:
    """不停地从渠道取消息、办、回；渠道到头了，等手上的都办完再返回。"""
    places = asyncio.Semaphore(IN_FLIGHT)
    turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # region handle
    async def handle(inbound: GatewayMessage, turn: asyncio.Lock) -> None:
        try:
            async with turn:  # 同一个人的话按顺序一条一条办，不同的人互不等待
                reply = await router.route(inbound)
                if reply is not None:
                    await channel.send(reply)
        except Exception:  # 边界：一条发不出去的回复，不许停掉整个渠道
            logger.exception("message %s could not be answered", inbound.msg_id)
        finally:
            places.release()

    async with asyncio.TaskGroup() as group:
        while True:
            await places.acquire()
            try:
                inbound = await channel.receive()
            except EOFError:
                return
            group.create_task(handle(inbound, turns.setdefault(inbound.source, asyncio.Lock())))
    # endregion
