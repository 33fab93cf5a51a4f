"""Makes names and schemas of other people's tools fit for the models' APIs; the originals go back to the server.

The strictest limits are taken: 64 of `A-Za-z0-9_-` for a name, an object without `$ref` and without a choice
at its top for a schema. A reference that leaves the schema is never followed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["fit_name", "fit_schema"]

MAX_NAME: Final = 64
MAX_NODES: Final = 5000
"""Parts of a schema with its references inlined; one with more is taken as any object."""
_FORMATS: Final = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_DROPPED: Final = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
_NAMES: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "const", "default", "examples", "required"})


class _TooLarge(Exception):
    """The schema grows without end."""


def fit_name(server: str, tool: str, is_taken: Callable[[str], bool]) -> str:
    """`mcp__<server>__<tool>`; with a hash of both where it was cut or is taken."""
    name = f"mcp__{_safe(server)}__{_safe(tool)}"
    if len(name) <= MAX_NAME and not is_taken(name):
        return name
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"


def fit_schema(schema: Any) -> dict[str, Any]:
    """The parameters of a tool."""
    if not isinstance(schema, dict):
        schema = {}
    try:
        fitted = _inline(schema, schema, (), _budget())
    except _TooLarge:
        fitted = {}
    fitted = _without_choice(fitted if isinstance(fitted, dict) else {})
    if not isinstance(fitted.get("properties"), dict):
        fitted["properties"] = {}
    if not isinstance(fitted.get("required", []), list):
        del fitted["required"]
    return {**fitted, "type": "object"}


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text) or "_"


def _budget() -> Iterator[int]:
    yield from range(MAX_NODES)
    raise _TooLarge


def _inline(node: Any, root: dict[str, Any], path: tuple[str, ...], budget: Iterator[int]) -> Any:
    """The node with what its local references name in their place; a circle is cut by anything at all."""
    next(budget)
    if isinstance(node, list):
        return [_inline(item, root, path, budget) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        reference = node["$ref"]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        target = None if reference in path else _local(reference, root)
        found = _inline(target, root, (*path, str(reference)), budget) if isinstance(target, dict) else {}
        return {**found, **_inline(rest, root, path, budget)}
    fitted = {}
    for key, value in node.items():
        if key in _DROPPED or key.startswith("x-") or (key == "format" and value not in _FORMATS):
            continue
        if key in _NAMES and isinstance(value, dict):
            fitted[key] = {name: _inline(inner, root, path, budget) for name, inner in value.items()}
        else:
            fitted[key] = value if key in _VALUES else _inline(value, root, path, budget)
    return fitted


def _local(reference: object, root: dict[str, Any]) -> Any:
    """What a JSON pointer into the schema itself names."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key[:6]) < len(found):
            found = found[int(key[:6])]
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def _without_choice(schema: dict[str, Any]) -> dict[str, Any]:
    """The parameters of all alternatives side by side, where the top is a choice or a sum."""
    merged = {key: value for key, value in schema.items() if key not in ("allOf", "anyOf", "oneOf", "not")}
    for key in ("allOf", "anyOf", "oneOf"):
        parts = [part for part in schema.get(key) or () if isinstance(part, dict)]
        for part in parts:
            properties = part.get("properties")
            if isinstance(properties, dict):
                merged["properties"] = {**properties, **(merged.get("properties") or {})}
            if key == "allOf" and isinstance(part.get("required"), list):
                merged["required"] = list(dict.fromkeys([*merged.get("required", []), *part["required"]]))
    return merged
