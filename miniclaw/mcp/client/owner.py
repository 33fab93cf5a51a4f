"""One server's life, in one task: connect, offer the tools, wait, and begin again after a pause."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from miniclaw.errors import ConfigError, MCPError, MCPUnavailable
from miniclaw.mcp.client.calls import Progress
from miniclaw.mcp.client.client import MCPClient
from miniclaw.mcp.client.config import ServerConfig
from miniclaw.mcp.client.fit import fit_name
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.library import LibraryTool
from miniclaw.mcp.client.reach import link_of
from miniclaw.mcp.client.tools import RemoteTool
from miniclaw.tools.base import Tool
from miniclaw.tools.context import ToolContext

__all__ = ["Hosts", "Makes", "Owner", "Tools", "default_client"]

logger = logging.getLogger(__name__)

Makes = Callable[..., MCPClient]
Hosts = Callable[[ToolContext | None], Host]
"""Who answers the questions in a call; without one, in general."""
State = Literal["off", "starting", "ready", "waiting", "login"]

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
STEADY_SECONDS: Final = 30.0
"""How long a server must have run for its next fall to count as the first."""
SETTLE_SECONDS: Final = 0.1
"""How long changes of a list are collected before it is read anew."""
READY_SECONDS: Final = 10.0
"""How long a call waits for a server that is just being started again."""
SHOWN_SECONDS: Final = 0.25
"""How long nothing further is shown of a call's progress."""
SHOWN_CHARS: Final = 200
MAX_TOOLS: Final = 256
"""Of one server; every tool is told to the model in every turn."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")


class Tools(Protocol):
    """What is needed of a tool registry."""

    def register(self, tool: Tool, /) -> object:
        """Add a tool; `ConfigError` where its name is taken."""
        ...

    def remove(self, name: str) -> None:
        """Take one out."""
        ...

    def find(self, name: str) -> Tool | None:
        """The one of that name."""
        ...


default_client: Final[Makes] = MCPClient


class Owner:
    """Runs one server.

    Attributes:
        config: what it was made from.
        tried: set when it was reached for the first time, or could not be.
    """

    def __init__(
        self, name: str, config: ServerConfig, registry: Tools, hosts: Hosts, data_dir: Path, make: Makes
    ) -> None:
        self.config = config
        self.tried = asyncio.Event()
        self._name = name
        self._registry = registry
        self._hosts = hosts
        self._data_dir = data_dir
        self._make = make
        self._state: State = "off"
        self._error = ""
        self._restarts = -1
        self._pause = FIRST_PAUSE
        self._client: MCPClient | None = None
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._listed: tuple[list[dict[str, Any]], bool] = [], False
        self._names: list[str] = []
        self._left_out = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it is disabled."""
        if self.config.disabled:
            self.tried.set()
            return
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mcp {self._name}")

    async def stop(self) -> None:
        """End the server and take its tools out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._state = "off"
        self._offer(([], False), [])

    def status(self) -> dict[str, Any]:
        """How it is."""
        return {
            "name": self._name,
            "state": self._state,
            "version": self._client.version if self._client is not None else "",
            "tools": list(self._names),
            "error": self._error or self._left_out,
            "restarts": max(self._restarts, 0),
        }

    async def call(
        self, tool: str, arguments: Mapping[str, Any], context: ToolContext | None
    ) -> dict[str, Any]:
        """Call a tool; a server that is just being started again is waited for."""
        return await self.use(lambda client, **asking: client.call_tool(tool, arguments, **asking), context)

    async def use(
        self, work: Callable[..., Awaitable[dict[str, Any]]], context: ToolContext | None
    ) -> dict[str, Any]:
        """What `work` comes to on the connection, which is waited for where the server is just being started.

        It is given the client, and as `progress` and `host` who is shown its requests and asked in them.

        Raises:
            MCPError: it refused, or does not run.
        """
        if self._client is None and self._state == "starting":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), READY_SECONDS)
        client = self._client
        if client is None:
            raise MCPUnavailable(f"It does not run: {self._error or 'it is being started'}")
        try:
            result = await work(client, progress=self._progress(context), host=self._hosts(context))
        except MCPUnavailable as error:
            self._error = self.config.masked(str(error))
            raise
        if self._state == "ready":
            self._error = ""
        return result

    def _progress(self, context: ToolContext | None) -> Progress:
        """Shows how far a call is, where somebody looks on."""
        shown_at = float("-inf")

        def show(done: float, total: float | None, text: str) -> None:
            nonlocal shown_at
            now = asyncio.get_running_loop().time()
            if context is None or context.show is None or now - shown_at < SHOWN_SECONDS:
                return
            shown_at = now
            text = self.config.masked(text[:SHOWN_CHARS]).encode("utf-8", "replace").decode()
            context.show({"call_id": context.call_id, "progress": done, "total": total, "message": text})

        return show

    async def _run(self) -> None:
        told = ""
        while True:
            self._restarts += 1
            self._state = "starting"
            began = asyncio.get_running_loop().time()
            try:
                await self._once()
            except (MCPError, ConfigError) as error:
                self._error = self.config.masked(str(error))
                self._state = (
                    "login" if isinstance(error, MCPUnavailable) and error.needs_login else "waiting"
                )
            except Exception as error:  # boundary: one server's fault is not the others'
                logger.exception("MCP server %s broke its owner", self._name)
                self._error, self._state = f"{type(error).__name__} inside miniclaw; see the log.", "waiting"
            finally:
                self._client = None
                self._ready.clear()
                self.tried.set()
            if asyncio.get_running_loop().time() - began > STEADY_SECONDS:
                self._pause = FIRST_PAUSE
            level = logging.DEBUG if self._error == told else logging.WARNING
            logger.log(level, "MCP server %s: %s It is tried again.", self._name, self._error)
            told = self._error
            await asyncio.sleep(self._pause * random.uniform(1.0, 1.2))
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _once(self) -> None:
        """Connect, offer, and keep the list fresh until the connection ends; raises why it did."""
        host = self._hosts(None)
        for root in host.roots:
            with contextlib.suppress(OSError):
                root.mkdir(parents=True, exist_ok=True)
        config = self.config
        async with self._make(
            lambda: link_of(self._name, config, self._data_dir),
            name=self._name,
            era=config.era,
            host=host,
            start_seconds=config.start_seconds,
            call_seconds=config.call_seconds,
            changed=self._note,
        ) as client:
            await self._list(client)
            self._client, self._state, self._error = client, "ready", ""
            self._ready.set()
            self.tried.set()
            ended = asyncio.ensure_future(client.ended())
            try:
                while not ended.done():
                    await self._until(ended)
                    if not ended.done():
                        await self._list(client)
            finally:
                self._client = None
                ended.cancel()
            raise ended.result()

    async def _until(self, ended: asyncio.Future[MCPUnavailable]) -> None:
        """Wait for a change of the list, or the end."""
        changed = asyncio.ensure_future(self._changed.wait())
        both: set[asyncio.Future[Any]] = {changed, ended}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if not ended.done():
            await asyncio.sleep(SETTLE_SECONDS)
        self._changed.clear()

    def _note(self, what: str) -> None:
        if what == "tools":
            self._changed.set()

    async def _list(self, client: MCPClient) -> None:
        """Read the list, and offer it if it is another one."""
        wanted = [tool for tool in await client.list_tools() if self._is_wanted(tool)]
        has_library = not client.capabilities.keys().isdisjoint(("resources", "prompts"))
        listed = wanted, has_library and self._is_wanted({"name": "library"})
        with contextlib.suppress(RecursionError):  # too deep to be compared
            if listed == self._listed:
                return
        # Names that need no change come first, so that another's change cannot take them.
        first = sorted(wanted[:MAX_TOOLS], key=lambda tool: not _PLAIN.fullmatch(tool["name"]))
        made: list[RemoteTool | LibraryTool] = await asyncio.to_thread(
            lambda: list(filter(None, map(self._made, first)))
        )
        self._left_out = ""
        if len(made) < len(wanted):
            self._left_out = f"Only {len(made):,} of its {len(wanted):,} tools are used; the log says why."
            logger.warning("MCP server %s: at most %d tools; %s", self._name, MAX_TOOLS, self._left_out)
        if listed[1]:
            made.append(LibraryTool(self, server_name=self._name))
        self._offer(listed, made)

    def _made(self, tool: dict[str, Any]) -> RemoteTool | None:
        try:
            return RemoteTool(self, "", server_name=self._name, listed=tool, is_trusted=self.config.trusted)
        except Exception:  # boundary: one tool's fault is not the others'
            logger.exception("MCP server %s: the tool %.100s is left out", self._name, tool.get("name"))
            return None

    def _offer(
        self, listed: tuple[list[dict[str, Any]], bool], made: Sequence[RemoteTool | LibraryTool]
    ) -> None:
        """Put these tools in the place of the former ones, in one step."""
        for name in self._names:
            self._registry.remove(name)
        self._listed, self._names = listed, []
        for one in made:
            one.name = fit_name(
                self._name, one.remote_name, lambda name: self._registry.find(name) is not None
            )
            try:
                self._registry.register(one)
                self._names.append(one.name)
            except ConfigError as error:
                logger.error("MCP server %s: %s", self._name, error)

    def _is_wanted(self, tool: Mapping[str, Any]) -> bool:
        name, execution = tool.get("name"), tool.get("execution")
        if isinstance(execution, dict) and execution.get("taskSupport") == "required":
            return False  # it can only be called as a task, which is an extension that is not spoken here
        return isinstance(name, str) and (self.config.tools is None or name in self.config.tools)
