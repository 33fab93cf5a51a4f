"""`miniclaw mcp serve`: our tools for Claude Desktop, Cursor and other MCP clients."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from miniclaw.cli import add_common

if TYPE_CHECKING:
    from miniclaw.tools.registry import ToolRegistry

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = "serve the built-in tools on standard input and output"
    add_common(actions.add_parser("serve", help=about, description=about), nested=True)


def run(args: argparse.Namespace) -> int:
    """Serve on stdio until standard input ends."""
    from miniclaw.mcp.stdio import take_stdio

    source, target = take_stdio()  # before anything is imported that may print

    from miniclaw.cli.start import load, set_up_logging
    from miniclaw.mcp.server import MCPServer
    from miniclaw.mcp.stdio import serve_stdio
    from miniclaw.mcp.toolset import RegistryTools

    loaded = load(args)
    set_up_logging(loaded, default="warning")

    def registry() -> ToolRegistry:
        from miniclaw.wiring import tools_of

        return tools_of(loaded.settings, loaded.data_dir)

    async def serve() -> int:
        await serve_stdio(MCPServer(tools=[RegistryTools(registry)]), source, target)
        return 0

    return asyncio.run(serve())
