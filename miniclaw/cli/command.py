"""One command of the protocol, for subcommands that are no more than that."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from miniclaw.cli.conversation import Conversation
from miniclaw.cli.link import open_link
from miniclaw.cli.screen import Screen, State
from miniclaw.cli.start import load, run_async, set_up_logging
from miniclaw.config import LoadedSettings

__all__ = ["run_command"]


def run_command(args: argparse.Namespace, name: str, given: dict[str, Any]) -> int:
    """Let the gateway carry the owner's command out, one that runs or one of its own, and print the result."""
    loaded = load(args)
    set_up_logging(loaded, default="error")
    return run_async(_run(loaded, name, given))


async def _run(loaded: LoadedSettings, name: str, given: dict[str, Any]) -> int:
    async with open_link(loaded, connect=None, user_id="owner") as (link, _, _):
        conversation = Conversation(link, Screen(), [], State(Path.cwd()), ask=None)
        reader = asyncio.get_running_loop().create_task(conversation.read())
        try:
            conversation.screen.result(name, await conversation.command(name, given))
        finally:
            reader.cancel()
    return 0
