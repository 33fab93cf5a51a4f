"""Schemas of tools with only what every server knows of JSON Schema. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

from miniclaw.agent.providers import Message

__all__ = ["MOST_ABOUT", "simple_schema"]

_SIMPLE: Final = frozenset({"type", "description", "properties", "required", "items", "enum"})
"""What every server knows of JSON Schema."""
_TYPES: Final = {name: name for name in ("string", "integer", "number", "boolean", "array", "object")} | {
    **{"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
}  # fmt: skip
"""Types of JSON Schema, and what programs call them; others stop servers that make a grammar of a schema."""
MOST_NODES: Final = 2_000
"""Of a simple schema."""
MOST_ABOUT: Final = 1_024
"""Characters of a tool's description; OpenAI and Azure take no more."""


def simple_schema(schema: Any) -> Message:
    """A schema with only what every server knows: references put in, choices narrowed to the first, each with a type.

    A circle is cut, and so is what comes behind the first `MOST_NODES`.
    """
    left = MOST_NODES

    def fit(node: Any, path: tuple[str, ...] = (), depth: int = 0, *, is_part: bool = False) -> Message:
        nonlocal left
        left -= 1
        node = node if isinstance(node, dict) else {}
        while isinstance(reference := node.get("$ref"), str) and reference not in path:
            path = (*path, reference)
            node = {**_named(reference, schema), **{key: one for key, one in node.items() if key != "$ref"}}
        if left < 0 or depth > 16 or "$ref" in node:
            return {"type": "object"}
        for word in ("allOf", "anyOf", "oneOf"):
            choices = [one for one in _listed(node.get(word)) if one.get("type") != "null"]
            for part in choices if word == "allOf" else choices[:1]:
                node = _merged(node, fit(part, path, depth + 1, is_part=True))
        found = {key: value for key, value in node.items() if key in _SIMPLE}
        if "const" in node:
            found["enum"] = [node["const"]]
        if isinstance(found.get("properties"), dict):
            found["properties"] = {k: fit(one, path, depth + 1) for k, one in found["properties"].items()}
        if "items" in found or "prefixItems" in node:
            items = found.get("items") or node.get("prefixItems")
            found["items"] = fit(items[0] if isinstance(items, list) and items else items, path, depth + 1)
        return found if is_part else _typed(found, "object" if depth == 0 else "string")

    return fit(schema)


def _listed(choices: Any) -> list[Message]:
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _merged(node: Message, part: Message) -> Message:
    """A schema with what a part of it adds; its own words count first."""
    both = {**part, **node}
    if isinstance(part.get("properties"), dict) and isinstance(node.get("properties", {}), dict):
        both["properties"] = {**part["properties"], **node.get("properties", {})}
    if isinstance(part.get("required"), list) and isinstance(node.get("required", []), list):
        both["required"] = [*node.get("required", []), *part["required"]]
    return both


def _typed(found: Message, otherwise: str) -> Message:
    """A schema that says its type, that of its items, and requires nothing that it does not have."""
    said, values = found.get("type"), _values(found)
    kinds = [_TYPES.get(str(kind).lower(), "") for kind in (said if isinstance(said, list) else [said])]
    if not (kind := next(filter(None, kinds), "")):
        guess = _TYPES.get(type(values[0]).__name__, otherwise) if values else otherwise
        kind = "object" if "properties" in found else "array" if "items" in found else guess
    found["type"] = kind
    found.pop("enum", None)
    if values:  # which Gemini takes of strings alone
        texts = [one for one in values if isinstance(one, str) and one]
        if kind == "string" and texts:
            found["enum"] = texts
        else:
            all_of = ", ".join(json.dumps(one, ensure_ascii=False) for one in values[:20])
            found["description"] = f"{found.get('description') or ''} One of: {all_of}"[:MOST_ABOUT].lstrip()
    if kind == "array":
        found.setdefault("items", {"type": "string"})
    required, properties = found.pop("required", None), found.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):
        if known := [name for name in dict.fromkeys(map(str, required)) if name in properties]:
            found["required"] = known
    return found


def _values(found: Message) -> list[Any]:
    values = found.get("enum")
    return values if isinstance(values, list) else []


def _named(reference: str, root: Any) -> Message:
    """What a local reference names, as a JSON pointer (RFC 6901)."""
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name, {}) if isinstance(root, dict) else {}
    return root if isinstance(root, dict) else {}
