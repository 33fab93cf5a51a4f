"""运行：pytest exercises/test_3_break.py"""

import json

import pytest

from day5_tools import ToolRegistry, get_order_status
from day8_mcp import MCPError, MCPServer, RegistryTools, decode
from day8_mcp.server import Session
from ex_3_break import LINES

HINT = "提示：前两个编号在 protocol.py 的 `decode` 里，后两个在 server.py 的 `handle` 里。"


@pytest.mark.parametrize("code", list(LINES))
async def test_the_line_is_refused_with_this_code(code: int) -> None:
    answers: list[bytes] = []
    session = Session(MCPServer(tools=[RegistryTools(ToolRegistry([get_order_status]))]), answers.append)
    session.version = "2025-11-25"
    found = 0
    try:
        task = session.receive(decode(LINES[code].encode() or b'{"jsonrpc":"2.0","method":"x"}'))
        if task is not None:
            await task
        found = json.loads(answers[0]).get("error", {}).get("code", 0) if answers else 0
    except MCPError as error:
        found = error.code
    assert found == code, HINT
