"""Sends the answers of push channels from their rows, in order, until they have arrived or are given up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from miniclaw.channel.base import Delivers
from miniclaw.config import Clock, DeliverySettings
from miniclaw.errors import DeliveryError, StorageError
from miniclaw.gateway.events import EventBus, Subscription
from miniclaw.session.models import Turn
from miniclaw.session.outbox import Delivery, Outbox

__all__ = ["Dispatcher"]

logger = logging.getLogger(__name__)


class Dispatcher:
    """Delivers rows of the push channels that this process runs.

    Order is kept per conversation: a row that waits for its next try is not overtaken. `sending` is
    committed before the platform is called, so a crash leaves a row whose outcome is unknown, and its
    next try says so. Permanent errors, and rows older than `give_up_after`, become dead letters.
    """

    def __init__(
        self,
        outbox: Outbox,
        channels: Mapping[str, Delivers],
        bus: EventBus,
        settings: DeliverySettings,
        *,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._queues: dict[tuple[str, str, str], deque[Delivery]] = {}
        self._known: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.Event = asyncio.Event()
        self._subscription: Subscription | None = None
        self._scanner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up what a former process left, and every answer from now on."""
        if not self._channels:
            return
        self._subscription = self._bus.subscribe("message.outbound", self._on_end)
        self._scanner = asyncio.get_running_loop().create_task(self._scan())
        self._wake.set()

    async def stop(self, grace: float) -> None:
        """Start nothing new, wait for running tries, then cancel them; their rows stay."""
        if self._subscription is not None:
            self._subscription.close()
        if self._scanner is not None:
            self._scanner.cancel()
            await asyncio.wait([self._scanner])
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    def _on_end(self, topic: str, turn: Turn) -> None:
        if turn.channel in self._channels:
            self._wake.set()

    async def _scan(self) -> None:
        """Queue open rows that are not queued yet, whenever a turn ended."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                rows = await self._outbox.open_rows(tuple(self._channels))
            except StorageError as error:
                logger.error("the outbox cannot be read, trying again: %s", error)
                await asyncio.sleep(self._settings.retry_base)
                self._wake.set()
                continue
            for row in rows:
                if row.key not in self._known:
                    self._queue(row)

    def _queue(self, row: Delivery) -> None:
        self._known.add(row.key)
        conversation = (row.channel, row.account, row.conversation)
        queue = self._queues.get(conversation)
        if queue is not None:
            queue.append(row)
            return
        self._queues[conversation] = deque([row])
        task = asyncio.get_running_loop().create_task(self._drain(conversation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, conversation: tuple[str, str, str]) -> None:
        queue = self._queues[conversation]
        while queue:
            row = queue[0]
            try:
                await self._deliver(row)
            except StorageError as error:
                logger.error("delivery %s: its outcome cannot be stored: %s", row.key, error)
                await asyncio.sleep(self._settings.retry_base)
                continue
            queue.popleft()
            self._known.discard(row.key)
        del self._queues[conversation]

    async def _deliver(self, row: Delivery) -> None:
        """Try until it is sent or dead."""
        while True:
            await asyncio.sleep(max(0.0, row.next_at - self._clock()))
            if self._clock() - row.created_at > self._settings.give_up_after:
                await self._outbox.dead(row, row.error or "not delivered in time")
                logger.error("delivery %s given up: %s", row.key, row.error)
                return
            if not await self._outbox.begin(row):
                return  # the row was read before its last try ended
            try:
                async with asyncio.timeout(self._settings.timeout):
                    channel = self._channels[row.channel]
                    handle = await channel.deliver(row.target, row.text, key=row.key, repeat=row.uncertain)
            except TimeoutError:
                error = DeliveryError("the platform did not answer in time", unknown=True)
            except DeliveryError as raised:
                error = raised
            else:
                await self._outbox.sent(row, handle)
                logger.info("delivery %s sent", row.key)
                return
            if error.permanent:
                await self._outbox.dead(row, str(error))
                logger.error("delivery %s cannot be sent: %s", row.key, error)
                return
            row = await self._put_off(row, error)

    async def _put_off(self, row: Delivery, error: DeliveryError) -> Delivery:
        backoff = min(self._settings.retry_max, self._settings.retry_base * 2.0**row.attempts)
        wait = error.retry_after if error.retry_after is not None else backoff * (0.5 + self._jitter() / 2)
        at, uncertain = self._clock() + wait, row.uncertain or error.unknown
        await self._outbox.retry(row, str(error), at=at, uncertain=uncertain)
        logger.warning("delivery %s failed, next try in %.1f s: %s", row.key, wait, error)
        return replace(row, attempts=row.attempts + 1, next_at=at, uncertain=uncertain, error=str(error))
