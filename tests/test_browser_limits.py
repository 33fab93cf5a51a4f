"""What the page must bear: long sessions, huge results, fast answers, path prefixes, every width and language."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import Page, Route, expect

from bench.web import load_all, seeded, stream
from miniclaw.agent.demo import DemoProvider
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.webchat import STATIC
from tests.support.claw import TOKEN, running_claw
from tests.test_proxy import NGINX, proxied

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider, Tab


MOST_BYTES = 120 * 1024
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
CONTROLS = {
    *("button", "link", "textbox", "searchbox", "combobox", "checkbox", "menuitem", "option", "menu"),
    *("dialog", "listbox", "img", "complementary", "log", "navigation"),
}
LOADED = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter(({name, entryType}) => entryType === "navigation" || name.includes("/static/"))
  .reduce((sum, {decodedBodySize}) => sum + decodedBodySize, 0)"""
PALE = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element);
    if (!own || !element.checkVisibility({opacityProperty: true, visibilityProperty: true}) || element.closest(":disabled, .offstage, .skip, noscript")) continue;
    const [a, b] = [light(numbers(style.color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${element.className} ${element.textContent.slice(0, 40)}`);
  }
  return found;
}"""


def test_all_modules_together_and_each_of_them_are_small() -> None:
    modules = list(STATIC.glob("*.js"))
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in modules) < 300
    assert sum(path.stat().st_size for path in modules) < MOST_BYTES


@pytest.mark.parametrize("part", ["texts", "panel-texts"])
def test_both_languages_have_the_same_texts_with_the_same_gaps(part: str) -> None:
    found = []
    for language in ("zh-CN", "en"):
        text = (STATIC / f"{part}.{language}.js").read_text(encoding="utf-8").split("`")[1]
        pairs = [line.split("=", 1) for line in text.strip().splitlines()]
        rows = dict(pairs)
        assert len(rows) == len(pairs) and all(rows.values())
        found.append({key: sorted(re.findall(r"\{\w+\}", value)) for key, value in rows.items()})
    assert found[0] == found[1]


async def has_no_serious_fault(page: Page) -> None:
    """Every control in Chromium's own accessibility tree has a name, no id is twice, no text is pale."""
    await page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished.catch(() => 0)))")
    cdp = await page.context.new_cdp_session(page)
    tree = await cdp.send("Accessibility.getFullAXTree")
    nameless = [
        node["role"]["value"]
        for node in tree["nodes"]
        if not node["ignored"]
        and node["role"]["value"] in CONTROLS
        and not node.get("name", {}).get("value", "").strip()
    ]
    await cdp.detach()
    assert nameless == []
    assert await page.evaluate(PALE) == []
    ids = await page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("locale", ["zh-CN", "en-US"])
@pytest.mark.parametrize("width", ["wide", "phone"])
async def test_every_view_works_in_both_languages_wide_and_on_a_phone_and_everybody_can_use_it(
    tmp_path: Path, chromium: Chromium, locale: str, width: str
) -> None:
    options: dict[str, Any] = PHONE if width == "phone" else {}
    scheme = "dark" if (locale == "zh-CN") == (width == "wide") else "light"
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw:
        await claw.memory.save("owner", "我住在杭州")
        options |= {"locale": locale, "color_scheme": scheme, "reduced_motion": "reduce"}
        async with chromium.tab(claw, **options) as tab:
            await tab.is_connected()
            assert await tab.page.evaluate(LOADED) < MOST_BYTES, "what opening the page loads, uncompressed"
            await has_no_serious_fault(tab.page)
            await tab.ask("37*43 等于多少")
            await tab.answer.locator(".tool summary").click()
            await tab.send("忘记我住在杭州")
            await expect(tab.answer.locator(".approval")).to_be_visible()
            await has_no_serious_fault(tab.page)
            fits = "document.documentElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth"
            for number in range(6):
                if width == "phone":
                    await tab.page.locator("#menu").click()
                    await expect(tab.page.locator("#close-menu")).to_be_focused()
                await tab.page.locator("#panels button").nth(number).click()
                await expect(tab.page.locator("#panel-body > *").first).to_be_visible()
                await expect(tab.page.locator("#panel-body")).not_to_have_text(
                    ("正在加载…", "Loading…")[locale == "en-US"]
                )
                await has_no_serious_fault(tab.page)
                assert await tab.page.evaluate(fits)
                if width == "phone":
                    await expect(tab.field).to_be_hidden()  # what lies behind is out of reach
                    await tab.page.locator("#close-panel").click()
            await tab.answer.get_by_role("button").last.click()
            await tab.ended(2)


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_long_session_opens_at_its_end_loads_older_on_scrolling_and_keeps_up_with_a_fast_answer(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        session = await seeded(claw, 500)
        await tab.is_connected()
        await tab.page.goto(f"{tab.page.url}#{session}")
        await expect(tab.turns.last).to_contain_text("That was 249.")
        await expect(tab.turns).to_have_count(25)
        assert await tab.turns.last.locator(".foot").is_visible()
        anchor = tab.turns.filter(has_text="That was 225.")
        await tab.page.evaluate("document.querySelector('#scroller').scrollTop = 40")
        await expect(tab.turns).not_to_have_count(25)
        await expect(anchor).to_be_in_viewport()
        # A search leads to a message that is far up.
        await tab.page.get_by_role("searchbox").fill("Question 150?")
        await tab.page.locator("a.hit").click()
        found = tab.turns.filter(has_text="Question 150?")
        await expect(found).to_be_in_viewport()
        await expect(found).to_contain_class("found")
        await load_all(tab.page, 250)
        tasks = await stream(tab.page, dictated, 2)
        assert max(tasks, default=0) < 400, "generous: `bench/web.py` tells what it is"
        assert (await tab.prose()).endswith("END")
        await expect(tab.turns.last.locator(".foot")).to_be_in_viewport()


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_turn_longer_than_a_page_is_whole_after_its_end_where_it_was_whole_before(
    tmp_path: Path, chromium: Chromium
) -> None:
    """Reloaded in its middle, the page has read its beginning from the log."""
    ends = asyncio.Event()
    calls = [
        tuple(ToolCall.of(f"c{n}_{i}", "calculator", {"expression": f"{n}*{i}"}) for i in range(14))
        for n in range(13)
    ]

    async def last(_: list[Message]) -> LLMResponse:
        await ends.wait()
        return LLMResponse(text="the end")

    steps = [LLMResponse(text=f"step {n}", tool_calls=some) for n, some in enumerate(calls)]
    provider = ScriptedProvider([*steps[:5], last, *steps[5:], last])
    more = {"agent.max_tool_calls": 200}
    async with running_claw(tmp_path, provider, web=True, arguments=more) as claw, chromium.tab(claw) as tab:
        await tab.send("many")
        await expect(tab.answer.locator(".tool[data-state=ok]")).to_have_count(70)
        await tab.page.reload()
        await tab.is_connected()
        await expect(tab.answer.locator(".tool[data-state=ok]")).to_have_count(70)
        await tab.page.locator("#scroller").evaluate("scroller => (scroller.scrollTop = 0)")
        await expect(tab.turns.locator(".bubble")).to_have_text(["many"])
        ends.set()
        await tab.ended(1)
        await expect(tab.answer).to_contain_text("the end")
        await expect(tab.answer.locator(".tool")).to_have_count(70)
        await expect(tab.turns.locator(".bubble")).to_have_text(["many"])
        # Shown live, it is whole before its beginning was read from the log.
        await tab.new_chat()
        await tab.send("again")
        await tab.ended(1)
        whole = await tab.answer.inner_text()
        asked: list[Route] = []

        async def one_page(route: Route) -> None:
            asked.append(route)
            if len(asked) == 1:
                await route.continue_()

        await tab.page.route("**/messages?*before=*", one_page)
        await tab.page.get_by_role("searchbox").fill("the end")
        await tab.page.locator("a.hit").first.click()
        await expect(tab.turns.last).to_contain_class("found")
        async with asyncio.timeout(10):
            while len(asked) < 2:
                await tab.thread.locator(".older").click()
        assert await tab.answer.inner_text() == whole


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_tool_result_of_2_mb_is_cut_and_opens_piece_by_piece(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        session = await seeded(claw, 2, result="<b>0123456789" * 160_000)
        await tab.is_connected()
        await tab.page.goto(f"{tab.page.url}#{session}")
        await expect(tab.turns.last).to_contain_text("That was 0.")
        await tab.answer.locator(".tool summary").click()
        result = tab.answer.locator(".tool pre").last
        assert len(await result.inner_text()) == 20_000
        more = tab.answer.locator(".tool").get_by_role("button", name="已显示 20,000 / 2,080,000 个字符")
        await more.click()
        await expect(tab.answer.locator(".tool").get_by_role("button")).to_contain_text("220,000")
        assert len(await result.text_content() or "") == 220_000


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_below_a_path_of_a_reverse_proxy_the_page_its_api_and_its_socket_work(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with proxied(tmp_path, dictated) as (_, public):
        async with chromium.tab(f"{public}/?token={TOKEN}") as tab:
            await tab.is_connected()
            assert tab.page.url == f"{public}/"
            dictated.end("Here.")
            assert await tab.ask("Are you there?") == "Here."
            await tab.page.reload()
            await tab.ended(1)
            await tab.page.locator("#panels button").first.click()
            await expect(tab.page.locator("#panel-body")).to_contain_text("还没有记住任何事")
            await _renamed(tab)


async def _renamed(tab: Tab) -> None:
    """A change over HTTP, which needs the page's own origin."""
    await tab.page.locator("#sessions li").hover()
    await tab.page.locator("#sessions li button").click()
    await tab.page.get_by_role("menuitem", name="重命名").click()
    await tab.page.get_by_role("dialog").get_by_label("标题").fill("below")
    await tab.page.keyboard.press("Enter")
    await expect(tab.sessions).to_have_text(["below"])
