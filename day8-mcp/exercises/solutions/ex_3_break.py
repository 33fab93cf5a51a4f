"""弄坏它：不是 JSON、不是消息、没有这个方法、没有这个工具。"""

from __future__ import annotations

LINES: dict[int, str] = {
    -32700: '{"jsonrpc": "2.0", ',
    -32600: '{"id": 1, "method": "ping"}',
    -32601: '{"jsonrpc": "2.0", "id": 1, "method": "tools/fly"}',
    -32602: '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fly"}}',
}
