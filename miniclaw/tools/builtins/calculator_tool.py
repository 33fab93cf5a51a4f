"""The `calculator` tool: exact arithmetic by a walk over the expression's syntax tree.

Python evaluates nothing here. A lexical gate lets only numbers, known names and operators through, the walk
knows a fixed table of operations, and lengths, digits and exponents are limited, so any input is answered or
refused at once. Numbers are `int` and `Decimal`; `float` serves trigonometry only.
"""

from __future__ import annotations

import ast
import decimal
import re
from typing import Annotated, Final

from pydantic import Field

from miniclaw.errors import ToolError
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.builtins.arithmetic import (
    COMPARISONS,
    CONSTANTS,
    CONTEXT,
    FUNCTIONS,
    OPERATIONS,
    Number,
    checked,
    literal,
    too_large,
    written,
)
from miniclaw.tools.function import tool

__all__ = ["calculate", "calculator_tool"]

MAX_LENGTH: Final = 500
MAX_DEPTH: Final = 60
_LANGUAGE: Final = (
    "numbers, + - * / // % ^ ( ) < <= == and the like, pi, e, and functions: "
    + ", ".join(FUNCTIONS)
    + "; angles in radians, log(x, base), round(x, places). For example `round((3 + 4) * 1.19, 2)`"
)
_SIGNS: Final = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # the full-width forms of ASCII
    | {"×": "*", "·": "*", "∙": "*", "⋅": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "\u3000": " "}
    | {"^": "**", "＾": "**", "²": "**2", "³": "**3", "≤": "<=", "≥": ">=", "≠": "!=", "π": "pi"}
)
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>[<>=!]=|\*\*|//|[-+*/%(),<>]))\s*",
    re.ASCII,
)


def _parse(source: str) -> ast.Expression:
    try:
        return ast.parse(source, mode="eval")
    except SystemError:
        # Before 3.11.8 a collection of garbage in the middle may make it fail; python/cpython#106905.
        return ast.parse(source, mode="eval")


def calculate(expression: str) -> Number | bool:
    """The value of an expression.

    Raises:
        ToolError: it is no expression, is too large, or has no value; the text says which.
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"The expression is longer than {MAX_LENGTH} characters. Calculate it in parts.")
    source = " ".join(expression.translate(_SIGNS).split()).removesuffix("=").rstrip()
    _check_tokens(source)
    try:
        tree = _parse(source)
        with decimal.localcontext(CONTEXT):
            return _value(tree.body, source, 0)
    except SyntaxError as error:
        raise ToolError(f"This is no complete expression ({error.msg}).") from error
    except (decimal.Overflow, OverflowError) as error:
        raise too_large() from error
    except ZeroDivisionError as error:  # decimal.DivisionByZero is one too
        raise ToolError("Division by zero.") from error
    except (decimal.InvalidOperation, ValueError) as error:
        raise ToolError("A function or power is not defined for its numbers.") from error
    except (RecursionError, MemoryError) as error:
        raise _too_deep() from error


def calculator_tool() -> Tool:
    """The tool; stateless."""

    @tool(name="calculator", risk="read", idempotent=True)
    async def calculator(expression: Annotated[str, Field(description=_LANGUAGE)]) -> ToolResult:
        """Calculate an expression exactly, or compare numbers."""
        text = written(calculate(expression))
        return ToolResult(content=text, data={"value": text})

    return calculator


def _check_tokens(source: str) -> None:
    position = 0
    while position < len(source):
        token = _TOKEN.match(source, position)
        if token is None:
            found = source[position : position + 12].strip()
            raise ToolError(f"`{found}` does not belong in an expression, at character {position + 1}.")
        name = token["name"]
        if name is not None and name not in FUNCTIONS and name not in CONSTANTS:
            known = ", ".join([*FUNCTIONS, *CONSTANTS])
            raise ToolError(f"`{name[:32]}` is not known here. Known are: {known}.")
        position = token.end()


def _value(node: ast.expr, source: str, depth: int) -> Number | bool:
    if depth > MAX_DEPTH:
        raise _too_deep()
    match node:
        case ast.Constant():  # the text, since Python has already made a float of a decimal fraction
            return literal(source[node.col_offset : node.end_col_offset])
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, source, depth + 1)
            return -value if isinstance(sign, ast.USub) else +value
        case ast.BinOp():
            return _chain(node, source, depth)
        case ast.Compare(left=left, ops=signs, comparators=others):
            values = [_value(item, source, depth + 1) for item in (left, *others)]
            pairs = zip(signs, values, values[1:], strict=False)
            return all(COMPARISONS[type(sign)](a, b) for sign, a, b in pairs)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return _apply(name, [_value(argument, source, depth + 1) for argument in arguments])
    raise _not_understood()


def _chain(node: ast.BinOp, source: str, depth: int) -> Number:
    """A run such as `1 + 2 - 3`, whose tree leans to the left, without a step of depth for each sign."""
    rest = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        if type(left.op) not in OPERATIONS:
            raise _not_understood()
        rest.append(left)
        left = left.left
    value: Number = _value(left, source, depth + 1)
    for step in reversed(rest):
        value = checked(OPERATIONS[type(step.op)](value, _value(step.right, source, depth + 1)))
    return value


def _apply(name: str, arguments: list[Number]) -> Number:
    function, least, most = FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        count = f"{least}" if least == most else f"{least} to {most}"
        raise ToolError(f"`{name}` takes {count} argument(s), not {len(arguments)}.")
    return checked(function(*arguments))


def _not_understood() -> ToolError:
    return ToolError(
        "Only numbers, operators, comparisons and calls of known functions are understood. Write thousands"
        " without commas."
    )


def _too_deep() -> ToolError:
    return ToolError("The expression is nested too deeply. Calculate it in parts.")
