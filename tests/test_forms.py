"""Forms that MCP servers ask for, filled in from what a person types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.channel.forms import fill, wording
from miniclaw.errors import MCPError, ProtocolError
from miniclaw.mcp.client.questions import form_of

NAME = {"type": "string", "minLength": 2, "maxLength": 5}
AGE = {"type": "integer", "minimum": 0, "maximum": 120}
COLOR = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
SIZES = {
    "type": "array",
    "items": {"anyOf": [{"const": "s", "title": "Small"}, {"const": "l"}]},
    "maxItems": 1,
}


def form(*required: str, **fields: dict[str, Any]) -> dict[str, Any]:
    """A form as a server sends it."""
    return form_of({"requestedSchema": {"properties": fields, "required": list(required)}})


@pytest.mark.parametrize(
    ("asked", "answer", "content"),
    [
        (form("name", name=NAME), "Ann", {"name": "Ann"}),
        (form("name", name=NAME), "name=Ann", {"name": "Ann"}),
        (form("name", name=NAME), "'a=b'", {"name": "a=b"}),
        (form("name", name=NAME, age=AGE), "Ann", {"name": "Ann"}),
        (form("name", "age", name=NAME, age=AGE), "age=7 name=A B", {"age": 7, "name": "A B"}),
        (form("age", age=AGE), "7.0", {"age": 7}),
        (form("n", n={"type": "number"}), "1e3", {"n": 1000.0}),
        (form("c", c=COLOR), "Green", {"c": "g"}),
        (form("c", c=COLOR), "r", {"c": "r"}),
        (form("s", s=SIZES), "Small", {"s": ["s"]}),
        (form("ok", ok={"type": "boolean"}), "", {"ok": True}),
        (form("ok", ok={"type": "boolean"}), "否", {"ok": False}),
        (form("d", d={"type": "string", "format": "date"}), "2026-02-28", {"d": "2026-02-28"}),
        (form("d", d={"type": "string", "default": "x"}), "", {}),
        (form("name", name=NAME, ok={"type": "boolean"}), "name=Ann", {"name": "Ann"}),
        (form("age", age=AGE), {"age": 7}, {"age": 7}),
        (form(), "", {}),
    ],
)
def test_what_is_typed_becomes_values_of_the_types_that_are_asked_for(
    asked: dict[str, Any], answer: str | dict[str, Any], content: dict[str, Any]
) -> None:
    assert fill(asked, answer) == content


@pytest.mark.parametrize(
    ("asked", "answer", "words"),
    [
        (form("name", name=NAME), "", "`/approve name=…`"),
        (form("name", name=NAME), "A", "at least 2 characters"),
        (form("name", name=NAME), "Ann and Bob", "at most 5 characters"),
        (form("name", "age", name=NAME, age=AGE), "name=Ann", "`age`"),
        (form("name", "age", name=NAME, age=AGE), "Ann", "name=value"),
        (form("name", "age", name=NAME, age=AGE), "age=1 name=Ann age=2", "twice"),
        (form("age", age=AGE), "7.5", "whole number"),
        (form("age", age=AGE), "121", "at most 120"),
        (form("age", age=AGE), {"age": True}, "whole number"),
        (form("age", age=AGE), {"age": [7]}, "whole number"),
        (form("age", age=AGE), {"years": 7}, "There is no field"),
        (form("n", n={"type": "number"}), "1e999", "a number"),
        (form("c", c=COLOR), "blue", "one of: r, g"),
        (form("s", s=SIZES), "s,l", "at most 1 choices"),
        (form("ok", ok={"type": "boolean"}), "perhaps", "yes or no"),
        (form("e", e={"type": "string", "format": "email"}), "ann", "e-mail"),
        (form("u", u={"type": "string", "format": "uri"}), "no address", "address"),
        (form("d", d={"type": "string", "format": "date"}), "2026-02-30", "date"),
        (form("d", d={"type": "string", "format": "date-time"}), "2026-02-01T10:00:00", "date and time"),
        (form("name", name=NAME), {"name": 7}, "a text"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_wrong(
    asked: dict[str, Any], answer: str | dict[str, Any], words: str
) -> None:
    with pytest.raises(ProtocolError) as raised:
        fill(asked, answer)
    assert raised.value.code == "bad_arguments" and words in str(raised.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "object"}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"required": 7},
        {"properties": {str(n): {} for n in range(21)}},
        {"properties": {"a": {"description": "x" * 9000}}},
    ],
)
def test_a_form_that_nobody_could_read_or_fill_in_is_not_asked(schema: dict[str, Any]) -> None:
    with pytest.raises(MCPError):
        form_of({"requestedSchema": schema})


def test_a_person_is_told_the_fields_their_kinds_and_choices() -> None:
    asked = form("name", name={**NAME, "title": "Your name"}, c={**COLOR, "default": "r"}, s=SIZES)
    assert wording(asked) == "name (string) Your name\nc (r | g, = r)\ns (s | l, several, optional)"


WORD = st.text(st.sampled_from("ab_"), min_size=1, max_size=4)


@given(st.dictionaries(WORD, st.text(st.sampled_from("xyz ,7名"), max_size=8), min_size=1, max_size=5))
def test_each_value_comes_back_under_its_name(values: dict[str, str]) -> None:
    values = {name: value.strip() for name, value in values.items()}
    asked = form(*values, **{name: {"type": "string"} for name in values})
    assert fill(asked, " ".join(f"{name}={value}" for name, value in values.items())) == values


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "type",
    "enum",
    "enumNames",
    "oneOf",
    "anyOf",
    "items",
    "minLength",
    "maximum",
    "minItems",
    "format",
    "title",
)
FIELD = st.dictionaries(
    st.sampled_from(KEYS),
    ANY | st.sampled_from(["string", "integer", "number", "boolean", "array", "date", "uri", "email"]),
)


@given(
    st.dictionaries(WORD, FIELD, max_size=3),
    st.text(max_size=20) | st.dictionaries(WORD, ANY, max_size=3),
    st.booleans(),
)
def test_no_form_and_no_answer_breaks_it(fields: dict[str, Any], answer: Any, needed: bool) -> None:
    try:
        asked = form_of(
            {"requestedSchema": {"properties": fields, "required": list(fields) if needed else []}}
        )
        wording(asked)
        fill(asked, answer)
    except (MCPError, ProtocolError):
        pass
