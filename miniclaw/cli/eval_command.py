"""`miniclaw eval FILE`: runs tasks against the configured model, each in a gateway of its own, and checks them."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from miniclaw.cli import say
from miniclaw.errors import ConfigError

if TYPE_CHECKING:
    from miniclaw.agent.providers import LLMProvider
    from miniclaw.app import MiniClaw
    from miniclaw.config import LoadedSettings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="tasks as YAML; examples/tasks.yaml shows all there is")
    parser.add_argument("--only", metavar="ID", action="append", help="run this task; may be given again")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")


def run(args: argparse.Namespace) -> int:
    """Run the tasks; 1 when one did not pass."""
    from miniclaw.cli.start import load, run_async, set_up_logging

    loaded = load(args)
    set_up_logging(loaded, default="error")
    tasks = read_tasks(Path(args.file))
    known = [task.id for task in tasks]
    if unknown := [name for name in args.only or () if name not in known]:
        raise ConfigError(f"There is no task `{unknown[0]}`; there are: {', '.join(known)}.")
    return run_async(_run(loaded, [t for t in tasks if t.id in (args.only or known)], as_json=args.json))


@dataclass
class Task:
    """One task of the file; anything else in it is an error."""

    id: str
    prompt: str = ""
    turns: list[str] = field(default_factory=list)
    """Several messages, instead of `prompt`."""
    offer: list[str] | None = None
    """The built-in tools that there are; left out = all."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Scripted tools: `name`, `description`, `parameters`, `risk`, `result` or `error`.

    With `needs`, expressions for arguments, there is a result only where they fit.
    """
    approve: Literal["yes", "no"] = "no"
    """The answer to every question."""
    expect: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What a task came to."""

    id: str
    problems: list[str]
    model_calls: int
    tools: list[str]
    tokens: int
    seconds: float
    text: str


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file.

    Raises:
        ConfigError: it cannot be read, or a task is not as it should be.
    """
    import yaml

    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))["tasks"]
        tasks = [Task(**row) for row in rows]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"`{path}` holds no tasks that can be run: {error}.") from error
    for task in tasks:
        if unknown := set(task.expect) - set(CHECKS):
            raise ConfigError(
                f"Task `{task.id}`: `{unknown.pop()}` is no expectation; {', '.join(CHECKS)} are."
            )
    return tasks


async def _run(loaded: LoadedSettings, tasks: list[Task], *, as_json: bool) -> int:
    from miniclaw.agent.select import choose_provider

    provider = await choose_provider(loaded.settings.model, loaded.settings.agent)
    results = []
    try:
        if not as_json:
            say(f"model {provider.info.name}\n{'task':22} {'pass':4} {'calls':>5} {'tokens':>7} {'time':>7}")
        for task in tasks:
            results.append(await _run_task(loaded, provider, task))
            if not as_json:
                say(_row(results[-1]))
                sys.stdout.flush()
    finally:
        await provider.close()
    passed = sum(not result.problems for result in results)
    if as_json:
        rows = [{**vars(result), "passed": not result.problems} for result in results]
        print(json.dumps({"model": provider.info.name, "passed": passed, "tasks": rows}, ensure_ascii=False))
    else:
        say(f"{passed} of {len(results)} passed")
    return 0 if passed == len(results) else 1


def _row(result: Result) -> str:
    left = f"{result.id[:22]:22} {'no' if result.problems else 'yes':4} {result.model_calls:>5}"
    return f"{left} {result.tokens:>7} {result.seconds:>6.1f}s  {'; '.join(result.problems)}".rstrip()


async def _run_task(loaded: LoadedSettings, provider: LLMProvider, task: Task) -> Result:
    from miniclaw.app import MiniClaw

    with tempfile.TemporaryDirectory(prefix="miniclaw-eval-") as directory:
        own = replace(loaded, data_dir=Path(directory))
        async with MiniClaw(own, provider=provider, gateway=False, web=False) as claw:
            _set_up_tools(claw, task)
            began = time.monotonic()
            ends, calls, session_id = [], list[tuple[str, Any]](), None
            for text in task.turns or [task.prompt]:
                async for event in claw.ask(text, session_id=session_id):
                    session_id, data = event["session_id"], event["data"]
                    if event["name"] == "tool.started":
                        calls.append((data["name"], data["arguments"]))
                    elif event["name"] == "approval.requested":
                        yes = task.approve == "yes"
                        await claw.desk.decide(data["approval_id"], "owner", "once" if yes else "deny")
                ends.append(event)
            return _judge(task, ends, calls, time.monotonic() - began)


def _set_up_tools(claw: MiniClaw, task: Task) -> None:
    if task.offer is not None:
        for name in claw.registry.names():
            if name not in task.offer:
                claw.registry.remove(name)
    for row in task.tools:
        properties = row.get("parameters") or {}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        handler = _scripted(row)
        claw.registry.remove(row["name"])
        claw.registry.register(row["name"], row["description"], schema, handler, risk=row.get("risk", "read"))


def _scripted(row: Mapping[str, Any]) -> Any:
    from miniclaw.errors import ToolError

    async def handler(**arguments: Any) -> str:
        fits = all(
            re.search(str(p), str(arguments.get(name, "")), re.I) for name, p in row.get("needs", {}).items()
        )
        if not fits or "result" not in row:
            raise ToolError(str(row.get("error", "Nothing was found; check the arguments.")))
        return str(row["result"])

    return handler


def _judge(task: Task, ends: list[dict[str, Any]], calls: list[tuple[str, Any]], seconds: float) -> Result:
    last = ends[-1]["data"]
    text = last.get("text") or last.get("message", "")
    usage = [end["data"].get("usage") or {} for end in ends]
    seen = {"text": text, "calls": calls, "end": ends[-1]["name"], "stopped_by": last.get("stopped_by")}
    problems = [p for name, wanted in task.expect.items() if (p := CHECKS[name](wanted, seen))]
    if ends[-1]["name"] != "turn.finished":
        problems.append(f"{ends[-1]['name']}: {last.get('code', '')} {last.get('message', '')}".strip())
    return Result(
        id=task.id,
        problems=problems,
        model_calls=sum(one.get("calls", 0) for one in usage),
        tools=[name for name, _ in calls],
        tokens=sum(one.get("input_tokens", 0) + one.get("output_tokens", 0) for one in usage),
        seconds=round(seconds, 2),
        text=text,
    )


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _contains(wanted: Any, seen: Mapping[str, Any]) -> str:
    lower = seen["text"].lower()
    missing = [str(part) for part in _listed(wanted) if str(part).lower() not in lower]
    return f"`{missing[0]}` is not in {seen['text'][:80]!r}" if missing else ""


def _lacks(wanted: Any, seen: Mapping[str, Any]) -> str:
    found = [str(part) for part in _listed(wanted) if str(part).lower() in seen["text"].lower()]
    return f"`{found[0]}` is in {seen['text'][:80]!r}" if found else ""


def _regex(wanted: Any, seen: Mapping[str, Any]) -> str:
    missing = [p for p in _listed(wanted) if not re.search(str(p), seen["text"], re.IGNORECASE)]
    return f"/{missing[0]}/ does not fit {seen['text'][:80]!r}" if missing else ""


def _called(wanted: Any, seen: Mapping[str, Any]) -> str:
    """Calls in this order, others between them; `args` are expressions for the named arguments."""
    left = iter(seen["calls"])
    for one in _listed(wanted):
        one = {"tool": one} if isinstance(one, str) else one
        if not any(_is_call(one, name, arguments) for name, arguments in left):
            return f"no call of {one['tool']} {one.get('args', '')} in order; there were {seen['calls']}"[
                :300
            ]
    return ""


def _is_call(wanted: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    return wanted["tool"] == name and all(
        re.search(str(pattern), str(arguments.get(key, "")), re.IGNORECASE)
        for key, pattern in (wanted.get("args") or {}).items()
    )


def _not_called(wanted: Any, seen: Mapping[str, Any]) -> str:
    names = {name for name, _ in seen["calls"]}
    found = [name for name in _listed(wanted) if name in names or (name == "*" and names)]
    return f"{found[0]} was called: {sorted(names)}" if found else ""


def _stopped_by(wanted: Any, seen: Mapping[str, Any]) -> str:
    return "" if seen["stopped_by"] == wanted else f"stopped by {seen['stopped_by']}, not by {wanted}"


def _max_tool_calls(wanted: Any, seen: Mapping[str, Any]) -> str:
    count = len(seen["calls"])
    return "" if count <= wanted else f"{count} tool calls, {wanted} at most"


CHECKS = {
    "contains": _contains,
    "lacks": _lacks,
    "regex": _regex,
    "called": _called,
    "not_called": _not_called,
    "stopped_by": _stopped_by,
    "max_tool_calls": _max_tool_calls,
}
"""What a task may expect; each check returns what is wrong, or nothing."""
