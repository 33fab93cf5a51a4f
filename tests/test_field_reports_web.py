"""What others' web chats got wrong, tried in ours, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from playwright.async_api import WebSocketRoute, expect

from miniclaw.agent.demo import DemoProvider
from tests.support.claw import TOKEN, running_claw

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_what_streams_in_one_chat_is_shown_there_alone_whichever_is_open(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await tab.send("first")
        dictated.say("one, ")
        await expect(tab.answer).to_have_text("one,")
        first = await tab.session()
        await tab.new_chat()
        dictated.say("two, ")
        await tab.send("second")
        dictated.end("three.")
        dictated.end("Mine.")
        await tab.ended(1)
        assert await tab.prose() == "Mine."
        await tab.page.locator(f"#sessions a[href='#{first}']").click()
        await expect(tab.turns.locator(".bubble")).to_have_text(["first"])
        await tab.ended(1)
        assert await tab.prose() == "one, two, three."


async def test_a_turn_that_begins_elsewhere_in_the_open_chat_is_shown_and_settles_also_without_its_end(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    """The socket goes just when the end of the turn would come; the page finds it by itself."""
    lines: list[WebSocketRoute] = []

    def lose(line: WebSocketRoute) -> None:
        server, is_first = line.connect_to_server(), not lines
        lines.append(line)
        line.on_message(server.send)
        server.on_message(
            lambda frame: None if is_first and '"name":"turn.finished"' in str(frame) else line.send(frame)
        )

    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await tab.is_connected()
        session = await claw.sessions.get_or_create("owner", "web")
        await tab.page.route_web_socket("**/ws*", lose)
        await tab.page.goto(f"{tab.page.url}#{session.session_id}")
        await tab.page.reload()
        await tab.is_connected()
        await expect(tab.page.locator(".hello")).to_be_visible()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            assert claw.web is not None
            body = {"text": "from afar", "session_id": session.session_id}
            async with http.post(f"{claw.web.url}/api/messages", json=body) as response:
                assert response.status == 202
        await expect(tab.turns.locator(".bubble")).to_have_text(["from afar"])
        dictated.end("Seen.")
        await expect(tab.answer).to_contain_text("Seen.")
        await expect(tab.turns.last).to_have_attribute("data-state", "writing")
        await lines[0].close()
        await tab.ended(1)
        assert await tab.prose() == "Seen."


async def test_a_reload_while_the_model_thinks_loses_no_answer_and_the_next_message_is_answered(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await tab.send("think")
        await expect(tab.turns.last).to_contain_text("正在思考…")
        await tab.page.reload()
        await expect(tab.turns.locator(".bubble")).to_have_text(["think"])
        await tab.send("and then?")
        await expect(tab.turns).to_have_count(2)
        dictated.end("Thought.")
        dictated.end("Then this.")
        await tab.ended(2)
        await expect(tab.turns.locator(".md")).to_have_text(["Thought.", "Then this."])


async def test_enter_sends_again_after_a_composition_that_never_ended(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        await tab.is_connected()
        await tab.field.focus()
        ime = await tab.page.context.new_cdp_session(tab.page)
        # The page never learns that the composition was over.
        await tab.page.evaluate(
            "for (const kind of ['compositionend', 'compositionupdate'])"
            "document.addEventListener(kind, (event) => event.stopImmediatePropagation(), true)"
        )
        await ime.send("Input.imeSetComposition", {"text": "ni", "selectionStart": 2, "selectionEnd": 2})
        await tab.page.locator("#search").focus()
        await tab.field.focus()
        await tab.field.fill("你好")
        await tab.page.keyboard.press("Enter")
        await tab.ended(1)
        await expect(tab.turns.locator(".bubble")).to_have_text(["你好"])


async def test_a_refused_model_switch_ends_its_turn_and_tells_why(tmp_path: Path, chromium: Chromium) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        await tab.ask("hello")
        await tab.send("/model no-such-model")
        await tab.ended(2)
        await expect(tab.answer.locator(".problem")).to_contain_text("no-such-model")
