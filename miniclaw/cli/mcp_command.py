"""`miniclaw mcp serve`: our tools for Claude Desktop, Cursor and other MCP clients."""

from __future__ import annotations

import argparse
import asyncio

from miniclaw.cli import add_common

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = "serve the built-in tools on standard input and output"
    add_common(actions.add_parser("serve", help=about, description=about), nested=True)


def run(args: argparse.Namespace) -> int:
    """Serve on stdio until standard input ends."""
    from miniclaw.cli.start import load, set_up_logging
    from miniclaw.mcp.stdio import serve_stdio
    from miniclaw.tools.builtins import builtin_tools
    from miniclaw.tools.registry import ToolRegistry

    loaded = load(args)
    set_up_logging(loaded, default="warning")
    settings = loaded.settings
    registry = ToolRegistry(
        # What needs a conversation, such as a workspace, has none here.
        [tool for tool in builtin_tools(settings.tools) if not tool.wants_context],
        default_timeout=settings.agent.tool_timeout,
        result_chars=settings.tools.result_chars,
    )
    return asyncio.run(serve_stdio(registry))
