"""What `miniclaw mcp serve` offers on stdio; nothing of it is made before it is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from miniclaw.config import LoadedSettings
from miniclaw.errors import ConfigError, DirectoryBusy
from miniclaw.mcp.library import Library
from miniclaw.mcp.product import product_server
from miniclaw.mcp.skill_prompts import SkillPrompts
from miniclaw.mcp.toolset import RegistryTools, context_of
from miniclaw.rundir import RunDir, RunningGateway

if TYPE_CHECKING:
    from miniclaw.app import MiniClaw
    from miniclaw.mcp.ask import Link
    from miniclaw.mcp.library import ReadsSessions
    from miniclaw.mcp.server import MCPServer
    from miniclaw.mcp.toolset import Carry, Registry
    from miniclaw.memory.long_term import LongTermMemory
    from miniclaw.skills.manager import SkillManager

__all__ = ["StdioParts"]

IDLE_SECONDS: Final = 60.0
"""How long a gateway of our own is kept when nobody asks; then others can have the data directory."""
LOOK_SECONDS: Final = 0.1
START_LOOKS: Final = 100
"""How often it is looked whether another process that holds the directory listens by now, or has ended."""
WRITE_SECONDS: Final = 60.0
"""How long the start of a gateway of our own waits for tools that are changing something."""
DRAIN_SECONDS: Final = 1.0
"""How long running turns may finish when the client leaves; they go on at the next start."""


class StdioParts:
    """The parts of one client's server, and the way to the agent.

    `ask_agent` goes to the gateway that runs on the data directory, else to one of this process, which
    begins with the first question. What only reads is read from the directory, whoever holds it.

    Args:
        loaded: settings and data directory.
        idle_seconds: how long a gateway of our own is kept when nobody uses it.
    """

    def __init__(self, loaded: LoadedSettings, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._loaded = loaded
        self._idle_seconds = idle_seconds
        self._run_dir = RunDir(loaded.data_dir)
        self._claw: MiniClaw | None = None
        self._starting = asyncio.Lock()
        self._users = 0
        self._writers = 0
        self._written = asyncio.Event()
        self._road = contextlib.AsyncExitStack()
        self._idle: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._starting:
            if self._idle is not None:
                self._idle.cancel()
            await self._stop()

    def server(self) -> MCPServer:
        """The server, whose parts are made when a client first asks for them."""
        data_dir = self._loaded.data_dir
        tools = RegistryTools(
            self._registry,
            context=partial(context_of, data_dir, self._loaded.settings.users),
            verdict=self._verdict,
            writing=self._writing,
            can_write=self._can_write,
        )
        return product_server(
            tools=tools,
            door=self._door,
            library=Library(self._sessions, self._memory),
            skills=SkillPrompts(self._skills),
        )

    @contextlib.asynccontextmanager
    async def _door(self, user_id: str) -> AsyncIterator[Link]:
        from miniclaw.cli.link import open_link

        async with self._starting:
            if self._claw is None:
                await self._all_written()
                await self._take(self._start)
            claw = self._claw
            self._users += claw is not None
        if claw is None:
            async with open_link(self._loaded, connect=None, user_id=user_id) as (attached, _, _):
                yield attached
            return
        link = claw.terminal.link(user_id)
        try:
            yield link
        finally:
            await link.aclose()
            self._users -= 1
            self._wait_idle()

    async def _take(self, take: Callable[[], Awaitable[None]]) -> RunningGateway | None:
        """Take the directory, or find who listens on it: another process may be about to, or about to end.

        Raises:
            DirectoryBusy: it is held all the time, and nobody listens.
        """
        for left in reversed(range(START_LOOKS)):
            if (running := self._run_dir.running()) is not None:
                return running
            try:
                await take()
                return None
            except DirectoryBusy:
                if not left:
                    raise
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _all_written(self) -> None:
        """Wait until no tool of this process changes anything, which keeps a gateway from starting."""
        try:
            while self._writers:
                self._written.clear()
                await asyncio.wait_for(self._written.wait(), WRITE_SECONDS)
        except TimeoutError:
            raise ConfigError("A tool is still changing something; ask again when it has ended.") from None

    async def _start(self) -> None:
        from miniclaw.app import MiniClaw
        from miniclaw.cli.mcp_road import road

        settings = self._loaded.settings
        limits = settings.limits.model_copy(update={"drain_seconds": DRAIN_SECONDS})
        gateway = settings.gateway.model_copy(update={"port": 0})
        own = settings.model_copy(update={"limits": limits, "gateway": gateway})
        claw = MiniClaw(
            LoadedSettings(settings=own, data_dir=self._loaded.data_dir, origins=self._loaded.origins),
            web=False,
        )
        self._claw = await claw.__aenter__()
        port = await self._road.enter_async_context(road(claw, self.server()))
        if (running := self._run_dir.running()) is not None:
            self._run_dir.announce(replace(running, mcp_port=port))

    async def _stop(self) -> None:
        await self._road.aclose()
        claw, self._claw = self._claw, None
        if claw is not None:
            await claw.__aexit__(None, None, None)

    def _wait_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().create_task(self._stop_when_idle())

    async def _stop_when_idle(self) -> None:
        """Let others have the directory; not while they are connected to us."""
        while self._claw is not None:
            await asyncio.sleep(self._idle_seconds)
            async with self._starting:
                claw = self._claw
                gateway = claw.gateway if claw is not None else None
                if claw is None or not (self._users or claw.live.all() or (gateway and gateway.connections)):
                    await self._stop()

    def _registry(self) -> Registry:
        from miniclaw.memory.tools import memory_tools
        from miniclaw.toolbox import tools_of

        settings, data_dir = self._loaded.settings, self._loaded.data_dir
        return tools_of(settings, data_dir, memory_tools(self._memory()))

    def _verdict(self, *call: Any) -> Any:
        from miniclaw.agent.policy import verdict_of

        return verdict_of(self._loaded.settings.approval, *call)

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[Carry | None]:
        """The user's files are changed by one process at a time; all calls of this one share its hold.

        Where another one has it and listens, it is given the call.
        """
        async with self._starting:
            own = self._claw is not None
            holder = None if own or self._writers else await self._take(self._hold)
            if holder is None:
                self._users += own
                self._writers += not own
        if holder is not None:
            from miniclaw.cli.mcp_road import carry

            yield partial(carry, holder)
            return
        try:
            yield None
        finally:
            self._users -= own
            self._writers -= not own
            if not own and not self._writers:
                self._run_dir.release()
                self._written.set()

    async def _hold(self) -> None:
        self._run_dir.acquire()

    def _can_write(self) -> bool:
        holder = None if self._claw is not None else self._run_dir.running()
        return holder is None or bool(holder.mcp_port or holder.web_port)

    def _memory(self) -> LongTermMemory:
        from miniclaw.memory.long_term import LongTermMemory

        return LongTermMemory(self._loaded.data_dir)

    def _skills(self) -> SkillManager:
        from miniclaw.toolbox import skills_of

        return skills_of(self._loaded.settings, self._loaded.data_dir)

    @contextlib.asynccontextmanager
    async def _sessions(self) -> AsyncIterator[ReadsSessions]:
        from miniclaw.db import Database
        from miniclaw.session.sqlite import SQLiteStorage
        from miniclaw.session.storage import InMemoryStorage

        path = self._loaded.data_dir / "miniclaw.db"
        if not await asyncio.to_thread(path.exists):
            yield InMemoryStorage()
            return
        database = Database(path, read_only=True)
        await database.open()
        try:
            yield SQLiteStorage(database)
        finally:
            await database.close()
