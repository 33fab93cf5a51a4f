"""The part of Mermaid that our documents use: enough of a parser to tell a diagram that would not be drawn."""

from __future__ import annotations

import re

__all__ = ["diagrams", "flowchart_nodes", "mermaid_problems"]

_SHAPE = r"(?:\[\([^][()]*\)\]|\(\[[^][()]*\]\)|\[[^][(){}]*\]|\([^][(){}]*\)|\{[^][(){}]*\})"
_NODE = re.compile(rf"\s*([A-Za-z_]\w*)({_SHAPE})?\s*")
_LINK = re.compile(r"(?:<?-->|-\.->|==>|---|-\.-|--x|--o)(?:\|[^|]+\|)?")
_MESSAGE = re.compile(r"(\w+)\s*(?:<<->>|<<-->>|-->>|->>|--x|-x|--\)|-\)|-->|->)[+-]?\s*(\w+)\s*:\s*(.+)")
_NOTE = re.compile(r"Note (?:over|left of|right of) (\w+)(?:\s*,\s*(\w+))?\s*:\s*(.+)")
_PARTICIPANT = re.compile(r"(?:participant|actor) (\w+)(?: as (.+))?")
_OPENS = ("alt", "opt", "loop", "par", "critical", "break", "rect")
_BRANCHES = ("else", "and", "option")
RESERVED = frozenset({"end", "graph", "subgraph", "class", "style", "click", "default"})


def diagrams(markdown: str) -> list[str]:
    """The text of each `mermaid` block."""
    return re.findall(r"```mermaid\n(.*?)```", markdown, re.DOTALL)


def mermaid_problems(diagram: str) -> list[str]:
    """What Mermaid would stumble over; empty for a sound diagram."""
    lines = [
        line.strip() for line in diagram.splitlines() if line.strip() and not line.strip().startswith("%%")
    ]
    if not lines:
        return ["an empty diagram"]
    if re.fullmatch(r"(flowchart|graph) (LR|RL|TD|TB|BT)", lines[0]):
        return _flowchart(lines[1:])
    if lines[0] == "sequenceDiagram":
        return _sequence(lines[1:])
    return [f"no diagram that is known: {lines[0]}"]


def flowchart_nodes(diagram: str) -> set[str]:
    """The ids of the nodes of a flowchart."""
    found: set[str] = set()
    for line in map(str.strip, diagram.splitlines()[1:]):
        parts = _chain(line)
        found |= {name for name, _ in parts or []}
    return found


def _chain(line: str) -> list[tuple[str, str]] | None:
    """The nodes of `a[text] --> b & c -->|text| d`; `None` when the line is no such chain."""
    nodes: list[tuple[str, str]] = []
    place = 0
    while True:
        node = _NODE.match(line, place)
        if node is None:
            return None
        nodes.append((node[1], node[2] or ""))
        place = node.end()
        if place == len(line):
            return nodes
        if line[place] == "&":
            place += 1
            continue
        link = _LINK.match(line, place)
        if link is None:
            return None
        place = link.end()


def _flowchart(lines: list[str]) -> list[str]:
    problems: list[str] = []
    depth = 0
    for line in lines:
        if line.startswith("subgraph "):
            depth += 1
        elif line == "end":
            depth -= 1
        elif line.startswith(("classDef ", "class ", "style ", "linkStyle ", "direction ")):
            continue
        else:
            chain = _chain(line)
            if chain is None:
                problems.append(f"not a chain of nodes: {line}")
            elif bad := [name for name, _ in chain if name.lower() in RESERVED]:
                problems.append(f"a reserved word as a node: {bad[0]}")
    return problems + (["a subgraph is not closed"] if depth else [])


def _sequence(lines: list[str]) -> list[str]:
    problems: list[str] = []
    known: set[str] = set()
    depth = 0
    for line in lines:
        word = line.split()[0]
        names: tuple[str | None, ...] = ()
        if match := _PARTICIPANT.fullmatch(line):
            known.add(match[1])
        elif word in _OPENS:
            depth += 1
        elif word in _BRANCHES:
            problems += [] if depth else [f"`{word}` stands outside of a block"]
        elif line == "end":
            depth -= 1
        elif line == "autonumber":
            continue
        elif match := re.fullmatch(r"(?:activate|deactivate) (\w+)", line):
            names = (match[1],)
        elif match := _NOTE.fullmatch(line) or _MESSAGE.fullmatch(line):
            names = (match[1], match[2])
            if ";" in match[3] or "#" in match[3]:
                problems.append(f"`;` and `#` end a text: {line}")
        else:
            problems.append(f"not a line of a sequence diagram: {line}")
        problems += [f"`{name}` is no participant: {line}" for name in names if name and name not in known]
    return problems + (["a block is not closed"] if depth else [])
