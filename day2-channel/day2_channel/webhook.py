"""Webhook 渠道：一条流水线管所有平台。验签 → 解析 → 去重 → 排队 → 立刻回答平台。"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from day1_gateway import ErrorPayload, EventBus, EventPayload, GatewayMessage, ProtocolError
from day2_channel.base import Channel

logger = logging.getLogger(__name__)

QUEUE: Final = 1024  # 等着办的消息；满了就回 503，平台过一会儿再发
REMEMBERED: Final = 4096  # 记住多少个已经收过的编号

Deliver = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """平台发来的东西，原样；`now` 是从纪元算起的秒，签名的时间窗用它。"""

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """给平台的回答：JSON 或者文字。"""

    status: int = 200
    body: object = None
    text: str | None = None


class Platform(Protocol):
    """一个平台的脾气，一个类一个平台；`paths` 是 `/webhooks/` 下面的路径和各自的方法。"""

    name: str

    @property
    def paths(self) -> Mapping[str, tuple[str, ...]]: ...

    def verify(self, request: WebhookRequest) -> None:
        """对原始字节验签；不对就抛出 `ProtocolError`，错误码 `unauthorized`。"""

    def parse(self, request: WebhookRequest) -> GatewayMessage | Answer:
        """验过的请求里的消息；没有消息（握手、自己的回声）就返回该怎么回答。"""


class WebhookChannel(Channel):
    """一个平台的渠道；回答经 `deliver(target, text)` 送出去，那是平台自己的接口。"""

    def __init__(
        self, platform: Platform, bus: EventBus, deliver: Deliver, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.name = platform.name
        self.platform, self._bus, self._deliver, self._clock = platform, bus, deliver, clock
        self._queue: asyncio.Queue[GatewayMessage] = asyncio.Queue(QUEUE)
        self._seen: OrderedDict[str, None] = OrderedDict()

    def routes(self) -> list[web.RouteDef]:
        """平台要用的地址，交给网页渠道一起监听。"""
        pairs = [(path, one) for path, methods in self.platform.paths.items() for one in methods]
        return [web.route(method, f"/webhooks/{path}", self._handle) for path, method in pairs]

    async def start(self) -> None:
        """没有要打开的：监听的是网页渠道。"""

    async def stop(self) -> None:
        """没有要关的。"""

    async def receive(self) -> GatewayMessage:
        return await self._queue.get()

    async def send(self, message: GatewayMessage) -> None:
        match message.payload:
            case ErrorPayload(message=text) | EventPayload(data={"text": str(text)}):
                await self._deliver(message.target, text)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        incoming = WebhookRequest(
            method=request.method,
            path=request.path,
            headers=request.headers,
            query=request.query,
            body=await request.read(),
            now=self._clock(),
        )
        try:
            self.platform.verify(incoming)
            parsed = self.platform.parse(incoming)
        except ProtocolError as error:  # 为什么拒绝只写日志，不告诉对方
            logger.warning("%s webhook refused: %s", self.name, error)
            return web.Response(status=401 if error.code == "unauthorized" else 400)
        answer = parsed if isinstance(parsed, Answer) else self._take(parsed)
        if answer.body is not None:
            return web.json_response(answer.body, status=answer.status)
        return web.Response(status=answer.status, text=answer.text)

    def _take(self, inbound: GatewayMessage) -> Answer:
        """同一条消息来几遍都只办一遍；放不下就请平台再发，这一遍不算收过。"""
        if inbound.msg_id in self._seen:
            return Answer()
        if self._queue.full():
            return Answer(status=503)
        self._queue.put_nowait(inbound)
        self._seen[inbound.msg_id] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self._bus.publish("message.inbound", inbound)
        return Answer()
