"""`miniclaw trace`: what a turn did, call by call, from the files in `traces/`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from miniclaw.cli import say
from miniclaw.errors import ConfigError

__all__ = ["add_arguments", "run", "table"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("turn", nargs="?", metavar="TURN", help="a turn's id; left out = the newest")
    parser.add_argument("--json", action="store_true", help="print the records as JSON, one a line")
    parser.add_argument("--prompt", action="store_true", help="print the layers of the system prompt too")


def run(args: argparse.Namespace) -> int:
    """Print the records of a turn."""
    from miniclaw.agent.trace import find_trace, read_trace
    from miniclaw.cli.start import load

    directory = load(args).data_dir / "traces"
    path = find_trace(directory, args.turn)
    if path is None:
        name = f"of turn `{args.turn}`" if args.turn else "yet"
        raise ConfigError(
            f"There is no trace {name} in `{directory}`; is `trace.enabled` off, or the turn too old?"
        )
    records = read_trace(path)
    if args.json:
        for record in records:
            say(json.dumps(record, ensure_ascii=False))
        return 0
    head = records[0] if records else {}
    say(f"turn {head.get('turn_id')} of session {head.get('session_id')}, user {head.get('user_id')}")
    say(table(records))
    if args.prompt:
        _print_prompts([record for record in records if record["kind"] == "prompt"])
    return 0


def table(records: Sequence[dict[str, Any]]) -> str:
    """Every call in a line, and what they took together."""
    head = f"{'call':6} {'name':28} {'purpose':9} {'in':>8} {'out':>7} {'cost $':>9} {'ms':>7}  what"
    rows = [_row(record) for record in records if record["kind"] != "prompt"]
    return "\n".join([head, *rows, _total([record for record in records if record["kind"] == "model"])])


def _row(record: dict[str, Any]) -> str:
    if record["kind"] == "tool":
        name, counts = record["name"], ("", "", "")
        arguments = json.dumps(record["arguments"], ensure_ascii=False)
        what = f"{record['error'] or 'ok'}  {arguments}"
    else:
        name, what = record["model"], record["error"] or ", ".join(record.get("asked_for", ())) or "answer"
        counts = (record["input_tokens"], record["output_tokens"], _money(record["cost"]))
    purpose = (
        record["purpose"] if record.get("attempt", 1) == 1 else f"{record['purpose']}·{record['attempt']}"
    )
    left = f"{record['kind']:6} {name[:28]:28} {purpose:9} {counts[0]:>8} {counts[1]:>7} {counts[2]:>9}"
    return f"{left} {record['ms']:>7}  {what[:200]}"


def _money(cost: Any) -> str:
    return f"{cost:.6f}" if isinstance(cost, int | float) else "unknown"


def _total(calls: list[dict[str, Any]]) -> str:
    costs = [record["cost"] for record in calls]
    known = all(isinstance(cost, int | float) for cost in costs)
    total = {name: sum(record[name] for record in calls) for name in ("input_tokens", "output_tokens", "ms")}
    cost = _money(sum(costs)) if known else "unknown"
    left = f"{'total':6} {f'{len(calls)} model calls':28} {'':9} {total['input_tokens']:>8}"
    return f"{left} {total['output_tokens']:>7} {cost:>9} {total['ms']:>7}"


def _print_prompts(prompts: list[dict[str, Any]]) -> None:
    from miniclaw.memory.tokens import estimate_tokens

    for record in prompts:
        sizes = [layer.get("tokens") or estimate_tokens(layer["text"]) for layer in record["layers"]]
        schemas = record.get("schemas", 0)
        beside = f" + about {schemas} of the tools' schemas" if schemas else ""
        say(f"\n# prompt {record['prompt']} ({record['purpose']}): about {sum(sizes)} tokens{beside}")
        for layer, tokens in zip(record["layers"], sizes, strict=True):
            say(f"\n## {layer['name']} (about {tokens} tokens)\n{layer['text']}")
