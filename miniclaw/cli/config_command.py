"""`miniclaw config show`: every setting, its value, and where that comes from; secrets are masked."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from miniclaw.cli import add_common, say

__all__ = ["add_arguments", "run", "setting_rows"]

MASK = "********"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = "print all settings with their origins"
    action = actions.add_parser("show", help=about, description=about)
    add_common(action, nested=True)
    action.add_argument("--changed", action="store_true", help="only what is no default")
    action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the settings as they would take effect."""
    from miniclaw.cli.start import load

    loaded = load(args)
    rows = [
        {"name": name, "value": value, "origin": _origin(name, loaded.origins)}
        for name, value in setting_rows(loaded.settings)
    ]
    if args.changed:
        rows = [row for row in rows if row["origin"] != "default"]
    if args.json:
        print(json.dumps({"data_dir": str(loaded.data_dir), "settings": rows}, ensure_ascii=False, indent=2))
        return 0
    say(f"# {loaded.data_dir}")
    for row in rows:
        say(f"{row['name']} = {json.dumps(row['value'], ensure_ascii=False)}  # {row['origin']}")
    return 0


def setting_rows(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and plain values of settings, section by section."""
    from pydantic import BaseModel, SecretStr

    if isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from setting_rows(getattr(value, field), f"{name}.{field}" if name else field)
    elif isinstance(value, Mapping) and any(isinstance(one, BaseModel | tuple) for one in value.values()):
        for key, one in value.items():
            yield from setting_rows(one, f"{name}.{key}")
    elif isinstance(value, tuple) and any(isinstance(one, BaseModel) for one in value):
        for place, one in enumerate(value):
            yield from setting_rows(one, f"{name}.{place}")
    elif isinstance(value, SecretStr):
        yield name, MASK
    else:
        yield name, _without_password(value) if isinstance(value, str) else value


def _without_password(text: str) -> str:
    """A URL without what stands before its host's `@`, and without the values of its query."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    place, question, query = rest.partition("?")
    before, at, behind = place.rpartition("@")
    query = re.sub(r"=[^&]*", f"={MASK}", query)
    return f"{scheme}{mark}{MASK if before or at else ''}{at}{behind}{question}{query}"


def _origin(name: str, origins: Mapping[str, str]) -> str:
    """Where a setting comes from; one inside a table that came as a whole comes from there."""
    while name not in origins and "." in name:
        name = name.rpartition(".")[0]
    return origins.get(name, "default")
