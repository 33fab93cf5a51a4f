"""What the page costs the browser: first paint, opening long sessions, and a fast answer into a long session.

    python bench/web.py

Times are the page's own: paint entries and long tasks (over 50 ms on its main thread) as Chromium tells them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from playwright.async_api import Page, expect  # noqa: E402 - behind the path

from miniclaw.app import MiniClaw  # noqa: E402
from miniclaw.session.models import Entry  # noqa: E402
from tests.support.agent import DictatedProvider  # noqa: E402
from tests.support.browser import address, launched  # noqa: E402
from tests.support.claw import running_claw  # noqa: E402

TOKENS_PER_SECOND: Final = 200
WORDS: Final = ("The ", "quick ", "brown ", "fox ", "**jumps** ", "over ", "`code` ", "and ", "rests. ")
ANSWER: Final = "Here is how:\n\n```python\nfor n in range(3):\n    print(n)\n```\n\n- one\n- **two**\n"
WATCH: Final = """
window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((task) => task.duration)))
  .observe({type: "longtask"});
"""


async def seeded(claw: MiniClaw, messages: int, *, result: str = "") -> str:
    """A session of so many messages, with a tool's result in the last turn; returns its id."""
    session = await claw.sessions.get_or_create("owner", "web")
    entries: list[Entry] = []
    for number in range(messages // 2):
        turn = f"turn_seed{number}"
        said: list[dict[str, Any]] = [{"role": "user", "content": f"Question {number}?"}]
        if result and number == messages // 2 - 1:
            call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
            said.append({"role": "assistant", "content": None, "tool_calls": [call]})
            said.append({"role": "tool", "tool_call_id": "call_1", "content": result})
        said.append({"role": "assistant", "content": f"{ANSWER}\nThat was {number}."})
        entries += [Entry(turn, step, message, time.time(), None) for step, message in enumerate(said)]
    await claw.sessions.append(session, entries)
    return session.session_id


async def load_all(page: Page, turns: int) -> None:
    """Scroll up until the whole session is there, then down again."""
    shown = page.locator(".turn")
    while await shown.count() < turns:
        before = await shown.count()
        await page.evaluate("document.querySelector('#scroller').scrollTop = 0")
        await expect(shown).not_to_have_count(before)
    await page.evaluate("document.querySelector('#scroller').scrollTop = 1e9")


async def stream(page: Page, model: DictatedProvider, seconds: float) -> list[float]:
    """Stream an answer at 200 tokens a second; returns the long tasks in ms."""
    await page.evaluate(WATCH)
    await page.locator("#message").fill("go")
    await page.locator("#message").press("Enter")
    count, began = int(seconds * TOKENS_PER_SECOND), time.monotonic()
    for number in range(count):
        model.say(WORDS[number % len(WORDS)] + ("\n\n" if number % 60 == 59 else ""))
        await asyncio.sleep(max(0.0, began + number / TOKENS_PER_SECOND - time.monotonic()))
    model.end(" END")
    await expect(page.locator(".turn").last).to_have_attribute("data-state", "ended")
    await page.evaluate("new Promise((done) => setTimeout(done, 100))")
    return [float(task) for task in await page.evaluate("tasks")]


async def opened(page: Page, url: str, shown: str) -> Mapping[str, float]:
    """Open an address; milliseconds to the first paint and until a text is there."""
    await page.goto("about:blank")
    began = time.perf_counter()
    await page.goto(url)
    await expect(page.locator(".turn").last).to_contain_text(shown)
    ready = (time.perf_counter() - began) * 1000
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    return {"first paint": await page.evaluate(paint), "ready": ready}


async def main() -> None:
    """Print the table."""
    async with launched() as browser:
        with tempfile.TemporaryDirectory() as home:
            model = DictatedProvider()
            async with running_claw(Path(home), model, web=True) as claw:
                assert claw.web is not None
                page = await browser.new_page(viewport={"width": 1200, "height": 800})
                await page.goto(address(claw))
                for name, messages, result in (
                    ("500 messages", 500, ""),
                    ("2,000 messages", 2000, ""),
                    ("2 MB tool result", 4, "0123456789abcde\n" * 131_072),
                ):
                    session = await seeded(claw, messages, result=result)
                    times = await opened(page, f"{claw.web.url}/#{session}", f"was {messages // 2 - 1}")
                    print(
                        f"{name:18} first paint {times['first paint']:5.0f} ms, last page shown after {times['ready']:5.0f} ms"
                    )
                    if messages == 500:
                        await load_all(page, 250)
                        tasks = await stream(page, model, 5)
                        print(
                            f"{'':18} 200 tokens/s for 5 s: longest task {max(tasks, default=0):.0f} ms, over 50 ms: {len(tasks)}"
                        )


if __name__ == "__main__":
    asyncio.run(main())
