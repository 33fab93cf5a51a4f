"""Forms of the list for servers, aliases, second tries, hidden secrets, and boxes around a box."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from miniclaw.errors import ConfigError, ToolError
from miniclaw.tools import Risk, Tool, ToolBox, ToolContext, ToolRegistry, ToolResult, tool
from miniclaw.tools.builtins import builtin_tools
from miniclaw.tools.exports import strict_schema
from miniclaw.tools.wrappers import ApprovalTools, FilteredTools, PrefixedTools


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Loose(BaseModel):
    a: int = 0


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int
    y: int


@tool(risk="read", aliases=("orderPizza",))
def order_pizza(
    kind: Annotated[str, Field(min_length=1, description="which one")],
    size: Size = Size.SMALL,
    extra: Literal["cheese", "none"] = "none",
    where: Place | None = None,
    toppings: list[str] | None = None,
    count: Annotated[int, Field(ge=1, le=9, description="how many")] = 1,
) -> dict[str, Any]:
    """Order a pizza."""
    return {
        "kind": kind,
        "size": size.value,
        "extra": extra,
        "where": where,
        "toppings": toppings,
        "count": count,
    }


@tool(risk="write")
def wipe(path: str) -> str:
    """Wipe it."""
    return f"wiped {path}"


def strict_problems(schema: Mapping[str, Any]) -> list[str]:
    """What the rules of `strict` servers find wrong, told independently of the code under test."""
    found = []
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            found.append("open object")
        if sorted(schema.get("required", [])) != sorted(schema.get("properties", {})):
            found.append("not all required")
    found += [
        key for key in ("default", "minLength", "maxLength", "title", "oneOf", "allOf") if key in schema
    ]
    inner = [
        *schema.get("properties", {}).values(),
        *schema.get("$defs", {}).values(),
        *schema.get("anyOf", []),
    ]
    inner += [schema["items"]] if "items" in schema else []
    return found + [problem for one in inner for problem in strict_problems(one)]


# --- forms ------------------------------------------------------------------------------------------------


def test_the_responses_form_is_flat_and_says_that_it_is_not_strict() -> None:
    (one,) = ToolRegistry([wipe]).get_responses_tools()
    assert one == {
        "type": "function",
        "name": "wipe",
        "description": "Wipe it.",
        "parameters": wipe.parameters,
        "strict": False,
    }


def test_a_strict_form_requires_every_parameter_and_lets_optional_ones_be_null() -> None:
    registry = ToolRegistry([order_pizza])
    (chat,), (responses,) = registry.get_openai_tools(strict=True), registry.get_responses_tools(strict=True)
    assert chat["function"]["strict"] is True and responses["strict"] is True
    schema = chat["function"]["parameters"]
    assert schema == responses["parameters"]
    assert strict_problems(schema) == []
    assert schema["required"] == ["kind", "size", "extra", "where", "toppings", "count"]
    assert schema["properties"]["count"] == {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}],
        "description": "how many",
    }
    assert "default" in order_pizza.parameters["properties"]["count"], "the plain schema was changed"
    assert registry.get_openai_tools(strict=True) is registry.get_openai_tools(strict=True)
    assert "strict" not in registry.get_openai_tools()[0]["function"]


async def test_null_for_a_parameter_that_cannot_be_null_means_that_it_is_left_out() -> None:
    registry = ToolRegistry([order_pizza])
    given = dict.fromkeys(("size", "extra", "where", "toppings", "count")) | {"kind": "margherita"}
    Draft202012Validator(registry.get_openai_tools(strict=True)[0]["function"]["parameters"]).validate(given)
    result = await registry.execute("order_pizza", given)
    assert result.data == {
        "kind": "margherita",
        "size": "small",
        "extra": "none",
        "where": None,
        "toppings": None,
        "count": 1,
    }
    refused = await registry.execute("order_pizza", {"kind": None})
    assert "`kind`: Input should be a valid string" in refused.content


def test_a_schema_that_cannot_be_strict_is_offered_as_it_is() -> None:
    @tool
    def free(headers: dict[str, str]) -> str:
        """Free keys."""
        return ""

    @tool
    def nested(inner: Loose) -> str:
        """Optional keys inside."""
        return ""

    for one in ToolRegistry([free, nested]).get_openai_tools(strict=True):
        assert "strict" not in one["function"]
    for schema in (
        {"type": "object", "oneOf": []},
        {"type": "object", "properties": {"x": {}}},
        {"properties": 1},
    ):
        assert strict_schema(schema) is None


def test_what_is_marked_strict_of_the_built_in_tools_keeps_to_the_rules() -> None:
    tools = ToolRegistry(builtin_tools()).get_openai_tools(strict=True)
    strict = {
        t["function"]["name"]: t["function"]["parameters"] for t in tools if t["function"].get("strict")
    }
    assert {name: strict_problems(schema) for name, schema in strict.items() if strict_problems(schema)} == {}
    assert {"calculator", "read_file", "web_search", "list_files"} <= strict.keys()
    assert "http_request" not in strict
    for one in tools:
        Draft202012Validator.check_schema(one["function"]["parameters"])


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type properties items anyOf required enum x $defs additionalProperties default".split()
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "anyOf"]), json))
def test_any_schema_is_strict_or_is_not(schema: dict[str, Any]) -> None:
    strict = strict_schema(schema)
    assert strict is None or strict_problems(strict) == [] or strict.get("type") != "object"


# --- aliases ----------------------------------------------------------------------------------------------


async def test_a_call_by_an_alias_runs_the_tool_which_is_listed_under_its_name_only() -> None:
    registry = ToolRegistry([order_pizza])
    assert registry.find("orderPizza") is order_pizza
    assert (await registry.execute("orderPizza", {"kind": "x"})).ok
    assert registry.names() == ["order_pizza"]
    assert "orderPizza" not in str(registry.get_openai_tools()) + str(registry.get_mcp_tools())
    registry.remove("order_pizza")
    assert registry.find("orderPizza") is None
    registry.register(order_pizza)


def test_a_name_that_is_anothers_alias_is_a_clash_that_names_both_places() -> None:
    @tool(name="orderPizza")
    def impostor() -> str:
        """Order nothing."""
        return ""

    for one, other in ((order_pizza, impostor), (impostor, order_pizza)):
        with pytest.raises(
            ConfigError, match=r"(?s)called `orderPizza`: .*test_tools_forms.py:\d+ and .*:\d+"
        ):
            ToolRegistry([one, other])


# --- second tries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("risk", "tries"), [("read", 2), ("write", 1)])
async def test_only_a_read_that_times_out_is_tried_a_second_time(risk: Risk, tries: int) -> None:
    tried = []

    @tool(risk=risk, timeout=0.01)
    async def hang() -> str:
        """Never answer."""
        tried.append(1)
        await asyncio.Event().wait()
        return ""

    assert "did not finish within 0.01 s" in (await ToolRegistry([hang]).execute("hang", {})).content
    assert len(tried) == tries


async def test_a_second_try_that_answers_is_the_answer() -> None:
    tried = []

    @tool(risk="read")
    async def slow_once() -> str:
        """Answer at the second time."""
        tried.append(1)
        if len(tried) == 1:
            raise TimeoutError
        return "here"

    assert (await ToolRegistry([slow_once]).execute("slow_once", {})).content == "here"


@pytest.mark.parametrize("error", [ToolError("no such page"), ValueError("broken")])
async def test_a_tool_that_fails_for_good_is_not_tried_again(error: Exception) -> None:
    tried = []

    @tool(risk="read")
    def fail() -> str:
        """Fail."""
        tried.append(1)
        raise error

    assert not (await ToolRegistry([fail]).execute("fail", {})).ok
    assert len(tried) == 1


# --- secrets ----------------------------------------------------------------------------------------------


async def test_a_secret_of_the_operator_is_in_no_result_and_in_no_file_of_one(tmp_path: Path) -> None:
    @tool(risk="read")
    def leak(long: bool, fails: bool = False) -> str:
        """Tell everything."""
        if fails:
            raise ToolError("cannot use key-12345")
        return "the key is key-12345 " + "x" * (900 if long else 0)

    registry = ToolRegistry(
        [leak],
        result_chars=500,
        hide=lambda text: text.replace("key-12345", "[secret]"),
        new_id=lambda p: f"{p}_1",
    )
    context = ToolContext(user_id="a", scope="a", session_id="s", turn_id="t", workspace=tmp_path)
    for arguments in ({"long": False}, {"long": True}, {"long": False, "fails": True}):
        result = await registry.execute("leak", arguments, context)
        assert "[secret]" in result.content
        assert "key-12345" not in repr(result)
    assert "key-12345" not in (tmp_path / ".results" / "s-res_1.txt").read_text(encoding="utf-8")


# --- boxes around a box -----------------------------------------------------------------------------------


def box() -> ToolRegistry:
    return ToolRegistry([order_pizza, wipe])


def names(tools: ToolBox) -> list[str]:
    return [one["function"]["name"] for one in tools.get_openai_tools()]


async def test_a_prefix_is_put_before_every_name_and_taken_off_again() -> None:
    inner = box()
    tools: ToolBox = PrefixedTools(inner, "shop_")
    assert names(tools) == ["shop_order_pizza", "shop_wipe"]
    assert tools.get_openai_tools() is tools.get_openai_tools()
    found = tools.find("shop_wipe")
    assert found is not None and (found.name, found.risk) == ("shop_wipe", "write")
    assert wipe.name == "wipe"
    assert tools.find("wipe") is None and tools.find("shop_nothing") is None
    assert (await tools.execute("shop_wipe", {"path": "a"})).content == "wiped a"
    assert not (await tools.execute("wipe", {"path": "a"})).ok
    inner.remove("wipe")
    assert names(tools) == ["shop_order_pizza"]


async def test_what_a_filter_leaves_out_is_not_there() -> None:
    inner = box()
    tools: ToolBox = FilteredTools(inner, lambda name: name == "order_pizza")
    assert names(tools) == ["order_pizza"]
    assert tools.get_openai_tools() is tools.get_openai_tools()
    assert tools.find("wipe") is None
    assert not (await tools.execute("wipe", {"path": "a"})).ok
    assert (await tools.execute("orderPizza", {"kind": "x"})).ok
    inner.remove("order_pizza")
    assert names(tools) == []


async def test_each_write_needs_a_yes() -> None:
    asked: list[tuple[str, Mapping[str, Any]]] = []

    async def ask(one: Tool, arguments: Mapping[str, Any], context: ToolContext | None) -> str | None:
        asked.append((one.name, arguments))
        return None if arguments["path"] == "ok" else "not this one"

    tools: ToolBox = ApprovalTools(box(), ask)
    assert names(tools) == ["order_pizza", "wipe"]
    assert tools.find("wipe") is wipe
    assert (await tools.execute("order_pizza", {"kind": "x"})).ok
    assert (await tools.execute("wipe", {"path": "ok"})).content == "wiped ok"
    refused: ToolResult = await tools.execute("wipe", {"path": "all"})
    assert refused.content == "Error: `wipe` was not run: not this one"
    assert asked == [("wipe", {"path": "ok"}), ("wipe", {"path": "all"})]
    assert not (await tools.execute("nothing", {})).ok
