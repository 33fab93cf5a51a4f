"""`miniclaw mcp list`, `check`, `login`: the MCP servers that are configured in `mcp.json`."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from miniclaw.cli import HARMLESS, say
from miniclaw.errors import ConfigError, MCPError
from miniclaw.rundir import RunDir

if TYPE_CHECKING:
    from miniclaw.config import LoadedSettings
    from miniclaw.mcp.client.config import ServerConfig

__all__ = ["check", "login", "server_rows", "show"]

GATEWAY_SECONDS: Final = 10.0
LIST_SECONDS: Final = 20.0
"""How long servers may take that are only started to see how they are."""


async def server_rows(loaded: LoadedSettings, seconds: float = LIST_SECONDS) -> list[dict[str, Any]]:
    """How each server is: as the running gateway sees it, else tried now.

    Raises:
        ConfigError: the gateway does not tell.
    """
    running = RunDir(loaded.data_dir).running()
    if running is not None and running.web_port is not None:
        url = f"http://127.0.0.1:{running.web_port}/api/mcp"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {running.token}"})
        return await asyncio.to_thread(_fetch, request)
    from miniclaw.mcp.client.servers import Servers
    from miniclaw.tools.registry import ToolRegistry

    servers = Servers(loaded.data_dir, ToolRegistry())
    try:
        await servers.start()
        await servers.settle(seconds)
        return servers.status()
    finally:
        await servers.stop()


def _fetch(request: urllib.request.Request) -> list[dict[str, Any]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=GATEWAY_SECONDS) as response:
            rows: list[dict[str, Any]] = json.load(response)["servers"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"The gateway that runs does not tell of its MCP servers: {error}.") from error
    return rows


async def show(loaded: LoadedSettings, *, as_json: bool) -> int:
    """Print a line a server; 1 when one does not work."""
    rows = await server_rows(loaded)
    if as_json:
        say(json.dumps(rows, ensure_ascii=False, indent=2))
    elif not rows:
        say(f"no MCP servers; write them into {loaded.data_dir / 'mcp.json'}")
    else:
        for row in rows:
            known = f"{len(row['tools'])} tools, {row['version']}" if row["version"] else ""
            say(f"{row['name']:20} {row['state']:8} {row['error'] or known}")
    return int(any(row["state"] not in ("ready", "off") for row in rows))


async def check(loaded: LoadedSettings, name: str) -> int:
    """Connect to one server and print what it offers; 1 when that fails."""
    from miniclaw.mcp.client import MCPClient
    from miniclaw.mcp.client.host import Host
    from miniclaw.mcp.client.reach import link_of
    from miniclaw.tools.context import workspace_of

    config = _config(loaded, name)
    workspace = workspace_of(loaded.data_dir, "owner", loaded.settings.users)
    host = Host(roots=(workspace,) if config.roots is None else config.roots)
    client = MCPClient(
        lambda: link_of(name, config, loaded.data_dir),
        name=name,
        era=config.era,
        host=host,
        start_seconds=config.start_seconds,
        call_seconds=config.call_seconds,
    )
    try:
        async with client:
            about = " ".join(str(client.info[key]) for key in ("name", "version") if key in client.info)
            say(f"{name}: {about or 'no name'}, revision {client.version}")
            for tool in await client.list_tools():
                words = " ".join(str(tool.get("description") or "").split())
                say(f"tool      {str(tool.get('name')):32} {words[:100]}")
            for resource in await client.list_resources():
                say(f"resource  {resource.get('uri')}")
            for prompt in await client.list_prompts():
                say(f"prompt    {prompt.get('name')}")
    except MCPError as error:
        raise ConfigError(f"{name}: {error}") from error
    return 0


async def login(loaded: LoadedSettings, name: str) -> int:
    """Log in at a server, with the user's browser, and keep the token."""
    from miniclaw.mcp.client import MCPClient
    from miniclaw.mcp.client.reach import link_of
    from miniclaw.mcp.client.tokens import BrowserConsent

    config = _config(loaded, name)
    if not config.url:
        raise ConfigError(f"`{name}` is a program; only servers with a `url` have logins.")
    consent = BrowserConsent(
        lambda url: print(f"open this page to log in:\n{url.translate(HARMLESS)}", flush=True)
    )
    try:
        async with MCPClient(
            lambda: link_of(name, config, loaded.data_dir, consent), name=name, start_seconds=600.0
        ) as client:
            await client.list_tools()
    except MCPError as error:
        raise ConfigError(f"{name}: {error}") from error
    say(f"{name}: logged in")
    return 0


def _config(loaded: LoadedSettings, name: str) -> ServerConfig:
    from miniclaw.mcp.client.config import FILE, read_servers

    found = read_servers(loaded.data_dir / FILE)
    if name in found.broken:
        raise ConfigError(found.broken[name])
    if name not in found.servers:
        known = ", ".join(sorted(found.servers)) or "none"
        raise ConfigError(
            f"There is no MCP server `{name}` in `{loaded.data_dir / FILE}`; there are: {known}."
        )
    return found.servers[name]
