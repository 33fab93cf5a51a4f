"""`@tool`：签名写了什么，模型就看到什么。"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from day5_tools import ConfigError, FunctionTool, ToolRegistry, tool


@tool(risk="read", timeout=3.0)
async def find_parcel(
    order_id: str,
    carrier: Literal["sf", "jd"] = "sf",
    days: Annotated[int, Field(description="how far back", ge=1)] = 7,
) -> dict[str, object]:
    """Find a parcel
    by its order.

    Longer words that only people read.

    Args:
        order_id: The order's number.
        carrier: Who carries it.
    """
    return {"order": order_id, "carrier": carrier, "days": days}


@tool
def thread_name() -> str:
    return threading.current_thread().name


def test_the_schema_is_read_from_the_signature() -> None:
    assert (find_parcel.name, find_parcel.description) == ("find_parcel", "Find a parcel by its order.")
    assert (find_parcel.risk, find_parcel.timeout) == ("read", 3.0)
    schema = find_parcel.parameters
    assert schema["required"] == ["order_id"] and schema["additionalProperties"] is False
    assert schema["properties"]["order_id"] == {"type": "string", "description": "The order's number."}
    assert schema["properties"]["carrier"]["enum"] == ["sf", "jd"]
    assert schema["properties"]["days"]["description"] == "how far back"
    assert "title" not in schema and "title" not in schema["properties"]["days"]


def test_what_says_nothing_gets_careful_defaults() -> None:
    assert (thread_name.risk, thread_name.timeout) == ("write", None)
    assert thread_name.description == "thread name"
    assert tool(name="other")(lambda: "x").name == "other"


async def test_a_plain_function_runs_in_a_thread_and_does_not_block_the_loop() -> None:
    result = await thread_name.execute()
    assert result.content != threading.main_thread().name


async def test_values_come_back_as_json_for_the_model_and_as_data_for_programs() -> None:
    result = await ToolRegistry([find_parcel]).execute("find_parcel", {"order_id": "4471", "days": "3"})
    assert result.content == '{"order": "4471", "carrier": "sf", "days": 3}'
    assert result.data == {"order": "4471", "carrier": "sf", "days": 3}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "order_id"),
        ({"order_id": "1", "carrier": "ups"}, "carrier"),
        ({"order_id": "1", "days": 0}, "days"),
        ({"order_id": "1", "day": 3}, "day"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(arguments: dict[str, object], named: str) -> None:
    result = await ToolRegistry([find_parcel]).execute("find_parcel", arguments)
    assert not result.ok and f"`{named}`" in result.content and "Call it again" in result.content


def test_a_signature_that_a_model_cannot_fill_is_refused_at_once() -> None:
    def untyped(order_id) -> str:  # type: ignore[no-untyped-def] # 就是要没有注解
        return str(order_id)

    def anything(*order_ids: str) -> str:
        return str(order_ids)

    def unknown(order_id: "Nowhere") -> str:  # type: ignore[name-defined] # noqa: F821 - 就是没有
        return str(order_id)

    def unreadable(lock: threading.Thread, call: Callable[[], int]) -> str:
        return str(lock)

    def no_schema(call: Callable[[], int]) -> str:
        return str(call)

    functions: list[Any] = [untyped, anything, unknown, unreadable, no_schema, partial(print), int]
    for function in functions:
        with pytest.raises(ConfigError, match="Tool `"):
            tool(function)
    assert isinstance(find_parcel, FunctionTool)


async def test_a_parameter_may_have_a_name_that_pydantic_uses_itself() -> None:
    @tool
    def odd(_x: str, model_config: int, json: str = "j", model_dump: str = "d") -> list[object]:
        return [_x, model_config, json, model_dump]

    assert list(odd.parameters["properties"]) == ["_x", "model_config", "json", "model_dump"]
    result = await ToolRegistry([odd]).execute("odd", {"_x": "a", "model_config": 1, "json": "b"})
    assert result.data == ["a", 1, "b", "d"]
    assert "`_x`" in (await ToolRegistry([odd]).execute("odd", {"model_config": 1})).content
