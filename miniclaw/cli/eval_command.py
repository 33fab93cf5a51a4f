"""`miniclaw eval FILE`: runs tasks against the configured model, each in a gateway of its own, and checks them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from miniclaw.cli import json_text, say
from miniclaw.errors import ConfigError

if TYPE_CHECKING:
    from miniclaw.agent.providers import LLMProvider
    from miniclaw.app import MiniClaw
    from miniclaw.cli.eval_tasks import Task, Tool
    from miniclaw.config import LoadedSettings

__all__ = ["add_arguments", "run"]

MOST_RUNS: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="tasks as YAML; examples/tasks.yaml shows all there is")
    parser.add_argument("--only", metavar="ID", action="append", help="run this task; may be given again")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="run each task so often; default: 1")
    about = "the output of an earlier --json; 1 only when a task passes less often than there"
    parser.add_argument("--compare", metavar="FILE", help=about)


def run(args: argparse.Namespace) -> int:
    """Run the tasks; 1 when one did not pass, or with --compare when one passes less often than before."""
    from miniclaw.cli.eval_tasks import read_tasks
    from miniclaw.cli.start import load, run_async, set_up_logging

    if not 1 <= args.runs <= MOST_RUNS:
        raise ConfigError(f"--runs {args.runs}: it must be from 1 to {MOST_RUNS}.")
    tasks = read_tasks(Path(args.file))
    known = [task.id for task in tasks]
    if unknown := [name for name in args.only or () if name not in known]:
        raise ConfigError(f"There is no task `{unknown[0]}`; there are: {', '.join(known)}.")
    tasks = [task for task in tasks if task.id in (args.only or known)]
    before = _read_shares(args.compare, tasks) if args.compare else None
    loaded = load(args)
    set_up_logging(loaded, default="error")
    return run_async(_run(loaded, tasks, before, runs=args.runs, as_json=args.json))


def _read_shares(name: str, tasks: list[Task]) -> dict[str, float]:
    try:
        shares = _shares(json.loads(Path(name).read_text(encoding="utf-8-sig"))["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"`{name}` is not what `miniclaw eval --json` printed: {error!r}.") from error
    if not any(task.id in shares for task in tasks):
        raise ConfigError(f"`{name}` holds none of these tasks; there are: {', '.join(shares)}.")
    return shares


def _shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of each task, the share of its runs that passed."""
    runs: dict[str, list[bool]] = {}
    for row in rows:
        runs.setdefault(str(row["id"]), []).append(bool(row["passed"]))
    return {name: sum(passed) / len(passed) for name, passed in runs.items()}


@dataclass
class Result:
    """What one run of a task came to."""

    id: str
    problems: list[str]
    model_calls: int
    tools: list[str]
    tokens: int
    seconds: float
    text: str


async def _run(
    loaded: LoadedSettings, tasks: list[Task], before: dict[str, float] | None, *, runs: int, as_json: bool
) -> int:
    from miniclaw.agent.select import choose_provider

    provider = await choose_provider(loaded.settings.model, loaded.settings.agent)
    rows: list[dict[str, Any]] = []
    try:
        if not as_json:
            say(f"model {provider.info.name}\n{'task':22} {'pass':4} {'calls':>5} {'tokens':>7} {'time':>7}")
        for task in tasks:
            for _ in range(runs):
                result = await _run_task(loaded, provider, task)
                rows.append({**vars(result), "passed": not result.problems})
                if not as_json:
                    say(_line(result))
                    sys.stdout.flush()
    finally:
        await provider.close()
    passed, shares = sum(row["passed"] for row in rows), _shares(rows)
    fell = [name for name, share in shares.items() if before and share < before.get(name, 0)]
    if as_json:
        found = {"model": provider.info.name, "passed": passed, "shares": shares, "fell": fell, "tasks": rows}
        print(json_text(found))
    else:
        for name, share in shares.items():
            if runs > 1 or before is not None:
                was = f"  was {before[name]:4.0%}" if before and name in before else ""
                say(f"{name[:22]:22} {share:4.0%}{was}{'  fell' if name in fell else ''}")
        say(f"{passed} of {len(rows)} passed")
    return int(bool(fell) if before is not None else passed < len(rows))


def _line(result: Result) -> str:
    left = f"{result.id[:22]:22} {'no' if result.problems else 'yes':4} {result.model_calls:>5}"
    return f"{left} {result.tokens:>7} {result.seconds:>6.1f}s  {'; '.join(result.problems)}".rstrip()


async def _run_task(loaded: LoadedSettings, provider: LLMProvider, task: Task) -> Result:
    from miniclaw.app import MiniClaw
    from miniclaw.cli.eval_tasks import Seen, problems
    from miniclaw.tools.context import workspace_of

    with tempfile.TemporaryDirectory(prefix="miniclaw-eval-") as directory:
        own = _alone(loaded, Path(directory))
        async with MiniClaw(own, provider=provider, gateway=False, web=False) as claw:
            _set_up_tools(claw, task)
            ends, calls, session_id, began = [], list[tuple[str, Any]](), None, time.monotonic()
            for text in task.turns or [task.prompt]:
                async for event in claw.ask(text, session_id=session_id):
                    session_id, data = event["session_id"], event["data"]
                    if event["name"] == "tool.started":
                        calls.append((data["name"], data["arguments"]))
                    elif event["name"] == "approval.requested":
                        decision: Literal["once", "deny"] = "once" if task.approve == "yes" else "deny"
                        await claw.desk.decide(data["approval_id"], "owner", decision)
                ends.append(event)
            seconds, last = time.monotonic() - began, ends[-1]["data"]
            seen = Seen(
                text=last.get("text") or last.get("message", ""),
                calls=calls,
                stopped_by=last.get("stopped_by"),
                memories=[memory.content for memory in await claw.memory.list("owner")],
                workspace=workspace_of(own.data_dir, "owner", own.settings.users),
            )
            wrong = list(problems(task.expect, seen))
    if ends[-1]["name"] != "turn.finished":
        wrong.append(f"{ends[-1]['name']}: {last.get('code', '')} {last.get('message', '')}".strip())
    usage = [end["data"].get("usage") or {} for end in ends]
    return Result(
        id=task.id,
        problems=wrong,
        model_calls=sum(one.get("calls", 0) for one in usage),
        tools=[name for name, _ in calls],
        tokens=sum(one.get("input_tokens", 0) + one.get("output_tokens", 0) for one in usage),
        seconds=round(seconds, 2),
        text=seen.text,
    )


def _alone(loaded: LoadedSettings, directory: Path) -> LoadedSettings:
    """The settings without what would let a task reach the user's own data."""
    users = {k: user.model_copy(update={"workspace": None}) for k, user in loaded.settings.users.items()}
    redis = loaded.settings.redis.model_copy(update={"url": None})
    settings = loaded.settings.model_copy(update={"users": users, "redis": redis})
    return replace(loaded, data_dir=directory, settings=settings)


def _set_up_tools(claw: MiniClaw, task: Task) -> None:
    if task.offer is not None:
        for name in claw.registry.names():
            if name not in task.offer:
                claw.registry.remove(name)
    for tool in task.tools:
        schema = {"type": "object", "properties": tool.parameters, "required": list(tool.parameters)}
        claw.registry.remove(tool.name)
        claw.registry.register(tool.name, tool.description, schema, _scripted(tool), risk=tool.risk)


def _scripted(tool: Tool) -> Any:
    from miniclaw.cli.eval_tasks import fits
    from miniclaw.errors import ToolError

    async def handler(**arguments: Any) -> str:
        if tool.result is None or not fits(tool.needs, arguments):
            raise ToolError(tool.error)
        return tool.result

    return handler
