"""Reads the arguments of a call as models write them: JSON, nearly JSON, or a Python dict."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any, Final, NoReturn

from miniclaw.agent.providers import ToolCall
from miniclaw.gateway.protocol import has_unreadable, plain_text
from miniclaw.session.history import parse_arguments

__all__ = ["json_values", "parse_call", "python_dict", "read_arguments"]

LONGEST_PYTHON: Final = 20_000
"""Characters of what is tried as a Python dict."""
MOST_VALUES: Final = 64
"""JSON values in a row that are read."""

_FENCE: Final = re.compile(r"```[\w-]*\s*(.*?)\s*```", re.DOTALL)
_BETWEEN: Final = re.compile(r"[\s,;]*")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_refuse)
"""Takes line breaks inside strings, which models write and JSON does not have."""


def parse_call(call_id: str, name: str, raw: str) -> ToolCall:
    """A call with its arguments read; `raw` is sound JSON wherever they could be.

    JSON escapes may hide characters that no store can take: they are replaced.
    """
    if "\\u" in raw:
        raw = _without_unreadable(raw)
    arguments = parse_arguments(raw)
    if arguments is None and (arguments := read_arguments(raw)) is not None:
        raw = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call_id, name, raw, arguments)


def read_arguments(raw: str) -> dict[str, Any] | None:
    """The object that a model meant, `None` where that is not certain; what was cut is never completed."""
    value: object = raw
    for _ in range(3):  # a fence, or JSON in a JSON string, around the object
        text = value.strip() if isinstance(value, str) else ""
        if text in {"", "null"}:
            return {}
        if (fenced := _FENCE.fullmatch(text)) is not None:
            value = fenced[1]
            continue
        value = _object(text)
        if not isinstance(value, str):
            break
    if not isinstance(value, dict):
        return None
    try:
        return parse_arguments(json.dumps(_readable(value), ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return None


def json_values(text: str, start: int = 0) -> tuple[list[Any], int]:
    """The JSON values in a row from `start` on, blanks and commas between them, and where they end."""
    values: list[Any] = []
    while text[start : start + 1] in {"{", "["} and len(values) < MOST_VALUES:
        try:
            value, start = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        values.append(value)
        between = _BETWEEN.match(text, start)
        start = between.end() if between else start
    return values, start


def _object(text: str) -> object:
    """The one object of a text, with a tag, a brace or a sentence behind it; or the string that it is."""
    if text.startswith('"'):
        try:
            value = _DECODER.decode(text)
        except ValueError:
            return None
        return value if isinstance(value, str) else None
    values, end = json_values(text)
    if not values:
        return python_dict(text)
    real = [value for value in values if value] or values[:1]  # some servers send `{}` first
    is_one = all(value == real[0] for value in real) and text[end : end + 1] not in {"{", "["}
    return real[0] if is_one and isinstance(real[0], dict) else None


class _Words(ast.NodeTransformer):
    """JSON's words in a Python literal."""

    _VALUES: Final = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._VALUES[node.id]) if node.id in self._VALUES else node


def python_dict(text: str) -> object:
    """The value of a text that is a dict in Python, with JSON's words too; else `None`."""
    if not text.startswith("{") or len(text) > LONGEST_PYTHON:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape in the text is not ours to report
            return ast.literal_eval(_Words().visit(ast.parse(text, mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _without_unreadable(raw: str) -> str:
    try:
        value = json.loads(raw)
        return json.dumps(_readable(value), ensure_ascii=False) if has_unreadable(value) else raw
    except (ValueError, RecursionError):
        return raw


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {plain_text(key) if isinstance(key, str) else key: _readable(v) for key, v in value.items()}
    return value
