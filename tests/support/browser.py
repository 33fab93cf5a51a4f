"""A real browser before the page: one Chromium for all tests, a fresh profile for each tab group."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    async_playwright,
    expect,
)

from miniclaw.app import MiniClaw
from tests.support.agent import DictatedProvider as DictatedProvider  # browser tests take it from here

GUARD_MS = 10_000
"""Milliseconds after which a test that waits for the page has failed."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WATCH = """
addEventListener("securitypolicyviolation", (event) => report(`CSP: ${event.violatedDirective} ${event.sample}`));
"""
EXCUSED = {
    "lost": re.compile(
        r"ERR_INTERNET_DISCONNECTED|ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
    ),
    "refused": re.compile(r"401 \(Unauthorized\)|HTTP Authentication failed"),
    "bad request": re.compile(r"400 \(Bad Request\)"),
    "other user": re.compile(r"409 \(Conflict\)"),
    "busy": re.compile(r"503 \(Service Unavailable\)"),
}
"""What Chromium itself writes to the console while no server is there, or one that wants a login."""


class Tab:
    """A page and what is wrong with it; reads and acts as a person would.

    Attributes:
        problems: console errors, uncaught errors, dialogs and violations of the content policy.
    """

    def __init__(self, page: Page, problems: list[str]) -> None:
        self.page = page
        self.problems = problems
        self.field = page.locator("#message")
        self.stop = page.locator("#stop")
        self.thread = page.locator(".thread:not([hidden])")
        self.turns = self.thread.locator(".turn")
        self.sessions = page.locator("#sessions a")

    @property
    def answer(self) -> Locator:
        """The last turn's answer."""
        return self.turns.last.locator(".answer")

    async def is_connected(self) -> None:
        """Wait until the page has its socket."""
        await expect(self.page.locator("#light")).to_have_class("light connected")

    async def send(self, text: str) -> None:
        """Write a message and press Enter."""
        await self.field.fill(text)
        await self.field.press("Enter")

    async def ended(self, count: int) -> None:
        """Wait until this many turns are shown, all of them have ended, and all text is rendered."""
        await expect(self.turns).to_have_count(count)
        await expect(self.thread.locator(".turn[data-state=ended]")).to_have_count(count)
        await self.page.evaluate("new Promise(requestAnimationFrame)")  # what streams is painted in frames
        await expect(self.thread.locator(".open:not(:empty)")).to_have_count(0)

    async def ask(self, text: str) -> str:
        """Send a message and return the text of its answer's prose."""
        before = await self.turns.count()
        await self.send(text)
        await self.ended(before + 1)
        return await self.prose()

    async def prose(self) -> str:
        """The text of the last answer, without cards and notes."""
        return "\n".join(await self.answer.locator(".md, .open").all_inner_texts()).strip()

    async def session(self) -> str:
        """The session in the address bar; waits until there is one."""
        await self.page.wait_for_url(re.compile(r"#ses_"))
        return self.page.url.partition("#")[2]

    async def new_chat(self) -> None:
        """Press the button of a new chat."""
        await self.page.locator("#new-chat").click()
        await expect(self.turns).to_have_count(0)

    async def press_until_focused(self, key: str, wanted: str) -> None:
        """Press a key until an element that fits the selector has the focus."""
        for _ in range(60):
            if await self.page.evaluate("wanted => document.activeElement.matches(wanted)", wanted):
                return
            await self.page.keyboard.press(key)
        raise AssertionError(f"{key} did not lead to {wanted}")


class Chromium:
    """The browser of all tests."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @asynccontextmanager
    async def tab(self, at: MiniClaw | str, **options: Any) -> AsyncIterator[Tab]:
        """One tab with an empty profile; the options are those of `tabs`."""
        async with self.tabs(at, 1, **options) as (tab,):
            yield tab

    @asynccontextmanager
    async def tabs(
        self,
        at: MiniClaw | str,
        count: int,
        *,
        excuse: str | None = None,
        **options: Any,
    ) -> AsyncIterator[Sequence[Tab]]:
        """Tabs that share an empty profile; nothing may have gone wrong in them when they close.

        Args:
            at: a gateway to be signed in to, or an address.
            count: how many.
            excuse: which key of `EXCUSED` tells what may stand in the console.
            options: of Playwright's `new_context`, such as `locale`.
        """
        given = {"viewport": {"width": 1200, "height": 800}, "locale": "zh-CN", **options}
        context = await self._browser.new_context(**given)
        context.set_default_timeout(GUARD_MS)
        problems: list[str] = []
        try:
            await context.expose_function("report", lambda what: problems.append(what))
            await context.add_init_script(WATCH)
            opened = [await _open(context, problems, excuse) for _ in range(count)]
            for tab in opened:
                await tab.page.goto(at if isinstance(at, str) else address(at))
            yield opened
        finally:
            await context.close()
        assert not problems, problems


def address(claw: MiniClaw) -> str:
    """What `serve` prints for the browser."""
    assert claw.web is not None
    return f"{claw.web.url}/?token={claw.token}"


def program() -> str | None:
    """Where this system has its Chromium."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """The Chromium of this system, else the one that Playwright was told to download."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Chromium]:
    """Started once; without it these tests are skipped, or fail where `MINICLAW_TEST_STRICT` is set."""
    if program() is None:
        missing = f"the browser tests need Chromium: none of {', '.join(PROGRAMS)} is on the PATH"
        (pytest.fail if os.environ.get("MINICLAW_TEST_STRICT") else pytest.skip)(missing)
    expect.set_options(timeout=GUARD_MS)
    async with launched() as browser:
        yield Chromium(browser)


@pytest.fixture
def dictated() -> DictatedProvider:
    """A model whose words the test says."""
    return DictatedProvider()


async def _open(context: BrowserContext, problems: list[str], excuse: str | None) -> Tab:
    page = await context.new_page()

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (excuse and EXCUSED[excuse].search(message.text)):
            problems.append(f"console: {message.text}")

    async def asked(dialog: Dialog) -> None:
        if dialog.type == "beforeunload":
            return await dialog.accept()  # messages wait to be sent: the tab leaves all the same
        problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("console", said)
    page.on("pageerror", lambda error: problems.append(f"uncaught: {error.stack}"))
    page.on("dialog", asked)
    return Tab(page, problems)
