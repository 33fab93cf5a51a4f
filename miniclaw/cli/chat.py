"""`miniclaw chat` from the first word to the last: what is read, and on which screen it is shown."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from miniclaw.cli.conversation import Conversation, ReadLine
from miniclaw.cli.link import open_link
from miniclaw.cli.local import LOCAL
from miniclaw.cli.once import interruptible, once
from miniclaw.cli.screen import JsonScreen, Screen, State, is_capable
from miniclaw.config import LoadedSettings
from miniclaw.errors import ConfigError, ProtocolError
from miniclaw.gateway.command_table import COMMANDS
from miniclaw.gateway.protocol import plain_text

__all__ = ["chat", "readable"]

LEAVE = frozenset({"exit", "quit", "/exit", "/quit"})


async def chat(loaded: LoadedSettings, args: argparse.Namespace) -> int:
    """Open a link and talk over it; returns the exit code."""
    opening = open_link(loaded, connect=args.connect, user_id=args.user_id, workspace=args.workspace)
    async with opening as (link, where, attached):
        interactive = args.once is None and sys.stdin.isatty()
        state = state_of(loaded, args)
        prompt = None
        if interactive:
            from miniclaw.cli.prompt import Prompt

            prompt = Prompt(state, [(n, c.about) for n, c in COMMANDS.items()] + [*LOCAL.items()])
        screen = _screen(args)
        conversation = Conversation(link, screen, args.allow, state, ask=prompt.ask if prompt else None)
        reader = asyncio.get_running_loop().create_task(conversation.read())
        reader.add_done_callback(conversation.reader_ended)
        try:
            await conversation.enter(session_id=args.session, latest=args.resume)
            if args.model and attached:
                await conversation.in_session("model", {"name": args.model})
            if args.once is not None:
                return await once(conversation, readable(args.once), as_json=args.json)
            if prompt is not None:
                home, gateway = (Path(), where) if attached else (loaded.data_dir, None)
                prompt.remember(await conversation.introduce(home, gateway))
            return await _talk(conversation, prompt.read if prompt else _piped())
        finally:
            reader.cancel()
            screen.close()


def readable(text: str) -> str:
    """What was typed: a character that came in two halves is whole, what is no character becomes U+FFFD.

    A Windows console gives an emoji as two surrogates, and bytes that are not UTF-8 arrive as lone ones.
    """
    return plain_text(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


async def _talk(conversation: Conversation, read_line: ReadLine) -> int:
    """Read lines until the user leaves. Ctrl+C ends the turn first and the program next."""
    failed = False
    while True:
        text = None
        if conversation.entered is None or not sys.stdin.isatty():
            try:
                line = await read_line()
            except KeyboardInterrupt:
                return 130
            if line is None or line.strip().lower() in LEAVE:
                return 1 if failed and not sys.stdin.isatty() else 0
            if not (text := readable(line)).strip():
                continue
        try:
            if text is not None and await conversation.carry_out(text.strip()):
                continue
            end = await interruptible(conversation, text and text.removeprefix("/" * text.startswith("//")))
            failed = end["name"] == "turn.failed"
            if failed:
                conversation.screen.error(end["data"]["message"])
        except (ConfigError, ProtocolError) as error:
            failed = True
            conversation.screen.error(str(error))


def state_of(loaded: LoadedSettings, args: argparse.Namespace) -> State:
    """What is known before the first word."""
    from miniclaw.tools.context import workspace_of

    users = loaded.settings.users
    workspace = None if args.connect else workspace_of(loaded.data_dir, args.user_id, users)
    return State(Path.cwd(), workspace)


def _screen(args: argparse.Namespace) -> Screen:
    """JSON for programs, rendered Markdown for a person at a terminal that can do it, else plain text."""
    if args.json:
        return Screen(quiet=True) if args.once is not None else JsonScreen()
    watched = args.once is None and sys.stdin.isatty() and sys.stdout.isatty()
    if watched and is_capable():
        from miniclaw.cli.rich_screen import RichScreen

        return RichScreen()
    return Screen(watched=watched)


def _piped() -> ReadLine:
    """Lines of a pipe or file: with a thread and a file that the end of the program waits for in no way."""
    file = open(os.dup(sys.stdin.fileno()), encoding=sys.stdin.encoding, errors="replace")

    def read(found: Future[str]) -> None:
        try:
            found.set_result(file.readline())
        except (OSError, ValueError) as error:
            found.set_exception(error)

    async def read_line() -> str | None:
        found = Future[str]()
        found.set_running_or_notify_cancel()  # so that a wait that is given up leaves it alone
        threading.Thread(target=read, args=[found], daemon=True).start()
        line = await asyncio.wrap_future(found)
        return line.rstrip("\n") if line else None

    return read_line
