"""The connection to Redis: calls of one moment share a round trip, as writes to SQLite share a commit.

All calls go over one connection, in order. What loses it is tried again: a call that waits is made once more as
soon as Redis is back, so the functions of `functions.lua` do the same when they run twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from pathlib import Path
from typing import Any, Final

from miniclaw.agent.patience import waits_for_storage
from miniclaw.errors import StaleFence, StorageError, StorageUnavailable
from miniclaw.redis.address import pool_of

__all__ = ["RedisLink"]

logger = logging.getLogger(__name__)

BATCH: Final = 32
"""Calls of one round trip."""
QUEUE: Final = 50_000
"""Calls that wait for Redis at most; a further one is refused."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two tries to connect, doubled from the one to the other."""
OLDEST: Final = (7, 0)
_AWAY: Final = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOMASTERLINK", "BUSY")
"""Errors by which a server says that another one, or itself a little later, has to be asked."""
_FULL: Final = ("OOM", "MISCONF", "NOREPLICAS")
"""Errors by which a server says that it takes no writes now; it still reads."""
_CODES: Final = {
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
}
"""By the classes of redis-py, which takes their codes out of the text."""


class _Call:
    __slots__ = ("command", "deadline", "future", "waits")

    def __init__(self, command: tuple[Any, ...], future: asyncio.Future[Any], waits: bool, deadline: float):
        self.command = command
        self.future = future
        self.waits = waits
        self.deadline = deadline

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class RedisLink:
    """Calls of functions and commands on one prefix.

    Args:
        url: see `pool_of`.
        prefix: of all keys, which share one hash tag.
        timeout: seconds for a round trip.
        patience: seconds for which a call that waits is tried again.
    """

    def __init__(self, url: str, *, prefix: str, timeout: float, patience: float) -> None:
        self.prefix = f"{{{prefix}}}:"
        self._url = url
        self._timeout = timeout
        self._patience = patience
        self.repeats_ms = int(2000 * min(timeout + patience, 86_400))
        """How long after its making a call may still be made once more."""
        self._calls: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: Any = None
        self._pool: Any = None
        source = (Path(__file__).parent / "functions.lua").read_text(encoding="utf-8")
        self._version = hashlib.sha256(source.encode()).hexdigest()[:12]
        self._library = source.replace("VERSION", self._version)

    @property
    def is_up(self) -> bool:
        """Whether the last call was answered."""
        return self._connection is not None

    async def open(self) -> None:
        """Connect and load the functions.

        Raises:
            ConfigError: the URL cannot be used, or redis-py is not installed.
            StorageError: nothing answers there, or it is too old.
        """
        self._pool = pool_of(self._url, self._timeout)
        try:
            await self._connect()
        except StorageUnavailable as error:
            await self._close_pool()
            raise StorageError(f"{error} See MINICLAW_REDIS_URL.") from error
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Make what calls there are, then close; may be called again."""
        if self._task is not None:
            if self._calls and self.is_up:
                await asyncio.wait([call.future for call in self._calls], timeout=self._timeout)
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        for call in self._calls:
            call.fail(StorageUnavailable("The connection to Redis is closed."))
        self._calls.clear()
        await self._drop()
        await self._close_pool()

    async def _close_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
                await sentinel.aclose()
            await pool.disconnect()

    def call(self, name: str, *args: Any, waits: bool | None = None) -> asyncio.Future[Any]:
        """Run one of our functions.

        Args:
            name: of the function in `functions.lua`.
            args: texts and numbers.
            waits: whether it is tried again while Redis is away; by itself where nobody waits for a receipt.

        Raises:
            StorageUnavailable: (from the future) Redis is away.
            StaleFence: (from the future) somebody else holds the session.
        """
        return self.run("FCALL", f"{name}_{self._version}", 1, self.prefix, *args, waits=waits)

    def run(self, *command: Any, waits: bool | None = None) -> asyncio.Future[Any]:
        """Run a command of Redis; raises as `call` does."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._task is None or len(self._calls) >= QUEUE:
            future.set_exception(StorageUnavailable("There is no connection to Redis."))
            return future
        waits = waits_for_storage() if waits is None else waits
        self._calls.append(_Call(command, future, waits, loop.time() + self._patience))
        self._wake.set()
        return future

    def connection(self) -> Any:
        """A further connection, for a reader that blocks."""
        return self._pool.make_connection()

    async def connect(self, connection: Any) -> None:
        """Connect it within the limit of a call, with all that is said first: who has frozen still lets in."""
        async with asyncio.timeout(self._timeout):
            await connection.connect()

    async def _work(self) -> None:
        wait = FIRST_WAIT
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._calls:
                batch = [self._calls.popleft() for _ in range(min(BATCH, len(self._calls)))]
                batch = [call for call in batch if not call.future.done()]
                try:
                    if self._connection is None:
                        await self._connect()
                        logger.warning("Redis is back")
                    await self._round(batch)
                    wait = FIRST_WAIT
                except StorageUnavailable as error:
                    await self._drop()
                    # Once for as long as it lasts; every call that fails tells its own caller.
                    logger.log(logging.ERROR if wait == FIRST_WAIT else logging.DEBUG, "%s", error)
                    self._put_back(batch, error)
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)

    def _put_back(self, batch: list[_Call], error: StorageUnavailable) -> None:
        now = asyncio.get_running_loop().time()
        everything = [call for call in (*batch, *self._calls) if not call.future.done()]
        self._calls.clear()
        for call in everything:
            if call.waits and call.deadline > now:
                self._calls.append(call)
            else:
                call.fail(StorageUnavailable(str(error)))

    def _later(self, call: _Call, error: Exception) -> None:
        """Make a call that is refused for now once more, as long as it may wait."""
        loop = asyncio.get_running_loop()
        if call.waits and call.deadline > loop.time():
            loop.call_later(LONGEST_WAIT, self._again, call)
        else:
            call.fail(StorageUnavailable(f"Redis takes no writes: {str(error).rstrip('.')}."))

    def _again(self, call: _Call) -> None:
        if self._task is None or len(self._calls) >= QUEUE:
            call.fail(StorageUnavailable("There is no connection to Redis."))
            return
        self._calls.append(call)
        self._wake.set()

    async def _round(self, batch: list[_Call]) -> None:
        """Send a batch and hand out the answers; what Redis did not answer is still open."""
        from redis.exceptions import RedisError, ResponseError

        connection, unknown = self._connection, list[_Call]()
        try:
            async with asyncio.timeout(self._timeout):
                await connection.send_packed_command(
                    connection.pack_commands([call.command for call in batch])
                )
                for call in batch:
                    try:
                        answer = await connection.read_response()
                    except ResponseError as error:
                        if (code := _code_of(error)) in _AWAY:
                            raise
                        if "Function not found" in str(error):
                            unknown.append(call)
                        elif code in _FULL:
                            self._later(call, error)
                        else:
                            call.fail(_error_of(str(error)))
                        continue
                    if not call.future.done():
                        call.future.set_result(answer)
                full = await self._load(connection) if unknown else None  # somebody emptied it
        except (RedisError, OSError, TimeoutError) as error:
            raise StorageUnavailable(
                f"Redis cannot be reached: {str(error).rstrip('.') or 'no answer'}."
            ) from error
        for call in reversed(unknown):  # they run as soon as the functions are there
            if full is not None:
                self._later(call, full)
            else:
                self._calls.appendleft(call)

    async def _connect(self) -> None:
        from redis.exceptions import RedisError

        connection = self._pool.make_connection()
        try:
            async with asyncio.timeout(self._timeout):
                await connection.connect()
                await self._load(connection)
            self._connection = connection
        except (RedisError, OSError, TimeoutError) as error:
            raise StorageUnavailable(
                f"Redis cannot be reached: {str(error).rstrip('.') or 'no answer'}."
            ) from error
        finally:
            if self._connection is None:
                await connection.disconnect(nowait=True)

    async def _load(self, connection: Any) -> Exception | None:
        """Load the functions, if they are not there; returns the error of a Redis that takes no writes now."""
        from redis.exceptions import ResponseError

        await connection.send_command("FUNCTION", "LOAD", self._library)
        try:
            await connection.read_response()
        except ResponseError as error:
            text = str(error)
            if "unknown command" in text:
                raise StorageUnavailable("That Redis is too old; version 7 or a Valkey is needed.") from error
            if (code := _code_of(error)) in _AWAY:
                raise
            if code in _FULL:
                return error
            if "already exists" not in text:
                raise StorageUnavailable(f"Redis does not take the functions: {text}.") from error
        return None

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                await connection.disconnect(nowait=True)


def _code_of(error: Exception) -> str:
    return _CODES.get(type(error).__name__) or str(error).partition(" ")[0]


def _error_of(text: str) -> StorageError:
    if "STALE" in text:
        return StaleFence("Another gateway has taken over this session.")
    if "GONE" in text:
        return StorageError(f"There is no session `{text.partition('GONE ')[2]}`.")
    return StorageError(f"Redis refused a call: {text}.")
