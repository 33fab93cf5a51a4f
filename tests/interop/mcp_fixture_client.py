"""A client on our classes that does what the official MCP conformance suite's client scenarios need.

`python tests/interop/mcp_fixture_client.py URL`; the suite names the scenario in `MCP_CONFORMANCE_SCENARIO`
and gives what belongs to it in `MCP_CONFORMANCE_CONTEXT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import aiohttp

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client import MCPClient
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.http import HttpLink
from miniclaw.mcp.client.oauth import OAuth, OAuthClient

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


class Browser:
    """A user who agrees to everything."""

    redirect_uri = "http://127.0.0.1:8977/callback"

    async def ask(self, url: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(url, allow_redirects=False) as response:
            location = response.headers.get("Location")
        if location is None:
            raise MCPUnavailable("The page sent the browser nowhere.")
        return location


async def agree(params: dict[str, Any]) -> dict[str, Any]:
    """Fill in nothing but what has no default."""
    fields = params.get("requestedSchema", {}).get("properties", {})
    content = {
        name: field.get("type") == "boolean" or "x"
        for name, field in fields.items()
        if isinstance(field, dict) and "default" not in field
    }
    return {"action": "accept", "content": content}


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """Something for each required parameter."""
    some: dict[str, Any] = {"number": 2, "integer": 3, "boolean": True, "array": [], "object": {}}
    fields = schema.get("properties") or {}
    return {
        name: some.get(str(fields.get(name, {}).get("type")), "x") for name in schema.get("required") or ()
    }


async def call(client: MCPClient, name: str, arguments: dict[str, Any]) -> None:
    """Call a tool; some scenarios list one that they do not have."""
    try:
        print(name, await client.call_tool(name, arguments))
    except MCPUnavailable:
        raise
    except MCPError as error:
        print(name, "refused:", error)


async def use(client: MCPClient) -> None:
    """Everything that is offered, one after the other."""
    for tool in await client.list_tools():
        if not CONTEXT.get("toolCalls"):
            await call(client, tool["name"], arguments_for(tool["inputSchema"]))
    for wanted in CONTEXT.get("toolCalls") or ():
        await call(client, wanted["name"], wanted["arguments"])
    if "resources" in client.capabilities:
        for resource in await client.list_resources():
            print(resource["uri"], await client.read_resource(resource["uri"]))
    if "prompts" in client.capabilities:
        for prompt in await client.list_prompts():
            print(prompt["name"], await client.get_prompt(prompt["name"]))


async def main(url: str) -> None:
    known = OAuthClient(
        client_id=CONTEXT.get("client_id", ""),
        client_secret=CONTEXT.get("client_secret", ""),
        metadata_url="https://conformance-test.local/client-metadata.json",
    )
    auth = OAuth(url, kept={}, consent=Browser(), client=known)
    async with MCPClient(lambda: HttpLink(url, authorizer=auth), host=Host(elicit=agree)) as client:
        print(client.version, client.info)
        await use(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
