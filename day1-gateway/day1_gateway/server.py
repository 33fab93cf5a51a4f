"""`GatewayServer`：WebSocket 服务器和它的连接池。"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from day1_gateway.errors import ProtocolError
from day1_gateway.events import EventBus
from day1_gateway.protocol import GatewayMessage, error_message, new_id, now, parse_frame
from day1_gateway.router import MessageRouter

__all__ = ["GatewayServer"]

logger = logging.getLogger(__name__)

MESSAGE_BYTES: Final = 1024 * 1024
"""一帧最多多大；再大就以 1009 关闭连接。"""
OUTBOX: Final = 256
"""一个连接上等着发出去的帧；推给它的再多，说明它不读，断开它。"""
ROOM_SECONDS: Final = 10.0
"""回答它自己的话时，最多等多久才有空位；之后断开它。"""
OPEN_SECONDS: Final = 10.0
"""握手最多等多久。"""
CLOSE_SECONDS: Final = 2.0
"""对方最多用多久来回应关闭。"""
STOP_SECONDS: Final = 5.0
"""停止时最多等处理函数多久，之后取消它们。"""
GOING_AWAY: Final = 1001


class _Connection:
    """池里的一个连接：读归服务器，写经过一个有界队列和唯一的写任务。"""

    def __init__(self, ws: ServerConnection, task: asyncio.Task[None]) -> None:
        self.connection_id = new_id("con")
        self.task = task
        """为它服务的任务；停止时等不到它结束就取消它。"""
        self._ws = ws
        self._outbox: asyncio.Queue[str] = asyncio.Queue(OUTBOX)
        self.is_cut = False
        """断开了：不再发，也不再办它后面的帧。"""

    async def frames(self) -> AsyncIterator[str | bytes]:
        """收到的帧，到它走了或者断开为止。"""
        async for frame in self._ws:
            if self.is_cut:
                return
            yield frame

    # region write
    def write(self, frame: str) -> None:
        """别人推来的：排队发送，从不等待，读得慢的人不拖慢别人。"""
        if self.is_cut:
            return
        try:
            self._outbox.put_nowait(frame)
        except asyncio.QueueFull:
            self._cut()

    async def answer(self, frame: str) -> None:
        """回答它自己的话：满了就等空位，这时候它的下一句也不办；有期限。"""
        if self.is_cut:
            return
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._outbox.put(frame)
        except TimeoutError:
            self._cut()

    def _cut(self) -> None:
        if not self.is_cut:
            logger.warning("connection %s does not read and is cut", self.connection_id)
            self.is_cut = True
            self._ws.transport.abort()

    async def write_frames(self) -> None:
        """一帧一帧发出去，直到被取消；对方走了不算错，读的那一边会知道。"""
        try:
            while True:
                await self._ws.send(await self._outbox.get())
        except ConnectionClosed:
            self.is_cut = True
            while not self._outbox.empty():  # 等空位的人不用再等
                self._outbox.get_nowait()

    # endregion


class GatewayServer:
    """听一个地址，在路径 `/` 上说消息协议。

    没有令牌，所以只听本机；带 `Origin` 的握手一律拒绝，别的网页就连不进来。
    """

    name = "ws"

    def __init__(
        self, router: MessageRouter, bus: EventBus, *, host: str = "127.0.0.1", port: int = 8765
    ) -> None:
        self.connections: dict[str, _Connection] = {}
        """连接池：编号 → 连接。"""
        self._router = router
        self._bus = bus
        self._host = host
        self._port = port
        self._server: Server | None = None

    @property
    def port(self) -> int | None:
        """实际在听的端口，启动之后才有；给 0 时由系统挑一个。"""
        if self._server is None:
            return None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def start(self) -> None:
        """开始监听。"""
        self._server = await serve(
            self._serve_connection,
            self._host,
            self._port,
            origins=[None],
            max_size=MESSAGE_BYTES,
            max_queue=4,
            open_timeout=OPEN_SECONDS,
            close_timeout=CLOSE_SECONDS,
            compression=None,
        )
        logger.info("the gateway listens on %s:%s", self._host, self.port)

    # region stop
    async def stop(self) -> None:
        """不收新连接，以 1001 关闭现有的，等处理函数结束，等不到就取消；可以多次调用。"""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close(close_connections=True, code=GOING_AWAY, reason="the gateway is stopping")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await server.wait_closed()
        except TimeoutError:
            for connection in self.connections.values():
                logger.warning("the handler of %s does not return; cancelled", connection.connection_id)
                connection.task.cancel()
            await server.wait_closed()
        logger.info("the gateway has stopped")

    # endregion

    async def send(self, message: GatewayMessage) -> None:
        """发给 `target`（`ws:<连接编号>`）；已经走了的人不算错。"""
        connection = self.connections.get(message.target.partition(":")[2])
        if connection is not None:
            connection.write(message.to_json())

    # region serve
    async def _serve_connection(self, ws: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(ws, task)
        self.connections[connection.connection_id] = connection
        self._bus.publish("connection.opened", connection.connection_id)
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(connection.write_frames())
                async for frame in connection.frames():
                    await self._handle(connection, frame)
                writer.cancel()
        except* ConnectionClosed:
            pass  # 对方没说再见就走了
        finally:
            del self.connections[connection.connection_id]
            self._bus.publish("connection.closed", connection.connection_id)

    # endregion

    # region handle
    async def _handle(self, connection: _Connection, frame: str | bytes) -> None:
        """一帧怎么错都有回答，连接活着；同一连接上按到达的顺序一条一条办。"""
        source = f"{self.name}:{connection.connection_id}"
        try:
            message = parse_frame(frame)
        except ProtocolError as error:
            refusal = error_message(error.code, str(error), target=source, reply_to=error.reply_to)
            await connection.answer(refusal.to_json())
            return
        # 来源由服务器盖章：对方写什么都不算。
        inbound = message.model_copy(update={"source": source, "timestamp": now()})
        self._bus.publish("message.inbound", inbound)
        reply = await self._router.route(inbound)
        if reply is not None:
            await connection.answer(reply.to_json())

    # endregion
