"""What the modern wire repeats of a request in HTTP headers, for both halves.

Rules are those of https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from miniclaw.errors import MCPError
from miniclaw.mcp.protocol import HEADER_MISMATCH, META_VERSION, Request

__all__ = ["NAMED", "check_headers", "decode_value", "encode_value", "mirrored", "mirrored_headers"]

NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Methods whose `Mcp-Name` header repeats this parameter."""

_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_PLAIN: Final = re.compile(r"[\x20-\x7e]*")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SCALARS: Final = ("string", "integer", "boolean")


def encode_value(value: str) -> str:
    """A text as a header's value; base64 where it would not survive as it is."""
    if _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def decode_value(value: str) -> str | None:
    """The text of a header's value; `None` when it is malformed."""
    encoded = _SENTINEL.fullmatch(value)
    if encoded is None:
        return value
    try:
        raw = base64.b64decode(encoded[1], validate=True)
        return raw.decode("utf-8") if base64.b64encode(raw).decode() == encoded[1] else None
    except ValueError:
        return None


def mirrored(schema: Any) -> dict[tuple[str, ...], str] | None:
    """The parameters that a tool wants repeated in headers: path in the arguments → `Mcp-Param-…` name.

    `None` when an annotation is not allowed where or as it stands; such a tool must not be used.
    """
    found: dict[tuple[str, ...], str] = {}
    for path, node in _nodes(schema):
        if "x-mcp-header" not in node:
            continue
        name = node["x-mcp-header"]
        allowed = path and isinstance(name, str) and _TOKEN.fullmatch(name) and node.get("type") in _SCALARS
        if not allowed or name.lower() in (other.lower() for other in found.values()):
            return None
        found[path or ()] = name
    return found


def mirrored_headers(wanted: Mapping[tuple[str, ...], str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers that repeat the arguments of a call; what is absent or null has none."""
    headers = {}
    for path, name in wanted.items():
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers[f"Mcp-Param-{name}"] = "true" if value else "false"
        elif isinstance(value, str | int):
            headers[f"Mcp-Param-{name}"] = encode_value(str(value))
    return headers


def check_headers(request: Request, headers: Mapping[str, str], schema: Any = None) -> None:
    """Check that the headers of a request say what its body says.

    Raises:
        MCPError: `HEADER_MISMATCH`.
    """
    wanted: dict[str, object] = {
        "MCP-Protocol-Version": request.meta.get(META_VERSION),
        "Mcp-Method": request.method,
    }
    if request.method in NAMED:
        wanted["Mcp-Name"] = request.params.get(NAMED[request.method])
    arguments = request.params.get("arguments")
    declared = mirrored(schema) or {}
    said = mirrored_headers(declared, arguments if isinstance(arguments, dict) else {})
    for name in declared.values():
        header = f"Mcp-Param-{name}"
        if header in said:
            wanted[header] = decode_value(said[header])
        elif header in headers:
            raise MCPError(HEADER_MISMATCH, f"The header `{header}` repeats an argument that is not there.")
    for header, value in wanted.items():
        given = headers.get(header)
        if given is None or decode_value(given.strip()) != value:
            raise MCPError(HEADER_MISMATCH, f"The header `{header}` must say the same as the body.")


def _nodes(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Every object in a schema, with its path where only `properties` lead to it."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, list):
            stack.extend((None, item) for item in node)
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, value in node.items():
            if key == "properties" and isinstance(value, dict):
                inner = (((*path, name) if path is not None else None, one) for name, one in value.items())
                stack.extend(inner)
            elif key not in ("default", "examples", "const", "enum"):
                stack.append((None, value))
