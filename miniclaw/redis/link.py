"""The connection to Redis: calls of one moment share a round trip, as writes to SQLite share a commit.

All calls go over one connection, in order. What loses it is tried again: a call that waits is made once more as
soon as Redis is back, so the functions of `functions.lua` do the same when they run twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import urllib.parse
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import ConfigError, StaleFence, StorageError, StorageUnavailable

__all__ = ["RedisLink"]

logger = logging.getLogger(__name__)

BATCH: Final = 32
"""Calls of one round trip."""
QUEUE: Final = 50_000
"""Calls that wait for Redis at most; a further one is refused."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two tries to connect, doubled from the one to the other."""
OLDEST: Final = (7, 0)
_AWAY: Final = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOMASTERLINK")
"""Errors by which a server says that another one, or itself a little later, has to be asked."""


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
        url: `redis://`, `rediss://`, `unix://`, or `redis+sentinel://host:port,host:port/name[/db]`.
        prefix: of all keys, which share one hash tag.
        timeout: seconds for a round trip.
        patience: seconds for which a call that waits is tried again.
    """

    def __init__(self, url: str, *, prefix: str, timeout: float, patience: float) -> None:
        self.prefix = f"{{{prefix}}}:"
        self._url = url
        self._timeout = timeout
        self._patience = patience
        self._calls: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: Any = None
        self._pool: Any = None
        source = (Path(__file__).parent / "functions.lua").read_text(encoding="utf-8")
        self._version = hashlib.sha256(source.encode()).hexdigest()[:12]
        self._library = source.replace("VERSION", self._version)
        self.on_return: list[Callable[[], None]] = []
        """Called when Redis is back."""

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

    def call(self, name: str, *args: Any, waits: bool = True) -> asyncio.Future[Any]:
        """Run one of our functions.

        Args:
            name: of the function in `functions.lua`.
            args: texts and numbers.
            waits: whether it is tried again while Redis is away.

        Raises:
            StorageUnavailable: (from the future) Redis is away.
            StaleFence: (from the future) somebody else holds the session.
        """
        return self.run("FCALL", f"{name}_{self._version}", 1, self.prefix, *args, waits=waits)

    def run(self, *command: Any, waits: bool = True) -> asyncio.Future[Any]:
        """Run a command of Redis; raises as `call` does."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._task is None or len(self._calls) >= QUEUE:
            future.set_exception(StorageUnavailable("There is no connection to Redis."))
            return future
        self._calls.append(_Call(command, future, waits, loop.time() + self._patience))
        self._wake.set()
        return future

    def connection(self) -> Any:
        """A further connection, for a reader that blocks."""
        return self._pool.make_connection()

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
                        for told in self.on_return:
                            told()
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
                        text = str(error)
                        if text.startswith(_AWAY):
                            raise
                        if "Function not found" in text:
                            unknown.append(call)
                        else:
                            call.fail(_error_of(text))
                        continue
                    if not call.future.done():
                        call.future.set_result(answer)
        except (RedisError, OSError, TimeoutError) as error:
            raise StorageUnavailable(
                f"Redis cannot be reached: {str(error).rstrip('.') or 'no answer'}."
            ) from error
        if unknown:  # somebody emptied it: they run as soon as the functions are there
            await self._load(connection)
            self._calls.extendleft(reversed(unknown))

    async def _connect(self) -> None:
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(self._timeout):
                connection = self._pool.make_connection()
                await connection.connect()
                await self._load(connection)
        except (RedisError, OSError, TimeoutError) as error:
            raise StorageUnavailable(
                f"Redis cannot be reached: {str(error).rstrip('.') or 'no answer'}."
            ) from error
        self._connection = connection

    async def _load(self, connection: Any) -> None:
        from redis.exceptions import ResponseError

        await connection.send_command("FUNCTION", "LOAD", self._library)
        try:
            await connection.read_response()
        except ResponseError as error:
            text = str(error)
            if "unknown command" in text:
                raise StorageError("That Redis is too old; version 7 or a Valkey is needed.") from error
            if text.startswith(_AWAY):
                raise
            if "already exists" not in text:
                raise StorageError(f"Redis does not take the functions: {text}.") from error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                await connection.disconnect(nowait=True)


def pool_of(url: str, timeout: float) -> Any:
    """What makes connections of a URL.

    Raises:
        ConfigError: it cannot be used, or redis-py is not installed.
    """
    try:
        from redis import asyncio as aioredis
        from redis.asyncio import sentinel as sentinels
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        way = "in the project's directory, run `.venv/bin/pip install '.[redis]'`"
        raise ConfigError(f"MINICLAW_REDIS_URL needs redis-py: {way}.") from error
    given: dict[str, Any] = {
        "decode_responses": True,
        "socket_connect_timeout": timeout,
        "socket_timeout": None,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme not in ("redis+sentinel", "rediss+sentinel"):
            return aioredis.ConnectionPool.from_url(url, **given)
        del given["socket_keepalive"]
        hosts, _, database = parts.netloc.rpartition("@")[2], "", parts.path.strip("/").split("/")
        nodes = [(host.rpartition(":")[0], int(host.rpartition(":")[2])) for host in hosts.split(",")]
        names = {"username": parts.username, "password": parts.password}
        login = {name: urllib.parse.unquote(value) if value else None for name, value in names.items()}
        if parts.scheme == "rediss+sentinel":
            given["ssl"] = True
        make: Any = sentinels.Sentinel
        sentinel = make(nodes, sentinel_kwargs={"socket_connect_timeout": timeout})
        number = int(database[1]) if len(database) > 1 else 0
        return sentinel.master_for(database[0], db=number, **login, **given).connection_pool
    except ValueError as error:
        raise ConfigError(f"MINICLAW_REDIS_URL cannot be used: {error}.") from error


def _error_of(text: str) -> StorageError:
    if "STALE" in text:
        return StaleFence("Another gateway has taken over this session.")
    if "GONE" in text:
        return StorageError(f"There is no session `{text.partition('GONE ')[2]}`.")
    if text.startswith(("OOM", "MISCONF", "NOREPLICAS", "BUSY")):
        return StorageUnavailable(f"Redis takes no writes: {text}.")
    return StorageError(f"Redis refused a call: {text}.")
