"""JSON-RPC 2.0 as the Model Context Protocol uses it: bytes in, typed messages out, and back. No I/O.

Rules are those of https://modelcontextprotocol.io/specification/2025-11-25/basic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from miniclaw.errors import MCPError

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "VERSIONS",
    "Notification",
    "Request",
    "Response",
    "decode",
    "error_reply",
    "result_reply",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2024-11-05")
"""Revisions that are spoken, the newest first. 2025-03-26 demands batches and is answered with 2025-06-18."""

MessageId = str | int


@dataclass(frozen=True, slots=True)
class Request:
    """A call that wants an answer."""

    id: MessageId
    method: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notification:
    """A message that is never answered."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of the peer to a request of ours."""

    id: object
    result: dict[str, Any] | None
    error: dict[str, Any] | None


def decode(line: bytes) -> Request | Notification | Response:
    """Read one message.

    Raises:
        MCPError: `PARSE_ERROR` when it is not JSON in UTF-8, `INVALID_REQUEST` when it is no message.
    """
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MCPError(PARSE_ERROR, "The message is not JSON.") from error
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise MCPError(INVALID_REQUEST, "A message is one JSON-RPC 2.0 object.")
    if "method" not in value:
        if "result" in value or "error" in value:
            return Response(value.get("id"), value.get("result"), value.get("error"))
        raise MCPError(INVALID_REQUEST, "The message has neither `method` nor `result` nor `error`.")
    method, params = value["method"], value.get("params")
    if params is None:
        params = {}
    if not isinstance(method, str) or not isinstance(params, dict):
        raise MCPError(INVALID_REQUEST, "`method` must be a string and `params` an object.")
    if "id" not in value:
        return Notification(method, params)
    message_id = value["id"]
    if not isinstance(message_id, str | int) or isinstance(message_id, bool):
        raise MCPError(INVALID_REQUEST, "`id` must be a string or an integer.")
    return Request(message_id, method, params)


def result_reply(message_id: MessageId, result: dict[str, Any]) -> bytes:
    """An answer as a line; ASCII, so that no text can break the framing."""
    return _line({"jsonrpc": "2.0", "id": message_id, "result": result})


def error_reply(message_id: MessageId | None, error: MCPError) -> bytes:
    """A refusal as a line; `None` where the request's id could not be read."""
    body = {"code": error.code, "message": str(error)}
    return _line({"jsonrpc": "2.0", "id": message_id, "error": body})


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
