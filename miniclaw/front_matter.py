"""Markdown files that begin with YAML: skills and memories. Everything is linear on hostile text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["FrontMatter", "FrontMatterProblem", "parse_front_matter"]

_FENCE = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatter:
    """A Markdown file that begins with a YAML mapping between two lines of `---`."""

    fields: dict[str, Any]
    """Strings, lists and mappings of them; nothing is guessed to be a number, a date or a truth value."""
    body: str
    head: str
    """The YAML itself; its first line is line 2 of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatterProblem:
    """Why a file has no usable front matter."""

    line: int
    reason: str


def parse_front_matter(text: str) -> FrontMatter | FrontMatterProblem:
    """Take a Markdown file apart; a byte order mark and CRLF line ends are accepted."""
    text = text.removeprefix("\ufeff")
    if text.partition("\n")[0].endswith("\r"):
        text = text.replace("\r\n", "\n")
    opening = _FENCE.match(text)
    if opening is None:
        return FrontMatterProblem(line=1, reason="the file does not begin with front matter (a line `---`)")
    start = opening.end() + 1
    closing = _FENCE.search(text, start)
    if closing is None:
        return FrontMatterProblem(line=1, reason="the front matter has no closing line `---`")
    head = text[start : closing.start()]
    fields = _load_mapping(head)
    if isinstance(fields, FrontMatterProblem):
        return fields
    return FrontMatter(fields=fields, body=text[closing.end() + 1 :], head=head)


def _load_mapping(head: str) -> dict[str, Any] | FrontMatterProblem:
    import yaml  # only who reads files pays for it

    # Base loaders build strings, lists and mappings only: `version: 1.10` stays `1.10`.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        reader = loader(head)
        node = reader.get_single_node()
        if (key := _repeated_key(node)) is not None:
            line = key.start_mark.line + 2
            return FrontMatterProblem(line=line, reason=f"the key `{key.value}` stands there twice")
        value = reader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        is_tab = head.splitlines()[line : line + 1] and head.splitlines()[line].startswith("\t")
        why = "a line begins with a tab; use blanks" if is_tab else error.problem
        return FrontMatterProblem(line=line + 2, reason=f"the front matter is not YAML: {why}")
    except (yaml.YAMLError, RecursionError) as error:
        reason = (
            "it is nested too deeply" if isinstance(error, RecursionError) else "it holds a control character"
        )
        return FrontMatterProblem(line=2, reason=f"the front matter is not YAML: {reason}")
    if not isinstance(value, dict):
        return FrontMatterProblem(line=2, reason="the front matter must be `key: value` lines")
    return value


def _repeated_key(node: Any) -> Any:
    """The node of a key that its mapping has already, which YAML forbids and the parser takes silently."""
    waiting, known = [node], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or isinstance(node.value, str) or id(node) in known:
            continue
        known.add(id(node))
        if node.id == "sequence":
            waiting += node.value
            continue
        keys = set[str]()
        for key, value in node.value:
            waiting.append(value)
            if isinstance(key.value, str):
                if key.value in keys:
                    return key
                keys.add(key.value)
    return None
