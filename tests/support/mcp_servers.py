"""MCP servers that tests write: small programs that do one thing wrong, and the counting of what is left."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from miniclaw.mcp.client import MCPClient
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.stdio import StdioLink

PROGRAM = """
import json, os, signal, sys, time

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

def reply(message, **result):
    send({"id": message["id"], "result": result})

def text(message, words):
    reply(message, content=[{"type": "text", "text": words}])

def discover(message):
    send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})

def initialize(message):
    reply(message, protocolVersion="2025-11-25", capabilities={"tools": {"listChanged": True}},
          serverInfo={"name": "fake", "version": "1"})

def tools(message):
    reply(message, tools=[{"name": "say", "inputSchema": {"type": "object"}}])

def call(message):
    text(message, message["params"]["arguments"].get("words", "ok"))

def other(message):
    pass

def begin():
    pass

# BODY

begin()
known = {"server/discover": discover, "initialize": initialize, "tools/list": tools, "tools/call": call}
for line in sys.stdin:
    message = json.loads(line)
    known.get(message.get("method"), other)(message)
"""


def program(directory: Path, body: str = "", name: str = "server") -> list[str]:
    """The command of a server that is as it should be but for `body`, which replaces its functions."""
    path = directory / f"{name}.py"
    path.write_text(PROGRAM.replace("# BODY", body), encoding="utf-8")
    return [sys.executable, "-I", "-S", str(path)]


def client_of(command: list[str], *, env: Mapping[str, str] | None = None, **options: Any) -> MCPClient:
    """A client of such a server."""
    given = {"start_seconds": 20.0, "call_seconds": 20.0, **options}
    return MCPClient(lambda: StdioLink(command, env=env or {}), name="fake", **given)


@asynccontextmanager
async def serve_http(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server at a URL, all of whose paths go to one handler; the URL is without a path."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def text_of(result: Mapping[str, Any]) -> str:
    """The text of a call's result."""
    return "".join(block["text"] for block in result["content"])


def write_config(data_dir: Path, **servers: Any) -> None:
    """`mcp.json` with these servers: a command as a list, or an entry."""
    entries = {
        name: {"command": one[0], "args": one[1:]} if isinstance(one, list) else one
        for name, one in servers.items()
    }
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "mcp.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be read does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children() -> set[int]:
    """The processes that this one started and that still run, but for the Redis that all tests share."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text(encoding="utf-8").split()}
    return {
        pid for pid in found if is_alive(pid) and "redis" not in Path(f"/proc/{pid}/comm").read_text("utf-8")
    }


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


async def until(is_so: Any, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


async def agree(params: dict[str, Any]) -> dict[str, Any]:
    """A user who says yes to what has no default."""
    fields = params["requestedSchema"]["properties"]
    content = {
        name: True if one["type"] == "boolean" else "x"
        for name, one in fields.items()
        if "default" not in one
    }
    return {"action": "accept", "content": content}


async def sampled(params: dict[str, Any]) -> dict[str, Any]:
    """A model that always says the same."""
    return {
        "role": "assistant",
        "content": {"type": "text", "text": "sampled"},
        "model": "m",
        "stopReason": "endTurn",
    }


def helpful(*roots: Path) -> Host:
    """A host that answers every question."""
    return Host(elicit=agree, sample=sampled, roots=roots)
