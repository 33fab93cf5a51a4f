"""`calculator`：自己走语法树，从不 `eval`。数字、层数、乘方都有上限，什么输入都立刻有结果。"""

import ast
import decimal
import operator
import re
from decimal import Decimal
from typing import Any, Final

from day5_tools.base import Tool, ToolError
from day5_tools.function import tool

MAX_LENGTH: Final = 200
CONTEXT: Final = decimal.Context(prec=40, Emax=10_000, Emin=-10_000)
SHOWN: Final = decimal.Context(prec=30)  # 算的时候多十位，1/3*3 才又是 1
NUMBER: Final = re.compile(r"[\d_.]+(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
OPERATIONS: Final[dict[type[ast.AST], Any]] = {  # 认识的运算，多一样都没有
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Mod: operator.mod, ast.Pow: operator.pow, ast.UAdd: operator.pos, ast.USub: operator.neg},
}


def calculate(expression: str) -> Decimal:
    """算式的值；不是算式、太大、没有值，都是 `ToolError`。"""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"More than {MAX_LENGTH} characters are not calculated at once.")
    source = " ".join(expression.split()).replace("^", "**").replace("×", "*").replace("÷", "/")
    try:
        with decimal.localcontext(CONTEXT):
            return _value(ast.parse(source, mode="eval").body, source) + 0  # 没有 -0
    except SyntaxError as error:
        raise ToolError("This is no complete expression.") from error
    except (decimal.DecimalException, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("This is too large, or has no value, such as a division by zero.") from error


def _value(node: ast.expr, source: str) -> Decimal:
    match node:
        case ast.Constant() if NUMBER.fullmatch(text := source[node.col_offset : node.end_col_offset]):
            # 取原文，不取 Python 读出来的数：0.1 在那里已经不是 0.1 了。
            return CONTEXT.plus(Decimal(text))
        case ast.UnaryOp() if type(node.op) in OPERATIONS:
            return Decimal(OPERATIONS[type(node.op)](_value(node.operand, source)))
        case ast.BinOp() if type(node.op) in OPERATIONS:
            value = OPERATIONS[type(node.op)](_value(node.left, source), _value(node.right, source))
            return Decimal(value) if value.is_finite() else CONTEXT.divide(1, 0)  # 0^-1 也是除以零
    raise ToolError("Only decimal numbers, + - * / % ^ and brackets are understood.")


def calculator_tool() -> Tool:
    """没有状态的工具。"""

    @tool(name="calculator", risk="read")
    async def calculator(expression: str) -> str:
        """Calculate an expression in decimal, to 30 digits.

        Args:
            expression: Decimal numbers, + - * / ^, % for the remainder, brackets, such as (3 + 4) * 1.19.
        """
        value = calculate(expression).normalize(SHOWN)
        return f"{value:f}" if abs(value.adjusted()) <= SHOWN.prec else f"{value:E}"

    return calculator
