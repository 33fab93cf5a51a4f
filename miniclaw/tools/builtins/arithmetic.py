"""The numbers of the calculator: whole ones exact, others to 28 digits, all of a limited size."""

from __future__ import annotations

import ast
import decimal
import math
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from miniclaw.errors import ToolError

__all__ = [
    "COMPARISONS",
    "CONSTANTS",
    "CONTEXT",
    "FUNCTIONS",
    "MAX_DIGITS",
    "OPERATIONS",
    "Number",
    "checked",
    "literal",
    "too_large",
    "written",
]

Number = int | Decimal

MAX_DIGITS: Final = 4_000
"""Digits of the largest whole number, and the largest power of ten of any number."""

_MAX_BITS: Final = int(MAX_DIGITS / math.log10(2))
_MAX_FACTORIAL: Final = 1_400
_MANY: Final = 1_000
_MAX_ROUNDING: Final = 50
_PRECISION: Final = 28
_GUARD: Final = 6
"""Digits that are carried but not shown, so that `ln(e)` and `sqrt(2)^2` come out whole."""

_PLAIN_DIGITS: Final = 30
"""Numbers whose power of ten is within this are written without an exponent."""

_TRAPS: Final = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
CONTEXT: Final = decimal.Context(
    prec=_PRECISION + _GUARD,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=-MAX_DIGITS,
    Emax=MAX_DIGITS,
    traps=_TRAPS,
)
_SHOWN: Final = decimal.Context(prec=_PRECISION, Emin=-MAX_DIGITS, Emax=MAX_DIGITS, traps=_TRAPS)
_EXACT: Final = decimal.Context(prec=3 * MAX_DIGITS, Emin=-MAX_DIGITS, Emax=MAX_DIGITS, traps=_TRAPS)
"""Wide enough for the whole part of any quotient."""


def literal(text: str) -> Number:
    """The number that is written so: whole, or a decimal fraction to 28 digits."""
    return int(text) if re.fullmatch(r"[\d_]+", text) else CONTEXT.create_decimal(text)


def checked(value: Number) -> Number:
    """The value, unless it is too large (decimals are limited by their context) or infinite, as `ln(0)` is."""
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise too_large()
    elif not value.is_finite():
        raise ToolError("The result is not finite, as a division by zero is not.")
    return value


def too_large() -> ToolError:
    """What to raise when a number outgrows the limit."""
    return ToolError(f"A number grows beyond {MAX_DIGITS:,} digits. Ask for its logarithm, or a smaller one.")


def written(value: Number | bool) -> str:
    """The value as a person writes it: no trailing zeros, an exponent only where it must be."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value == 0:
        return "0"
    value = value.normalize(_SHOWN)
    return f"{value:f}" if abs(value.adjusted()) <= _PLAIN_DIGITS else f"{value:E}"


def _decimal(value: Number) -> Decimal:
    return CONTEXT.create_decimal(value)


def _integer(value: Number) -> int:
    if isinstance(value, Decimal) and value != value.to_integral_value():
        raise ToolError(f"{written(value)} should be a whole number.")
    return int(value)


def _exact_or_decimal(operation: Callable[[Any, Any], Any]) -> Callable[[Number, Number], Number]:
    def apply(a: Number, b: Number) -> Number:
        whole = isinstance(a, int) and isinstance(b, int)
        result: Number = operation(a, b) if whole else operation(_decimal(a), _decimal(b))
        return result

    return apply


def _divide(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b != 0 and a % b == 0:
        return a // b
    return _decimal(a) / _decimal(b)


def _floor_divide(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return _floor(_EXACT.divide(Decimal(a), Decimal(b)))


def _modulo(a: Number, b: Number) -> Number:
    """The remainder with the sign of the divisor, for fractions as for whole numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    rest = _EXACT.remainder(Decimal(a), Decimal(b))
    return _decimal(rest + b if rest and (rest < 0) != (b < 0) else rest)


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b >= 0:
        if (abs(a).bit_length() - 1) * b > _MAX_BITS:
            raise too_large()
        result: int = a**b
        return result
    return _decimal(a) ** _decimal(b)


def _square_root(x: Number) -> Number:
    if isinstance(x, int) and x >= 0 and math.isqrt(x) ** 2 == x:
        return math.isqrt(x)
    return _decimal(x).sqrt()


def _logarithm(x: Number, base: Number | None = None) -> Number:
    if base is None:
        return _decimal(x).ln()
    if not base:
        raise ToolError("There is no logarithm to the base 0.")
    with decimal.localcontext() as context:
        context.prec += 10  # so that log(8, 2) comes out as 3
        quotient = _decimal(x).ln() / _decimal(base).ln()
    return _decimal(quotient)


def _floor(x: Number) -> int:
    return int(Decimal(x).to_integral_value(decimal.ROUND_FLOOR))


def _round(x: Number, places: Number = 0) -> Number:
    digits = _integer(places)
    if abs(digits) > _MAX_ROUNDING:
        raise ToolError(f"`round` takes at most {_MAX_ROUNDING} places.")
    rounded = Decimal(x).quantize(Decimal((0, (1,), -digits)), decimal.ROUND_HALF_UP, _EXACT)
    return int(rounded) if digits <= 0 else rounded


def _factorial(x: Number) -> int:
    n = _integer(x)
    if n > _MAX_FACTORIAL:
        raise too_large()
    return math.factorial(n)


def _combinations(n: Number, k: Number) -> int:
    whole, part = _integer(n), _integer(k)
    if min(part, whole - part) * whole.bit_length() > _MAX_BITS:
        raise too_large()
    return math.comb(whole, part)


def _from_float(function: Callable[..., float]) -> Callable[..., Number]:
    def apply(*arguments: Number) -> Number:
        values = [float(argument) for argument in arguments]
        result = function(*values)
        if not math.isfinite(result) or not all(map(math.isfinite, values)):
            raise too_large()
        if abs(result) < 1e-15 < abs(values[0]):
            return 0  # sin(pi), but for the error of a float
        return Decimal(f"{result:.15g}")

    return apply


CONSTANTS: Final[dict[str, Number]] = {
    "pi": Decimal("3.14159265358979323846264338327950288419717"),
    "tau": Decimal("6.28318530717958647692528676655900576839434"),
    "e": Decimal("2.71828182845904523536028747135266249775725"),
}
OPERATIONS: Final[dict[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: _exact_or_decimal(operator.add),
    ast.Sub: _exact_or_decimal(operator.sub),
    ast.Mult: _exact_or_decimal(operator.mul),
    ast.Div: _divide,
    ast.FloorDiv: _floor_divide,
    ast.Mod: _modulo,
    ast.Pow: _power,
}
COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FLOAT_FUNCTIONS = "sin cos tan asin acos atan sinh cosh tanh".split()
FUNCTIONS: Final[dict[str, tuple[Callable[..., Number], int, int]]] = {
    "sqrt": (_square_root, 1, 1),
    "exp": (lambda x: _decimal(x).exp(), 1, 1),
    "ln": (_logarithm, 1, 1),
    "log": (_logarithm, 1, 2),
    "log2": (lambda x: _logarithm(x, 2), 1, 1),
    "log10": (lambda x: _decimal(x).log10(), 1, 1),
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "floor": (_floor, 1, 1),
    "ceil": (lambda x: -_floor(-x), 1, 1),
    "min": (min, 2, _MANY),
    "max": (max, 2, _MANY),
    "degrees": (lambda x: _decimal(x) * 180 / CONSTANTS["pi"], 1, 1),
    "radians": (lambda x: _decimal(x) * CONSTANTS["pi"] / 180, 1, 1),
    "factorial": (_factorial, 1, 1),
    "comb": (_combinations, 2, 2),
    "gcd": (lambda a, b: math.gcd(_integer(a), _integer(b)), 2, 2),
    "lcm": (lambda a, b: math.lcm(_integer(a), _integer(b)), 2, 2),
    **{name: (_from_float(getattr(math, name)), 1, 1) for name in _FLOAT_FUNCTIONS},
    "atan2": (_from_float(math.atan2), 2, 2),
    "hypot": (_from_float(math.hypot), 2, 2),
}
