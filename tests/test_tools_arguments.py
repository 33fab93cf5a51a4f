"""Arguments against a JSON Schema that was written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import ToolError
from miniclaw.tools.arguments import check_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        "note": {"type": ["string", "null"]},
        "anything": True,
    },
    "required": ["city"],
    "additionalProperties": False,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "北京"},
        {"city": "x", "days": 14, "unit": "c", "tags": [], "place": {"lat": 1}, "note": None},
        {"city": "x", "days": 3.0, "tags": ["a"], "place": {"lat": 1.5, "more": 1}, "note": "n"},
        {"city": "x", "anything": [1, {}]},
    ],
)
def test_arguments_that_fit_come_back_unchanged(arguments: dict[str, Any]) -> None:
    assert check_arguments(SCHEMA, arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "`city`: is required"),
        ({"city": 1}, "`city`: should be of type string"),
        ({"city": "x", "days": True}, "`days`: should be of type integer"),
        ({"city": "x", "days": 1.5}, "`days`: should be of type integer"),
        ({"city": "x", "days": float("nan")}, "`days`: should be of type integer"),
        ({"city": "x", "days": 0}, "`days`: should be at least 1"),
        ({"city": "x", "days": 15}, "`days`: should be at most 14"),
        ({"city": "x", "unit": "k"}, "`unit`: should be one of 'c', 'f'"),
        ({"city": "x", "tags": ["a", 2]}, "`tags.1`: should be of type string"),
        ({"city": "x", "place": {}}, "`place.lat`: is required"),
        ({"city": "x", "note": 1}, "`note`: should be of type string or null"),
        ({"city": "x", "wind": 1}, "`wind`: is not a parameter"),
        ([], "they should be a JSON object"),
        (None, "they should be a JSON object"),
    ],
)
def test_a_refusal_names_the_field_and_the_reason(arguments: object, problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        check_arguments(SCHEMA, arguments)
    assert str(caught.value) == f"Invalid arguments: {problem}. Call it again with arguments that fit."


def test_a_refusal_lists_a_few_problems_and_no_more() -> None:
    with pytest.raises(ToolError) as caught:
        check_arguments(SCHEMA, {"city": "x", **{f"extra{n}": n for n in range(50)}})
    assert str(caught.value).count("is not a parameter") == 5


def test_additional_properties_pass_where_the_schema_does_not_close_the_object() -> None:
    assert check_arguments({"type": "object"}, {"a": 1}) == {"a": 1}


@given(json_values)
def test_any_json_value_is_taken_or_refused_and_nothing_else(value: Any) -> None:
    try:
        assert check_arguments(SCHEMA, value) == value
    except ToolError as error:
        assert str(error).startswith("Invalid arguments: ")
