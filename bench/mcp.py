"""What a call of an MCP tool costs our server: CPU of the server, calls a second, and its memory.

    python bench/mcp.py [--sdk PYTHON] [--rounds 3] [--calls 600]

The tool sends back its text. `bare` is a loop over lines of the standard library and nothing else. With the
interpreter of an environment that has the official SDK (`make conformance` makes `.venv-mcp/v2`), the SDK's
server is measured in the same rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import aiohttp  # noqa: E402 - behind the path

from bench.processes import cpu, free_port, resident, server  # noqa: E402

TOOL = '''"""The echo."""
from miniclaw.tools import tool


@tool(risk="read")
async def echo(text: str) -> str:
    """Send the text back."""
    return text
'''
BARE = """import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    text = (m.get("params") or {}).get("arguments", {}).get("text", "")
    r = {"content": [{"type": "text", "text": text}]} if m["method"] == "tools/call" else {
        "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "bare", "version": "1"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}) + "\\n")
    sys.stdout.flush()
"""
SDK = """from mcp.server import MCPServer
server = MCPServer("echo")
@server.tool()
async def echo(text: str) -> str:
    return text
server.run("stdio")
"""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
CALL = {"name": "echo", "arguments": {"text": "x" * 32}}


class Calls(Protocol):
    """Sends one call and waits for its answer."""

    async def __call__(self) -> None: ...


Makes = Callable[[], AbstractAsyncContextManager[tuple[int, Calls]]]


@asynccontextmanager
async def over_stdio(command: list[str]) -> AsyncIterator[tuple[int, Calls]]:
    """A server behind pipes, shaken hands with."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    waiting: dict[int, asyncio.Future[Any]] = {}
    numbers = iter(range(1, 10**9))

    async def read() -> None:
        async for line in stdout:
            message = json.loads(line)
            if "method" not in message and message.get("id") in waiting:
                waiting.pop(message["id"]).set_result(message)

    async def ask(method: str, params: dict[str, Any]) -> None:
        number = next(numbers)
        waiting[number] = answer = asyncio.get_running_loop().create_future()
        stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        )
        message = await asyncio.wait_for(answer, 30)
        assert "result" in message and not message["result"].get("isError"), message

    reader = asyncio.create_task(read())
    try:
        await ask("initialize", HELLO)
        stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        yield process.pid, lambda: ask("tools/call", CALL)
    finally:
        stdin.close()
        await asyncio.wait_for(process.wait(), 30)
        await reader


@asynccontextmanager
async def over_http(home: str) -> AsyncIterator[tuple[int, Calls]]:
    """`miniclaw mcp serve --http`, shaken hands with."""
    port, token = free_port(), "bench-token-of-the-owner"
    command = ["-m", "miniclaw", "mcp", "serve", "--http", "--port", str(port), "--data-dir", home]
    with server(command, port, MINICLAW_TOKEN=token, MINICLAW_HOME=home) as pid:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
        async with aiohttp.ClientSession(headers=headers) as client:
            numbers = iter(range(1, 10**9))

            async def ask(method: str, params: dict[str, Any], **more: str) -> str | None:
                body = {"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params}
                async with client.post(f"http://127.0.0.1:{port}/mcp", json=body, headers=more) as response:
                    text = await response.text()
                    assert response.status == 200 and '"result"' in text, (response.status, text)
                    return response.headers.get("Mcp-Session-Id")

            session = {
                "Mcp-Session-Id": await ask("initialize", HELLO) or "",
                "MCP-Protocol-Version": "2025-11-25",
            }

            async def call() -> None:
                await ask("tools/call", CALL, **session)

            yield pid, call


async def measure(
    server_of: AbstractAsyncContextManager[tuple[int, Calls]], calls: int
) -> list[tuple[float, float, float]]:
    """(us CPU a call, calls a second, MB) one at a time and 32 at once."""
    results = []
    async with server_of as (pid, call):
        for _ in range(20):
            await call()
        for at_once in (1, 32):
            count = calls // at_once

            async def user(count: int = count) -> None:
                for _ in range(count):
                    await call()

            began, at = cpu(pid), time.perf_counter()
            await asyncio.gather(*(user() for _ in range(at_once)))
            done = count * at_once
            results.append(
                ((cpu(pid) - began) / done * 1e6, done / (time.perf_counter() - at), resident(pid))
            )
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="what a call of an MCP tool costs")
    sdk = ROOT / ".venv-mcp" / "v2" / "bin" / "python"
    parser.add_argument("--sdk", default=str(sdk) if sdk.exists() else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=3200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="miniclaw-bench-") as home:
        (Path(home) / "tools").mkdir()
        (Path(home) / "tools" / "echo.py").write_text(TOOL, encoding="utf-8")
        stdio = [sys.executable, "-m", "miniclaw", "mcp", "serve", "--data-dir", home]
        servers: dict[str, Makes] = {
            "bare, stdio": lambda: over_stdio([sys.executable, "-c", BARE]),
            "miniclaw, stdio": lambda: over_stdio(stdio),
            "miniclaw, HTTP": lambda: over_http(home),
        }
        if args.sdk:
            servers["SDK, stdio"] = lambda: over_stdio([args.sdk, "-c", SDK])
        rounds = [
            {name: asyncio.run(measure(make(), args.calls)) for name, make in servers.items()}
            for _ in range(args.rounds)
        ]
    print(f"{'server':16} {'us CPU a call':>14} {'32 at once':>11} {'calls a second':>15} {'MB':>6}")
    for name in servers:
        one, many, rate, memory = (
            statistics.median(row[name][place][what] for row in rounds)
            for place, what in ((0, 0), (1, 0), (1, 1), (1, 2))
        )
        print(f"{name:16} {one:14.0f} {many:11.0f} {rate:15.0f} {memory:6.1f}")


if __name__ == "__main__":
    main()
