"""JSON-RPC 2.0 as the Model Context Protocol uses it: bytes in, typed messages out, and back. No I/O.

What both halves need on both wires: the *handshake* revisions, which begin with `initialize`
(https://modelcontextprotocol.io/specification/2025-11-25), and the *modern* one, which has no handshake and
says everything in each request's `_meta` (https://modelcontextprotocol.io/specification/2026-07-28).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from miniclaw.errors import MCPError

__all__ = [
    "CANCELLED",
    "HANDSHAKE",
    "HEADER_MISMATCH",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "LOG_LEVELS",
    "META_CAPABILITIES",
    "META_CLIENT",
    "META_LOG_LEVEL",
    "META_SERVER",
    "META_SUBSCRIPTION",
    "META_VERSION",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "MODERN",
    "PARSE_ERROR",
    "PROGRESS",
    "RESOURCE_NOT_FOUND",
    "UNSUPPORTED_VERSION",
    "VERSIONS",
    "Message",
    "MessageId",
    "Notification",
    "Request",
    "Response",
    "decode",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_result",
    "read_message",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
"""Handshake revisions only; the modern one says `INVALID_PARAMS`."""
HEADER_MISMATCH: Final = -32020
"""Modern: a header is missing or says something else than the body."""
MISSING_CAPABILITY: Final = -32021
"""Modern: the client did not declare what the request needs; `data.requiredCapabilities` names it."""
UNSUPPORTED_VERSION: Final = -32022
"""Modern: `data` is `{supported, requested}`."""

MODERN: Final = "2026-07-28"
HANDSHAKE: Final = ("2025-11-25", "2025-06-18", "2024-11-05")
"""Revisions with a handshake, the newest first. 2025-03-26 demands batches and is answered with 2025-06-18."""
VERSIONS: Final = (MODERN, *HANDSHAKE)
"""All revisions that are spoken, the newest first."""

META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_CLIENT: Final = "io.modelcontextprotocol/clientInfo"
META_SERVER: Final = "io.modelcontextprotocol/serverInfo"
META_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
META_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the least to the most urgent (RFC 5424)."""

MessageId = str | int


@dataclass(frozen=True, slots=True)
class Request:
    """A call that wants an answer."""

    id: MessageId
    method: str
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def meta(self) -> dict[str, Any]:
        """`params._meta`; empty where there is none, or no object."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


@dataclass(frozen=True, slots=True)
class Notification:
    """A message that is never answered."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of the peer to a request of ours; `id` is whatever it sent, also nothing."""

    id: object
    result: dict[str, Any] | None
    error: dict[str, Any] | None


Message = Request | Notification | Response


def decode(data: bytes) -> Message:
    """Read one message.

    Raises:
        MCPError: `PARSE_ERROR` when it is not JSON in UTF-8, `INVALID_REQUEST` when it is no message.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MCPError(PARSE_ERROR, "The message is not JSON.") from error
    return read_message(value)


def read_message(value: object) -> Message:
    """A JSON value as a message.

    Raises:
        MCPError: `INVALID_REQUEST`; a batch is none either.
    """
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


def encode_request(message_id: MessageId, method: str, params: dict[str, Any] | None = None) -> bytes:
    """A call as JSON without a line end; ASCII, so that no text can break the framing."""
    return _encode({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params or {}})


def encode_notification(method: str, params: dict[str, Any] | None = None) -> bytes:
    """A notification, written like a call."""
    return _encode({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})


def encode_result(message_id: MessageId, result: dict[str, Any]) -> bytes:
    """An answer, written like a call."""
    return _encode({"jsonrpc": "2.0", "id": message_id, "result": result})


def encode_error(message_id: MessageId | None, error: MCPError) -> bytes:
    """A refusal; `None` where the request's id could not be read."""
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    return _encode({"jsonrpc": "2.0", "id": message_id, "error": body})


_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def _encode(value: dict[str, Any]) -> bytes:
    return _JSON.encode(value).encode("ascii")
