"""`miniclaw users`: who may speak; through the running gateway, or by itself where none runs."""

from __future__ import annotations

import argparse

from miniclaw.cli import add_common

__all__ = ["add_arguments", "run"]

ACTIONS = {
    "list": "list users and the platform people that they are",
    "add": "make a user and print the token, once",
    "token": "give a user a new token; the old one is out",
    "link": "let a platform's person be this user",
    "pair": "let the stranger who was shown a code be this user",
    "remove": "shut a user out; what they wrote stays, unless --wipe",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, about in ACTIONS.items():
        action = actions.add_parser(name, help=about, description=about)
        add_common(action, nested=True)
        if name != "list":
            action.add_argument("user_id", help="a-z first, then a-z, 0-9, _ and -, 32 at most")
        if name == "add":
            action.add_argument(
                "--again", action="store_true", help="one that was removed and whose data are there"
            )
        if name == "remove":
            action.add_argument(
                "--wipe", action="store_true", help="delete all that is kept of them: it cannot be undone"
            )
        if name == "pair":
            action.add_argument("person", metavar="code", help="as it was shown in the chat")
        if name == "link":
            action.add_argument("channel", help="such as slack")
            action.add_argument("person", help="the platform's id of the person")
            action.add_argument("--account", default="", help="which account of the platform")


def run(args: argparse.Namespace) -> int:
    """Carry the action out and print what came of it."""
    from miniclaw.cli.command import run_command

    names = ("action", "user_id", "channel", "account", "person", "again", "wipe")
    given = {name: getattr(args, name) for name in names if getattr(args, name, None)}
    return run_command(args, "users", given)
