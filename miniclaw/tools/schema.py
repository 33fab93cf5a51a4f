"""What makes a JSON Schema one: a model's API refuses each turn whose tools have a wrong one."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["schema_fault"]

DEPTH: Final = 64
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_INNER: Final = ("items", "additionalProperties", "not")


def schema_fault(schema: Any, place: str = "the top", depth: int = 0) -> str:
    """The first keyword that has no value of its kind, and where; empty = there is none.

    Source: JSON Schema 2020-12, the keywords that models' APIs check.
    """
    if isinstance(schema, bool) and depth:
        return ""
    if not isinstance(schema, dict):
        return f"{place} has to be a schema, such as `{{'type': 'string'}}`"
    if depth > DEPTH:
        return f"{place} lies too deep"
    inner: list[tuple[str, Any]] = []
    for key, value in schema.items():
        where = f"`{key}` of {place}"
        if key == "type" and not _is_type(value):
            return f"{where} has to be one of {', '.join(_TYPES)}, or a list of them"
        if key == "required" and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            return f"{where} has to be a list of names"
        if key in ("enum", *_LISTED) and not isinstance(value, list):
            return f"{where} has to be a list"
        if key in _NAMED and not isinstance(value, dict):
            return f"{where} has to be an object of schemas by name"
        if key in _NAMED:
            inner += ((f"`{name}`", one) for name, one in value.items())
        elif key in _LISTED or key in _INNER:
            inner += ((where, one) for one in (value if key in _LISTED else [value]))
    return next((fault for where, one in inner if (fault := schema_fault(one, where, depth + 1))), "")


def _is_type(value: Any) -> bool:
    return all(one in _TYPES for one in (value if isinstance(value, list) else [value]))
