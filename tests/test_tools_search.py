"""`web_search` over fakes of Tavily and SearXNG on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from miniclaw.config import load_settings
from miniclaw.settings import ToolSettings
from miniclaw.tools import ToolRegistry, ToolResult
from miniclaw.tools.builtins import builtin_tools, web_search_tool
from miniclaw.tools.builtins.web_search_tool import SearchBackend, SearXNG, Tavily, choose_backend

KEY = "tvly-0123456789"
PAGE = {"title": "A  page", "url": "https://example.com/a", "content": "What\nit says", "score": 0.9}


class FakeSearch:
    """Takes searches in the way of Tavily (POST) and of SearXNG (GET)."""

    def __init__(self, answer: Any = None, status: int = 200, location: str = "") -> None:
        self.answer = {"results": [PAGE]} if answer is None else answer
        self.status = status
        self.location = location
        self.requests: list[dict[str, Any]] = []

    async def tavily(self, request: web.Request) -> web.StreamResponse:
        self.requests.append({"auth": request.headers.get("Authorization"), **await request.json()})
        return self._reply()

    async def searxng(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        return self._reply()

    def _reply(self) -> web.Response:
        headers = {"Location": self.location} if self.location else {}
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        return web.Response(status=self.status, body=body, headers=headers)


@asynccontextmanager
async def serving(fake: FakeSearch) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/search", fake.tavily)
    app.router.add_get("/search", fake.searxng)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def find(backend: SearchBackend, name: str = "web_search", **arguments: Any) -> ToolResult:
    registry = ToolRegistry([web_search_tool(backend)])
    return await registry.execute(name, {"query": "miniclaw 天气", **arguments})


Make = Callable[[str], SearchBackend]
BACKENDS: list[tuple[str, Make]] = [
    ("Tavily", lambda url: Tavily(SecretStr(KEY), url)),
    ("SearXNG", lambda url: SearXNG(f"{url}/")),
]
both = pytest.mark.parametrize(("service", "make"), BACKENDS)


@both
async def test_both_services_give_the_same_form(service: str, make: Make) -> None:
    fake = FakeSearch()
    async with serving(fake) as url:
        result = await find(make(url), "webSearch", limit=3)
    assert result.content == "1. A page\n   https://example.com/a\n   What it says"
    assert result.data == [{"title": "A page", "url": "https://example.com/a", "text": "What it says"}]
    (request,) = fake.requests
    if service == "Tavily":
        assert request == {"auth": f"Bearer {KEY}", "query": "miniclaw 天气", "max_results": 3}
    else:
        assert request == {"q": "miniclaw 天气", "format": "json"}


@both
async def test_at_most_as_many_pages_as_asked_for_and_web_pages_only(service: str, make: Make) -> None:
    pages = [
        {**PAGE, "url": url}
        for url in ("javascript:x", "file:///etc/passwd", "http://a", "http://b", "http://c")
    ]
    async with serving(FakeSearch({"results": ["odd", *pages]})) as url:
        result = await find(make(url), limit=2)
    assert [hit["url"] for hit in result.data] == ["http://a", "http://b"]


@both
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"<html>", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        ([], "Nothing was found"),
        ({"results": {"a": 1}}, "Nothing was found"),
        ({"results": [{"title": None, "url": None}]}, "Nothing was found"),
        (b'{"results": "' + b"x" * 3_000_000 + b'"}', "too long"),
    ],
)
async def test_an_odd_answer_is_told(service: str, make: Make, answer: Any, reason: str) -> None:
    async with serving(FakeSearch(answer)) as url:
        assert reason in (await find(make(url))).content


@both
async def test_a_huge_hit_is_cut_and_unreadable_text_replaced(service: str, make: Make) -> None:
    page = {"title": "t" * 5_000, "url": "http://a", "content": "\ud83d " + "x" * 50_000}
    async with serving(FakeSearch({"results": [page]})) as url:
        result = await find(make(url))
    assert len(result.content) < 1_500
    assert result.data[0]["text"].startswith("\ufffd x")


@pytest.mark.parametrize(
    ("service", "status", "reason"),
    [
        (0, 401, "check TAVILY_API_KEY"),
        (0, 432, "limit of searches is reached"),
        (1, 403, "`json` to `search.formats`"),
        (1, 429, "limit of searches is reached"),
        (1, 500, "HTTP 500"),
    ],
)
async def test_a_refusal_names_the_way_to_mend_it(service: int, status: int, reason: str) -> None:
    name, make = BACKENDS[service]
    async with serving(FakeSearch({"detail": KEY}, status)) as url:
        result = await find(make(url))
    assert f"{name} refused the search" in result.content
    assert reason in result.content
    assert KEY not in result.content


@both
async def test_no_redirect_of_a_service_leads_anywhere_else(service: str, make: Make) -> None:
    """AstrBotDevs/AstrBot#7171: every address that is fetched has to go through a guard."""
    inner = FakeSearch()
    async with serving(inner) as inside, serving(FakeSearch(status=302, location=f"{inside}/search")) as url:
        result = await find(make(url))
    assert inner.requests == []
    assert "HTTP 302" in result.content


@both
async def test_a_service_that_is_not_there_is_told_without_the_key(service: str, make: Make) -> None:
    async with serving(FakeSearch()) as url:
        pass
    result = await find(make(url))
    assert result.content.startswith(f"Error: {service} could not be reached")
    assert KEY not in result.content


async def test_a_search_whose_service_takes_too_long_is_tried_once_more_and_then_given_up() -> None:
    class Slow:
        asked = 0

        async def search(self, query: str, limit: int) -> list[Any]:
            self.asked += 1
            raise TimeoutError

    slow = Slow()
    result = await find(slow)
    assert slow.asked == 2
    assert "failed inside (TimeoutError)" in result.content


async def test_a_key_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(FakeSearch()) as url:
        await find(Tavily(SecretStr(KEY), url))
    assert caplog.text
    assert KEY not in caplog.text


async def test_without_a_key_the_tool_says_what_the_operator_has_to_do() -> None:
    result = await find(choose_backend(None, None, "https://api.tavily.com", ""))
    assert "TAVILY_API_KEY" in result.content
    assert "SEARXNG_URL" in (await find(choose_backend("searxng", None, "", ""))).content
    assert "TAVILY_API_KEY" in (await find(choose_backend("tavily", SecretStr(""), "", "http://x"))).content


def test_tavily_comes_first_unless_only_searxng_is_set_up(tmp_path: Any) -> None:
    key = SecretStr(KEY)
    assert isinstance(choose_backend(None, key, "", "http://x"), Tavily)
    assert isinstance(choose_backend(None, None, "", "http://x"), SearXNG)
    assert isinstance(choose_backend("searxng", key, "", "http://x"), SearXNG)
    env = {
        "SEARCH_BACKEND": "searxng",
        "TAVILY_API_KEY": KEY,
        "TAVILY_BASE_URL": "http://t",
        "SEARXNG_URL": "http://127.0.0.1:8888",
    }
    tools = load_settings(env=env, data_dir=str(tmp_path)).settings.tools
    assert (tools.search_backend, tools.tavily_base_url, tools.searxng_url) == (
        "searxng",
        "http://t",
        "http://127.0.0.1:8888",
    )
    assert KEY not in repr(tools)


async def test_the_operators_searxng_may_be_private_and_opens_nothing_else() -> None:
    fake = FakeSearch()
    async with serving(fake) as url:
        registry = ToolRegistry(builtin_tools(ToolSettings(searxng_url=url)))
        assert (await registry.execute("web_search", {"query": "x"})).ok
        refused = await registry.execute("http_request", {"url": f"{url}/search?q=secret"})
    assert "private or reserved address" in refused.content
    assert fake.requests == [{"q": "x", "format": "json"}]


@pytest.mark.parametrize("arguments", [{"query": ""}, {"query": "x" * 401}, {"limit": 0}, {"limit": 21}])
async def test_a_search_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    result = await find(SearXNG("http://127.0.0.1:1"), **arguments)
    assert "Invalid arguments" in result.content
    await asyncio.sleep(0)
