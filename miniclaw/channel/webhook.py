"""One pipeline for every platform's webhook: verify the raw bytes, normalise, store, answer at once.

Nothing of the agent runs before the platform has its answer, and no answer says why a request was
refused; the log does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from aiohttp import web

from miniclaw.channel.base import Channel, Delivers
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError, ProtocolError, StorageError
from miniclaw.gateway.http import RETRY_SECONDS, Route, json_response
from miniclaw.gateway.notices import Notices
from miniclaw.gateway.protocol import GatewayMessage, Inbound, Receipt
from miniclaw.gateway.standings import Standing, Standings
from miniclaw.logs import request_id

__all__ = [
    "Answer",
    "Platform",
    "Poll",
    "ShowsTurns",
    "WebhookChannel",
    "WebhookRequest",
    "delivery_error",
]

logger = logging.getLogger(__name__)

QUEUE: Final = 1024
"""Requests between the HTTP server and the pump; a further one waits, within its time limit."""
READERS: Final = 256
"""Bodies that are read at once, of which nobody knows yet who sends them; more end the oldest."""
STORE_SECONDS: Final = 2.5
"""How long storing may take before the platform is told to try again; Slack waits three seconds."""

LOGGED_CHARS: Final = 300
"""Of why a request was refused: strangers must not fill the log."""
LONGEST_WAIT: Final = 1e9
"""Seconds that a `Retry-After` counts at most, so that a time made of it stays a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """What a platform sent, untouched."""

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    now: float
    """Seconds since the epoch, for time windows of signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the platform gets."""

    status: int = 200
    body: object = None
    """Sent as JSON."""
    text: str | None = None
    """Sent as plain text."""
    hang_up: bool = False
    """Close the connection without an answer, for platforms that try again on nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The platform asks what it is to show of a turn now."""

    turn_id: str


class Platform(Delivers, Protocol):
    """One platform's manners; a file each under `platforms/`."""

    name: str
    """The channel's name: the platform's, with `/account` for a further account."""
    paths: Mapping[str, tuple[str, ...]]
    """Methods by path below `/webhooks/`."""

    async def start(self) -> None:
        """Learn what the platform knows of the bot; what cannot be learned now is asked again later."""
        ...

    def verify(self, request: WebhookRequest) -> None:
        """Check the signature over the raw body, in constant time.

        Raises:
            ProtocolError: `unauthorized`.
        """
        ...

    def parse(self, request: WebhookRequest) -> Inbound | Answer | Poll:
        """The message of a verified request, or what to answer when it holds none (handshake, own message).

        Raises:
            ProtocolError: `bad_message`: it is signed and cannot be read.
        """
        ...

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """What the platform is told of a message."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class ShowsTurns(Protocol):
    """A platform that is told of an answer when it asks, and of the rest when it posts a message."""

    def show(self, stream_id: str, standing: Standing | None) -> Answer:
        """What to show of a turn, or of a message without one; `None` = there is no such turn (any more)."""
        ...


class WebhookChannel(Channel):
    """The channel of one platform account; its answers leave through the outbox, or when they are asked for."""

    body_seconds = 10.0
    """How long a body may take to come."""

    def __init__(
        self,
        platform: Platform,
        *,
        message_bytes: int,
        clock: Clock,
        notices: Notices,
        standings: Standings,
    ) -> None:
        self.name = platform.name
        self.platform = platform
        self._notices = notices
        self._standings = standings
        self._message_bytes = message_bytes
        self._clock = clock
        self._queue: asyncio.Queue[Inbound] = asyncio.Queue(QUEUE)
        self._reading: dict[asyncio.Timeout, None] = {}
        """The time limit of each body that is on its way, the oldest first."""
        self._unsettled: dict[int, asyncio.Future[Receipt]] = {}

    def routes(self) -> list[Route]:
        """The platform's routes; open, since they verify signatures themselves."""
        return [
            Route(method=method, path=f"/webhooks/{path}", handler=self._handle, is_open=True)
            for path, methods in self.platform.paths.items()
            for method in methods
        ]

    async def start(self) -> None:
        await self.platform.start()

    async def stop(self) -> None:
        await self.platform.close()

    async def receive(self) -> Inbound:
        return await self._queue.get()

    def settle(self, inbound: Inbound, receipt: Receipt) -> None:
        waiting = self._unsettled.pop(id(inbound), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    async def send(self, message: GatewayMessage) -> None:
        """Webhooks answer through the outbox only; live messages have nowhere to go."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        if isinstance(body, Answer):
            return _sent(body, request)
        incoming = WebhookRequest(
            method=request.method,
            path=request.path,
            headers=request.headers,
            query=dict(request.query),
            body=body,
            now=self._clock(),
        )
        try:
            self.platform.verify(incoming)
            parsed = self.platform.parse(incoming)
        except ProtocolError as error:
            logger.warning("%s webhook refused: %s", self.name, str(error)[:LOGGED_CHARS])
            return web.Response(status=401 if error.code == "unauthorized" else 400)
        try:
            if isinstance(parsed, Inbound):
                answer = await self._store(parsed)
            else:
                answer = parsed if isinstance(parsed, Answer) else await self._show(parsed.turn_id)
        except StorageError as error:
            logger.error("%s webhook: %s", self.name, error)
            answer = Answer(hang_up=True)
            if isinstance(parsed, Inbound):
                unavailable = Receipt(status="unavailable", code="storage_unavailable")
                answer = self.platform.answer(unavailable, parsed)
        return _sent(answer, request)

    async def _read(self, request: web.Request) -> bytes | Answer:
        """The body, from whoever may have sent it; or what to answer when it cannot be had."""
        if (request.content_length or 0) > self._message_bytes:
            return Answer(status=413)
        if {each.lower() for each in request.headers.getall("Content-Encoding", ())} - {"identity"}:
            return Answer(status=400)  # signatures are over what was sent, and no platform compresses
        if len(self._reading) >= READERS:  # platforms take no time: whoever is slow gives way
            logger.warning("%s webhook: %d bodies are on their way already", self.name, READERS)
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            if not oldest.expired():
                oldest.reschedule(0.0)
        limit = asyncio.timeout(self.body_seconds)
        try:
            async with limit:
                self._reading[limit] = None
                return await request.read()
        except TimeoutError:
            logger.warning("%s webhook: the body did not come in time", self.name)
            return Answer(status=408)
        except (web.RequestPayloadError, ConnectionResetError) as error:
            logger.debug("%s webhook: the body cannot be read: %s", self.name, type(error).__name__)
            return Answer(status=400)
        finally:
            self._reading.pop(limit, None)

    async def _store(self, inbound: Inbound) -> Answer:
        """Hand the message to the pump and wait for its commit, but not longer than the platform does."""
        if await self._notices.has_told(inbound):
            if isinstance(self.platform, ShowsTurns):  # of which only "busy" is kept
                text = await self._notices.text(inbound, Receipt(status="busy"))
                return self.platform.show(inbound.msg_id, Standing(text=text))
            return self.platform.answer(Receipt(status="duplicate"), inbound)
        inbound = inbound.model_copy(update={"request_id": request_id()})
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._unsettled[id(inbound)] = future
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._queue.put(inbound)
                receipt = await asyncio.shield(future)
        except TimeoutError:
            logger.error("%s webhook: storing took too long; the platform is asked to try again", self.name)
            receipt = Receipt(status="unavailable", code="storage_unavailable")
        finally:
            self._unsettled.pop(id(inbound), None)
        if receipt.code == "bad_message":  # such as a lone surrogate, which no reply could carry either
            return Answer(status=400)
        if isinstance(self.platform, ShowsTurns):
            if receipt.turn_id is not None:
                return await self._show(receipt.turn_id)
            if text := await self._notices.text(inbound, receipt):
                if receipt.status == "busy" and not await self._notices.note(inbound, text):
                    return Answer(hang_up=True)  # a copy was taken meanwhile: the next one shows its turn
                return self.platform.show(inbound.msg_id, Standing(text=text))
        else:
            await self._notices.tell(inbound, receipt)
        return self.platform.answer(receipt, inbound)

    async def _show(self, turn_id: str) -> Answer:
        assert isinstance(self.platform, ShowsTurns)
        return self.platform.show(turn_id, await self._standings.of(turn_id, self.name))


def _sent(answer: Answer, request: web.Request) -> web.Response:
    if answer.hang_up and request.transport is not None:
        request.transport.abort()
    if answer.body is not None:
        response = json_response(answer.body, status=answer.status)
    else:
        response = web.Response(status=answer.status, text=answer.text)
    if answer.status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


def delivery_error(status: int, retry_after: str | None) -> DeliveryError | None:
    """What an HTTP status of a platform means for a delivery; `None` = it was taken."""
    if 200 <= status < 300:
        return None
    text = f"the platform answered {status}"
    if status == 429:
        is_number = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
        seconds = min(float(retry_after or 0), LONGEST_WAIT) if is_number else None
        return DeliveryError(text, retry_after=seconds)
    if status in (408, 425) or status >= 500:
        return DeliveryError(text, unknown=True)
    return DeliveryError(text, permanent=True)
