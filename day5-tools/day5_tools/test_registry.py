"""注册表：名字、清单、检查、限时，和工具坏了的时候。"""

import asyncio
import logging
from typing import Any

import pytest

from day5_tools import ConfigError, Tool, ToolError, ToolRegistry, check_arguments, tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{"n": {"type": "integer"}, "on": {"type": "boolean"}, "x": {}},
        **{"note": {"type": ["string", "null"]}, "any": True},
    },
    "required": ["n"],
    "additionalProperties": False,
}


@tool
async def broken() -> str:
    raise RuntimeError("password=123")


@tool
async def refuses() -> str:
    raise ToolError("Not today.")


@tool(timeout=0.01)
async def hangs() -> str:
    await asyncio.Event().wait()
    return ""


@tool
async def times_out() -> str:
    raise TimeoutError("the parcel service is slow")


@tool
async def talks() -> str:
    return "字" * 30


def double(n: int) -> int:
    return 2 * n


async def test_a_function_with_a_schema_by_hand_is_a_tool_too() -> None:
    registry = ToolRegistry()
    registry.register("double", "twice", SCHEMA, double, risk="read")
    (row,) = registry.get_openai_tools()
    assert row == {
        "type": "function",
        "function": {"name": "double", "description": "twice", "parameters": SCHEMA},
    }
    assert (await registry.execute("double", {"n": 21})).data == 42
    assert "`n`: is required" in (await registry.execute("double", {})).content
    with pytest.raises(ConfigError, match="handler"):
        registry.register("half", "…", SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "`n`: is required"),
        ({"n": "1"}, "`n`: should be of type integer"),
        ({"n": True}, "`n`: should be of type integer"),
        ({"n": 1, "on": 1}, "`on`: should be of type boolean"),
        ({"n": 1, "z": 1}, "`z`: is not a parameter"),
        ({"n": 1.5}, "`n`: should be of type integer"),
        ({"n": 1, "note": 2}, "`note`: should be of type string or null"),
    ],
)
def test_arguments_are_held_to_the_schema(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        check_arguments(SCHEMA, arguments)


def test_what_fits_comes_through_unchanged() -> None:
    arguments = {"n": 1.0, "on": True, "x": [None], "note": None, "any": 5}
    assert check_arguments(SCHEMA, arguments) == arguments
    assert check_arguments({"type": "object"}, {"any": "thing"}) == {"any": "thing"}


def test_two_tools_of_one_name_and_a_name_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="Two tools are called `talks`"):
        ToolRegistry([talks, talks])
    with pytest.raises(ConfigError, match="letters"):
        ToolRegistry([tool(name="查 订单")(double)])


async def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    assert "The tools are: talks, refuses." in (await ToolRegistry([talks, refuses]).execute("x", {})).content
    assert ToolRegistry([talks]).find("x") is None


async def test_a_refusal_is_passed_on_word_for_word() -> None:
    assert (await ToolRegistry([refuses]).execute("refuses", {})).error == "Not today."


async def test_a_fault_inside_is_for_the_log_and_not_for_the_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        result = await ToolRegistry([broken]).execute("broken", {})
    assert "RuntimeError" in result.content and "password" not in result.content
    assert "password=123" in caplog.text


async def test_a_tool_has_its_own_time_or_that_of_the_registry() -> None:
    assert "within 0.01 s" in (await ToolRegistry([hangs]).execute("hangs", {})).content
    own = await ToolRegistry([times_out]).execute("times_out", {})
    assert "failed inside (TimeoutError)" in own.content  # 它自己抛的，不是我们的时限
    hangs_on = Hangs()
    assert (
        "within 0.02 s" in (await ToolRegistry([hangs_on], default_timeout=0.02).execute("wait", {})).content
    )


class Hangs(Tool):
    name = "wait"
    description = "waits"
    parameters: dict[str, Any] = {"type": "object", "properties": {}}

    async def execute(self, **kwargs: Any) -> Any:
        await asyncio.Event().wait()


async def test_cancelling_is_no_failure() -> None:
    task = asyncio.create_task(ToolRegistry([Hangs()]).execute("wait", {}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_long_result_is_cut_and_says_so() -> None:
    result = await ToolRegistry([talks], result_chars=20).execute("talks", {})
    assert result.content == "字" * 20 + "\n\n[10 more characters are left out.]"
