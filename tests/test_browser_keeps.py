"""What the page keeps: messages that wait or were refused, drafts with their files, each for its user and its tab."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Error, FilePayload, Route, WebSocketRoute, expect

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from tests.support.browser import address
from tests.support.claw import running_claw

if TYPE_CHECKING:
    from tests.support.browser import Chromium

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def ok(_: list[Message]) -> LLMResponse:
    return LLMResponse(text="ok")


def files(count: int) -> list[FilePayload]:
    return [{"name": f"n{i}.txt", "mimeType": "text/plain", "buffer": b"4711"} for i in range(count)]


async def test_what_one_user_left_unsent_is_neither_shown_nor_sent_to_another_and_two_chats_stay_two(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([ok] * 2), web=True) as claw:
        token = await claw.identities.add("bob")
        assert claw.web is not None
        holds = True

        def line_of(line: WebSocketRoute) -> None:
            """Nothing leaves with the last connection of the first user."""
            if not holds:
                line.connect_to_server()

        async with chromium.tab(claw, excuse="lost") as tab:
            await tab.is_connected()
            await tab.page.context.set_offline(True)
            await expect(tab.page.locator("#light")).to_have_class("light connecting")
            await tab.send("first chat")
            await tab.new_chat()
            await tab.send("another chat")
            await expect(tab.turns).to_have_count(1)
            await tab.field.fill("private")
            await tab.page.route_web_socket("**/ws*", line_of)
            await tab.page.context.set_offline(False)
            await tab.page.goto(f"{claw.web.url}/?token={token}")
            await expect(tab.page.locator("#user")).to_have_text("bob")
            await expect(tab.field).to_have_value("")
            await expect(tab.turns).to_have_count(0)
            holds = False
            await tab.page.goto(address(claw))
            await expect(tab.page.locator("#user")).to_have_text("owner")
            await expect(tab.field).to_have_value("private")
            await expect(tab.sessions).to_have_count(2)
            assert len(await claw.sessions.list("bob")) == 0


async def test_an_open_tab_of_the_former_user_neither_reads_nor_writes_as_the_one_who_signed_in(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([ok]), web=True) as claw:
        assert claw.web is not None
        bob = f"{claw.web.url}/?token={await claw.identities.add('bob')}"
        async with chromium.tabs(claw, 2, excuse="other user") as (one, two):
            user, other = (tab.page.locator("#user") for tab in (one, two))
            await one.is_connected()
            await one.ask("secret")
            await one.page.locator("#panels button").first.click()
            await one.page.get_by_role("button", name="添加记忆").click()
            await one.page.get_by_role("dialog").get_by_label("内容").fill("4711")
            await one.page.context.request.get(bob)  # a login that no page of ours tells the others about
            await one.page.keyboard.press("Tab")
            await one.page.get_by_role("button", name="保存").click()
            await expect(user).to_have_text("bob")
            await expect(other).to_have_text("bob")  # the other tab follows by itself
            await expect(one.page.locator("#sessions")).to_have_text("还没有对话")
            assert await claw.memory.list("bob") == await claw.memory.list("owner") == []
            await two.page.goto(address(claw))
            await expect(user).to_have_text("owner")


async def test_a_tab_that_does_not_know_its_user_yet_is_never_two_users_at_once(
    tmp_path: Path, chromium: Chromium
) -> None:
    known = asyncio.Event()

    async def status(route: Route) -> None:
        await known.wait()
        with contextlib.suppress(Error):  # the page was left meanwhile
            await route.continue_()

    async with running_claw(tmp_path, ScriptedProvider([ok] * 2), web=True) as claw:
        assert claw.web is not None
        bob = f"{claw.web.url}/?token={await claw.identities.add('bob')}"
        async with chromium.tabs(claw, 2, excuse="other user") as (one, two):
            user, other = (tab.page.locator("#user") for tab in (one, two))
            await expect(user).to_have_text("owner")
            await expect(other).to_have_text("owner")
            await two.page.evaluate("sessionStorage.clear()")  # as in a fresh tab
            await two.page.route("**/api/status", status)
            await two.page.reload()
            await two.is_connected()
            await two.send("of the owner")
            await expect(two.turns).to_have_count(1)
            await one.page.goto(bob)
            await expect(user).to_have_text("bob")
            known.set()
            await expect(other).to_have_text("bob")
            await expect(two.turns).to_have_count(0)
            assert await claw.sessions.list("bob") == []
            # A line that was opened as another is left, also where the login was not heard of.
            await two.ask("of bob")
            known.clear()
            await two.page.goto(claw.web.url)
            await two.is_connected()
            await expect(two.sessions).to_have_count(1)
            await two.page.context.request.get(address(claw))
            known.set()
            await expect(other).to_have_text("owner")
            await expect(two.sessions).to_have_count(0)
            await two.ask("of the owner")
            chats = [await claw.sessions.list(name) for name in ("owner", "bob")]
            assert [[chat.title for chat in some] for some in chats] == [["of the owner"], ["of bob"]]


async def test_a_refused_message_outlives_a_reload_and_no_address_breaks_the_page(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([ok]), web=True) as claw:
        async with chromium.tab(claw) as tab:
            await tab.is_connected()
            home = tab.page.url
            await tab.page.goto(f"{home}#%E0%A4%A")
            await tab.page.reload()
            await tab.is_connected()
            await tab.field.fill("x" * 1_000_001)
            await tab.field.press("Enter")  # stays where it was written
            await expect(tab.page.locator(".toast")).to_contain_text("太长了")
            await expect(tab.turns).to_have_count(0)
            assert len(await tab.field.input_value()) == 1_000_001
            await tab.field.fill("")
            await tab.page.goto(f"{home}#ses_none")
            await expect(tab.thread.get_by_role("alert")).to_contain_text("找不到")
            await tab.send("anybody?")
            for _ in ("refused", "kept"):
                await expect(tab.turns.last.locator(".problem")).to_contain_text("没有发出")
                await tab.page.reload()
            await tab.page.get_by_role("button", name="删除").click()
            await tab.page.reload()
            await tab.is_connected()
            await expect(tab.turns).to_have_count(0)
            await tab.new_chat()
            assert await tab.ask("hi") == "ok"
            before = await tab.session()
            await tab.page.locator(".skip").focus()
            await tab.page.keyboard.press("Enter")
            await expect(tab.field).to_be_focused()
            assert await tab.session() == before


async def test_files_wait_for_a_busy_server_survive_a_reload_and_go_along_into_one_branch(
    tmp_path: Path, chromium: Chromium
) -> None:
    provider = ScriptedProvider([ok] * 2)
    busy = [503] * 2

    async def upload(route: Route) -> None:
        if busy:
            return await route.fulfill(status=busy.pop(), json={"error": {"code": "overloaded"}})
        return await route.continue_()

    async with running_claw(tmp_path, provider, web=True) as claw:
        async with chromium.tab(claw, excuse="busy") as tab:
            await tab.is_connected()
            await tab.page.route("**/api/uploads", upload)
            await tab.page.set_input_files("#file", files(9))
            await expect(tab.page.locator(".toast")).to_contain_text("n8.txt")
            chips = tab.page.locator("#files .chip")
            await expect(chips).to_have_count(8)
            await expect(chips.locator(".spinner")).to_have_count(0)
            await expect(tab.page.locator("#files .bad")).to_have_count(0)
            await tab.page.reload()
            await expect(chips).to_have_count(8)
            await tab.ask("what is in it?")
            await expect(chips).to_have_count(0)
            await tab.turns.last.get_by_role("button", name="重新回答").dblclick()
            await expect(tab.page.locator(".toast")).to_contain_text("分支")
            await tab.ended(1)
            await expect(tab.turns.last.locator(".chip")).to_have_count(8)
            await expect(tab.sessions).to_have_count(2)
            assert len(provider.requests) == 2
            # Those of a chat that was left meanwhile stay with it.
            arrives = asyncio.Event()

            async def slow(route: Route) -> None:
                await arrives.wait()
                await route.continue_()

            await tab.page.route("**/api/uploads", slow)
            await tab.page.set_input_files("#file", files(1))
            await tab.send("early")
            await expect(tab.page.locator(".toast").last).to_contain_text("还在上传")
            chat = tab.page.url
            await tab.new_chat()
            arrives.set()
            await tab.page.wait_for_function("() => JSON.stringify(sessionStorage).includes('n0.txt')")
            await tab.page.reload()
            await tab.page.goto(chat)
            await expect(chips).to_have_text("n0.txt")
            await expect(tab.field).to_have_value("early")


async def test_a_file_given_while_the_server_is_away_holds_its_message_until_it_is_uploaded(
    tmp_path: Path, chromium: Chromium
) -> None:
    arrives = asyncio.Event()

    async def slow(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    async with running_claw(tmp_path, ScriptedProvider([ok] * 2), web=True) as claw:
        async with chromium.tab(claw, excuse="lost") as tab:
            light, chips = tab.page.locator("#light"), tab.page.locator("#files .chip")
            await tab.is_connected()
            await tab.page.context.set_offline(True)  # before the page has what uploads
            await expect(light).to_have_class("light connecting")
            await tab.send("first")
            await tab.page.set_input_files("#file", files(1))
            await expect(tab.page.locator(".toast")).to_have_text("服务器没有响应")
            await tab.send("what is in it?")
            await expect(tab.page.locator(".toast")).to_contain_text("还在上传")
            await expect(tab.turns).to_have_count(1)
            await tab.page.route("**/static/files.js", slow)
            await tab.page.context.set_offline(False)
            await tab.ended(1)
            arrives.set()  # when the chat has got its session
            await expect(chips).to_have_text("n0.txt")
            await tab.page.context.set_offline(True)
            await expect(light).to_have_class("light connecting")
            await tab.page.set_input_files("#file", files(2)[1:])
            await expect(chips.last).to_contain_text("服务器没有响应")
            await tab.page.context.set_offline(False)
            await expect(chips.last).to_have_text("n1.txt")
            await expect(chips.locator(".spinner")).to_have_count(0)
            await tab.field.press("Enter")
            await tab.ended(2)
            await expect(tab.turns.last.locator(".chip")).to_have_text(["n0.txt", "n1.txt"])


async def test_each_tab_keeps_its_own_draft_and_a_chat_deleted_elsewhere_takes_none_with_it(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([ok] * 2), web=True) as claw:
        async with chromium.tabs(claw, 2) as (one, two):
            await one.is_connected()
            await two.is_connected()
            await one.ask("hi")
            session = await one.session()
            await two.page.goto(f"{two.page.url}#{session}")
            await two.ended(1)
            await one.field.fill("a long text")
            await two.ask("short")
            await one.ended(2)
            await one.page.reload()
            await one.ended(2)
            await expect(one.field).to_have_value("a long text")
            await one.page.set_input_files("#file", files(1))
            await expect(one.page.locator("#files .spinner")).to_have_count(0)
            gone = f"fetch('./api/sessions/{session}', {{method: 'DELETE', headers: {{'Content-Type': 'application/json'}}}})"
            assert await two.page.evaluate(f"{gone}.then(({{ok}}) => ok)")
            await expect(one.turns).to_have_count(0)
            await expect(one.field).to_have_value("a long text")
            await expect(one.page.locator("#files .chip")).to_have_count(1)


FILL = """() => {
  for (let size = 1 << 20; size; size >>= 1) {
    try { for (;;) sessionStorage.setItem(`full.${Math.random()}`, "x".repeat(size)) } catch {}
  }
}"""


async def test_words_outlive_a_reload_before_the_user_is_known_and_none_of_them_stops_the_others(
    tmp_path: Path, chromium: Chromium
) -> None:
    known = asyncio.Event()

    async def status(route: Route) -> None:
        await known.wait()
        with contextlib.suppress(Error):  # the page was left meanwhile
            await route.continue_()

    def line_of(line: WebSocketRoute) -> None:
        server = line.connect_to_server()
        line.on_message(lambda frame: server.send("{" if "poison" in str(frame) else frame))

    async with running_claw(tmp_path, ScriptedProvider([ok] * 4), web=True) as claw:
        async with chromium.tab(claw, excuse="lost") as tab:
            await tab.is_connected()
            await tab.page.route("**/api/status", status)
            await tab.page.route_web_socket("**/ws*", line_of)
            await tab.page.reload()
            await tab.is_connected()
            await tab.send("early")
            await tab.field.fill("half")
            await expect(tab.turns).to_contain_text("正在发送")
            await tab.page.reload()
            known.set()
            await tab.ended(1)
            await expect(tab.turns.locator(".bubble")).to_have_text("early")
            await expect(tab.field).to_have_value("half")
            # A frame that the server cannot read is refused, and those behind it are sent.
            await tab.send("poison")
            await expect(tab.turns.last.locator(".problem")).to_contain_text("没有发出")
            await tab.page.get_by_role("button", name="删除").click()
            # Neither is half of a character kept, where a message is edited.
            await tab.turns.first.hover()
            await tab.turns.first.get_by_role("button", name="编辑后重新发送").click()
            edit = tab.turns.first.get_by_role("textbox")
            await edit.evaluate(r"field => (field.value = 'a\ud83d\0b')")
            await edit.press("Enter")
            await expect(tab.sessions).to_have_count(2)
            await tab.ended(1)
            await expect(tab.turns.locator(".bubble")).to_have_text("a\ufffdb")
            # Where the tab has no room left, it says so.
            await tab.page.evaluate(FILL)
            await tab.page.context.set_offline(True)
            await expect(tab.page.locator("#light")).to_have_class("light connecting")
            await tab.send("only here")
            await expect(tab.turns.last).to_contain_text("只有这个标签页有它")
            await tab.page.context.set_offline(False)
            await tab.ended(2)
