"""套起来的工具箱：看不见的用不了，要改东西的先问。"""

from collections.abc import Mapping
from typing import Any

import pytest

from day5_tools import ApprovalTools, FilteredTools, Tool, ToolRegistry, tool


@tool(risk="read")
async def look() -> str:
    return "看见了"


@tool
async def refund(order_id: str) -> str:
    return f"退了 {order_id}"


def names(box: Any) -> list[str]:
    return [row["function"]["name"] for row in box.get_openai_tools()]


async def test_a_tool_that_is_filtered_out_is_as_if_it_were_not_there() -> None:
    box = FilteredTools(ToolRegistry([look, refund]), lambda name: name == "look")
    assert names(box) == ["look"] and box.find("refund") is None
    assert (await box.execute("look", {})).content == "看见了"
    for name in ("refund", "fly"):
        answer = (await box.execute(name, {"order_id": "4471"})).content
        assert f"no tool `{name}` here. The tools are: look." in answer


async def test_only_what_changes_something_is_asked_about() -> None:
    asked: list[str] = []

    async def ask(tool: Tool, arguments: Mapping[str, Any], context: object) -> str | None:
        asked.append(f"{tool.name} {arguments['order_id']}")
        return None if arguments["order_id"] == "4471" else "the owner said no"

    box = ApprovalTools(ToolRegistry([look, refund]), ask)
    assert names(box) == ["look", "refund"] and box.find("look") is look
    assert (await box.execute("look", {})).ok
    assert (await box.execute("refund", {"order_id": "4471"})).content == "退了 4471"
    refused = await box.execute("refund", {"order_id": "4472"})
    assert refused.error == "`refund` was not run: the owner said no"
    assert asked == ["refund 4471", "refund 4472"]
    assert not (await box.execute("nothing", {})).ok


async def test_what_could_not_be_asked_about_is_not_run(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(tool: Tool, arguments: Mapping[str, Any], context: object) -> str | None:
        return None if float(arguments["order_id"]) else "no"

    refused = await ApprovalTools(ToolRegistry([refund]), ask).execute("refund", {"order_id": "secret"})
    assert refused.error == "`refund` was not run: asking about it failed (ValueError)"
    assert "secret" in caplog.text
