"""`miniclaw sessions`: list, show, search, export and delete; reads need no gateway, a delete goes through one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from miniclaw.cli import HARMLESS, add_common

if TYPE_CHECKING:
    from miniclaw.config import LoadedSettings
    from miniclaw.session.models import Session
    from miniclaw.session.search import SearchesText
    from miniclaw.session.storage import SessionStorage

__all__ = ["add_arguments", "run"]

ACTIONS = {
    "list": "list sessions, the latest first",
    "show": "print a session as Markdown",
    "search": "find a text in what was said",
    "export": "write a session as Markdown or JSON to standard output, or to a file",
    "delete": "remove a session with everything in it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, about in ACTIONS.items():
        action = actions.add_parser(name, help=about, description=about)
        add_common(action, nested=True)
        if name != "delete":
            action.add_argument(
                "--user-id", default="owner", help="whose, or a group's `grp_…`; default: owner"
            )
        if name in ("show", "export", "delete"):
            action.add_argument("session_id")
        if name == "search":
            action.add_argument("text", nargs="+")
        if name == "export":
            action.add_argument("file", nargs="?", help="- is standard output")
            action.add_argument("--format", choices=["markdown", "json"], default="markdown")


def run(args: argparse.Namespace) -> int:
    """Carry the action out."""
    from miniclaw.cli.command import run_command
    from miniclaw.cli.start import load, run_async, set_up_logging

    if args.action == "delete":
        return run_command(args, "delete", {"session_id": args.session_id})
    loaded = load(args)
    set_up_logging(loaded, default="warning")
    file, written = getattr(args, "file", None), list[str]()
    code = run_async(_run(loaded, args, written))
    if file in (None, "-"):
        sys.stdout.write("".join(written).translate(HARMLESS))
    else:
        Path(file).write_text("".join(written), encoding="utf-8")
    return code


async def _run(loaded: LoadedSettings, args: argparse.Namespace, written: list[str]) -> int:
    async with _kept(loaded) as (storage, search):
        written.append(await _text(storage, search, args))
    return 0


@asynccontextmanager
async def _kept(loaded: LoadedSettings) -> AsyncIterator[tuple[SessionStorage, SearchesText]]:
    """The sessions where they are kept, to be read."""
    if (redis := loaded.settings.redis).url is not None:
        from miniclaw.redis.link import RedisLink
        from miniclaw.redis.storage import RedisSearch, RedisStorage

        link = RedisLink(
            redis.url.get_secret_value(), prefix=redis.prefix, timeout=redis.timeout, patience=0.0
        )
        try:
            await link.open()
            yield (storage := RedisStorage(link)), RedisSearch(storage)
        finally:
            await link.close()
        return
    from miniclaw.db import Database
    from miniclaw.errors import ConfigError
    from miniclaw.session.search import SQLiteSearch
    from miniclaw.session.sqlite import SQLiteStorage

    path = loaded.data_dir / "miniclaw.db"
    if not path.exists():
        raise ConfigError(f"There are no sessions in `{loaded.data_dir}` yet.")
    database = Database(path, read_only=True)
    await database.open()
    try:
        yield SQLiteStorage(database), SQLiteSearch(database)
    finally:
        await database.close()


async def _text(storage: SessionStorage, search: SearchesText, args: argparse.Namespace) -> str:
    from miniclaw.gateway.protocol import format_time
    from miniclaw.session.export import to_json, to_markdown

    rows: list[str] = []
    match args.action:
        case "list":
            for session in await storage.list(args.user_id):
                moment = format_time(session.updated_at)[:16]
                rows.append(f"{session.session_id}  {moment}  {session.channel:8}  {session.title}")
        case "search":
            hits = await search.search(args.user_id, " ".join(args.text))
            rows = [f"{hit.session_id}  {hit.title}: {hit.excerpt}" for hit in hits]
        case _:
            session = await _session(storage, args)
            return to_json(session) if getattr(args, "format", "") == "json" else to_markdown(session)
    return "".join(f"{' '.join(row.split())}\n" for row in rows) or "（空）/ (nothing)\n"


async def _session(storage: SessionStorage, args: argparse.Namespace) -> Session:
    from miniclaw.errors import ConfigError

    session = await storage.load(args.session_id)
    if session is None or session.user_id != args.user_id:
        raise ConfigError(f"{args.user_id} has no session `{args.session_id}`; `sessions list` shows them.")
    return session
