"""Sends the answers of push channels from their rows, in order, until they have arrived or are given up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from miniclaw import failpoints
from miniclaw.agent.patience import until_stored
from miniclaw.channel.base import Delivers, knows_again
from miniclaw.config import Clock, DeliverySettings
from miniclaw.errors import DeliveryError
from miniclaw.gateway.events import EventBus, Subscription
from miniclaw.logs import log_ids
from miniclaw.session.models import Turn
from miniclaw.session.outbox import Delivery
from miniclaw.session.ports import Deliveries

__all__ = ["Dispatcher"]

logger = logging.getLogger(__name__)
LONGEST_PLAN: Final = 3600.0
"""Seconds to wait beyond which a former process must have had a false clock: no platform asks for more."""

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 60.0
"""Seconds before a conversation that broke is taken up again; doubled each time."""


class Dispatcher:
    """Delivers rows of the push channels that this process runs.

    Order is kept per conversation: a row that waits for its next try is not overtaken. `sending` is
    committed before the platform is called, so a crash leaves a row whose outcome is unknown, and its
    next try says so. Permanent errors, and rows older than `give_up_after`, become dead letters.
    """

    def __init__(
        self,
        outbox: Deliveries,
        channels: Mapping[str, Delivers],
        bus: EventBus,
        settings: DeliverySettings,
        *,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        settled: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._settled = settled
        self._draining: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._asleep: dict[tuple[str, str, str], asyncio.Event] = {}
        self._due: dict[tuple[str, str, str], tuple[str, float]] = {}
        """A row's key, and until when it waits by the loop's clock, which nobody sets back."""
        self._again: set[tuple[str, str, str]] = set()
        """Where a row came while the outbox was being looked at."""
        self._subscription: Subscription | None = None
        self._stopped = False

    async def start(self) -> None:
        """Take up what a former process left, and every answer from now on."""
        if not self._channels:
            return
        self._subscription = self._bus.subscribe("message.outbound", self._on_end)
        await self.look()

    async def look(self) -> None:
        """Take up every conversation with rows that nobody delivers."""
        for conversation in await self._outbox.conversations(tuple(self._channels)):
            if conversation not in self._draining:
                self._drain_soon(conversation)

    async def stop(self, grace: float) -> None:
        """Start nothing new, wait for running tries, then cancel them; their rows stay."""
        self._stopped = True
        if self._subscription is not None:
            self._subscription.close()
        tasks = list(self._draining.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)

    def _on_end(self, topic: str, turn: Turn) -> None:
        target = turn.message.get("reply_to")
        if turn.channel in self._channels and target is not None:
            conversation = target.get("conversation", "")
            self._drain_soon((turn.channel, turn.message.get("account", ""), conversation))

    async def held(self) -> set[str]:
        """The platforms' handles of what is shown of answers that are not sent yet, the latest hundred."""
        return {row.handle for row in await self._outbox.of_user(None) if row.handle}

    def take_up(self, row: Delivery) -> None:
        """A row was made pending again by hand."""
        conversation = (row.channel, row.account, row.conversation)
        if row.channel in self._channels:
            self._drain_soon(conversation)
        if (sleep := self._asleep.get(conversation)) is not None:
            sleep.set()

    def _drain_soon(self, conversation: tuple[str, str, str]) -> None:
        """One task a conversation; one that is at work looks once more."""
        if conversation in self._draining:
            self._again.add(conversation)
        elif not self._stopped:
            task = asyncio.get_running_loop().create_task(self._drain(conversation))
            self._draining[conversation] = task

    async def _drain(self, conversation: tuple[str, str, str]) -> None:
        """Deliver until nothing is left; what breaks is tried again, after pauses that grow."""
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    while await self._step(conversation):
                        pause = FIRST_PAUSE
                    return
                except Exception:  # boundary: a conversation that breaks must not stop the others, nor itself
                    logger.exception("deliveries to %s broke, trying again in %.1f s", conversation, pause)
                await self._sleep(conversation, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            del self._draining[conversation]
            self._due.pop(conversation, None)
            if conversation in self._again:
                self._again.discard(conversation)
                self._drain_soon(conversation)

    async def _step(self, conversation: tuple[str, str, str]) -> bool:
        """Deal with the oldest row; `False` when there is none."""
        find = partial(self._outbox.next_of, *conversation)
        # Looked up again at each step: what memory knew may be out of date.
        row = await until_stored(find)
        if row is not None and self._settled is not None:
            # What is still being streamed must not come after the end, and the end must know of it.
            await self._settled(row.turn_id)
            before, row = row, await until_stored(find)
            if row is None or row.key != before.key:
                return True
        if row is None:
            return False
        with log_ids(turn_id=row.turn_id if row.n else ""):
            await self._deliver(row, conversation)
        return True

    async def _sleep(self, conversation: tuple[str, str, str], seconds: float) -> None:
        self._asleep[conversation] = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._asleep[conversation].wait()
        except TimeoutError:
            pass
        finally:
            del self._asleep[conversation]

    async def _deliver(self, row: Delivery, conversation: tuple[str, str, str]) -> None:
        """One try of a row, or the wait for its time; given up now if that is after its last moment."""
        if row.is_damaged:
            await self._give_up(row, "the row is damaged: nobody knows where it belongs")
            return
        if max(row.next_at, self._clock()) > row.created_at + self._settings.give_up_after:
            await self._give_up(row, row.error or "not delivered in time")
            return
        if (wait := self._left(row, conversation)) > 0:
            await self._sleep(conversation, wait)
            return  # it may be deleted, or another come before it
        if row.uncertain and not knows_again(self._channels[row.channel], row.created_at, self._clock()):
            row = replace(row, uncertain=2)  # stored, or a clock that is set would take the mark away again
        if not await until_stored(lambda: self._outbox.begin(row)):
            return
        failpoints.hit("after-sending")
        try:
            handle = await self._send(row)
        except DeliveryError as error:
            if error.permanent:
                await self._give_up(row, str(error))
            else:
                await self._put_off(row, error, conversation)
            return
        failpoints.hit("after-sent")
        await until_stored(lambda: self._outbox.sent(row, handle))
        self._bus.publish("system.delivery", (row.channel, "sent"))
        logger.info("delivery %s sent", row.key)

    def _left(self, row: Delivery, conversation: tuple[str, str, str]) -> float:
        """Seconds to its next try, no more than were planned if the clock was set meanwhile."""
        left, now = row.next_at - self._clock(), asyncio.get_running_loop().time()
        if self._due.get(conversation, ("", 0.0))[0] != row.key:
            is_false = self._clock() < row.created_at or left > max(LONGEST_PLAN, self._settings.retry_max)
            most = self._settings.backoff(row.attempts) if is_false else left
            self._due[conversation] = row.key, now + min(left, most)
        return min(left, self._due[conversation][1] - now)

    async def _send(self, row: Delivery) -> str | None:
        """Call the platform; whatever goes wrong is a `DeliveryError`."""
        channel = self._channels[row.channel]
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await channel.deliver(
                    row.target, row.text, key=row.key, repeat=row.uncertain > 1, handle=row.handle
                )
        except TimeoutError as error:
            raise DeliveryError("the platform did not answer in time", unknown=True) from error
        except DeliveryError:
            raise
        except Exception as error:  # boundary: a platform's code that breaks counts as an unknown outcome
            logger.exception("delivery %s broke", row.key)
            raise DeliveryError(f"sending broke: {type(error).__name__}", unknown=True) from error

    async def _give_up(self, row: Delivery, error: str) -> None:
        await until_stored(lambda: self._outbox.dead(row, error))
        self._bus.publish("system.delivery", (row.channel, "dead"))
        logger.error("delivery %s cannot be sent: %s", row.key, error)

    async def _put_off(self, row: Delivery, error: DeliveryError, conversation: tuple[str, str, str]) -> None:
        backoff = self._settings.backoff(row.attempts) * (0.5 + self._jitter() / 2)
        wait = error.retry_after if error.retry_after is not None else backoff
        self._due[conversation] = row.key, asyncio.get_running_loop().time() + wait
        at, uncertain = self._clock() + wait, row.uncertain or int(error.unknown)
        await until_stored(lambda: self._outbox.retry(row, str(error), at=at, uncertain=uncertain))
        self._bus.publish("system.delivery", (row.channel, "failed"))
        logger.warning("delivery %s failed, next try in %.1f s: %s", row.key, wait, error)
