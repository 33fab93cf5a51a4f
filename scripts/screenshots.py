"""Makes the pictures of the README: `python -m scripts.screenshots`, with the development extra and Chromium."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page, expect

from miniclaw.agent.demo import DemoProvider
from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.memory.models import Category
from miniclaw.session.models import Usage
from tests.support.browser import address, launched
from tests.support.claw import running_claw

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
DESKTOP: Final = {"viewport": {"width": 1200, "height": 860}, "device_scale_factor": 1.5}
PHONE: Final = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
EARLIER: Final = (
    "给新同事写一份入职清单",
    "把周报改得简短一些",
    "SQLite 的 WAL 模式有什么好处？",
    "推荐几本讲分布式系统的书",
)
KNOWN: Final[tuple[tuple[str, Category], ...]] = (
    ("回答先给结论，再给理由", "preference"),
    ("女儿在读小学三年级", "fact"),
    ("12 月 5 日前交季度总结", "task"),
    ("不吃香菜", "preference"),
)
QUESTION: Final = "下周去杭州出差三天，帮我算算预算，做成表格，再给一段能改数字重算的代码。"
SUM: Final = "73*2 + 480*2 + 120*3 + 50*3"
ANSWER: Final = """你从上海出发，高铁最省事。三天两晚一共约 **1616 元**：

| 项目 | 单价（元） | 数量 | 小计（元） |
| --- | ---: | ---: | ---: |
| 高铁往返 | 73 | 2 | 146 |
| 酒店 | 480 | 2 | 960 |
| 餐饮 | 120 | 3 | 360 |
| 市内交通 | 50 | 3 | 150 |

改动数字后运行这一段就能重算：

```python
costs = {"高铁": (73, 2), "酒店": (480, 2), "餐饮": (120, 3), "交通": (50, 3)}
total = sum(price * count for price, count in costs.values())
print(f"合计 {total} 元")  # 合计 1616 元
```
"""


async def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with launched() as browser:
        await _talk(browser)
        await _demo(browser)


async def _talk(browser: Browser) -> None:
    """One conversation, in light and in dark."""
    call = ToolCall.of("call_1", "calculator", {"expression": SUM})
    script = [
        *(LLMResponse(text="好的。") for _ in EARLIER),
        LLMResponse(tool_calls=(call,), finish="tool_calls", usage=Usage(input_tokens=812, output_tokens=41)),
        LLMResponse(text=ANSWER, usage=Usage(input_tokens=905, output_tokens=268)),
    ]
    with tempfile.TemporaryDirectory() as home:
        provider = ScriptedProvider(script, model="qwen3-max")
        async with running_claw(Path(home), provider, web=True) as claw:
            await claw.memory.save("owner", "我住在上海，出差喜欢坐高铁")
            for text in EARLIER:
                async for _ in claw.ask(text):
                    pass
            page = await _open(browser, claw, DESKTOP)
            await _say(page, QUESTION)
            await _settled(page, 1)
            await page.locator(".memories summary").click()
            for theme in ("light", "dark"):
                await page.emulate_media(color_scheme=theme)
                await _picture(page, f"chat-{theme}")
            await page.emulate_media(color_scheme="light")
            for text, category in KNOWN:
                await claw.memory.save("owner", text, category=category)
            await page.set_viewport_size({"width": 1400, "height": 860})
            await page.locator("#panels button").first.click()
            await expect(page.locator("#panel .card")).to_have_count(1 + len(KNOWN))
            await _picture(page, "memory")
            await page.context.close()


async def _demo(browser: Browser) -> None:
    """The built-in demo on a phone, and a question before something is deleted."""
    with tempfile.TemporaryDirectory() as home:
        async with running_claw(Path(home), DemoProvider(pace=0), web=True) as claw:
            page = await _open(browser, claw, PHONE)
            for number, text in enumerate(("记住我住在杭州", "37*43 等于多少", "我住在哪里？"), 1):
                await _say(page, text)
                await _settled(page, number)
            await _picture(page, "chat-phone")
            await page.context.close()
            page = await _open(browser, claw, {**DESKTOP, "viewport": {"width": 1000, "height": 720}})
            await _say(page, "忘记我住在哪里")
            await expect(page.locator(".approval")).to_be_visible()
            await _picture(page, "approval")
            await page.context.close()


async def _open(browser: Browser, claw: MiniClaw, options: dict[str, Any]) -> Page:
    context = await browser.new_context(locale="zh-CN", reduced_motion="reduce", **options)
    page = await context.new_page()
    await page.goto(address(claw))
    await expect(page.locator("#light")).to_have_class("light connected")
    return page


async def _say(page: Page, text: str) -> None:
    await page.locator("#message").fill(text)
    await page.locator("#message").press("Enter")


async def _settled(page: Page, turns: int) -> None:
    await expect(page.locator(".turn[data-state=ended]")).to_have_count(turns)
    await expect(page.locator(".open:not(:empty)")).to_have_count(0)
    await expect(page.locator("#sessions .mark")).to_have_count(0)


async def _picture(page: Page, name: str) -> None:
    await page.evaluate("document.fonts.ready")
    await page.screenshot(path=IMAGES / f"{name}.png", caret="hide")


if __name__ == "__main__":
    asyncio.run(main())
