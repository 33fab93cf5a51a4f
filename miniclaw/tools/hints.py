"""What a model is told of other tools when a call leads nowhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from miniclaw.tools.base import Tool

__all__ = ["in_reach", "no_such_tool"]


def no_such_tool(name: str, names: Sequence[str]) -> str:
    """Says that a tool does not exist, and which are called nearly so, or all."""
    close = difflib.get_close_matches(name[:64], names, n=3)
    if close:
        return f"There is no tool `{name}`. Did you mean {' or '.join(f'`{c}`' for c in close)}?"
    return f"There is no tool `{name}`. The tools are: {', '.join(names) or 'none'}."


def in_reach(refused: Tool, tools: Iterable[Tool]) -> str:
    """A sentence on the foreign tool that takes a path too and is most like the one that refused a path.

    Empty where there is none: such a tool (of an MCP server) may reach what the workspace does not hold.
    """
    verb, *_ = words = refused.name.split("_")
    foreign = [tool for tool in tools if tool.origin and "path" in tool.parameters.get("properties", ())]
    named = {tool.name: set(tool.name.split("_")) for tool in foreign}
    likeness = {name: (verb in own, len(own.intersection(words)), -len(name)) for name, own in named.items()}
    best = max(likeness, key=lambda name: likeness[name], default="")
    return (
        f" Call `{best}` with this path instead: it may reach other places."
        if best and likeness[best][1]
        else ""
    )
