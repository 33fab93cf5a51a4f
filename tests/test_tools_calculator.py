"""The `calculator` tool: exact, and never more than a moment of work."""

from __future__ import annotations

import ast
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import ToolError
from miniclaw.tools import ToolRegistry
from miniclaw.tools.builtins import calculator_tool
from miniclaw.tools.builtins.arithmetic import CONSTANTS, FUNCTIONS, written
from miniclaw.tools.builtins.calculator_tool import MAX_LENGTH, calculate
from tests.support.source import tree_of

registry = ToolRegistry([calculator_tool()])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37*43", "1591"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.3333333333333333333333333333"),
        ("6/3", "2"),
        ("2 + 3 * 4 - -1", "15"),
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("2^64=", "18446744073709551616"),
        ("2**-2", "0.25"),
        ("2**0.5", "1.414213562373095048801688724"),
        ("1e3 + .5", "1000.5"),
        ("1_000", "1000"),
        ("1e40", "1E+40"),
        ("2.50", "2.5"),
        ("0.0", "0"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7.5 // 2", "-4"),
        ("-7.5 % 2", "0.5"),
        ("7 % -2", "-1"),
        ("5 % 0.3", "0.2"),
        ("1.0000001**1000000000", "2.688103701264923810505600301E+43"),
        # Comparisons
        ("1 < 2 <= 2", "true"),
        ("0.1 + 0.2 == 0.3", "true"),
        ("1 ≥ 2", "false"),
        ("1 ≠ 2", "true"),
        ("(3 > 2) + 1", "2"),
        # As people write it
        ("（3＋4）×2÷−7", "-2"),
        ("１２ · 2", "24"),
        ("10²+2³", "108"),
        ("π > 3", "true"),
        (" (1\n+\t0.5) ", "1.5"),
        # Functions
        ("sqrt(144)", "12"),
        ("sqrt(2)^2", "2"),
        ("ln(e)", "1"),
        ("exp(1)", "2.718281828459045235360287471"),
        ("log(8, 2) + log2(8) + log10(1000)", "9"),
        ("sin(pi)", "0"),
        ("sin(pi/6)", "0.5"),
        ("cos(0)", "1"),
        ("atan2(1, 1)", "0.785398163397448"),
        ("hypot(3, 4)", "5"),
        ("degrees(pi)", "180"),
        ("radians(180)", "3.141592653589793238462643383"),
        ("round(2.5)", "3"),
        ("round(10/3, 2)", "3.33"),
        ("round(1234, -2)", "1200"),
        ("floor(-7.5) + ceil(7.1)", "0"),
        ("min(3, 1.5, 2) + max(1, 2)", "3.5"),
        ("abs(-3)", "3"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(52, 5)", "2598960"),
        ("gcd(12, 18) + lcm(2, 3)", "12"),
        ("gcd(12.0, 18)", "6"),
        ("+".join("1" * 240), "240"),
    ],
)
async def test_an_expression_has_its_exact_value(expression: str, value: str) -> None:
    result = await registry.execute("calculator", {"expression": expression})
    assert (result.content, result.data) == (value, {"value": value})


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9**9**9", "beyond 4,000 digits"),
        ("10**4001", "beyond 4,000 digits"),
        ("(10**2000)*(10**2001)", "beyond 4,000 digits"),
        ("9" * 490 + "**9", "beyond 4,000 digits"),
        ("1e999999999", "beyond 4,000 digits"),
        ("1e4000*10.5", "beyond 4,000 digits"),
        ("exp(1e300)", "beyond 4,000 digits"),
        ("sinh(1e10)", "beyond 4,000 digits"),
        ("sin(1e400)", "not defined"),
        ("atan(1e400)", "beyond 4,000 digits"),
        ("factorial(1e9)", "beyond 4,000 digits"),
        ("comb(1e9, 5e8)", "beyond 4,000 digits"),
        ("1/0", "Division by zero"),
        ("1<<2", "Only numbers, operators"),
        ("1+2>>3*2", "Only numbers, operators"),
        ("1 // 0.0", "Division by zero"),
        ("0**-1", "not finite"),
        ("ln(0)", "not finite"),
        ("log(8, 0)", "no logarithm to the base 0"),
        ("log(8, 0.0)", "no logarithm to the base 0"),
        ("sqrt(-1)", "not defined"),
        ("asin(2)", "not defined"),
        ("(-8)**0.5", "not defined"),
        ("factorial(-1)", "not defined"),
        ("factorial(1.5)", "1.5 should be a whole number"),
        ("round(1, 99)", "at most 50 places"),
        ("sqrt()", "`sqrt` takes 1 argument(s), not 0"),
        ("log(1, 2, 3)", "`log` takes 1 to 2 argument(s), not 3"),
        ("", "no complete expression"),
        ("(1", "no complete expression"),
        ("1 2", "no complete expression"),
        ("()" * 200, "Only numbers"),
        ("(" * 240 + "1" + ")" * 240, "no complete expression"),
        ("-" * 400 + "1", "nested too deeply"),
        ("1**" * 120 + "1", "nested too deeply"),
        ("1," * 10, "Write thousands without commas"),
        ("sin", "Only numbers"),
        ("2(3)", "Only numbers"),
        ("1" * (MAX_LENGTH + 1), "longer than 500 characters"),
        # Not Python
        ("__import__('os').system('true')", "`__import__` is not known here"),
        ("(1).real", "`.real` does not belong"),
        ("'a'*3", "`'a'*3` does not belong"),
        ("[1 for x in 1]", "does not belong"),
        ("lambda: 1", "`lambda` is not known"),
        ("1if 1else 2", "`1if 1else 2` does not belong"),
        ("0x10", "`0x10` does not belong"),
        ("2j", "`2j` does not belong"),
        ("sqrt(x=1)", "`x` is not known"),
        ("1 and 2", "`and` is not known"),
        ("1\x00", "does not belong"),
        ("ａ＝１", "`a` is not known"),
    ],
)
async def test_what_has_no_value_is_refused_with_its_reason(expression: str, reason: str) -> None:
    result = await registry.execute("calculator", {"expression": expression})
    assert not result.ok
    assert reason in result.content


def test_python_never_evaluates_the_expression() -> None:
    for name in ("calculator_tool", "arithmetic"):
        module = sys.modules[f"miniclaw.tools.builtins.{name}"]
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            names = {node.id for node in ast.walk(tree_of(file.read())) if isinstance(node, ast.Name)}
        assert not names & {"eval", "exec", "compile"}


pieces = st.one_of(
    st.sampled_from([*FUNCTIONS, *CONSTANTS]),
    st.sampled_from("+ - * / // % ** ^ ( ) , < <= == != × ÷ ² e = 9**9 1e999 -1 0.5 1e-300 10**3000".split()),
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
)


@given(st.lists(pieces, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_has_a_value_or_is_refused(expression: str) -> None:
    try:
        text = written(calculate(expression))
    except ToolError:
        return
    assert text in ("true", "false") or Decimal(text).is_finite()


numbers = st.integers(-(10**20), 10**20).map(str) | st.decimals(-1000, 1000, places=3).map(str)


@given(
    st.recursive(
        numbers,
        lambda inner: (
            st.tuples(st.sampled_from(list(FUNCTIONS)), st.lists(inner, min_size=1, max_size=2)).map(
                lambda call: f"{call[0]}({', '.join(call[1])})"
            )
            | st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<"]), inner).map(
                lambda three: f"({three[0]} {three[1]} {three[2]})"
            )
        ),
        max_leaves=12,
    )
)
def test_any_sound_expression_has_a_value_or_is_refused(expression: str) -> None:
    try:
        text = written(calculate(expression))
    except ToolError:
        return
    assert text in ("true", "false") or Decimal(text).is_finite()


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_whole_numbers_are_calculated_as_by_python(a: int, b: int) -> None:
    assert calculate(f"({a}) * ({b}) - ({b}) + ({a})") == a * b - b + a
    if b:
        assert calculate(f"({a}) // ({b})") == a // b
        assert calculate(f"({a}) % ({b})") == a % b


@given(st.integers(2, 100), st.integers(1, 60))
def test_the_logarithm_of_a_power_is_its_exponent(base: int, exponent: int) -> None:
    assert calculate(f"log({base}^{exponent}, {base})") == exponent


fractions = st.decimals(-(10**6), 10**6, places=4)


@given(fractions, fractions.filter(bool))
def test_quotient_and_remainder_of_fractions_fit_together(a: Decimal, b: Decimal) -> None:
    assert calculate(f"(({a}) // ({b})) * ({b}) + ({a}) % ({b}) == ({a})") is True
    assert calculate(f"0 <= (({a}) % ({b})) / ({b}) < 1") is True


@given(fractions, fractions)
def test_sums_of_decimal_fractions_are_exact(a: Decimal, b: Decimal) -> None:
    assert calculate(f"({a}) + ({b})") == a + b
