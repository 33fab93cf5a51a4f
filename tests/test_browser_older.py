"""What comes when the reader goes up or comes back: earlier parts of long turns, and what was missed meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Route, expect

from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.session.models import Entry
from tests.support.agent import eventually
from tests.support.claw import running_claw

if TYPE_CHECKING:
    from miniclaw.app import MiniClaw
    from tests.support.browser import Chromium, DictatedProvider, Tab

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

END = LLMResponse(text="end")
DONE = ".tool[data-state=ok]"


def step(turn: str, number: int, calls: int = 14) -> LLMResponse:
    made = [
        ToolCall.of(f"{turn}{number}_{i}", "calculator", {"expression": f"{number}*{i}"})
        for i in range(calls)
    ]
    return LLMResponse(text=f"{turn} step {number}", tool_calls=tuple(made))


async def logged(claw: MiniClaw, turn: str, answers: Sequence[LLMResponse]) -> str:
    """A session whose log has one turn with these answers; returns its id."""
    said: list[Message] = [{"role": "user", "content": f"{turn}?"}]
    for answer in answers:
        said.append(answer.to_message())
        said += [{"role": "tool", "tool_call_id": call.id, "content": "1"} for call in answer.tool_calls]
    session = await claw.sessions.get_or_create("owner", "web")
    entries = [Entry(f"turn_{turn}", at, message, time.time(), None) for at, message in enumerate(said)]
    await claw.sessions.append(session, entries)
    return session.session_id


async def written_elsewhere(claw: MiniClaw, session_id: str, names: Sequence[str]) -> None:
    """Turns that the page is told nothing of."""
    session = await claw.sessions.get(session_id)
    assert session is not None
    for name in names:
        said = enumerate(({"role": "user", "content": name}, {"role": "assistant", "content": "ok"}))
        await claw.sessions.append(session, [Entry(name, at, each, time.time(), None) for at, each in said])


async def lose_the_line(tab: Tab) -> None:
    await tab.page.context.set_offline(True)
    await expect(tab.page.locator("#light")).to_have_class("light connecting")


async def test_earlier_parts_of_long_turns_come_whole_and_without_moving_what_is_read(
    tmp_path: Path, chromium: Chromium
) -> None:
    goes_on, arrives = asyncio.Event(), asyncio.Event()

    async def held(_: list[Message]) -> LLMResponse:
        await goes_on.wait()
        return step("B", 3)

    async def slow(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    async def has_ended() -> bool:
        log = await claw.sessions.get(session)
        return log is not None and len(log.messages) == 47 + 62

    provider = ScriptedProvider([*(step("B", n) for n in range(3)), held, END])
    more = {"agent.max_tool_calls": 200}
    async with running_claw(tmp_path, provider, web=True, arguments=more) as claw:
        session = await logged(claw, "A", [*(step("A", n) for n in range(3)), END])
        single = await logged(claw, "C", [step("C", 0, 120), END])
        async with chromium.tab(claw, excuse="lost") as tab:
            await tab.is_connected()
            home, bubbles = tab.page.url, tab.turns.locator(".bubble")
            # Calls whose page has not come yet have no height: the next page comes without a scroll.
            await tab.page.goto(f"{home}#{single}")
            await expect(bubbles).to_have_text(["C?"])
            await expect(tab.answer.locator(DONE)).to_have_count(120)
            # A turn whose end alone is shown is not skipped where a longer one behind it is read.
            await tab.page.goto(f"{home}#{session}")
            await tab.ended(1)
            await tab.send("B?")
            await expect(tab.answer.locator(DONE)).to_have_count(42)
            await tab.page.reload()
            await expect(tab.answer.locator(DONE)).to_have_count(42)
            await expect(bubbles).to_have_text(["", "B?"])
            await tab.page.context.set_offline(True)
            await expect(tab.page.locator("#light")).to_have_class("light connecting")
            goes_on.set()
            await eventually(has_ended)
            await tab.page.context.set_offline(False)
            await tab.ended(2)
            await expect(tab.answer.locator(DONE)).to_have_count(56)
            await tab.page.locator("#scroller").evaluate("scroller => (scroller.scrollTop = 0)")
            await expect(bubbles).to_have_text(["A?", "B?"])
            await expect(tab.turns.first.locator(DONE)).to_have_count(42)
            # A turn that grows from within stays where it is read.
            await tab.page.route("**/messages?*before=*", slow)
            await tab.page.reload()
            await expect(bubbles).to_have_text([""])
            await tab.page.locator("#scroller").evaluate("scroller => (scroller.scrollTop = 40)")
            read = tab.page.get_by_text("B step 2")
            before = await read.evaluate("element => element.getBoundingClientRect().top")
            arrives.set()
            await expect(bubbles).to_have_text(["", "B?"])
            after = await read.evaluate("element => element.getBoundingClientRect().top")
            assert abs(after - before) <= 1


async def test_what_was_written_elsewhere_while_the_line_was_lost_stands_whole_and_in_its_place(
    tmp_path: Path, chromium: Chromium
) -> None:
    last_page, older_page = asyncio.Event(), asyncio.Event()
    provider = ScriptedProvider([END] * 2)

    async def slow(route: Route) -> None:
        await (older_page if "before=" in route.request.url else last_page).wait()
        await route.continue_()

    async def shows_all() -> bool:
        await tab.page.locator("#scroller").evaluate("scroller => (scroller.scrollTop = 0)")
        return await tab.turns.locator(".bubble").all_inner_texts() == wanted

    async with running_claw(tmp_path, provider, web=True) as claw:
        async with chromium.tab(claw, excuse="lost") as tab:
            # A chat that began in this tab, whose log it never read.
            await tab.is_connected()
            await tab.ask("begun here")
            session = await tab.session()
            await lose_the_line(tab)
            wanted = ["begun here", *(f"a{n}" for n in range(30))]
            await written_elsewhere(claw, session, wanted[1:])
            await tab.page.context.set_offline(False)
            await eventually(shows_all)
            # An older page is on its way meanwhile, and a message that waited is taken before the log is read.
            last_page.set()
            await tab.page.route("**/messages?*", slow)
            await tab.page.reload()
            await tab.ended(25)
            async with tab.page.expect_request("**/messages?*before=*"):
                await tab.page.locator("#scroller").evaluate("scroller => (scroller.scrollTop = 0)")
            last_page.clear()
            await lose_the_line(tab)
            await tab.send("held")
            more = [f"b{n}" for n in range(30)]
            await written_elsewhere(claw, session, more)
            await tab.page.context.set_offline(False)
            await eventually(lambda: len(provider.requests) == 2 and claw.mailbox.load["running"] == 0)
            last_page.set()
            await expect(tab.turns.locator(".bubble").first).to_have_text("b6")
            older_page.set()
            wanted += [*more, "held"]
            await eventually(shows_all)


async def test_what_was_written_offline_stands_behind_what_another_tab_sent_meanwhile_in_both(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    read = asyncio.Event()
    said = ["first", "meanwhile", "written offline"]

    async def slow(route: Route) -> None:
        await read.wait()
        await route.continue_()

    async with (
        running_claw(tmp_path, dictated, web=True) as claw,
        chromium.tab(claw) as one,
        chromium.tab(claw, excuse="lost") as two,
    ):
        await two.is_connected()
        await one.send(said[0])
        dictated.say("slowly")
        await expect(one.answer).to_have_text("slowly")
        await two.page.goto(f"{two.page.url}#{await one.session()}")
        await expect(two.answer).to_have_text("slowly")
        await two.page.route("**/messages?*", slow)
        await lose_the_line(two)
        await two.send(said[2])
        await one.send(said[1])
        await expect(one.turns).to_have_count(2)
        await two.page.context.set_offline(False)
        await expect(one.turns).to_have_count(3)  # it is taken before the log is read
        read.set()
        await expect(two.turns.last).to_contain_text("还有 2 条")
        for tab in (one, two):
            await expect(tab.turns.locator(".bubble")).to_have_text(said)
        for answer in said:
            dictated.end(answer)
        await two.ended(3)
        await expect(two.turns.locator(".bubble")).to_have_text(said)


async def test_a_text_whose_end_was_missed_is_neither_doubled_nor_left_raw(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw:
        async with chromium.tab(claw, excuse="lost") as tab:
            await tab.is_connected()
            await tab.send("go")
            dictated.say("I look **it**")
            await expect(tab.answer).to_contain_text("it")
            await lose_the_line(tab)
            dictated.say(" up.\n\nOne moment.")
            dictated.call("calculator", expression="6*7")
            dictated.say("It is ")
            await eventually(lambda: len(dictated.requests) == 2)
            await tab.page.context.set_offline(False)
            await expect(tab.answer).to_contain_text("It is")
            dictated.end("**42**.\n\nThat is all.")
            await tab.ended(1)
            texts = tab.answer.locator(".md")
            await expect(texts).to_have_text(["I look it up.\nOne moment.", "It is 42.\nThat is all."])
