"""What the page makes of texts, and how it looks: Markdown, attacks, languages, themes, phones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import FilePayload, expect

from miniclaw.agent.demo import DemoProvider
from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import ModelError
from tests.support.claw import running_claw

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider, Tab

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CODE = """def add(a: int, b: int) -> int:
    return a + b  # 求和
"""
MARKDOWN = f"""## 用法

| 名称 | 数量 |
| --- | ---: |
| 苹果 | 3 |

- [x] 完成，见 https://example.org/a
- **重点** 与 `code`

```python
{CODE}```

圆的面积是 $2*r*h$：

$$
a \\\\ b
- c
$$
"""
EVIL = """<script>pwned(1)</script><img src=x onerror="pwned(2)"><svg onload="pwned(3)"><animate onbegin="pwned(4)"/></svg>

[one](javascript:pwned(5)) [two](JaVaScRiPt&colon;pwned(6)) <javascript:pwned(7)> [three](data:text/html,<script>pwned(8)</script>)
[four](https://example.org/ "x\\" onmouseover=pwned(9) y=\\"") ![five](x" onerror="pwned(10)) ![six](javascript:pwned(11))

<iframe srcdoc="<script>parent.pwned(12)</script>"></iframe><details open ontoggle=pwned(13)>x</details>

```"><img src=x onerror=pwned(14)>
</code></pre><script>pwned(15)</script>
```

| <img src=x onerror=pwned(16)> |
| --- |
| <a href="javascript:pwned(17)">x</a> <math><mtext><style><img src=x onerror=pwned(18)></style></mtext></math> |

<form action="javascript:pwned(19)"><input autofocus onfocus=pwned(20)><button>x</button></form>
"""
LIVE = """() => ({
  handlers: [...document.querySelectorAll("*")].filter((e) => [...e.attributes].some((a) => /^on/i.test(a.name))).length,
  foreign: document.querySelectorAll(
    "script:not([src^='./static/']), #threads :is(script, iframe, form, input, style, img:not(.hello img), object, embed, math, link, base, animate), #sessions img, #panel img",
  ).length,
  links: [...document.links].filter((a) => !/^https?:$/.test(a.protocol)).map((a) => a.href),
})"""


async def test_markdown_becomes_headings_tables_lists_links_and_code_that_can_be_copied(
    tmp_path: Path, chromium: Chromium
) -> None:
    provider = ScriptedProvider([LLMResponse(text=MARKDOWN)], piece=3)
    allowed = ["clipboard-read", "clipboard-write"]
    async with running_claw(tmp_path, provider, web=True) as claw:
        async with chromium.tab(claw, permissions=allowed) as tab:
            await tab.ask("怎么用？")
            for _ in ("live", "from the log"):
                await _shows_markdown(tab)
                for frame, copied in ((".code-head", CODE), (".ending", MARKDOWN)):
                    await tab.turns.last.locator(frame).get_by_role("button").first.click()
                    done = tab.turns.last.locator(frame).get_by_role("button", name="已复制")
                    await expect(done).to_be_visible()
                    assert await tab.page.evaluate("navigator.clipboard.readText()") == copied.strip()
                await tab.page.reload()
                await tab.ended(1)


TOP_OF_LINE = """async line => {
  await new Promise(requestAnimationFrame)
  const nodes = document.createTreeWalker([...document.querySelectorAll(".answer")].at(-1), NodeFilter.SHOW_TEXT)
  const range = document.createRange()
  while (nodes.nextNode()) {
    const at = nodes.currentNode.data.indexOf(line)
    if (at < 0) continue
    range.setStart(nodes.currentNode, at)
    return Math.round(range.getBoundingClientRect().top)
  }
}"""


LINES = [f"line {number} = {'a long line ' * (number % 20)}\n" for number in range(120)]
ROWS = [f"line {number} = a\n" for number in range(120)]


async def test_who_reads_in_an_open_block_stays_at_the_line_when_it_ends(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        middle = await tab.page.evaluate("innerHeight / 2")
        for number, (text, ending, moves) in enumerate(
            (
                ("```text\n" + "".join(LINES), "```\n\n", 0),
                ("".join(ROWS), "\n", 1),
                ("| a | b |\n|---|---|\n" + "".join(f"| {row.strip()} | x |\n" for row in ROWS), "\n", 45),
                ("".join(f"> {row}" for row in ROWS), "\n", 30),
                ("$$\n" + "".join(ROWS), "$$\n", 30),
            ),
            start=1,
        ):
            await tab.send("go")
            dictated.say(f"Here:\n\n{text}")
            await expect(tab.answer.locator(".open")).to_contain_text("line 119")
            await tab.page.locator("#scroller").hover()
            await tab.page.mouse.wheel(0, -900)
            await expect(tab.page.locator("#latest")).to_be_visible()
            await tab.page.evaluate(
                "y => (document.querySelector('#scroller').scrollTop += y)",
                await tab.page.evaluate(TOP_OF_LINE, "line 50 ") - middle,
            )
            top = await tab.page.evaluate(TOP_OF_LINE, "line 50 ")
            dictated.say(f"{ending}That was it.\n\n")
            await expect(tab.answer.locator(".md")).to_contain_text("That was it.")
            dictated.end("more words " * 900)
            await tab.ended(number)
            assert abs(await tab.page.evaluate(TOP_OF_LINE, "line 50 ") - top) <= moves, text[:9]


async def _shows_markdown(tab: Tab) -> None:
    answer = tab.answer
    await expect(answer.locator("h2")).to_have_text("用法")
    await expect(answer.locator("th")).to_have_text(["名称", "数量"])
    await expect(answer.locator("td").last).to_have_css("text-align", "right")
    await expect(answer.locator("li").first).to_have_text("☑ 完成，见 https://example.org/a")
    link = answer.get_by_role("link", name="https://example.org/a")
    await expect(link).to_have_attribute("rel", "noopener noreferrer")
    await expect(link).to_have_attribute("target", "_blank")
    await expect(answer.locator(".code-head > span")).to_have_text("python")
    await expect(answer.locator(".math")).to_have_text(["$2*r*h$", "$$\na \\\\ b\n- c\n$$"])
    colour = "element => getComputedStyle(element).color"
    keyword, plain = answer.locator("pre .k").first, answer.locator("pre code")
    assert await keyword.evaluate(colour) != await plain.evaluate(colour)


@pytest.mark.parametrize("bypass_csp", [False, True], ids=["policy", "no-policy"])
async def test_nothing_that_a_model_a_tool_a_title_or_a_memory_says_becomes_a_script(
    tmp_path: Path, chromium: Chromium, bypass_csp: bool
) -> None:
    """With the content policy, of which nothing may be violated, and as if a browser knew none."""
    calls = (
        ToolCall.of("call_1", "evil", {"text": EVIL}),
        ToolCall.of("call_2", EVIL, {EVIL: EVIL}),
        ToolCall.of("call_3", "memory_save", {"content": EVIL[:1000]}),
        ToolCall.of("call_4", "memory_delete", {"memory_id": EVIL}),
    )
    asks = LLMResponse(text=EVIL, reasoning=EVIL, tool_calls=calls, finish="tool_calls")
    script: list[Any] = [asks, LLMResponse(text=EVIL, reasoning=EVIL), ModelError("model_error", EVIL)]
    async with running_claw(tmp_path, ScriptedProvider(script, piece=7), web=True) as claw:
        claw.registry.register("evil", "", {"type": "object", "properties": {}}, _evil, risk="read")
        await claw.memory.save("owner", EVIL[:1000])
        async with chromium.tab(claw, bypass_csp=bypass_csp) as tab:
            await tab.page.context.expose_function("pwned", lambda *_: tab.problems.append("pwned"))
            await tab.page.reload()
            await tab.is_connected()
            await tab.send(EVIL.partition("\n")[0])
            await expect(tab.answer.locator(".approval")).to_be_visible()
            await _look_everywhere(tab.page)
            await tab.answer.get_by_role("button", name="本次对话都允许").click()
            await tab.ended(1)
            await expect(tab.answer).to_contain_text("<script>pwned(1)</script>")
            await expect(tab.turns.last.locator(".memories").first).to_contain_text(
                "<script>pwned(1)</script>"
            )
            await tab.send(EVIL)
            await tab.ended(2)
            await expect(tab.answer.locator(".problem")).to_contain_text(
                "模型出错 (<script>pwned(1)</script>"
            )
            await _look_everywhere(tab.page)
            await tab.page.reload()
            await tab.ended(2)
            for button in await tab.page.locator("#panels button").all():
                await button.click()
                await expect(tab.page.locator("#panel-body > *").first).not_to_have_text("正在加载…")
                await _look_everywhere(tab.page)
            await tab.page.locator("#search").fill("pwned(1)")
            await expect(tab.page.locator("#sessions .hit").first).to_contain_text("<script>")
            await _look_everywhere(tab.page)
            await expect(tab.page.locator("#title")).to_contain_text("<script>")


def _evil(**_: Any) -> str:
    return EVIL


async def _look_everywhere(page: Any) -> None:
    """Open what is folded, touch what reacts, and find nothing alive in the page."""
    await page.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    for link in await page.locator("#threads .md a").all():
        await link.hover(force=True)
    found = await page.evaluate(LIVE)
    assert found == {"handlers": 0, "foreign": 0, "links": []}


@pytest.mark.parametrize(
    ("locale", "words", "others"),
    [
        (
            "zh-CN",
            ["新对话", "有什么可以帮你？", "演示模式"],
            ["New chat", "What can I do for you?", "Demo mode"],
        ),
        (
            "en-US",
            ["New chat", "What can I do for you?", "Demo mode"],
            ["新对话", "有什么可以帮你？", "演示模式"],
        ),
    ],
    ids=["zh", "en"],
)
async def test_the_page_speaks_the_browsers_language_can_be_switched_and_says_how_to_leave_the_demo(
    tmp_path: Path, chromium: Chromium, locale: str, words: list[str], others: list[str]
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw:
        async with chromium.tab(claw, locale=locale) as tab:
            await tab.is_connected()
            demo = tab.page.locator("#demo")
            for spoken in (words, others, others):
                places = [tab.page.locator(at) for at in ("#new-chat", ".hello h2", "#demo strong")]
                for place, word in zip(places, spoken, strict=True):
                    await expect(place).to_have_text(word)
                await expect(tab.page.locator("html")).to_have_attribute(
                    "lang", "zh-CN" if spoken[0] == "新对话" else "en"
                )
                for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
                    await expect(demo).to_contain_text(name)
                await expect(demo).to_be_in_viewport(ratio=1)
                if spoken is words:
                    await tab.page.locator("#language").click()
                else:
                    await tab.page.reload()
            await tab.ask("hello")
            await expect(demo).to_be_in_viewport(ratio=1)


async def test_the_theme_follows_the_system_and_a_choice_outlives_a_reload(
    tmp_path: Path, chromium: Chromium
) -> None:
    is_dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 64)"
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw:
        async with chromium.tab(claw, color_scheme="dark") as tab:
            root, button = tab.page.locator("html"), tab.page.locator("#theme")
            await expect(root).to_have_attribute("data-theme", "dark")
            assert await tab.page.evaluate(is_dark)
            await tab.page.emulate_media(color_scheme="light")
            await expect(root).to_have_attribute("data-theme", "light")
            assert not await tab.page.evaluate(is_dark)
            for choice, name in (("light", "主题：浅色"), ("dark", "主题：深色")):
                await button.click()
                await expect(button).to_have_attribute("aria-label", name)
                await tab.page.reload()
                await expect(root).to_have_attribute("data-theme", choice)
                assert await tab.page.evaluate(is_dark) == (choice == "dark")
            await button.click()
            await expect(root).to_have_attribute("data-theme", "light")


async def test_a_phone_shows_everything_without_scrolling_sideways(
    tmp_path: Path, chromium: Chromium
) -> None:
    wide = f"{'长' * 200}\n\n{'w' * 300}\n\n| {' | '.join(['列' * 9] * 9)} |\n|{' --- |' * 9}\n\n```\n{'x' * 300}\n```\n"
    calls = (ToolCall.of("call_1", "memory_delete", {"memory_id": "m" * 300}),)
    script = [
        LLMResponse(text=MARKDOWN + wide, tool_calls=calls),
        LLMResponse(text="https://example.org/" + "p" * 300),
    ]
    phone = {
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
        "device_scale_factor": 2,
    }
    async with running_claw(tmp_path, ScriptedProvider(script), web=True) as claw:
        await claw.memory.save("owner", "问 https://docs.example.org/" + "d" * 99)
        async with chromium.tab(claw, **phone) as tab:
            await tab.is_connected()
            fits = "[document.documentElement, document.body, ...document.querySelectorAll('.main, #scroller, .column')].every((box) => box.scrollWidth <= 390)"
            assert await tab.page.evaluate(fits)
            await tab.send("问" * 100 + "q" * 200)
            await tab.answer.locator(".approval").scroll_into_view_if_needed()
            assert await tab.page.evaluate(fits)
            await tab.page.get_by_role("button", name="允许一次").tap()
            await tab.ended(1)
            await tab.answer.locator(".tool summary").tap()
            await expect(tab.answer.locator(".tool pre").first).to_be_visible()
            assert await tab.page.evaluate(fits)
            await tab.turns.last.locator(".memories summary").tap()
            await expect(tab.turns.last.locator(".memories li")).to_be_visible()
            assert await tab.page.evaluate(fits)
            await expect(tab.page.locator("#sessions")).not_to_be_in_viewport()
            await tab.page.locator("#menu").tap()
            await expect(tab.sessions).to_be_in_viewport()
            assert await tab.page.evaluate(fits)
            await expect(tab.page.locator("#close-menu")).to_be_focused()
            await tab.page.locator("#sessions li button").tap()
            await expect(tab.page.get_by_role("menu")).to_be_visible()
            await tab.page.keyboard.press("Escape")  # of what lies above the drawer, which stays
            await expect(tab.page.get_by_role("menu")).to_have_count(0)
            await expect(tab.sessions).to_be_in_viewport()
            await tab.page.get_by_role("button", name="记忆").tap()
            await expect(tab.page.locator("#panel-title")).to_be_focused()
            await tab.page.keyboard.press("Escape")
            await expect(tab.page.locator("#menu")).to_be_focused()
            await tab.page.locator("#menu").tap()
            await tab.page.locator("#close-menu").tap()
            await expect(tab.page.locator("#menu")).to_be_focused()
            await tab.page.keyboard.press("Control+k")
            await expect(tab.page.locator("#search")).to_be_focused()
            await tab.page.keyboard.press("Escape")
            many = [
                FilePayload(name=f"{n}{'n' * 90}.txt", mimeType="text/plain", buffer=b"x") for n in range(8)
            ]
            await tab.page.set_input_files("#file", many)
            await expect(tab.page.locator("#files .chip")).to_have_count(8)
            await tab.field.fill("line\n" * 40)
            assert (
                await tab.page.locator("#composer").evaluate("box => box.getBoundingClientRect().top") > 150
            )
            await tab.page.locator("#new-chat-narrow").tap()
            await expect(tab.page.locator(".hello")).to_be_visible()
            assert await tab.page.evaluate(fits)
