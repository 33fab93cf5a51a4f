"""运行：pytest exercises/test_2_add.py"""

import asyncio
import json
from typing import Any

from day5_tools import ToolRegistry, tool
from day8_mcp import MCPServer, RegistryTools, decode
from ex_2_add import Cancellable

HINT = "提示：`super().receive(…)` 返回正在回答的任务；用字典记下 编号 → 任务，`add_done_callback` 里划掉。"


@tool(risk="read")
async def wait() -> str:
    await asyncio.Event().wait()
    return ""


class Talk:
    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        server = MCPServer(tools=[RegistryTools(ToolRegistry([wait]))])
        self.session = Cancellable(server, lambda data: self.answers.append(json.loads(data)))
        self.session.version = "2025-11-25"

    def send(self, method: str, number: object = None, **params: Any) -> asyncio.Task[None] | None:
        body = {"jsonrpc": "2.0", "method": method, "params": params}
        return self.session.receive(decode(json.dumps(body | ({"id": number} if number else {})).encode()))


async def test_a_cancelled_request_ends_and_is_not_answered() -> None:
    talk = Talk()
    task = talk.send("tools/call", 1, name="wait")
    other = talk.send("tools/call", "1", name="wait")
    assert task is not None and other is not None
    await asyncio.sleep(0)
    talk.send("notifications/cancelled", requestId=1)
    done, _ = await asyncio.wait({task}, timeout=0.2)
    still_runs = not other.done()
    await talk.session.close()
    assert done and task.cancelled() and still_runs, HINT
    assert talk.answers == [], HINT


async def test_what_is_unknown_or_done_is_no_error() -> None:
    talk = Talk()
    task = talk.send("ping", 7)
    assert task is not None
    await task
    for number in (7, "x", None, [1]):
        talk.send("notifications/cancelled", requestId=number)
    assert [answer["id"] for answer in talk.answers] == [7], HINT
