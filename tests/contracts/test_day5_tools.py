"""Day 5 and the tools: what a signature says, what is refused and how, what a tool may reach."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from aiohttp import web

import day5_tools
import miniclaw.errors
from day5_tools.builtins import http_request_tool as chapter_http
from miniclaw.tools.arguments import check_arguments
from miniclaw.tools.base import Tool
from miniclaw.tools.builtins import addresses
from miniclaw.tools.builtins.calculator_tool import calculator_tool
from miniclaw.tools.builtins.datetime_tool import datetime_tool
from miniclaw.tools.builtins.http_request_tool import http_request_tool
from miniclaw.tools.builtins.order_status_tool import get_order_status
from miniclaw.tools.function import tool
from miniclaw.tools.registry import ToolRegistry
from miniclaw.tools.wrappers import ApprovalTools, FilteredTools
from tests.contracts.support import both

chapter: Any = SimpleNamespace(
    **{name: getattr(day5_tools, name) for name in day5_tools.__all__}, is_public=chapter_http.is_public
)
core: Any = SimpleNamespace(
    ApprovalTools=ApprovalTools,
    ConfigError=miniclaw.errors.ConfigError,
    FilteredTools=FilteredTools,
    Tool=Tool,
    ToolError=miniclaw.errors.ToolError,
    ToolRegistry=ToolRegistry,
    calculator_tool=calculator_tool,
    check_arguments=check_arguments,
    datetime_tool=datetime_tool,
    get_order_status=get_order_status,
    http_request_tool=http_request_tool,
    is_public=addresses.is_public,
    tool=tool,
)
sides = both(chapter, core)
NOON = 1_767_240_000.0
"""2026-01-01 04:00 UTC"""


async def call(side: Any, tool: Any, **arguments: Any) -> Any:
    async with asyncio.timeout(10):
        return await side.ToolRegistry([tool]).execute(tool.name, arguments)


def find_parcel(side: Any) -> Any:
    async def find_parcel(order_id: str, carrier: Literal["sf", "jd"] = "sf", days: int = 7) -> Any:
        """Find a parcel
        by its order.

        More, for people.

        Args:
            order_id: The order's number.
        """
        return {"order": order_id, "carrier": carrier, "days": days}

    return side.tool(risk="read")(find_parcel)


@sides
async def test_a_typed_function_is_a_tool_with_a_schema(side: Any) -> None:
    made = find_parcel(side)
    assert (made.name, made.description, made.risk) == (
        "find_parcel",
        "Find a parcel by its order.",
        "read",
    )
    assert made.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "The order's number."},
            "carrier": {"type": "string", "enum": ["sf", "jd"], "default": "sf"},
            "days": {"type": "integer", "default": 7},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }
    (row,) = side.ToolRegistry([made]).get_openai_tools()
    assert row["type"] == "function" and row["function"]["parameters"] == made.parameters


@sides
async def test_arguments_are_converted_or_refused_by_name(side: Any) -> None:
    made = find_parcel(side)
    assert (await call(side, made, order_id="4471", days="3")).data["days"] == 3
    for wrong, named in (({}, "order_id"), ({"order_id": "1", "carrier": "x"}, "carrier"), ({"id": 1}, "id")):
        result = await call(side, made, **wrong)
        assert not result.ok and f"`{named}`" in result.content and "Call it again" in result.content


@sides
async def test_a_schema_by_hand_is_held_to_as_well(side: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    registry = side.ToolRegistry()
    registry.register("double", "twice", schema, lambda n: 2 * n, risk="read")
    assert (await registry.execute("double", {"n": 21})).data == 42
    assert side.check_arguments(schema, {"n": 1}) == {"n": 1}
    for wrong, reason in (
        ({}, "is required"),
        ({"n": "1"}, "of type integer"),
        ({"n": 1, "z": 1}, "no.* a param"),
    ):
        with pytest.raises(side.ToolError, match=reason):
            side.check_arguments(schema, wrong)
    many: Any = {"properties": {"note": {"type": ["string", "null"]}, "n": {"type": "integer"}}}
    for arguments in ({"note": None}, {"note": "x"}, {"n": 1.0}):
        assert side.check_arguments(many, arguments) == arguments
    with pytest.raises(side.ToolError, match="string or null"):
        side.check_arguments(many, {"note": 1})


@sides
async def test_a_signature_is_taken_whole_or_refused_at_once(side: Any) -> None:
    def odd(_x: str, model_config: int, json: str = "j") -> str:
        return _x

    def unknown(order_id: Nowhere) -> str:  # type: ignore[name-defined] # noqa: F821
        return str(order_id)

    def unreadable(lock: asyncio.Lock) -> str:
        return str(lock)

    def named_self(self: str, cls: str, name: str) -> str:
        return self + cls + name

    assert list(side.tool(odd).parameters["properties"]) == ["_x", "model_config", "json"]
    assert (await call(side, side.tool(named_self), self="a", cls="b", name="c")).content == "abc"
    for function in (unknown, unreadable):
        with pytest.raises(side.ConfigError):
            side.tool(function)


@sides
def test_a_name_stands_for_one_tool(side: Any) -> None:
    made = find_parcel(side)
    with pytest.raises(side.ConfigError, match="Two tools are called `find_parcel`"):
        side.ToolRegistry([made, made])
    with pytest.raises(side.ConfigError):
        side.ToolRegistry([side.tool(name="查 订单")(lambda: "x")])


@sides
async def test_whatever_goes_wrong_inside_is_a_failed_result(
    side: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> str:
        raise RuntimeError("password=123")

    async def refuses() -> str:
        raise side.ToolError("Not today.")

    def leaves() -> str:
        sys.exit("no")

    async def leaves_too() -> str:
        sys.exit("no")

    async def cancels() -> str:
        raise asyncio.CancelledError

    with caplog.at_level(logging.ERROR):
        result = await call(side, side.tool(broken))
    assert not result.ok and "RuntimeError" in result.content and "password" not in result.content
    assert "password=123" in caplog.text
    assert (await call(side, side.tool(refuses))).error == "Not today."
    for function, kind in ((leaves, "SystemExit"), (leaves_too, "SystemExit"), (cancels, "CancelledError")):
        result = await call(side, side.tool(function))
        assert not result.ok and f"`{function.__name__}` failed inside ({kind}" in result.content
    assert "There is no tool `x`" in (await side.ToolRegistry([side.tool(broken)]).execute("x", {})).content


@sides
async def test_a_tool_has_its_own_time_limit(side: Any) -> None:
    async def hangs() -> str:
        await asyncio.Event().wait()
        return ""

    assert "within 0.01 s" in (await call(side, side.tool(timeout=0.01)(hangs))).content


@sides
async def test_a_long_result_is_cut_and_says_so(side: Any) -> None:
    async def talks() -> str:
        return "x" * 900

    result = await side.ToolRegistry([side.tool(risk="read")(talks)], result_chars=500).execute("talks", {})
    assert result.content.startswith("x" * 500 + "\n\n[") and "400" in result.content
    assert "left out" in result.content


@sides
async def test_a_filtered_tool_is_as_if_it_were_not_there(side: Any) -> None:
    made = find_parcel(side)
    box = side.FilteredTools(side.ToolRegistry([made]), lambda name: name != "find_parcel")
    assert box.get_openai_tools() == [] and box.find("find_parcel") is None
    assert "no tool `find_parcel`" in (await box.execute("find_parcel", {"order_id": "1"})).content


@sides
async def test_a_write_is_asked_about_and_a_read_is_not(side: Any) -> None:
    async def refund(order_id: str) -> str:
        return f"退了 {order_id}"

    asked: list[str] = []

    async def ask(tool: Any, arguments: Mapping[str, Any], context: Any) -> str | None:
        asked.append(tool.name)
        return None if arguments["order_id"] == "4471" else "the owner said no"

    box = side.ApprovalTools(side.ToolRegistry([find_parcel(side), side.tool(refund)]), ask)
    assert (await box.execute("find_parcel", {"order_id": "4471"})).ok
    assert (await box.execute("refund", {"order_id": "4471"})).content == "退了 4471"
    assert "the owner said no" in (await box.execute("refund", {"order_id": "4472"})).content
    assert asked == ["refund", "refund"]


@sides
async def test_the_clock_tells_any_zone(side: Any) -> None:
    clock = side.datetime_tool(clock=lambda: NOON)
    assert (await call(side, clock, timezone="UTC")).content.startswith("2026-01-01 04:00:00, Thursday")
    assert "12:00:00" in (await call(side, clock, timezone="Asia/Shanghai")).content
    assert "no time zone" in (await call(side, clock, timezone="Mars/Base")).content


@sides
@pytest.mark.parametrize(
    ("expression", "value"),
    [("37*43", "1591"), ("0.1+0.2", "0.3"), ("-(3 + 4) × 2", "-14"), ("2^10 % 1000", "24")],
)
async def test_sums_are_exact(side: Any, expression: str, value: str) -> None:
    assert (await call(side, side.calculator_tool(), expression=expression)).content == value


@sides
@pytest.mark.parametrize(
    "expression", ["__import__('os')", "x+1", "1+", "1/0", "9^9^9^9", "1" * 600, "'a'*9"]
)
async def test_what_is_no_sum_is_refused_at_once(side: Any, expression: str) -> None:
    assert not (await call(side, side.calculator_tool(), expression=expression)).ok


@pytest.fixture
async def site() -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        status = 404 if request.path == "/gone" else 200
        kind = "text/plain; charset=base64" if request.path == "/odd" else "text/plain; charset=utf-8"
        return web.Response(
            body=f"hello {request.host}".encode(), headers={"Content-Type": kind}, status=status
        )

    app = web.Application()
    app.router.add_get("/{name:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@sides
async def test_a_page_is_read_and_an_inside_address_is_not(side: Any, site: str) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    named = f"shop.example:{site.partition(':')[2]}"
    reached = await call(
        side,
        side.http_request_tool(resolver=resolver, is_allowed=lambda address: True),
        url=f"http://{named}/",
    )
    assert reached.ok and f"hello {named}" in reached.content
    allowed = side.http_request_tool(allow=frozenset({site}))
    assert (await call(side, allowed, url=f"http://{site}/")).ok
    assert "hello" in (await call(side, allowed, url=f"http://{site}/odd")).content
    assert not (await call(side, allowed, url=f"http://{site}/gone")).ok
    for url in (f"http://{site}/", "http://2130706433/", "http://[::1]/"):
        assert "private" in (await call(side, side.http_request_tool(), url=url)).content


@sides
@pytest.mark.parametrize(
    ("address", "public"),
    [("93.184.216.34", True), ("2606:4700:4700::1111", True)]
    + [
        (one, False)
        for one in (
            "10.0.0.1 169.254.169.254 100.64.0.1 192.88.99.1 168.63.129.16 ::1 ::7f00:1 ::ffff:127.0.0.1"
            " 64:ff9b::7f00:1 64:ff9b:1::1 2001:0:7f00:1:: 2002:7f00:1:: 3fff::1 4000::1"
        ).split()
    ],
)
def test_public_addresses_are_told_from_others(side: Any, address: str, public: bool) -> None:
    assert side.is_public(address) is public


@sides
async def test_an_order_is_looked_up(side: Any) -> None:
    found = await call(side, side.get_order_status, order_id=" #4471 ")
    assert found.content == "订单 4471：已发货，顺丰速运，2 天后送达。"
    assert "no order `9`" in (await call(side, side.get_order_status, order_id="9")).content
