"""The official SDK's client against a server of ours; runs under either SDK's interpreter.

`mcp_sdk_client.py stdio 'command …' [auto|legacy]` or `mcp_sdk_client.py http URL TOKEN [auto|legacy]`.
Lists everything, calls a tool, reads a prompt, and asks the agent; prints one line and exits with 0.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import shlex
import sys
from typing import Any

CALLS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("calculator", {"expression": "37*43"}, "1591"),
    ("ask_agent", {"text": "37*43 等于多少"}, "1591"),
)


async def _use(client: Any) -> str:
    tools = [tool.name for tool in (await client.list_tools()).tools]
    prompts = (await client.list_prompts()).prompts
    await client.get_prompt(prompts[0].name, {"task": "go"})
    for name, arguments, expected in CALLS:
        result = await client.call_tool(name, arguments)
        assert expected in result.content[0].text, result
    resources = (await client.list_resources()).resources
    assert any(str(one.uri).startswith("miniclaw://sessions/") for one in resources), resources
    await client.read_resource(resources[0].uri)
    await client.list_resource_templates()
    return f"{len(tools)} tools, {len(prompts)} prompts, {len(resources)} resources"


async def _main(kind: str, target: str, *more: str) -> None:
    version = importlib.metadata.version("mcp")
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    mode = more[-1] if more and more[-1] in ("auto", "legacy") else "auto"
    transport: Any
    if kind == "stdio":
        command, *arguments = shlex.split(target)
        transport = stdio_client(StdioServerParameters(command=command, args=arguments))
    else:
        headers = {"Authorization": f"Bearer {more[0]}"}
        httpx: Any = importlib.import_module("httpx2" if version.startswith("2") else "httpx")
        transport = streamable_http_client(target, http_client=httpx.AsyncClient(headers=headers, timeout=60))
    if version.startswith("2"):
        from mcp.client.client import Client

        async with Client(transport, mode=mode, read_timeout_seconds=60) as client:
            print(f"SDK {version} {mode} {kind}: {client.protocol_version}, {await _use(client)}")
        return
    from mcp import ClientSession

    async with transport as streams, ClientSession(streams[0], streams[1]) as session:
        hello = await session.initialize()
        await session.send_ping()
        print(f"SDK {version} {kind}: {hello.protocolVersion}, {await _use(session)}")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
