"""Checks the arguments of a call; a refusal names the field and the reason.

Two checkers with one shape: a Pydantic model for `@tool`, and a small reading of JSON Schema for tools
that bring their own. The second knows types, enums, bounds and objects; what it does not know it lets
pass, because the tool (or the server behind it) checks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from miniclaw.errors import ToolError

__all__ = ["ValidatesArguments", "check_arguments", "optional_without_null", "validate_model"]

_MAX_PROBLEMS: Final = 5
"""A model mends a few problems at a time; more only fill its context."""

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and value == value // 1,
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


@runtime_checkable
class ValidatesArguments(Protocol):
    """A tool that checks and converts its arguments itself."""

    def validate(self, arguments: object) -> dict[str, Any]:
        """What `execute` is called with; raises `ToolError`."""
        ...


def validate_model(
    model: type[BaseModel], arguments: object, *, extra: Literal["forbid"] | None = None
) -> dict[str, Any]:
    """The values of `model`'s fields by their alias, converted and with defaults filled in.

    With `extra="forbid"` models inside it take no unknown field either.

    Raises:
        ToolError: the arguments do not fit; the text names each field and its reason.
    """
    try:
        values = model.model_validate(_as_object(arguments), extra=extra)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        raise _refusal(f"{_path(problem['loc'])}: {problem['msg']}" for problem in problems) from None
    return {info.alias or name: getattr(values, name) for name, info in model.model_fields.items()}


def check_arguments(schema: Mapping[str, Any], arguments: object) -> dict[str, Any]:
    """The arguments as they are, once they fit the JSON Schema of an object.

    Raises:
        ToolError: they do not fit; the text names each field and its reason.
    """
    values = _as_object(arguments)
    problems = _problems(schema, values, ())
    for first in problems:
        raise _refusal(chain([first], problems))
    return values


def optional_without_null(schema: Mapping[str, Any]) -> frozenset[str]:
    """The parameters for which `null` can only mean that they are left out, as strict servers make models say it."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    plain = {name for name, inner in properties.items() if isinstance(inner, dict) and not _takes_null(inner)}
    return frozenset(plain - set(schema.get("required", ())))


def _takes_null(schema: Mapping[str, Any]) -> bool:
    kinds = [kind for kind in (schema, *schema.get("anyOf", ())) if "anyOf" not in kind]
    return not kinds or any("null" in kind.get("type", "" if "$ref" in kind else "null") for kind in kinds)


def _as_object(arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, Mapping):
        raise _refusal(["they should be a JSON object"])
    return dict(arguments)


def _refusal(problems: Iterable[str]) -> ToolError:
    reasons = "; ".join(islice(problems, _MAX_PROBLEMS))
    return ToolError(f"Invalid arguments: {reasons}. Call it again with arguments that fit.")


def _path(location: tuple[int | str, ...]) -> str:
    return f"`{'.'.join(map(str, location))}`" if location else "the arguments"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _problems(schema: Mapping[str, Any], value: Any, path: tuple[int | str, ...]) -> Iterator[str]:
    expected = schema.get("type")
    names = [expected] if isinstance(expected, str) else expected or []
    if names and not any(_TYPES[name](value) for name in names if name in _TYPES):
        yield f"{_path(path)}: should be of type {' or '.join(map(str, names))}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{_path(path)}: should be one of {', '.join(map(repr, schema['enum']))}"
    if isinstance(value, dict):
        yield from _object_problems(schema, value, path)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from _problems(schema["items"], item, (*path, index))
    elif _is_number(value):
        if value < schema.get("minimum", value):
            yield f"{_path(path)}: should be at least {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{_path(path)}: should be at most {schema['maximum']}"


def _object_problems(
    schema: Mapping[str, Any], value: dict[str, Any], path: tuple[int | str, ...]
) -> Iterator[str]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_path((*path, name))}: is required"
    for name, item in value.items():
        if name in properties:
            if isinstance(properties[name], dict):  # `true` and `false` are schemas too
                yield from _problems(properties[name], item, (*path, name))
        elif schema.get("additionalProperties", True) is False:
            yield f"{_path((*path, name))}: is not a parameter"
