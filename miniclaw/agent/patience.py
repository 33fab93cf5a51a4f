"""How often and how long something is tried again: a request to a model, a write of storage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final, TypeVar

from miniclaw.errors import ModelError, StorageUnavailable

__all__ = ["Patience", "refuse_at_once", "until_stored", "waits_for_storage"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRIES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("rate_limited", "server", "overloaded", "unreachable"), 3),
    **dict.fromkeys(("stream_error", "bad_stream", "stream_cut"), 2),
}
"""How often a request is sent at most, by the kind of its failure; once where none is named."""
FIRST_PAUSE: Final = 0.5
"""Seconds before the second try where the server names none; doubled each time."""
LONGEST: Final = 60.0
"""Seconds after which nothing is tried again: the user has waited long enough."""


MAX_WAIT_SECONDS: Final = 5.0
"""Between two tries while storage is down."""


_waits: ContextVar[bool] = ContextVar("waits_for_storage", default=True)


def refuse_at_once(is_wanted: bool = True) -> None:
    """From here on in this task storage that is away is an error at once: somebody waits for a receipt.

    `False` once it is given: what follows waits for storage again.
    """
    _waits.set(not is_wanted)


def waits_for_storage() -> bool:
    """Whether a call may wait until storage is back."""
    return _waits.get()


async def until_stored(write: Callable[[], Awaitable[T]]) -> T:
    """Repeat a write until storage takes it; a cancel, or the stop of the process, ends the wait."""
    wait = 0.1
    while True:
        try:
            return await write()
        except StorageUnavailable as error:
            logger.error("storage is down, trying again in %.1f s: %s", wait, error)
        await asyncio.sleep(wait)
        wait = min(2 * wait, MAX_WAIT_SECONDS)


class Patience:
    """Counts the tries of one request and waits between them."""

    def __init__(
        self,
        retries: int,
        most_wait: float,
        *,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._retries = retries
        self._left = most_wait
        self._sleep = sleep
        self._clock = clock
        self._jitter = jitter
        self._began = clock()
        self._count = 0

    async def wait(self, failure: ModelError) -> bool:
        """Wait until the next try; `False` at once when there is none."""
        self._count += 1
        tries = min(self._retries + 1, TRIES.get(failure.kind, 1))
        pause = failure.retry_after
        if pause is None:
            pause = FIRST_PAUSE * 2 ** (self._count - 1) * (1 + self._jitter()) / 2
        is_late = self._clock() - self._began > LONGEST
        if not failure.retryable or self._count >= tries or pause > self._left or is_late:
            return False
        self._left -= pause
        logger.info("the model failed (%s); try %d in %.1f s", failure.kind, self._count + 1, pause)
        await self._sleep(pause)
        return True
