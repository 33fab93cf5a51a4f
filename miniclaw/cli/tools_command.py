"""`miniclaw tools`: what tools there are, and a call of one by hand."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from miniclaw.cli import add_common, say

if TYPE_CHECKING:
    from miniclaw.config import LoadedSettings
    from miniclaw.skills.manager import SkillManager
    from miniclaw.tools.registry import ToolRegistry

__all__ = ["add_arguments", "registry_of", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the tools, and the own ones that could not be loaded")
    call = actions.add_parser("call", help="call a tool as its user; you approve by calling")
    call.add_argument("name")
    call.add_argument("arguments", metavar="JSON", nargs="?", default="{}", help="an object; default: {}")
    call.add_argument("--user-id", default="owner", help="whose workspace and memory; default: owner")
    for action in (listing, call):
        action.add_argument("--json", action="store_true", help="print one JSON object")
        add_common(action, nested=True)


def run(args: argparse.Namespace) -> int:
    """Carry the action out; 1 when the call failed."""
    from miniclaw.cli.start import load, run_async, set_up_logging

    loaded = load(args)
    set_up_logging(loaded, default="critical" if args.action == "list" else "error")
    registry, _ = registry_of(loaded)
    return _list(registry, args.json) if args.action == "list" else run_async(_call(registry, loaded, args))


def registry_of(loaded: LoadedSettings) -> tuple[ToolRegistry, SkillManager]:
    """The tools, and the skills that count on them and on what only a turn or a running gateway has."""
    from miniclaw.agent.delegate import DelegateTool
    from miniclaw.memory.long_term import LongTermMemory
    from miniclaw.memory.tools import memory_tools
    from miniclaw.skills.tools import skill_tools
    from miniclaw.timer_tool import ScheduleTool
    from miniclaw.toolbox import skills_of, tools_of

    class Known(frozenset[str]):
        def __contains__(self, name: object) -> bool:  # what servers have is known once they are asked
            return str(name).startswith("mcp__") or super().__contains__(name)

    skills = skills_of(
        loaded.settings,
        loaded.data_dir,
        tools=lambda: Known({*registry.names(), DelegateTool.name, ScheduleTool.name}),
    )
    memory = memory_tools(LongTermMemory(loaded.data_dir))
    registry = tools_of(loaded.settings, loaded.data_dir, (*memory, *skill_tools(skills)))
    return registry, skills


def _list(registry: ToolRegistry, as_json: bool) -> int:
    from miniclaw.tools.exports import tools_view

    view = tools_view(registry, registry.source)
    if as_json:
        for row, tool in zip(view["tools"], registry, strict=True):
            row["parameters"] = tool.parameters
        say(json.dumps(view, ensure_ascii=False, indent=2))
        return 0
    for row in view["tools"]:
        say(f"{row['name']:16} {row['risk']:8} {' '.join(row['description'].split())[:90]}")
    for problem in view["problems"]:
        say(f"{problem['source']}: {problem['error']}")
    return 0


async def _call(registry: ToolRegistry, loaded: LoadedSettings, args: argparse.Namespace) -> int:
    """A call that may change something needs the data directory for itself, as every writer does."""
    from miniclaw.errors import ConfigError
    from miniclaw.gateway.protocol import new_id
    from miniclaw.identity import is_user_id
    from miniclaw.rundir import RunDir
    from miniclaw.tools.context import ToolContext, workspace_of
    from miniclaw.tools.risk import risk_of

    try:
        arguments = json.loads(args.arguments)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The arguments are not JSON: {error}.") from error
    tool = registry.find(args.name)
    if tool is None or not isinstance(arguments, dict) or not is_user_id(args.user_id):
        raise ConfigError(
            f"There is no tool `{args.name}`; see `miniclaw tools list`."
            if tool is None
            else "The arguments have to be a JSON object, and the user id one of a-z, 0-9, _ and -."
        )
    context = ToolContext(
        user_id=args.user_id,
        scope=args.user_id,
        session_id="cli",
        turn_id=new_id("turn"),
        workspace=workspace_of(loaded.data_dir, args.user_id, loaded.settings.users),
    )
    lock = RunDir(loaded.data_dir)
    if (risk := await risk_of(tool, arguments)) != "read":
        lock.acquire()
    try:
        result = await registry.execute(args.name, arguments, replace(context, judged=(arguments, risk)))
    finally:
        lock.release()
    if args.json:
        shown = {name: value for name, value in asdict(result).items() if name != "kept"}
        say(json.dumps(shown, ensure_ascii=False))
    else:
        say(result.content, file=sys.stdout if result.ok else sys.stderr)
    return 0 if result.ok else 1
