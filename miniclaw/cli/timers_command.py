"""`miniclaw timers`: what is said to the agent at which time; through the running gateway, or without one."""

from __future__ import annotations

import argparse

from miniclaw.cli import add_common

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, about in (("list", "list the owner's timers"), ("cancel", "end one")):
        action = actions.add_parser(name, help=about, description=about)
        add_common(action, nested=True)
        if name == "cancel":
            action.add_argument("timer_id", help="as the list shows it")


def run(args: argparse.Namespace) -> int:
    """Carry the action out and print the timers that there are then."""
    from miniclaw.cli.command import run_command

    given = {"timer_id": args.timer_id} if args.action == "cancel" else {}
    return run_command(args, "timers", {"action": args.action, **given})
