"""`miniclaw chat`: talk in the terminal."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--once", metavar="TEXT", help="print one answer and exit")
    parser.add_argument(
        "--json", action="store_true", help="with --once one JSON object, else each event as a line of JSON"
    )
    parser.add_argument("--connect", metavar="URL", help="attach to the gateway at ws://…")
    parser.add_argument(
        "--user-id", default="owner", help="who is talking (default owner; not with --connect)"
    )
    parser.add_argument("--model", help="the model to use")
    parser.add_argument("--session", metavar="ID", help="go on with this session")
    parser.add_argument("--resume", action="store_true", help="go on with the latest session")
    parser.add_argument(
        "--workspace", metavar="DIR", help="the directory of the file tools (not with a running gateway)"
    )
    parser.add_argument(
        "--allow",
        metavar="TOOL",
        action="append",
        default=[],
        help="let this tool run without asking; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves; with `--once` exit 1 unless the turn came to its own end."""
    from miniclaw.cli.chat import chat
    from miniclaw.cli.start import load, run_async, set_up_logging
    from miniclaw.errors import ConfigError

    if args.connect and args.user_id != "owner":
        raise ConfigError("--user-id does not go with --connect; the token says who you are.")
    given = {"model.name": args.model} if args.model else {}
    if args.workspace:
        given[f"users.{args.user_id}.workspace"] = args.workspace
    loaded = load(args, given)
    set_up_logging(loaded, default="error")
    return run_async(chat(loaded, args))
