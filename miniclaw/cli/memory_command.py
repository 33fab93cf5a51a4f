"""`miniclaw memory`: see, search, change, export and wipe what is remembered of a user or a group.

Works on the files themselves, so it needs no gateway; one that runs sees each change at its next search.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miniclaw.cli import add_common, agreed, say

if TYPE_CHECKING:
    from miniclaw.memory.long_term import LongTermMemory
    from miniclaw.memory.models import MemoryRecord

__all__ = ["add_arguments", "run"]

ACTIONS = {
    "list": "list what is remembered",
    "search": "find memories by words",
    "show": "print a memory as its file holds it",
    "add": "remember something",
    "edit": "change what is given, and leave the rest",
    "delete": "forget a memory for good",
    "export": "write everything as JSON to standard output, or to a file",
    "import": "store exported memories; all or none",
    "clear": "forget everything",
}
FIELDS = {
    "--context": "when, where or why it came up",
    "--type": "semantic, episodic or procedural",
    "--category": "fact, preference, task or sensitive",
    "--key": "what a preference is about; a new one takes the place of the old",
    "--expires-at": "when to forget it, such as 2027-01-31",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, about in ACTIONS.items():
        action = actions.add_parser(name, help=about, description=about)
        add_common(action, nested=True)
        action.add_argument("--user-id", default="owner", help="whose, or a group's `grp_…`; default: owner")
        action.add_argument("--json", action="store_true", help="print JSON")
        if name in ("show", "edit", "delete"):
            action.add_argument("memory_id")
        if name in ("add", "search"):
            action.add_argument("text", nargs="+")
        if name in ("add", "edit"):
            for option, meaning in FIELDS.items():
                action.add_argument(option, help=meaning)
        if name == "edit":
            action.add_argument("--content", help="what to remember instead")
        if name == "list":
            action.add_argument("--all", action="store_true", help="with the replaced and expired ones")
        if name == "search":
            action.add_argument("--limit", type=int, default=10)
        if name in ("export", "import"):
            action.add_argument("file", nargs="?" if name == "export" else None, help="- is standard input")
        if name == "clear":
            action.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Carry the action out; 1 when there is no such memory."""
    from miniclaw.cli.start import load, run_async, set_up_logging
    from miniclaw.memory.long_term import LongTermMemory

    loaded = load(args)
    set_up_logging(loaded, default="warning")
    if args.action == "clear" and not args.yes:
        if not agreed(f"全部忘掉 {args.user_id} 的记忆？/ Forget everything about {args.user_id}?"):
            return 1
    return run_async(_run(LongTermMemory(loaded.data_dir), args))


async def _run(memory: LongTermMemory, args: argparse.Namespace) -> int:
    scope = args.user_id
    match args.action:
        case "list":
            _print(await memory.list(scope, include_inactive=args.all), args.json)
            for name, reason in (await memory.problems(scope)).items():
                say(f"⚠ {name}: {reason}", file=sys.stderr)
        case "search":
            hits = await memory.search(scope, " ".join(args.text), args.limit)
            _print((hit.record for hit in hits), args.json)
        case "show":
            return await _show(memory, args)
        case "add":
            record = await memory.save(scope, " ".join(args.text), **_fields(args))
            close = await memory.similar(scope, record.content, besides=record.memory_id)
            _print([record], args.json)
            if close and not args.json:
                say("相近的记忆 / close to it:")
                _print(close, as_json=False)
        case "edit":
            changes = {**_fields(args), **({"content": args.content} if args.content else {})}
            _print([await memory.update(scope, args.memory_id, **changes)], args.json)
        case "delete":
            if not await memory.delete(scope, args.memory_id):
                return _missing(args.memory_id)
        case "export":
            _write(json.dumps(await memory.export(scope), ensure_ascii=False, indent=2), args.file)
        case "import":
            say(await memory.import_(scope, _read(args.file)))
        case _:
            say(await memory.clear(scope))
    return 0


async def _show(memory: LongTermMemory, args: argparse.Namespace) -> int:
    from miniclaw.memory.models import render_record

    record = await memory.get(args.user_id, args.memory_id)
    if record is None:
        return _missing(args.memory_id)
    say(json.dumps(record.model_dump(), ensure_ascii=False, indent=2) if args.json else render_record(record))
    return 0


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    given = {
        "context": args.context,
        "memory_type": args.type,
        "category": args.category,
        "key": args.key,
        "expires_at": args.expires_at,
    }
    return {name: value for name, value in given.items() if value is not None}


def _print(records: Iterable[MemoryRecord], as_json: bool) -> None:
    from miniclaw.agent.command_text import memory_rows

    rows = [record.model_dump() for record in records]
    if as_json:
        say(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        say("\n".join(memory_rows(rows)) or "（空）/ (nothing)")


def _missing(memory_id: str) -> int:
    say(f"miniclaw: there is no memory {memory_id}", file=sys.stderr)
    return 1


def _write(text: str, file: str | None) -> None:
    if file is None or file == "-":
        say(text)
    else:
        Path(file).write_text(text + "\n", encoding="utf-8")


def _read(file: str) -> list[dict[str, Any]]:
    """Exported memories.

    Raises:
        ConfigError: the file holds none.
    """
    from miniclaw.errors import ConfigError

    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}.") from error
    memories = value.get("memories") if isinstance(value, dict) else value
    if not isinstance(memories, list) or not all(isinstance(one, dict) for one in memories):
        raise ConfigError(f"{file} has to hold a JSON list of memories, as `memory export` writes it.")
    return memories
