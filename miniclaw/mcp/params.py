"""Parameters of a request, checked as they are taken out of it; what is wrong with one is `INVALID_PARAMS`."""

from __future__ import annotations

from typing import Final

from miniclaw.errors import MCPError
from miniclaw.mcp.call import Call
from miniclaw.mcp.offers import Object
from miniclaw.mcp.protocol import INVALID_PARAMS

__all__ = ["object_of", "page_of", "text_of"]

PAGE: Final = 500
"""Things of one page of a list."""


def page_of(call: Call, key: str, found: list[Object]) -> Object:
    """The page of a list that the request's `cursor` names, as its result."""
    cursor = call.request.params.get("cursor", "0")
    if not isinstance(cursor, str) or not cursor.isdecimal() or int(cursor[:9]) > len(found):
        raise MCPError(INVALID_PARAMS, "`cursor` must be the `nextCursor` of the page before.")
    end = int(cursor) + PAGE
    return {key: found[int(cursor) : end], **({"nextCursor": str(end)} if end < len(found) else {})}


def text_of(call: Call, key: str) -> str:
    """A text."""
    value = call.request.params.get(key)
    if not isinstance(value, str):
        raise MCPError(INVALID_PARAMS, f"`{key}` must be a text.")
    return value


def object_of(call: Call, key: str) -> Object:
    """An object; one that is missing or null is empty."""
    value = call.request.params.get(key)
    if value is not None and not isinstance(value, dict):
        raise MCPError(INVALID_PARAMS, f"`{key}` must be an object.")
    return value or {}
