"""The mailbox of many gateways: a stream of ready sessions, each of which is one node's as long as its lease lives.

A session has one entry in the stream from its first waiting turn to its last. Whoever reads the entry takes the
lease, runs one turn, and gives both back; the entry of a node that died is claimed by another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from miniclaw.errors import ProtocolError, StaleFence, StorageError, StorageUnavailable
from miniclaw.gateway.protocol import new_id
from miniclaw.logs import log_ids
from miniclaw.redis.link import FIRST_WAIT, LONGEST_WAIT, RedisLink
from miniclaw.redis.storage import pairs
from miniclaw.redis.turns import turn_of
from miniclaw.session.models import Turn

__all__ = ["RedisMailbox"]

logger = logging.getLogger(__name__)

GROUP: Final = "gateways"
BLOCK_MS: Final = 2000
LOOKS: Final = 5
"""At the lease of a node whose entry was claimed."""
CLAIMED: Final = 100
"""Entries of dead nodes that are claimed at a time."""


@dataclass(slots=True)
class _Held:
    """A session that this node runs a turn of."""

    entry: str
    fence: int
    turn: Turn
    task: asyncio.Task[None] | None = None
    is_lost: bool = False


class RedisMailbox:
    """See `Mailbox`; the bounds on what waits are those of all gateways, and `RedisTurns` keeps them.

    Args:
        link: the connection.
        run: carries one turn out.
        node: the name of this gateway.
        running: turns that run here at once.
        lease: seconds.
    """

    def __init__(
        self,
        link: RedisLink,
        run: Callable[[Turn], Awaitable[None]],
        *,
        node: str,
        running: int,
        lease: float,
    ) -> None:
        self._link = link
        self._run = run
        self._node = node
        self._max_running = running
        self._lease = lease
        self._held: dict[str, _Held] = {}
        self._taking: set[str] = set()
        self._paused: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._stopped = False
        self.expect: Callable[[str, str], None] = lambda session_id, turn_id: None
        """Told of a turn whose end somebody here waits for."""
        self.cancelled: Callable[[str], None] = lambda turn_id: None
        """Told of a turn that runs here and was cancelled elsewhere."""

    def fence_of(self, session_id: str) -> int | None:
        """The number under which this node may write the session, while it runs a turn of it."""
        held = self._held.get(session_id)
        return held.fence if held is not None else None

    def start(self) -> None:
        """Take work from now on."""
        self._readers = [self._spawn(self._read()), self._spawn(self._claim())]
        self._spawn(self._renew())

    def reserve(self, session_id: str) -> None:
        """Refuse what comes while this gateway stops; the bounds are kept where the message is stored."""
        if self._stopped:
            raise ProtocolError("draining", "The gateway is stopping; send it again in a moment.")

    def release(self, session_id: str) -> None:
        """Nothing was reserved."""

    def post(self, turn: Turn) -> None:
        """It stands in the stream already."""

    def restore(self, turn: Turn) -> None:
        """It stands in the stream already."""

    def position(self, turn: Turn) -> int:
        """What `Accepted.ahead` said."""
        return 0

    async def current(self, session_id: str) -> Turn | None:
        """The turn of a session that runs now, wherever."""
        turn_id = await self._link.run("HGET", f"{self._link.prefix}s:{session_id}", "running")
        if turn_id is None:
            return None
        self.expect(session_id, turn_id)
        return await self._turn(turn_id)

    async def waiting(self, session_id: str) -> list[Turn]:
        """See `Mailbox.waiting`."""
        running = await self._link.run("HGET", f"{self._link.prefix}s:{session_id}", "running")
        ids = await self._link.run("LRANGE", f"{self._link.prefix}q:{session_id}", 0, -1)
        turns = [await self._turn(turn_id) for turn_id in ids if turn_id != running]
        return [turn for turn in turns if turn is not None]

    async def _turn(self, turn_id: str) -> Turn | None:
        row = pairs(await self._link.run("HGETALL", f"{self._link.prefix}t:{turn_id}"))
        return turn_of(turn_id, row) if "n" in row else None

    async def has_turns(self, session_id: str) -> bool:
        """Whether a turn of the session runs or waits."""
        return bool(await self._link.run("EXISTS", f"{self._link.prefix}q:{session_id}"))

    async def take_out(self, turn_id: str, session_id: str) -> Turn | None:
        """See `Mailbox.withdraw`."""
        if not await self._link.call("take_out", turn_id, session_id, new_id("cut")):
            return None
        return await self._turn(turn_id)

    def pause(self, session_id: str, paused: bool) -> None:
        """See `Mailbox.pause`."""
        if paused and session_id in self._held:
            self._paused.add(session_id)
            self._room.set()
        else:
            self._paused.discard(session_id)

    def is_here(self, turn_id: str) -> bool:
        """Whether this node runs the turn."""
        return any(held.turn.turn_id == turn_id for held in self._held.values())

    @property
    def is_stopped(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._stopped

    @property
    def load(self) -> Mapping[str, int]:
        """How many turns run here; what waits, waits for all gateways."""
        return {"running": len(self._held), "waiting": 0}

    async def stop(self, grace: float) -> None:
        """Take nothing new, wait `grace` seconds for running turns, then give them to other gateways."""
        self._stopped = True
        for reader in self._readers:
            reader.cancel()
        if self._readers:
            await asyncio.wait(self._readers)
        running = [held.task for held in self._held.values() if held.task is not None]
        if running:
            await asyncio.wait(running, timeout=grace)
        for held in list(self._held.values()):
            if held.task is not None:
                held.task.cancel()
        left = [held.task for held in self._held.values() if held.task is not None]
        if left:
            await asyncio.wait(left, timeout=2.0)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with contextlib.suppress(StorageError):  # then it is claimed when its lease has ended
            await self._leave()

    async def _leave(self) -> None:
        """Give back what was read and not begun, and be no consumer any more."""
        name = f"{self._link.prefix}ready"
        while left := await self._link.run(
            "XPENDING", name, GROUP, "-", "+", CLAIMED, self._node, waits=False
        ):
            for row in left:
                await self._link.run("XCLAIM", name, GROUP, self._node, 0, row[0], waits=False)
                for entry, found in await self._link.run("XRANGE", name, row[0], row[0], waits=False):
                    given = (found[1], self._node, "", entry, "stop")
                    await self._link.call("release", *given, waits=False)
        await self._link.run("XGROUP", "DELCONSUMER", name, GROUP, self._node, waits=False)

    @property
    def _free(self) -> int:
        return self._max_running - len(self._held) - len(self._taking) + len(self._paused)

    async def _read(self) -> None:
        """Read ready sessions as long as there is room for them."""
        from redis.exceptions import RedisError, ResponseError

        wait = FIRST_WAIT
        while not self._stopped:
            connection = self._link.connection()
            try:
                await self._link.connect(connection)
                while not self._stopped:
                    await self._read_some(connection)
                    wait = FIRST_WAIT
            except ResponseError as error:
                if "NOGROUP" in str(error):
                    await self._make_group()
                    continue
                logger.error("the stream of ready sessions cannot be read: %s", error)
            except (RedisError, OSError, TimeoutError) as error:
                logger.debug("the reader of ready sessions lost Redis: %s", error)
            finally:
                with contextlib.suppress(OSError, RedisError):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _read_some(self, connection: Any) -> None:
        while self._free <= 0:
            self._room.clear()
            await self._room.wait()
        await connection.send_command(
            *("XREADGROUP", "GROUP", GROUP, self._node, "COUNT", min(self._free, CLAIMED)),
            *("BLOCK", BLOCK_MS, "STREAMS", f"{self._link.prefix}ready", ">"),
        )
        async with asyncio.timeout(BLOCK_MS / 1000 + 10):
            answer = await connection.read_response()
        for _, entries in answer or ():
            for entry, row in entries:
                self._take(row[1], entry, is_fresh=True)

    async def _make_group(self) -> None:
        name = f"{self._link.prefix}ready"
        with contextlib.suppress(StorageError):  # another node was first
            await self._link.run("XGROUP", "CREATE", name, GROUP, "0", "MKSTREAM")

    async def _claim(self) -> None:
        """Take over what dead nodes held."""
        name = f"{self._link.prefix}ready"
        while not self._stopped:
            await asyncio.sleep(self._lease / 3)
            idle, count = int(self._lease * 1000), min(self._free, CLAIMED)
            with contextlib.suppress(StorageError):  # there is no group yet, or Redis is away
                await self._link.call("put_in", idle)
                if count <= 0:
                    continue
                answer = await self._link.run(
                    "XAUTOCLAIM", name, GROUP, self._node, idle, "0-0", "COUNT", count
                )
                for entry, row in answer[1]:
                    if row:
                        self._take(row[1], entry, is_fresh=False)

    def _take(self, session_id: str, entry: str, *, is_fresh: bool) -> None:
        if session_id in self._held or session_id in self._taking:
            if is_fresh:  # a second entry, left by a call that was repeated
                self._spawn(self._give_back(session_id, None, entry, ""))
            return
        self._taking.add(session_id)
        self._spawn(self._acquire(session_id, entry, is_fresh=is_fresh))

    async def _acquire(self, session_id: str, entry: str, *, is_fresh: bool) -> None:
        try:
            for _ in range(LOOKS):
                answer = await self._link.call("acquire", session_id, self._node, int(self._lease * 1000))
                if answer[0] != "held":
                    break
                if is_fresh:
                    await self._give_back(session_id, None, entry, "")
                    return
                await asyncio.sleep(self._lease / 3)  # the entry of a node that died; its lease ends soon
            else:
                return
            if answer[0] == "empty":
                await self._give_back(session_id, None, entry, "")
                return
            row = pairs(answer[3])
            if "n" not in row:
                await self._give_back(session_id, int(answer[1]), entry, answer[2])
                return
            held = _Held(entry, int(answer[1]), turn_of(answer[2], row))
            self._held[session_id] = held
            held.task = self._spawn(self._work(session_id, held))
        finally:
            self._taking.discard(session_id)
            self._room.set()

    async def _work(self, session_id: str, held: _Held) -> None:
        done = held.turn.turn_id
        try:
            with log_ids(session_id=session_id, turn_id=held.turn.turn_id):
                await self._run(held.turn)
        except asyncio.CancelledError:
            done = ""
        except StaleFence:
            logger.warning("turn %s went to another gateway", held.turn.turn_id)
            held.is_lost = True
        except StorageUnavailable as error:
            logger.error("turn %s is put back: %s", held.turn.turn_id, error)
            done = ""
        except Exception:  # boundary: a turn that fails beyond its own handling must not stop its session
            logger.exception("a turn of session %s broke", session_id)
            await asyncio.sleep(LONGEST_WAIT)
            done = ""
        finally:
            del self._held[session_id]
            self._paused.discard(session_id)
            self._room.set()
        if not held.is_lost:
            await self._give_back(session_id, held.fence, held.entry, done)

    async def _give_back(self, session_id: str, fence: int | None, entry: str, done: str) -> None:
        number = "" if fence is None else fence
        try:
            await self._link.call("release", session_id, self._node, number, entry, done)
        except StorageError as error:
            logger.error("session %s could not be given back, and is claimed later: %s", session_id, error)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            if self._held:
                with contextlib.suppress(StorageError):
                    await self.renew()

    async def renew(self) -> None:
        """Keep the leases; let go of what another node has taken over, and of what was cancelled elsewhere."""
        rows = [(s, held.fence, held.entry, held.turn.turn_id) for s, held in self._held.items()]
        milliseconds = int(self._lease * 1000)
        lost, cancelled = await self._link.call("renew", self._node, milliseconds, json.dumps(rows))
        for session_id in lost:
            held = self._held.get(session_id)
            if held is not None and (session_id, held.fence, held.entry, held.turn.turn_id) in rows:
                logger.warning("session %s went to another gateway", session_id)
                held.is_lost = True
                if held.task is not None:
                    held.task.cancel()
        for turn_id in cancelled:
            if self.is_here(turn_id):
                self.cancelled(turn_id)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("work on the queue broke: %s", error, exc_info=error)
