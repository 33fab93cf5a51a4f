"""The lists that protocols take of tools: Chat Completions, Responses, MCP; and schemas for `strict` servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from miniclaw.tools.base import Tool, ToolSource

__all__ = ["chat_form", "mcp_form", "responses_form", "strict_schema", "tools_view"]

_KEPT: Final = frozenset(
    "type enum const description items anyOf properties required additionalProperties $ref $defs"
    " minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems".split()
)
"""What a strict server understands; the rest is checked when the call comes."""
_CANNOT: Final = frozenset({"allOf", "oneOf", "not", "patternProperties", "prefixItems", "if"})


def chat_form(tools: Iterable[Tool], *, strict: bool = False) -> list[dict[str, Any]]:
    """As the Chat Completions API lists them."""
    return [{"type": "function", "function": _function(tool, strict)} for tool in tools]


def responses_form(tools: Iterable[Tool], *, strict: bool = False) -> list[dict[str, Any]]:
    """As the Responses API lists them, where `strict` must be said, since it is the default there."""
    return [{"type": "function", "strict": False, **_function(tool, strict)} for tool in tools]


def mcp_form(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """As MCP's `tools/list` has them."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.parameters,
            "annotations": {"readOnlyHint": tool.risk == "read"},
        }
        for tool in tools
    ]


def tools_view(
    tools: Iterable[Tool], source: ToolSource | None = None, is_admin: bool = True
) -> dict[str, list[dict[str, Any]]]:
    """As our own lists show them; an admin is also told what of `source` could not be loaded."""
    rows = [
        {
            "name": tool.name,
            "description": tool.description,
            "risk": tool.risk if isinstance(tool.risk, str) else "depends",
        }
        for tool in tools
    ]
    problems = source.problems if source and is_admin else ()
    return {"tools": rows, "problems": [asdict(problem) for problem in problems]}


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of an object as `strict` wants it, or `None` when it cannot be said so.

    Every parameter is required then, and one that may be left out may be `null` instead, which counts as
    left out. An object with free keys, or with optional ones inside another, has no such form.
    """
    try:
        strict = _strict(schema, is_top=True)
    except (ValueError, TypeError, AttributeError):  # the last two: it is no schema
        return None
    return strict if isinstance(strict, dict) else None


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    schema = strict_schema(tool.parameters) if strict else None
    if schema is not None:
        return {**function, "parameters": schema, "strict": True}
    return {**function, "parameters": tool.parameters}


def _strict(node: Any, *, is_top: bool = False) -> Any:
    if (
        not isinstance(node, dict)
        or _CANNOT & node.keys()
        or not {"type", "anyOf", "$ref", "enum"} & node.keys()
    ):
        raise ValueError
    kept = {key: value for key, value in node.items() if key in _KEPT}
    for key in ("$defs", "properties"):
        if key in kept:
            kept[key] = {name: _strict(inner) for name, inner in kept[key].items()}
    if "items" in kept:
        kept["items"] = _strict(kept["items"])
    if "anyOf" in kept:
        kept["anyOf"] = [_strict(inner) for inner in kept["anyOf"]]
    if kept.get("type") == "array" and "items" not in kept:
        raise ValueError
    if "object" in (kind if isinstance(kind := kept.get("type"), list) else [kind]):
        _close(kept, is_top)
    return kept


def _close(schema: dict[str, Any], is_top: bool) -> None:
    properties, required = schema.setdefault("properties", {}), schema.get("required", [])
    optional = properties.keys() - set(required)
    if schema.get("additionalProperties") or (optional and not is_top):
        raise ValueError
    for name in optional:
        inner = properties[name]
        null: dict[str, Any] = {"type": "null"}
        if null not in inner.get("anyOf", []):
            about = {"description": inner.pop("description")} if "description" in inner else {}
            properties[name] = {"anyOf": [inner, null], **about}
    schema["required"] = list(properties)
    schema["additionalProperties"] = False
