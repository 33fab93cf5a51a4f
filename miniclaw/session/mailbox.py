"""One turn at a time per session, in order of arrival, whoever asks; sessions side by side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from miniclaw.errors import ProtocolError, StaleFence, StorageError
from miniclaw.logs import log_ids
from miniclaw.session.models import Turn

__all__ = ["Mailbox"]

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
"""Seconds before a turn that storage broke begins again; doubled each time."""


class Mailbox:
    """Queues turns by session and runs them.

    A place is reserved while the message is being stored, so the bounds hold exactly: beyond `waiting` in
    all, or `per_session` in one session, a message is refused and nothing is stored. At most `running`
    turns run at once; sessions that are ready wait in order.
    """

    def __init__(
        self, run: Callable[[Turn], Awaitable[None]], *, running: int, waiting: int, per_session: int
    ) -> None:
        self._run = run
        self._max_running = running
        self._max_waiting = waiting
        self._per_session = per_session
        self._queues: dict[str, deque[Turn]] = {}
        self._reserved: dict[str, int] = {}
        self._ready: deque[str] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._paused: set[str] = set()
        self._current: dict[str, Turn] = {}
        self._waiting = 0
        self._stopped = False
        self._is_starting = False

    def reserve(self, session_id: str) -> None:
        """Hold a place for a message that is about to be stored.

        Raises:
            ProtocolError: `draining`, `overloaded` or `session_busy`.
        """
        if self._stopped:
            raise ProtocolError("draining", "The gateway is stopping; send it again in a moment.")
        reserved = self._reserved.get(session_id, 0)
        if self._waiting >= self._max_waiting:
            raise ProtocolError("overloaded", "Too many messages are waiting; send it again in a moment.")
        if len(self._queues.get(session_id, ())) + reserved >= self._per_session:
            raise ProtocolError(
                "session_busy", "This session has too many messages waiting; wait for answers."
            )
        self._reserved[session_id] = reserved + 1
        self._waiting += 1

    def release(self, session_id: str) -> None:
        """Give a reserved place back: the message was not stored."""
        self._waiting -= 1
        left = self._reserved[session_id] - 1
        if left:
            self._reserved[session_id] = left
        else:
            del self._reserved[session_id]

    def post(self, turn: Turn) -> None:
        """Queue a stored turn in its reserved place."""
        self.release(turn.session_id)
        self.restore(turn)

    def restore(self, turn: Turn) -> None:
        """Queue a turn of a former process; what was stored is never refused."""
        self._waiting += 1
        queue = self._queues.setdefault(turn.session_id, deque())
        queue.append(turn)
        if len(queue) == 1 and turn.session_id not in self._tasks:
            self._ready.append(turn.session_id)
            self._start_ready()

    def position(self, turn: Turn) -> int:
        """How many turns are before this one in its session; 0 = it runs or is next."""
        running = 1 if turn.session_id in self._current else 0
        for place, waiting in enumerate(self._queues.get(turn.session_id, ())):
            if waiting.turn_id == turn.turn_id:
                return place + running
        return 0

    def running(self, session_id: str) -> Turn | None:
        """The turn of a session that runs now."""
        return self._current.get(session_id)

    def is_busy(self, session_id: str) -> bool:
        """Whether a turn of the session runs, waits, or is being stored."""
        return any(session_id in place for place in (self._current, self._queues, self._reserved))

    # The same as one of many processes would have to ask it.

    def is_here(self, turn_id: str) -> bool:
        """There is no other process."""
        return True

    async def current(self, session_id: str) -> Turn | None:
        """See `running`."""
        return self.running(session_id)

    async def waiting(self, session_id: str) -> list[Turn]:
        """The turns of a session that wait, the next one first."""
        return list(self._queues.get(session_id, ()))

    async def has_turns(self, session_id: str) -> bool:
        """See `is_busy`."""
        return self.is_busy(session_id)

    async def take_out(self, turn_id: str, session_id: str) -> Turn | None:
        """See `withdraw`."""
        return self.withdraw(turn_id, session_id)

    def withdraw(self, turn_id: str, session_id: str) -> Turn | None:
        """Take a waiting turn out; `None` when it does not wait."""
        queue = self._queues.get(session_id)
        for turn in queue or ():
            if turn.turn_id == turn_id and queue is not None:
                queue.remove(turn)
                self._waiting -= 1
                if not queue:
                    del self._queues[session_id]
                    with contextlib.suppress(ValueError):
                        self._ready.remove(session_id)
                return turn
        return None

    def pause(self, session_id: str, paused: bool) -> None:
        """While its turn waits for a person, a session takes no place among those that run."""
        if paused and session_id in self._tasks:
            self._paused.add(session_id)
            self._start_ready()
        else:
            self._paused.discard(session_id)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._stopped

    @property
    def load(self) -> dict[str, int]:
        """How many turns run and wait."""
        return {"running": len(self._current), "waiting": self._waiting}

    async def stop(self, grace: float) -> None:
        """Take nothing new, start nothing new, wait `grace` seconds for running turns, then cancel them.

        A turn cancelled this way is not a cancelled turn: its row stays open and the next start resumes it.
        """
        self._stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
        remaining = list(self._tasks.values())
        for task in remaining:
            task.cancel()
        if remaining:
            await asyncio.wait(remaining, timeout=2.0)

    def _start_ready(self) -> None:
        """Start the next session that is ready, and a further one in each round of the loop.

        Of many that come in one moment the first has asked the model when the last begins; in step with one
        another, all would have to wait until the work of all is done.
        """
        if self._is_starting or self._stopped or not self._ready:
            return
        if len(self._tasks) - len(self._paused) < self._max_running:
            session_id = self._ready.popleft()
            loop = asyncio.get_running_loop()
            # Registered where it is created; the task takes itself out when its turn is over.
            self._tasks[session_id] = loop.create_task(self._work(session_id))
            self._is_starting = True
            loop.call_soon(self._start_further)

    def _start_further(self) -> None:
        self._is_starting = False
        self._start_ready()

    async def _carry_out(self, turn: Turn) -> None:
        """Run a turn; what storage broke begins again as after a restart, which counts its tries."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._run(turn)
                return
            except StorageError as error:
                if self._stopped or isinstance(error, StaleFence):
                    raise
                logger.exception("turn %s broke, trying again in %.1f s", turn.turn_id, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _work(self, session_id: str) -> None:
        """Run the next turn of one session, then let others have the place."""
        try:
            queue = self._queues.get(session_id)
            if queue is not None:
                turn = queue.popleft()
                self._waiting -= 1
                if not queue:
                    del self._queues[session_id]
                self._current[session_id] = turn
                request_id = str(turn.message.get("request_id", ""))
                with log_ids(session_id=session_id, turn_id=turn.turn_id, request_id=request_id):
                    await self._carry_out(turn)
        except Exception:  # boundary: a turn that fails beyond its own handling must not stop its session
            logger.exception("a turn of session %s broke", session_id)
        finally:
            self._current.pop(session_id, None)
            del self._tasks[session_id]
            self._paused.discard(session_id)
            if session_id in self._queues:
                self._ready.append(session_id)
            self._start_ready()
