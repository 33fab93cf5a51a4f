"""网页渠道：HTTP 进，WebSocket 出，还有那张网页。"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, Field, ValidationError

from day1_gateway import EventBus, GatewayMessage, event_message, new_id
from day2_channel.base import ConnectionChannel, spoken

logger = logging.getLogger(__name__)

PAGE: Final = Path(__file__).parent / "page.html"
OUTBOX: Final = 256  # 一个网页上等着发出去的帧；再多说明它不读，断开，它会重连
CLOSE_SECONDS: Final = 2.0


class _Body(BaseModel):
    client: str  # WebSocket 第一帧给的编号
    text: str = Field(pattern=r"\S")


class WebChatChannel(ConnectionChannel):
    """网页、它的 WebSocket 和收消息的地址；`extra` 里别的渠道的路由也由它一起监听。"""

    name = "web"

    def __init__(
        self, bus: EventBus, *, host: str = "127.0.0.1", port: int = 8080, extra: Iterable[web.RouteDef] = ()
    ) -> None:
        super().__init__(bus)
        self._address = (host, port)
        self._extra = tuple(extra)
        self._outboxes: dict[str, asyncio.Queue[str | None]] = {}
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int | None:
        """实际在听的端口。"""
        return int(self._runner.addresses[0][1]) if self._runner and self._runner.addresses else None

    def routes(self) -> list[web.RouteDef]:
        """网页、WebSocket 和收消息的地址。"""
        page, socket = web.get("/", self._page), web.get("/ws", self._socket)
        return [page, socket, web.post("/api/messages", self._message)]

    async def start(self) -> None:
        app = web.Application(middlewares=[_guard])
        app.add_routes([*self.routes(), *self._extra])
        self._runner = web.AppRunner(app, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._address).start()
        logger.info("the web chat listens on port %s", self.port)

    async def stop(self) -> None:
        await super().stop()
        for outbox in self._outboxes.values():
            _close(outbox)
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE)

    async def _message(self, request: web.Request) -> web.StreamResponse:
        """HTTP 进：收下就回 202，回答从 WebSocket 走。"""
        try:
            body = _Body.model_validate_json(await request.read())
        except ValidationError:
            return web.json_response({"error": {"code": "bad_message"}}, status=400)
        if body.client not in self._outboxes:
            return web.json_response({"error": {"code": "not_found"}}, status=404)
        inbound = spoken(f"{self.name}:{body.client}", body.text)
        await self.submit(inbound)
        return web.json_response({"msg_id": inbound.msg_id}, status=202)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        """WebSocket 出：第一帧告诉网页它是谁，之后只往外发。"""
        ws = web.WebSocketResponse(heartbeat=20.0, max_msg_size=1024, timeout=CLOSE_SECONDS)
        await ws.prepare(request)
        client, outbox = new_id("con"), asyncio.Queue[str | None](OUTBOX)
        self._outboxes[client] = outbox
        self.bus.publish("connection.opened", client)
        self._write(event_message("connection.opened", {"client": client}, target=f"web:{client}"))
        writer = asyncio.create_task(_write_frames(ws, outbox))
        try:
            async for _ in ws:
                pass  # 网页不往这里写；读是为了知道它什么时候走
        finally:
            del self._outboxes[client]
            writer.cancel()
            self.bus.publish("connection.closed", client)
        return ws

    def _write(self, message: GatewayMessage) -> None:
        outbox = self._outboxes.get(message.target.partition(":")[2])
        if outbox is not None and outbox.full():
            logger.warning("%s does not read and is closed", message.target)
            _close(outbox)
        elif outbox is not None:
            outbox.put_nowait(message.to_json())


def _close(outbox: asyncio.Queue[str | None]) -> None:
    while not outbox.empty():
        outbox.get_nowait()
    outbox.put_nowait(None)  # 后面的都不发了，只剩“关”


async def _write_frames(ws: web.WebSocketResponse, outbox: asyncio.Queue[str | None]) -> None:
    try:
        while (frame := await outbox.get()) is not None:
            await ws.send_str(frame)
        await ws.close(code=WSCloseCode.GOING_AWAY)
    except ConnectionError:
        pass  # 网页走了；读的那一边也会知道


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """听在本机不等于只有自己人：别的网页能让浏览器连过来。Webhook 从外面来，自己验签，不在这里拦。"""
    if not request.path.startswith("/webhooks/"):
        if request.host.partition(":")[0] not in ("127.0.0.1", "localhost"):
            return web.Response(status=421)
        if request.headers.get("Origin", f"http://{request.host}") != f"http://{request.host}":
            return web.Response(status=403)
    return await handler(request)
