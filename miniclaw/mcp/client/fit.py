"""Makes names and schemas of other people's tools fit for the models' APIs; the originals go back to the server.

The strictest limits are taken: 64 of `A-Za-z0-9_-` for a name, an object without `$ref` and without a choice
at its top for a schema. A reference that leaves the schema is never followed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["fit_name", "fit_schema"]

MAX_NAME: Final = 64
MAX_NODES: Final = 5000
"""Parts of a schema with its references inlined; of one with more only the names of its parameters are told."""
MAX_BYTES: Final = 32 * 1024
"""Of a fitted schema, in the same way."""
MAX_DEPTH: Final = 32
"""Levels of a schema; what lies deeper is anything at all."""
MAX_TEXT: Final = 1000
"""Characters of a description inside a schema."""
_FORMATS: Final = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_DROPPED: Final = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
_NAMES: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_CHOICES: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_VALUES: Final = frozenset({"enum", "const", "default", "examples", "required"})
_TEXTS: Final = frozenset({"description", "title"})
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_KINDS: Final[dict[str, Any]] = {
    **dict.fromkeys(_NAMES, dict),
    **dict.fromkeys((*_CHOICES, "enum", "examples", "required"), list),
    **dict.fromkeys((*_TEXTS, "pattern"), str),
    **dict.fromkeys((*_NUMBERS, *_SIZES), int | float),
    **dict.fromkeys(("items", "additionalProperties"), dict | bool),
    "not": dict,
}
"""What the value of a keyword must be; one that is something else is left out."""


class _TooLarge(Exception):
    """The schema grows without end."""


def fit_name(server: str, tool: str, is_taken: Callable[[str], bool]) -> str:
    """`mcp__<server>__<tool>`; with a hash of both where it was cut, is taken, or has letters beyond ASCII."""
    name = f"mcp__{_safe(server)}__{_safe(tool)}"
    if len(name) <= MAX_NAME and f"{server}{tool}".isascii() and not is_taken(name):
        return name
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"


def fit_schema(schema: Any) -> dict[str, Any]:
    """The parameters of a tool; it can always be written as JSON."""
    schema = schema if isinstance(schema, dict) else {}
    names = schema.get("properties")
    outline: dict[str, Any] = {"properties": dict.fromkeys(names, {}) if isinstance(names, dict) else {}}
    for one in (schema, outline):
        try:
            found = _inline(one, one, (), _budget(), 0)
            fitted = {"properties": {}, **_without_choice(found), "type": "object"}
            written = json.dumps(fitted, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        except (_TooLarge, ValueError):
            continue
        if len(written) <= MAX_BYTES:
            read: dict[str, Any] = json.loads(written)
            return read
    return {"type": "object", "properties": {}}


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text) or "_"


def _budget() -> Iterator[int]:
    yield from range(MAX_NODES)
    raise _TooLarge


def _inline(node: Any, root: dict[str, Any], path: tuple[str, ...], budget: Iterator[int], depth: int) -> Any:
    """The node with what its local references name in their place; a circle is cut by anything at all."""
    next(budget)

    def inner(value: Any, path: tuple[str, ...] = path) -> Any:
        return _inline(value, root, path, budget, depth + 1)

    if not isinstance(node, dict | list):
        return node
    if depth > MAX_DEPTH:
        return type(node)()
    if isinstance(node, list):
        return [inner(item) for item in node]
    if "$ref" in node:
        reference = node["$ref"]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        target = None if reference in path else _local(reference, root)
        found = inner(target, (*path, str(reference))) if isinstance(target, dict) else {}
        return {**found, **inner(rest)}
    fitted: dict[str, Any] = {}
    for key, value in node.items():
        if not _is_good(key, value):
            continue
        if key in _NAMES:
            fitted[key] = {n: inner(one if isinstance(one, dict | bool) else {}) for n, one in value.items()}
        elif key in _CHOICES:
            if parts := [inner(one) for one in value if isinstance(one, dict)]:
                fitted[key] = parts
        elif key in _VALUES:
            fitted[key] = _cut(value, depth)
        else:
            fitted[key] = value[:MAX_TEXT] if key in _TEXTS else inner(value)
    return fitted


def _is_good(key: str, value: Any) -> bool:
    """Whether a keyword is one that models' APIs take, with a value as it should be."""
    if key in _DROPPED or key.startswith("x-") or not isinstance(value, _KINDS.get(key, object)):
        return False
    match key:
        case "format":
            return value in _FORMATS
        case "type":
            return all(one in _TYPES for one in (value if isinstance(value, list) else [value]))
        case "required":
            return all(isinstance(one, str) for one in value)
    return True


def _cut(value: Any, depth: int) -> Any:
    """A value that is no schema, no deeper than a schema may be."""
    if not isinstance(value, dict | list):
        return value
    if depth > MAX_DEPTH:
        return type(value)()
    if isinstance(value, list):
        return [_cut(one, depth + 1) for one in value]
    return {key: _cut(one, depth + 1) for key, one in value.items()}


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
        for part in schema.get(key, ()):
            if "properties" in part:
                merged["properties"] = {**part["properties"], **merged.get("properties", {})}
            if key == "allOf" and "required" in part:
                merged["required"] = list(dict.fromkeys([*merged.get("required", []), *part["required"]]))
    return merged
