"""运行：pytest exercises/test_3_break.py"""

import socket
from pathlib import Path

from day5_tools import ToolRegistry, calculator_tool, http_request_tool
from ex_3_break import EXPRESSION, HOST, PATH, careless_calculator, careless_host, careless_path


async def test_the_calculator_tells_the_secret() -> None:
    hint = "提示：`eval` 的第二个参数里有什么名字？"
    assert EXPRESSION and careless_calculator(EXPRESSION) == "店里的密码", hint
    box = ToolRegistry([calculator_tool()])
    assert not (await box.execute("calculator", {"expression": EXPRESSION})).ok


def test_the_path_leads_out(tmp_path: Path) -> None:
    hint = "提示：`/x/shop/../…` 的开头也是 `/x/shop`。"
    root = tmp_path / "shop"
    found = careless_path(root, PATH)
    assert found is not None and not found.resolve().is_relative_to(root.resolve()), hint


async def test_the_host_is_this_machine() -> None:
    hint = "提示：127.0.0.1 还可以写成一个整数、少写几段、或者用 IPv6。"
    assert HOST and careless_host(HOST), hint
    found = {row[4][0] for row in socket.getaddrinfo(HOST, 80, type=socket.SOCK_STREAM)}
    assert found & {"127.0.0.1", "::1"}, hint
    url = f"http://[{HOST}]/" if ":" in HOST else f"http://{HOST}/"
    assert (
        "private address"
        in (await ToolRegistry([http_request_tool()]).execute("http_request", {"url": url})).content
    )
