"""JSON-RPC 2.0：字节进来，有类型的消息出去，反过来也一样。不碰任何管道和套接字。"""

import json
from typing import Any, Final, NamedTuple

from day1_gateway import MiniClawError

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR = -32603
HANDSHAKE: Final = ("2025-11-25", "2025-06-18", "2024-11-05")  # 会说的版本，新的在前


class MCPError(MiniClawError):
    """一个 JSON-RPC 错误；`code` 是它的数字。"""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class MCPUnavailable(MCPError):
    """服务器连不上、死了，或者没有回答。"""

    def __init__(self, message: str) -> None:
        super().__init__(INTERNAL_ERROR, message)


class Notification(NamedTuple):
    """从不回答的。"""

    method: str
    params: dict[str, Any]


class Request(NamedTuple):
    """要回答的。"""

    id: str | int
    method: str
    params: dict[str, Any]


class Response(NamedTuple):
    """对一个请求的回答；成了有 `result`，没成有 `error`。里面是什么，对方说了算。"""

    id: object
    result: Any
    error: Any


Message = Request | Notification | Response


def decode(data: bytes) -> Message:
    """读一条消息；不是 JSON 是 `PARSE_ERROR`，不成消息是 `INVALID_REQUEST`。"""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MCPError(PARSE_ERROR, "The message is not JSON.") from error
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise MCPError(INVALID_REQUEST, "A message is one JSON-RPC 2.0 object.")
    if "method" not in value and ("result" in value or "error" in value):
        return Response(value.get("id"), value.get("result"), value.get("error"))
    method, params, message_id = value.get("method"), value.get("params") or {}, value.get("id", "")
    if not isinstance(method, str) or not isinstance(params, dict) or type(message_id) not in (str, int):
        raise MCPError(INVALID_REQUEST, "`method` is a string, `params` an object, `id` a string or integer.")
    return Request(message_id, method, params) if "id" in value else Notification(method, params)


def encode(body: dict[str, Any]) -> bytes:
    """一行，没有换行符；只有 ASCII，什么文字也弄不断它。"""
    return json.dumps({"jsonrpc": "2.0", **body}, separators=(",", ":")).encode("ascii")


def encode_error(message_id: str | int | None, error: MCPError) -> bytes:
    """一次拒绝；连编号都读不出来的，编号是 `None`。"""
    return encode({"id": message_id, "error": {"code": error.code, "message": str(error)}})
