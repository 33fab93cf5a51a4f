"""Timers: messages that are said to the agent at a time. A channel like any other, on a table of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from miniclaw.channel.base import Channel, Delivers, Pulled
from miniclaw.config import Clock
from miniclaw.errors import ConfigError, ProtocolError, StorageError
from miniclaw.gateway.protocol import (
    GatewayMessage,
    Inbound,
    MessageType,
    Receipt,
    ReplyTarget,
    TextPayload,
    format_time,
    has_unreadable,
    new_id,
    now,
)
from miniclaw.identity import Identities
from miniclaw.schedules import Missed, Schedule, TimerSettings, UserSettings, local_zone
from miniclaw.timer_store import Timer, TimerStore

__all__ = ["Timers"]

logger = logging.getLogger(__name__)

MOST: Final = 100
"""Timers of one user or group."""
GRACE_SECONDS: Final = 60.0
"""How late a run may be before it counts as missed."""
LOOK_SECONDS: Final = 30.0
"""How often the clock is looked at again though nothing is due: it may have been set, or the machine slept."""
BUSY_SECONDS: Final = 1.0
"""How often a timer is looked at again whose last run still goes on."""
RETRY_SECONDS: Final = 5.0
"""After which a run that was refused, since the gateway is full or storage is down, is tried again."""


class Timers(Channel):
    """Keeps the timers and puts each run into the inbox once.

    A run's message has the timer's id and the planned time as its own id, so that a process that was killed
    between storing it and moving the timer on repeats nothing. Its session is the timer's, one turn at a
    time; a run that is due while the last one goes on waits, and counts as missed when it has to wait long.
    """

    name = "timer"

    def __init__(
        self,
        store: TimerStore,
        identities: Identities,
        push: Mapping[str, Delivers],
        *,
        configured: Mapping[str, TimerSettings],
        users: Mapping[str, UserSettings],
        clock: Clock,
    ) -> None:
        self._store = store
        self._identities = identities
        self._push = push
        self._configured = configured
        self._users = users
        self._clock = clock
        self._at_work: dict[str, tuple[Timer, float]] = {}
        """Runs that are being stored, with their planned times, by message id."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self.is_busy: Callable[[str], Awaitable[bool]]
        """Whether a session has a turn that runs or waits; the mailbox's, which is made later."""

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock()

    def zone(self, user_id: str) -> str:
        """The IANA name of the zone that a user's times are meant in."""
        known = self._users.get(user_id)
        return (known.zone if known else None) or local_zone()

    async def start(self) -> None:
        """Bring the stored timers into line with the configured ones; what did not change keeps its next run."""
        wanted: dict[str, Timer] = {}
        for name, settings in self._configured.items():
            await self._identities.ensure(settings.user)
            wanted[name] = self._of_settings(name, settings)
        await self._store.forget_left()
        for row in self._store.configured():
            given = wanted.get(row.timer_id)
            if given is None:
                await self._store.delete(row.timer_id)
            elif (row.schedule, row.text, row.user_id) == (given.schedule, given.text, given.user_id):
                del wanted[row.timer_id]
                if row.missed != given.missed:
                    await self._store.save(replace(row, missed=given.missed))
        for timer in wanted.values():
            await self._store.save(timer)

    async def stop(self) -> None:
        """Drop what is on its way into the database; the next start finds it there."""
        for task in tuple(self._tasks):
            task.cancel()

    async def send(self, message: GatewayMessage) -> None:
        """Nobody listens."""

    async def receive(self) -> Inbound:
        """The next run, when its time has come."""
        while True:
            self._woken.clear()
            try:
                if (due := await self._due()) is not None:
                    inbound = self._message(*due)
                    self._at_work[inbound.msg_id] = due
                    return inbound
                seconds = self._seconds_to_next()
            except StorageError as error:
                logger.error("timers wait for storage: %s", error)
                seconds = LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()

    def settle(self, inbound: Inbound, receipt: Receipt) -> None:
        """Move the timer on behind a run that was stored; one that could not be is tried again."""
        loop = asyncio.get_running_loop()
        if receipt.status in ("busy", "unavailable"):
            loop.call_later(RETRY_SECONDS, self._is_settled, inbound)
            return
        if not receipt.stored:
            logger.error("%s: its run was refused: %s", inbound.source, receipt.message)
        self._tasks.add(task := loop.create_task(self._move_on(inbound, receipt.session_id)))
        task.add_done_callback(self._tasks.discard)

    async def _move_on(self, inbound: Inbound, session_id: str | None) -> None:
        timer, planned = self._at_work[inbound.msg_id]
        try:
            await self._store.move_on(timer, planned, session_id)
        except StorageError as error:
            logger.error("%s: storage did not take its next time: %s", inbound.source, error)
            await asyncio.sleep(RETRY_SECONDS)  # then it is a duplicate, which starts no second turn
        self._is_settled(inbound)

    def _is_settled(self, inbound: Inbound) -> None:
        del self._at_work[inbound.msg_id]
        self.wake()

    def wake(self) -> None:
        """Look again at once: the clock or the timers changed."""
        self._woken.set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due or on its way into the inbox."""
        return not self._store.due(self._clock()) and not self._at_work

    async def add(
        self,
        user_id: str,
        scope: str,
        schedule: Schedule,
        text: str,
        *,
        missed: Missed,
        message: Mapping[str, Any],
    ) -> Timer:
        """Make a timer; answers go to where `message`, the one that asked for it, came from.

        Raises:
            ConfigError: it would never run, there are too many, the text cannot be kept, or the user was removed.
        """
        moment = self._clock()
        following = schedule.after(moment, anchor=moment)
        if following is None:
            raise ConfigError(f"`{schedule.value}` is over, so the timer would never run.")
        if has_unreadable(text):
            raise ConfigError("The text holds a lone surrogate or a NUL character.")
        if len(self._store.of(scope)) >= MOST:
            raise ConfigError(f"There are {MOST} timers already; cancel one first.")
        timer = Timer(
            timer_id=new_id("tmr"),
            user_id=user_id,
            scope=scope,
            schedule=schedule,
            missed=missed,
            text=text,
            origin=self._origin(message),
            anchor=moment,
            next_at=following,
        )
        if not await self._store.save(timer):
            raise ConfigError("This user was removed, so no timer was made.")
        self.wake()
        return timer

    def list(self, scope: str) -> list[Timer]:
        """The timers of a user or group, the next one first."""
        return self._store.of(scope)

    async def cancel(self, timer_id: str, scope: str, user_id: str) -> Timer:
        """End a timer; a configured one stays so until its settings change.

        Raises:
            ProtocolError: `not_found`, also for one that another person of a group made.
        """
        found = [one for one in self._store.of(scope) if one.timer_id == timer_id]
        if not found or not (found[0].user_id == user_id or self._identities.is_admin(user_id)):
            raise ProtocolError("not_found", "There is no such timer.")
        if found[0].configured:
            await self._store.end(timer_id)
        else:
            await self._store.delete(timer_id)
        return found[0]

    async def _due(self) -> tuple[Timer, float] | None:
        """A timer that is to run now, and for when that was planned."""
        moment = self._clock()
        for timer in self._store.due(moment):
            planned = timer.next_at or 0.0
            if _run_id(timer, planned) in self._at_work:
                continue
            if timer.session_id is not None and await self.is_busy(timer.session_id):
                continue
            if timer.missed == "skip" and moment - planned > GRACE_SECONDS:
                logger.info("timer %s: the run of %s was missed", timer.timer_id, format_time(planned))
                await self._store.move_on(timer, planned, None)
                continue
            return timer, planned
        return None

    def _seconds_to_next(self) -> float:
        if (following := self._store.next_at()) is None:
            return LOOK_SECONDS
        left = following - self._clock()
        return min(left, LOOK_SECONDS) if left > 0 else BUSY_SECONDS

    def _message(self, timer: Timer, planned: float) -> Inbound:
        """A run as a message: to where the timer was made if answers can still be sent there."""
        origin = timer.origin
        target = ReplyTarget.model_validate(origin["reply_to"]) if origin else None
        if target is None or origin["channel"] not in self._push or _is_over(target, self._clock()):
            origin, target = {}, None
        return Inbound(
            msg_id=_run_id(timer, planned),
            msg_type=MessageType.TEXT,
            source=f"timer:{timer.timer_id}",
            payload=TextPayload(
                text=f"{timer.text}\n\n(⏰ {timer.timer_id}, {timer.schedule.local(planned)})"
            ),
            timestamp=now(),
            channel=origin.get("channel", self.name),
            account=origin.get("account", ""),
            sender=timer.user_id,
            user_id=timer.user_id,
            scope=timer.scope,
            conversation=f"timer:{timer.timer_id}",
            direct=timer.scope == timer.user_id,
            reply_to=target,
            asks=False,
        )

    def _origin(self, message: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._push.get(message.get("channel", ""))
        if channel is None or isinstance(channel, Pulled) or not message.get("reply_to"):
            return {}
        return {name: message[name] for name in ("channel", "account", "reply_to")}

    def _of_settings(self, name: str, settings: TimerSettings) -> Timer:
        moment = self._clock()
        schedule = settings.schedule(self.zone(settings.user), moment)
        return Timer(
            timer_id=name,
            user_id=settings.user,
            scope=settings.user,
            schedule=schedule,
            missed=settings.missed,
            text=settings.text,
            origin={},
            anchor=moment,
            next_at=schedule.after(moment, anchor=moment),
            configured=True,
        )


def _run_id(timer: Timer, planned: float) -> str:
    return f"{timer.timer_id}.{int(planned)}"


def _is_over(target: ReplyTarget, moment: float) -> bool:
    """Whether the platform takes no answers there any more."""
    return target.expires_at is not None and target.expires_at <= moment
