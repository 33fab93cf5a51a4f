"""All configured servers: each has one task that connects, offers its tools, and begins again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import ConfigError, ProtocolError
from miniclaw.mcp.client.config import FILE, ServerConfig, read_servers, set_disabled
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.owner import Hosts, Makes, Owner, Tools, default_client
from miniclaw.mcp.client.questions import Questions

__all__ = ["Servers"]

logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 1.5
"""How long after the start turns wait for servers that are still to be reached."""


class Servers:
    """Keeps a registry in step with the servers of `mcp.json`.

    Args:
        data_dir: where `mcp.json` and the tokens are.
        registry: where the tools go.
        questions: answers what servers ask in the middle of a call.
        make: makes a client; tests give their own limits.
    """

    def __init__(
        self,
        data_dir: Path,
        registry: Tools,
        *,
        workspace: Path | None = None,
        questions: Questions | None = None,
        make: Makes = default_client,
    ) -> None:
        self._data_dir = data_dir
        self._registry = registry
        self._roots = (workspace or data_dir / "users" / "owner" / "workspace",)
        self._questions = questions
        self._make = make
        self._owners: dict[str, Owner] = {}
        self._broken: Mapping[str, str] = {}
        self._changing = asyncio.Lock()
        self._settled_at = 0.0

    async def start(self) -> None:
        """Begin with all servers and wait for none; a file that cannot be read is told in the log."""
        await self.reload()
        self._settled_at = asyncio.get_running_loop().time() + SETTLE_SECONDS
        for name, error in self._broken.items():
            logger.warning("MCP server %s: %s", name, error)

    async def settle(self, seconds: float | None = None) -> None:
        """Wait until each server was reached or could not be: so long, else for the rest of the time after a start.

        So the first turn has the tools of those that start soon; slow ones come later.
        """
        if seconds is None:
            seconds = self._settled_at - asyncio.get_running_loop().time()
        tried = [
            asyncio.ensure_future(one.tried.wait()) for one in self._owners.values() if not one.tried.is_set()
        ]
        if tried and seconds > 0:
            await asyncio.wait(tried, timeout=seconds)
        for one in tried:
            one.cancel()

    async def stop(self) -> None:
        """End all servers."""
        async with self._changing:
            owners, self._owners = self._owners, {}
            await asyncio.gather(*(owner.stop() for owner in owners.values()))

    async def reload(self) -> None:
        """Read the file anew: what changed is begun again, the rest goes on."""
        async with self._changing:
            try:
                found = await asyncio.to_thread(read_servers, self._data_dir / FILE)
            except ConfigError as error:
                self._broken = {FILE: str(error)}
                return
            self._broken = broken = dict(found.broken)
            gone = [name for name, owner in self._owners.items() if found.servers.get(name) != owner.config]
            await asyncio.gather(*(self._owners.pop(name).stop() for name in gone))
            for name, config in found.servers.items():
                if name in self._owners:
                    continue
                try:
                    hosts = self._hosts(name, config)
                    owner = Owner(name, config, self._registry, hosts, self._data_dir, self._make)
                except Exception as error:  # boundary: one server's entry is not the others'
                    logger.exception("MCP server %s cannot be set up", name)
                    broken[name] = f"{FILE}: {name}: {type(error).__name__} inside miniclaw; see the log."
                    continue
                self._owners[name] = owner
                owner.start()

    def _hosts(self, name: str, config: ServerConfig) -> Hosts:
        # A server that is told of roots keeps to them alone, so what its own command line names is among them.
        roots = (*self._roots, *config.directories()) if config.roots is None else config.roots
        if self._questions is None:
            return lambda context: Host(roots=roots)
        return partial(self._questions.host, name, roots)

    async def act(self, action: str, name: str = "") -> dict[str, Any]:
        """List the servers; before that `reload` the file, or `enable` or `disable` one, also for later runs.

        Raises:
            ProtocolError: there is no such server.
        """
        try:
            if action in ("enable", "disable"):
                disabled = action == "disable"
                await asyncio.to_thread(set_disabled, self._data_dir / FILE, name, is_disabled=disabled)
        except ConfigError as error:
            raise ProtocolError("not_found", str(error)) from error
        if action != "list":
            await self.reload()
        return {"servers": self.status()}

    def status(self) -> list[dict[str, Any]]:
        """One row a server: `name`, `state`, `version`, `tools`, `error`, and how often it was `restarted`."""
        rows = [owner.status() for owner in self._owners.values()]
        for name, error in self._broken.items():
            row: dict[str, Any] = {"name": name, "state": "failed", "version": "", "tools": []}
            rows.append({**row, "error": error, "restarts": 0})
        return sorted(rows, key=lambda row: str(row["name"]))
