"""Reads calls and their arguments as models write them: JSON, nearly JSON, or Python. No I/O."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from miniclaw.agent.providers import ToolCall
from miniclaw.gateway.protocol import has_unreadable, plain_text
from miniclaw.session.history import parse_arguments

__all__ = ["ARGUMENT_KEYS", "CALL_KEYS", "NAME_KEYS", "Offered", "PrintedCall", "call_of", "code_calls"]
__all__ += [
    "items",
    "json_values",
    "parse_call",
    "plain_name",
    "python_dict",
    "read_arguments",
    "typed",
    "unfenced",
]

Offered = Mapping[str, Mapping[str, Any]]
"""The schemas of the tools that were offered, by name."""
PrintedCall = tuple[str, str]
"""Name and arguments, as the model wrote them."""

LONGEST_PYTHON: Final = 20_000
"""Characters of what is tried as a Python dict."""
MOST_VALUES: Final = 64
"""JSON values in a row that are read."""

NAME_KEYS: Final = ("name", "function", "tool", "tool_name", "function_name", "action")
CALL_KEYS: Final = frozenset({"type", "id", "tool_calls", "tool_call_id", *NAME_KEYS})
ARGUMENT_KEYS: Final = (
    "arguments",
    "parameters",
    "args",
    "input",
    "tool_input",
    "action_input",
    "function_arg",
)
_FENCE: Final = re.compile(r"```[\w-]*")
_AROUND_NAME: Final = re.compile(r"^\s*(?:functions?\.)?|(?::\d{1,9})?\s*(?:<\|.*)?$", re.DOTALL)
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
        if (inner := unfenced(text)) is not None:
            value = inner
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


def unfenced(text: str) -> str | None:
    """What a text that is one fenced block holds."""
    head = _FENCE.match(text)
    is_closed = head is not None and text.endswith("```", head.end())
    return text[head.end() : -3].strip() if head and is_closed else None


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
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, SystemError):
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


def plain_name(name: str, offered: Offered, *, is_sure: bool = False) -> str:
    """The name without what models write around it; `is_sure`: a call it is, so case and signs may differ too.

    A name that is still none of a tool comes back as it is.
    """
    if name in offered:
        return name
    plain = _AROUND_NAME.sub("", name)
    if plain in offered or not is_sure:
        return plain if plain in offered else name
    alike = [tool for tool in offered if _letters(tool) == _letters(plain)]
    return alike[0] if len(alike) == 1 else name


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def items(values: list[Any]) -> Iterator[Any]:
    """The values, and in their place those of the lists among them."""
    for value in values:
        inner = value.get("tool_calls") if isinstance(value, dict) else value
        if isinstance(inner, list):
            yield from inner
        else:
            yield value


def call_of(item: Any, offered: Offered, *, is_marked: bool = False) -> PrintedCall | None:
    """The call that an object means: a name and arguments, and nothing that a call does not have.

    Behind a mark, `is_marked`, the arguments may be missing.
    """
    if not isinstance(item, dict):
        return None
    if isinstance(inner := item.get("function"), dict):
        item = inner
    if not item.keys() <= {*CALL_KEYS, *ARGUMENT_KEYS}:
        return None
    names = (item.get(key) for key in NAME_KEYS)
    name = plain_name(next((name for name in names if isinstance(name, str)), ""), offered)
    arguments = next((item[key] for key in ARGUMENT_KEYS if key in item), None)
    if arguments is None and is_marked:
        arguments = {}
    if name not in offered or not isinstance(arguments, dict | str):
        return None
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def code_calls(text: str, offered: Offered) -> Iterator[PrintedCall]:
    """Calls written as Python: `[get_time(zone="UTC")]`, `get_time.call(zone="UTC")`, one on each line."""
    if len(text) > LONGEST_PYTHON:
        return
    try:
        for line in ast.parse(text).body:
            tree = line.value if isinstance(line, ast.Expr) else None
            for node in tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]:
                function = node.func if isinstance(node, ast.Call) and not node.args else None
                if isinstance(function, ast.Attribute) and function.attr == "call":
                    function = function.value
                if isinstance(node, ast.Call) and isinstance(function, ast.Name) and function.id in offered:
                    found = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                    yield function.id, json.dumps(found, ensure_ascii=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, SystemError):
        return


def typed(value: str, key: str, schema: Mapping[str, Any]) -> Any:
    """The value of an element: a string where the schema says so, else what it is in JSON."""
    properties = schema.get("properties")
    wanted = properties.get(key) if isinstance(properties, Mapping) else None
    if isinstance(wanted, Mapping) and wanted.get("type") == "string":
        return value
    values, end = json_values(value.strip()) if value.strip()[:1] in {"{", "["} else ([], 0)
    if values:
        return values[0]
    try:
        return json.loads(value)
    except ValueError:
        return value
