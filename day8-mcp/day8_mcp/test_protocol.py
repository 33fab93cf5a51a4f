"""JSON-RPC：哪些是消息，哪些不是，错误是几号。"""

import json

import pytest

from day8_mcp import MCPError, decode
from day8_mcp.protocol import Notification, Request, Response, encode, encode_error


def test_the_three_kinds_of_messages_are_told_apart() -> None:
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') == Request(1, "ping", {})
    assert decode(b'{"jsonrpc":"2.0","method":"n","params":{"a":1}}') == Notification("n", {"a": 1})
    assert decode(b'{"jsonrpc":"2.0","id":"x","result":{}}') == Response("x", {}, None)
    assert decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}') == Response(1, None, {"code": 1})


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":[1]}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"a"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"a"}', -32600),
    ],
)
def test_what_is_no_message_is_refused_by_number(data: bytes, code: int) -> None:
    with pytest.raises(MCPError) as caught:
        decode(data)
    assert caught.value.code == code


def test_a_message_is_one_line_whatever_it_says() -> None:
    data = encode({"id": 1, "result": {"text": "两行\n\u2028字"}})
    assert b"\n" not in data and data.isascii()
    assert json.loads(data)["result"]["text"] == "两行\n\u2028字"
    assert decode(encode_error(None, MCPError(-32700, "no"))) == Response(
        None, None, {"code": -32700, "message": "no"}
    )
