"""An echo server on the official SDK, 1.x or 2.x, for our client: `stdio`, or `http PORT`."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from typing import Any

logging.disable(logging.INFO)
IS_NEW = importlib.metadata.version("mcp").startswith("2")


def main() -> None:
    options: dict[str, Any] = {}
    port = int(sys.argv[2]) if sys.argv[1] == "http" else 0
    if IS_NEW:
        from mcp.server.mcpserver import MCPServer as Server
    else:
        from mcp.server.fastmcp import FastMCP as Server

        options = {"host": "127.0.0.1", "port": port}
    server = Server("echo", **options)

    async def echo(text: str) -> str:
        """Echo the text."""
        return text

    server.tool()(echo)
    if port:
        server.run("streamable-http", **({"host": "127.0.0.1", "port": port} if IS_NEW else {}))
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
