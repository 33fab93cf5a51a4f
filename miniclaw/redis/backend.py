"""The back end of many gateways: its parts on one link, and what they tell each other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from miniclaw.config import Clock, Settings
from miniclaw.errors import StorageError
from miniclaw.gateway.events import LiveTurns
from miniclaw.gateway.protocol import new_id
from miniclaw.redis.desk import RedisDesk, RedisLedger, RedisOnce
from miniclaw.redis.link import RedisLink
from miniclaw.redis.outbox import RedisOutbox
from miniclaw.redis.people import RedisIdentities, RedisTimers
from miniclaw.redis.queue import RedisMailbox
from miniclaw.redis.relay import RedisRelay
from miniclaw.redis.storage import RedisSearch, RedisStorage
from miniclaw.redis.turns import RedisTurns
from miniclaw.redis.uploads import RedisUploads
from miniclaw.session.models import Turn

if TYPE_CHECKING:
    from miniclaw.agent.turn import TurnRunner
    from miniclaw.gateway.dispatcher import Dispatcher

__all__ = ["RedisBackend"]

logger = logging.getLogger(__name__)


class RedisBackend:
    """See `Backend`."""

    def __init__(self, settings: Settings, live: LiveTurns, *, clock: Clock) -> None:
        redis = settings.redis
        assert redis.url is not None
        self.node = new_id("node")
        self._settings = settings
        link = self.link = RedisLink(
            redis.url.get_secret_value(), prefix=redis.prefix, timeout=redis.timeout, patience=redis.patience
        )
        self._live = live
        self.identities = RedisIdentities(link, clock=clock)
        self.storage = RedisStorage(link)
        self.search = RedisSearch(self.storage)
        self.uploads = RedisUploads(link, clock=clock)
        self.turns = RedisTurns(link, settings.limits, clock=clock)
        self.outbox = RedisOutbox(link, node=self.node, lease=redis.lease, clock=clock)
        self.once = RedisOnce(link)
        self.usage = RedisLedger(link, settings.prices, clock=clock)
        self.desk = RedisDesk(link, settings.approval, is_admin=self.identities.is_admin, clock=clock)
        self.timers = RedisTimers(link, clock=clock)
        self._mailbox: RedisMailbox | None = None
        self._relay: RedisRelay | None = None
        self._upkeep: asyncio.Task[None] | None = None

    def fence(self, session_id: str) -> int | None:
        """The number of the lease under which this node runs a turn of the session."""
        return self._mailbox.fence_of(session_id) if self._mailbox is not None else None

    async def open(self) -> None:
        """Connect and read what is kept in memory too; raises `StorageError`."""
        await self.link.open()
        await self.timers.read()

    async def check(self) -> None:
        """Write something; raises `StorageUnavailable` with the reason."""
        await self.link.run("SET", f"{self.link.prefix}probe", self.node, waits=False)

    async def scrub(self) -> bool:
        """Redis rewrites its file by itself."""
        return True

    def mailbox(self, run: Callable[[Turn], Awaitable[None]]) -> RedisMailbox:
        """Where turns wait for `run`, here or on another node."""
        redis, limits = self._settings.redis, self._settings.limits
        self._mailbox = RedisMailbox(
            self.link, run, node=self.node, running=limits.running, lease=redis.lease
        )
        self._relay = RedisRelay(
            self.link, self._live.bus, self._live, self.turns, node=self.node, fence=self.fence
        )
        self.turns.accepting = self._relay.accepting
        self.turns.expect = self._mailbox.expect = self._relay.expect
        self.identities.changed = self.timers.changed = self._relay.publish
        return self._mailbox

    def start(self, runner: TurnRunner, dispatcher: Dispatcher) -> None:
        """Take work, and hear of other nodes."""
        mailbox, relay = self._mailbox, self._relay
        assert mailbox is not None and relay is not None

        async def cancelled(told: dict[str, Any]) -> None:
            if mailbox.is_here(told["turn_id"]):
                runner.interrupt(told["turn_id"])

        async def answered(told: dict[str, Any]) -> None:
            self.desk.wake(told["approval_id"], told["state"], told.get("scope", ""))

        async def people(told: dict[str, Any]) -> None:
            await self.identities.read()

        async def timers(told: dict[str, Any]) -> None:
            await self.timers.read()

        async def missed() -> None:
            with contextlib.suppress(StorageError):  # then Redis is away again
                configured = self.timers.configured()
                if await self.identities.restore():
                    users = {self._settings.channels.generic.user, *(timer.user_id for timer in configured)}
                    for user in filter(None, users):
                        await self.identities.ensure(user)
                    for timer in configured:
                        await self.timers.save(timer)
                await self.timers.read()
                await self.desk.look_again()
                await mailbox.renew()

        mailbox.cancelled = runner.interrupt
        relay.told = {"cancel": cancelled, "approval": answered, "people": people, "timers": timers}
        relay.on_return = missed
        relay.start()
        mailbox.start()
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up(dispatcher))

    async def _keep_up(self, dispatcher: Dispatcher) -> None:
        while True:
            await asyncio.sleep(self._settings.redis.lease / 3)
            try:
                await self.outbox.keep()
                await self.desk.look_again()
                await dispatcher.look()
            except StorageError as error:
                logger.warning("Redis is away: %s", error)

    async def quiet(self) -> None:
        """Hear and say no more."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        if self._relay is not None:
            await self._relay.stop()

    async def close(self) -> None:
        """Let go; may be called again."""
        await self.link.close()
