"""`miniclaw mcp`: serve the agent and its tools to MCP clients, and look after the MCP servers that are used."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from miniclaw.cli import add_common, say

if TYPE_CHECKING:
    from miniclaw.app import MiniClaw
    from miniclaw.config import LoadedSettings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = "serve the agent and its tools on standard input and output"
    serve = actions.add_parser("serve", help=about, description=about)
    add_common(serve, nested=True)
    serve.add_argument("--http", action="store_true", help="serve Streamable HTTP at /mcp instead")
    serve.add_argument("--host", help="with --http: address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="with --http: port (default 8080; 0 = any free one)")
    listing = actions.add_parser("list", help="list the servers of mcp.json and how they are")
    listing.add_argument("--json", action="store_true", help="print one JSON list")
    checking = actions.add_parser("check", help="connect to one of them and list what it offers")
    login = actions.add_parser("login", help="log in at one of them, with your browser")
    for action in (checking, login):
        action.add_argument("name")
    for action in (listing, checking, login):
        add_common(action, nested=True)


def run(args: argparse.Namespace) -> int:
    """Serve on stdio until standard input ends, or on HTTP until a signal says stop; or see to the servers."""
    if args.action != "serve":
        return _run_servers(args)
    if args.http:
        return _run_http(args)
    from miniclaw.mcp.stdio import take_stdio

    source, target = take_stdio()  # before anything is imported that may print

    from miniclaw.cli.start import load, set_up_logging

    loaded = load(args)
    set_up_logging(loaded, default="warning")
    return asyncio.run(_serve_stdio(loaded, source, target))


def _run_servers(args: argparse.Namespace) -> int:
    from miniclaw.cli import mcp_servers
    from miniclaw.cli.start import load, run_async, set_up_logging

    loaded = load(args)
    set_up_logging(loaded, default="error")
    if args.action == "list":
        return run_async(mcp_servers.show(loaded, as_json=args.json))
    action = mcp_servers.check if args.action == "check" else mcp_servers.login
    return run_async(action(loaded, args.name))


async def _serve_stdio(loaded: LoadedSettings, source: int, target: int) -> int:
    from miniclaw.cli.mcp_stdio import StdioParts
    from miniclaw.mcp.stdio import serve_stdio

    async with StdioParts(loaded) as parts:
        await serve_stdio(parts.server(), source, target)
    return 0


def _run_http(args: argparse.Namespace) -> int:
    from miniclaw.cli.start import load, run_async, set_up_logging
    from miniclaw.errors import ConfigError
    from miniclaw.rundir import RunDir

    given = {"web.host": args.host, "web.port": args.port}
    loaded = load(args, {name: value for name, value in given.items() if value is not None})
    set_up_logging(loaded)
    running = RunDir(loaded.data_dir).running()
    if running is None:
        return run_async(_serve_http(loaded))
    if running.web_port is None:
        raise ConfigError(
            "The miniclaw that runs on this data directory was started with --port none, so it serves no"
            " HTTP; start it with a port, or choose another --data-dir."
        )
    say(f"mcp  http://127.0.0.1:{running.web_port}/mcp (served by the miniclaw that runs already)")
    return 0


async def _serve_http(loaded: LoadedSettings) -> int:
    from miniclaw.app import MiniClaw
    from miniclaw.cli.serve_command import serve_until_signal

    return await serve_until_signal(MiniClaw(loaded, gateway=False), _greet)


def _greet(claw: MiniClaw) -> None:
    assert claw.web is not None
    say(f"mcp    {claw.web.url}/mcp")
    say(f"token  {claw.token}")
    sys.stdout.flush()
