"""随课程来的工具：钟、算盘、网址、订单。"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from day4_agent import ToolResult
from day5_tools import ToolRegistry, calculator_tool, datetime_tool, get_order_status, http_request_tool
from day5_tools.builtins.http_request_tool import is_public

NOON = 1_767_240_000.0  # 2026-01-01 04:00 UTC


async def run(tool: Any, **arguments: Any) -> ToolResult:
    return await ToolRegistry([tool]).execute(tool.name, arguments)


async def test_the_clock_is_told_in_the_zone_that_was_asked_for() -> None:
    clock = datetime_tool(clock=lambda: NOON)
    assert (await run(clock)).content == "2026-01-01 04:00:00, Thursday (time zone UTC)"
    there = await run(clock, timezone="Asia/Shanghai")
    assert "12:00:00" in there.content and there.data == {"iso": "2026-01-01T12:00:00+08:00"}
    for wrong in ("Mars/Base", "America", "../etc"):
        assert "no time zone" in (await run(clock, timezone=wrong)).content


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37*43", "1591"),
        ("0.1 + 0.2", "0.3"),
        ("-(3 + 4) × 1.19", "-8.33"),
        ("2^10 % 1000", "24"),
        ("+8 ÷ 4", "2"),
        ("1 / 3 * 3", "1"),
        ("1e3 +\n1_000", "2000"),
        ("10^40", "1E+40"),
        ("0 * -1", "0"),
        ("-0", "0"),
    ],
)
async def test_sums_are_exact(expression: str, value: str) -> None:
    assert (await run(calculator_tool(), expression=expression)).content == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("__import__('os')", "Only decimal numbers"),
        ("x + 1", "Only decimal numbers"),
        ("1 if 1 else 2", "Only decimal numbers"),
        ("True + 1", "Only decimal numbers"),
        ("7 // 2", "Only decimal numbers"),
        ("1 +", "no complete"),
        ("1 / 0", "too large, or has no value"),
        ("9^9^9^9", "too large"),
        ("0^-1", "has no value"),
        ("1 / 0^-1", "has no value"),
        ("0xff", "Only decimal numbers"),
        ("1j", "Only decimal numbers"),
        ("1e10001", "too large"),
        ("1" * 201, "More than 200"),
        ("(" * 100 + "1" + ")" * 100, None),
    ],
)
async def test_what_is_no_sum_is_refused_at_once(expression: str, reason: str | None) -> None:
    result = await run(calculator_tool(), expression=expression)
    assert reason is None or (not result.ok and reason in result.content)


async def test_an_order_is_found_however_the_customer_writes_its_number() -> None:
    for number in ("4471", " #4471 ", "＃4471"):
        assert (await run(get_order_status, order_id=number)).content == (
            "订单 4471：已发货，顺丰速运，2 天后送达。"
        )
    assert "no order `9`" in (await run(get_order_status, order_id="9")).content


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700:4700::1111"])
def test_a_public_address_may_be_reached(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    "127.0.0.1 10.0.0.1 169.254.169.254 192.168.1.1 0.0.0.0 100.64.0.1 224.0.0.1 168.63.129.16 ::1 fe80::1"
    " fd00::1 ::ffff:127.0.0.1 2002:7f00:1:: 2001:0:7f00:1:: 64:ff9b::7f00:1 64:ff9b:1::1 ::7f00:1 ::8.8.8.8"
    " fec0::1 4000::1 3fff::1 192.0.0.192 192.88.99.1 240.0.0.1".split(),
)
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.fixture
async def site() -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        match request.path:
            case "/big":
                return web.Response(body=b"x" * 300_000)
            case "/moved":
                return web.Response(status=302, headers={"Location": "http://169.254.169.254/"})
            case "/gone":
                return web.Response(status=404, text="没有")
        return web.Response(text=f"你好，{request.host}")

    app = web.Application()
    app.router.add_get("/{name:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_page_is_read_over_the_address_that_was_checked(site: str) -> None:
    asked: list[str] = []

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    port = site.partition(":")[2]
    tool = http_request_tool(resolver=resolver, is_allowed=lambda address: True)
    result = await run(tool, url=f"http://shop.example:{port}/")
    assert result.content == f"HTTP 200\n\n你好，shop.example:{port}"
    assert asked == ["shop.example"]


async def test_the_own_site_is_allowed_by_name_and_port_only(site: str) -> None:
    assert (await run(http_request_tool(allow=frozenset({site})), url=f"http://{site}/")).ok
    for other in (f"http://{site}/", "http://localhost:1/", "http://[::1]/", "http://2130706433/"):
        assert "private address" in (await run(http_request_tool(), url=other)).content


async def test_a_redirect_is_told_and_not_followed(site: str) -> None:
    result = await run(http_request_tool(allow=frozenset({site})), url=f"http://{site}/moved")
    assert "has moved to http://169.254.169.254/" in result.content


async def test_a_failure_and_a_flood_are_both_answers(site: str) -> None:
    tool = http_request_tool(allow=frozenset({site}))
    gone = await run(tool, url=f"http://{site}/gone")
    assert (gone.ok, gone.error) == (False, "HTTP 404.") and "没有" in gone.content
    assert (
        len(
            (
                await ToolRegistry([tool], result_chars=10**6).execute(
                    "http_request", {"url": f"http://{site}/big"}
                )
            ).content
        )
        < 200_100
    )


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "http://a:b@shop.example/", "http://["])
async def test_what_is_no_plain_web_address_is_refused(url: str) -> None:
    assert not (await run(http_request_tool(), url=url)).ok


async def test_a_host_that_is_not_there_is_told() -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    async def dead(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    assert "not found" in (await run(http_request_tool(resolver=nowhere), url="http://x.example/")).content
    tool = http_request_tool(resolver=dead, is_allowed=lambda address: True)
    assert "did not answer" in (await run(tool, url="http://x.example:9/")).content
