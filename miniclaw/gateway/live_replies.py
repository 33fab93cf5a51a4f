"""What a push channel shows while a turn runs: that somebody is at work, the growing answer, questions.

Nothing here is durable but the row of a streamed answer; the Dispatcher sends what a turn came to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from miniclaw.agent.patience import until_stored
from miniclaw.channel.base import AsksApproval, Delivers, Pulled, ShowsStatus, StreamsReplies, knows_again
from miniclaw.channel.questions import question_text
from miniclaw.config import Clock, DeliverySettings
from miniclaw.errors import DeliveryError, StorageError
from miniclaw.gateway.events import EventBus, LiveEvent, Subscription
from miniclaw.gateway.protocol import TERMINAL_EVENTS, ReplyTarget
from miniclaw.session.models import Turn
from miniclaw.session.outbox import Delivery
from miniclaw.session.ports import Deliveries, Turns

__all__ = ["LiveReplies"]

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 10.0
"""How long a platform may take for one update; a later one carries the same text and more.

Not for the first text: where that is given up, its message may be there, and the answer is seen twice.
"""


class LiveReplies:
    """Follows the turns of push channels that can show more than a final answer.

    Args:
        settings: `timeout` is how long a platform may take to show the first text, as for a whole answer.
    """

    def __init__(
        self,
        bus: EventBus,
        turns: Turns,
        outbox: Deliveries,
        channels: Mapping[str, Delivers],
        *,
        settings: DeliverySettings,
        clock: Clock,
    ) -> None:
        self._turns = turns
        self._outbox = outbox
        self._channels = channels
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._replies: dict[str, _Reply] = {}
        self._subscription: Subscription | None = None

    def start(self) -> None:
        """Follow turns from now on; without such channels it costs nothing."""
        if self._channels:
            self._subscription = self._bus.subscribe("session.*", self._on_event)

    async def settled(self, turn_id: str) -> None:
        """Wait until nothing more of a turn is being shown, so that its final text comes last."""
        if (reply := self._replies.get(turn_id)) is not None:
            reply.finish()
            await asyncio.wait([reply.task])

    async def stop(self) -> None:
        """Show nothing more."""
        if self._subscription is not None:
            self._subscription.close()
        tasks = [reply.task for reply in self._replies.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CALL_SECONDS)

    def _on_event(self, topic: str, event: LiveEvent) -> None:
        if event.target.partition(":")[0] not in self._channels:
            return
        reply = self._replies.get(event.turn_id)
        if reply is None and event.name in ("turn.started", "approval.requested"):
            reply = self._begin(event.turn_id)  # a question is shown even if storage failed at the start
        if reply is None:
            return
        if event.name in TERMINAL_EVENTS:
            reply.finish()
        else:
            reply.take(event)

    def _begin(self, turn_id: str) -> _Reply | None:
        if (turn := self._turns.get(turn_id)) is None or turn.message.get("reply_to") is None:
            return None
        channel = self._channels[turn.channel]
        if turn.message["msg_type"] != "text" or isinstance(channel, Pulled):
            return None
        reply = _Reply(turn, channel, self._outbox, settings=self._settings, clock=self._clock)
        self._replies[turn_id] = reply
        reply.task.add_done_callback(lambda _: self._replies.pop(turn_id, None))
        return reply


class _Reply:
    """One turn's visible progress: the newest state counts, so nothing queues up."""

    def __init__(
        self, turn: Turn, channel: Delivers, outbox: Deliveries, *, settings: DeliverySettings, clock: Clock
    ) -> None:
        self._turn = turn
        self._channel = channel
        self._outbox = outbox
        self._settings = settings
        self._clock = clock
        self._target = ReplyTarget.model_validate(turn.message["reply_to"])
        self._text = ""
        self._shown = ""
        self._handle: str | None = None
        self._refused = False
        self._questions: list[tuple[str, dict[str, Any]]] = []
        self._asked: dict[str, tuple[str, dict[str, Any]]] = {}
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def take(self, event: LiveEvent) -> None:
        """Note what is to be shown; never waits."""
        match event.name:
            case "text.delta":
                self._text += event.data["text"]
            case "tool.started" if self._text.strip():
                self._text = f"{self._text.rstrip()}\n\n"
                return
            case "turn.snapshot":
                self._text = event.data["text"]
            case "approval.requested" | "approval.resolved":
                self._questions.append((event.name, event.data))
            case _:
                return
        self._changed.set()

    def finish(self) -> None:
        """The turn has ended; what is being sent now is the last."""
        self._ended.set()
        self._changed.set()

    async def _run(self) -> None:
        channel = self._channel
        try:
            if isinstance(channel, ShowsStatus):
                await self._call(channel.show_working(self._target))
            while not self._ended.is_set():
                await self._changed.wait()
                self._changed.clear()
                while self._questions:
                    await self._show_question(*self._questions.pop(0))
                if isinstance(channel, StreamsReplies) and not self._ended.is_set():
                    await self._show_text(channel)
        except StorageError as error:
            logger.error("turn %s is not shown any more: %s", self._turn.turn_id, error)
        except Exception:  # boundary: what cannot be shown must not keep the answer from coming
            logger.exception("turn %s is not shown any more", self._turn.turn_id)

    async def _show_text(self, channel: StreamsReplies) -> None:
        text = self._text
        if self._refused or not text.strip() or text == self._shown:
            return
        if self._handle is None and not await self._open(channel, text):
            self._refused = True
            return
        if self._handle is not None and self._shown:
            await self._call(channel.update_stream(self._target, self._handle, text))
        self._shown = text
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), channel.stream_seconds)

    async def _open(self, channel: StreamsReplies, text: str) -> bool:
        """Open the delivery row, then show the first text; a row of an earlier attempt is gone on with."""
        row = self._row(f"{self._turn.turn_id}.0")
        known = await until_stored(lambda: self._outbox.open_stream(row))
        if known is None or known is not row:
            # A row without a handle: the crash hit while it was being shown, and nobody knows whether it was.
            self._handle, self._shown = (known.handle if known else None), " "
            return self._handle is not None
        try:
            async with asyncio.timeout(self._settings.timeout):
                self._handle = await channel.begin_stream(
                    self._target, text, key=row.key, known=partial(self._outbox.expect_stream, row.key)
                )
        except (DeliveryError, TimeoutError) as error:
            logger.warning("turn %s is not streamed: %s", row.turn_id, error or "no answer in time")
            if isinstance(error, TimeoutError) or error.unknown:
                return False
        await until_stored(lambda: self._outbox.keep_stream(row.key, self._handle))
        return self._handle is not None

    def _row(self, key: str) -> Delivery:
        turn, moment = self._turn, self._clock()
        return Delivery(
            key=key,
            n=turn.n,
            part=0,
            turn_id=turn.turn_id,
            user_id=turn.user_id,
            channel=turn.channel,
            account=turn.message.get("account", ""),
            conversation=self._target.conversation,
            target=self._target,
            text="",
            state="streaming",
            uncertain=1,
            next_at=moment,
            created_at=moment,
        )

    async def _show_question(self, name: str, data: dict[str, Any]) -> None:
        channel, approval_id, again = self._channel, data["approval_id"], bool(data.get("again"))
        if name == "approval.resolved":
            handle, question = self._asked.pop(approval_id, ("", {}))
            if handle and isinstance(channel, AsksApproval):
                decision = str(data["decision"])
                await self._call(channel.close_approval(self._target, handle, question, decision))
            return
        await self._set_aside()
        if isinstance(channel, AsksApproval):
            sent = await self._ask(approval_id, partial(channel.ask_approval, self._target, data), again)
            if sent is not None:
                self._asked[approval_id] = (sent, data)
            if sent is not None or not self._is_open(approval_id):
                return
        for part, text in enumerate(channel.split(question_text(data))):
            key = f"{approval_id}.{part}"
            await self._ask(approval_id, partial(channel.deliver, self._target, text, key=key), again)

    async def _ask(
        self, approval_id: str, send: Callable[..., Awaitable[str | None]], repeat: bool
    ) -> str | None:
        """Send a question until it has arrived, for as long as it is open: nobody can answer what they do not see.

        What may have arrived is sent again as a repeat, as answers are. `None` where the platform gives no handle
        or does not take it at all.
        """
        failures, since = 0, self._clock()
        while failures == 0 or self._is_open(approval_id):
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    return await send(repeat=repeat)
            except (DeliveryError, TimeoutError) as error:
                known = error if isinstance(error, DeliveryError) else DeliveryError("time-out", unknown=True)
            logger.warning("turn %s: the question may not be shown: %s", self._turn.turn_id, known)
            if known.permanent:
                return None
            repeat = repeat or known.unknown and not knows_again(self._channel, since, self._clock())
            wait = self._settings.backoff(failures) if known.retry_after is None else known.retry_after
            failures += 1
            await self._wait_while_open(approval_id, wait)
        return None

    def _is_open(self, approval_id: str) -> bool:
        closed = any(
            name == "approval.resolved" and data["approval_id"] == approval_id
            for name, data in self._questions
        )
        return not closed and not self._ended.is_set()

    async def _wait_while_open(self, approval_id: str, seconds: float) -> None:
        """Wait so long, but not beyond the question's end; what else changes is shown after it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_open(approval_id):
                    self._changed.clear()
                    await self._changed.wait()

    async def _set_aside(self) -> None:
        """End the message that grows, as it is: what follows a question has to stand below it."""
        if self._handle is None or not self._text.strip():
            return
        key, text = f"{self._turn.turn_id}.0", self._channel.split(self._text.rstrip())[0]
        aside = self._channel.deliver(
            self._target, text, key=f"{key}.aside", repeat=False, handle=self._handle
        )
        if await self._call(aside) is not None:
            self._handle, self._refused = None, True
            await until_stored(lambda: self._outbox.keep_stream(key, None))

    async def _call(self, work: Awaitable[Any]) -> Any:
        """What the platform answers; `None` when it does not, which costs a sight of progress and no more."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await work
        except (DeliveryError, TimeoutError) as error:
            logger.warning(
                "turn %s: nothing could be shown: %s", self._turn.turn_id, error or "no answer in time"
            )
            return None
