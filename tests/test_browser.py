"""The page in a real browser: getting in, asking, tools, approvals, stopping, commands, tabs, keyboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import FilePayload, expect

from miniclaw.agent.demo import DemoProvider
from tests.support.agent import eventually
from tests.support.claw import TOKEN, running_claw, server_process

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

UNREACHABLE = """[...document.querySelectorAll("#page :is(a, button, textarea)")].every((element) => {
  element.focus();
  return document.activeElement !== element;
})"""


async def test_the_printed_address_signs_in_for_good_and_the_token_leaves_the_address_bar(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with server_process(tmp_path) as server, chromium.tab(server.address) as tab:
        await tab.is_connected()
        home = f"http://127.0.0.1:{server.web_port}/"
        assert server.address == f"{home}?token={TOKEN}"
        assert tab.page.url == home
        (cookie,) = await tab.page.context.cookies()
        assert cookie.get("name") == f"miniclaw_{server.web_port}" and TOKEN not in cookie.get("value", "")
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
        assert await tab.page.evaluate("document.cookie") == ""
        assert TOKEN not in await tab.page.evaluate(
            "JSON.stringify(performance.getEntries().map(e => e.name))"
        )
        await tab.page.goto(home)
        await tab.is_connected()
        await expect(tab.page.locator("#gate")).to_be_hidden()


@pytest.mark.parametrize(
    ("locale", "way_in"), [("zh-CN", "请打开 miniclaw serve"), ("en-GB", "Open the address")]
)
async def test_without_a_login_the_page_says_how_to_get_in_and_lets_nobody_write(
    tmp_path: Path, chromium: Chromium, locale: str, way_in: str
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw:
        assert claw.web is not None
        async with chromium.tab(claw.web.url, excuse="refused", locale=locale) as tab:
            await expect(tab.page.get_by_role("alertdialog")).to_contain_text(way_in)
            await expect(tab.page.locator("#gate-again")).to_be_focused()
            assert await tab.page.evaluate(UNREACHABLE)
            await tab.page.goto(f"{claw.web.url}/?token={TOKEN}")
            await tab.is_connected()
            await expect(tab.page.locator("#gate")).to_be_hidden()


async def test_a_chinese_question_is_answered_word_by_word_and_reads_the_same_after_a_reload(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await expect(tab.page.locator("#model")).to_have_text("scripted")
        await expect(tab.page.locator("#demo")).to_be_hidden()
        await tab.send("西湖有多大？")
        await expect(tab.turns.last.locator(".bubble")).to_have_text("西湖有多大？")
        dictated.say("西湖的**水面**约")
        await expect(tab.answer).to_have_text("西湖的**水面**约")
        await expect(tab.turns.last).to_have_attribute("data-state", "writing")
        dictated.say(" 6.39 平方公里。\n\n周长")
        await expect(tab.answer.locator(".md")).to_have_text("西湖的水面约 6.39 平方公里。")
        await expect(tab.answer.locator(".open")).to_have_text("周长")
        dictated.end("约 15 公里。")
        await tab.ended(1)
        html = await tab.answer.locator(".md").inner_html()
        assert "<strong>水面</strong>" in html and html.count("<p>") == 2
        await expect(tab.page.locator("#title")).to_have_text("西湖有多大？")
        await expect(tab.sessions).to_have_text(["西湖有多大？"])
        await tab.page.reload()
        await tab.ended(1)
        assert await tab.answer.locator(".md").inner_html() == html


async def test_a_sum_shows_a_calculator_card_with_arguments_and_result(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        assert "1591" in await tab.ask("37*43 等于多少")
        for _ in ("live", "from the log"):
            card = tab.answer.locator(".tool")
            await expect(card).to_have_attribute("data-state", "ok")
            await expect(card.locator(".tool-name")).to_have_text("calculator")
            await expect(card.locator(".fold-body")).to_be_hidden()
            await card.locator("summary").click()
            await expect(card.locator("pre").first).to_contain_text("37*43")
            await expect(card.locator("pre").last).to_have_text("1591")
            await tab.page.reload()
            await tab.ended(1)


async def test_stop_ends_the_answer_keeps_what_was_said_and_the_chat_goes_on(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await expect(tab.stop).to_be_hidden()
        await tab.send("讲个故事")
        dictated.say("从前有座山，")
        await expect(tab.answer).to_contain_text("从前有座山，")
        await tab.stop.click()
        await tab.ended(1)
        assert await tab.prose() == "从前有座山，"
        await expect(tab.answer.locator(".note")).to_have_text("已停止")
        await expect(tab.stop).to_be_hidden()
        dictated.end("好的。")
        assert await tab.ask("继续别的") == "好的。"
        await tab.page.reload()
        await tab.ended(2)
        await expect(tab.turns.first.locator(".answer .md")).to_contain_text("从前有座山，")
        await expect(tab.turns.first.locator(".answer .note")).to_have_text("已停止")


@pytest.mark.parametrize(
    ("button", "shown", "state", "left"),
    [("允许一次", "已允许一次：memory_delete", "ok", 0), ("拒绝", "已拒绝：memory_delete", "failed", 1)],
    ids=["allow", "deny"],
)
async def test_an_approval_card_decides_whether_the_tool_runs(
    tmp_path: Path, chromium: Chromium, button: str, shown: str, state: str, left: int
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        await claw.memory.save("owner", "我住在杭州")
        await tab.send("忘记我住在杭州")
        card = tab.page.get_by_role("group", name="允许运行 memory_delete 吗？")
        await expect(card.locator("pre")).to_contain_text("mem_")
        await expect(tab.sessions.locator(".mark.waiting")).to_have_count(1)
        await tab.page.reload()
        await expect(card.locator("pre")).to_contain_text("mem_")
        await card.get_by_role("button", name=button).click()
        await tab.ended(1)
        await expect(card).to_have_count(0)
        await expect(tab.answer).to_contain_text(shown)
        await expect(tab.answer.locator(".tool").last).to_have_attribute("data-state", state)
        assert len(await claw.memory.list("owner")) == left
        await expect(tab.sessions.locator(".mark")).to_have_count(0)


async def test_two_tabs_of_one_session_stay_in_step(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tabs(claw, 2) as (one, two):
        await one.send("第一句")
        dictated.end("第一答。")
        await one.ended(1)
        await two.sessions.click()
        await two.ended(1)
        assert await two.prose() == "第一答。"
        await two.send("第二句")
        dictated.say("正在**说**。\n\n还有")
        for tab in (one, two):
            await expect(tab.turns.last.locator(".bubble")).to_have_text("第二句")
            await expect(tab.answer.locator(".md")).to_have_text("正在说。")
            await expect(tab.answer.locator(".open")).to_have_text("还有")
            await expect(tab.stop).to_be_visible()
        dictated.call("memory_delete", memory_id="mem_none")
        for tab in (one, two):
            await expect(tab.answer.locator(".approval")).to_be_visible()
        await one.page.get_by_role("button", name="本次对话都允许").click()
        for tab in (one, two):
            await expect(tab.answer.locator(".approval")).to_have_count(0)
        dictated.end("好吧。")
        for tab in (one, two):
            await tab.ended(2)
            await expect(tab.turns.locator(".bubble")).to_have_text(["第一句", "第二句"])
            assert await tab.prose() == "正在说。\n\n还有\n\n好吧。"
            await expect(tab.answer).to_contain_text("本次对话已允许：memory_delete")
        assert await one.answer.inner_html() == await two.answer.inner_html()


async def test_what_waits_is_shown_in_every_tab_with_its_files_in_order_and_after_a_reload(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    note: FilePayload = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"4711"}
    said = ["一", "二", "/clear", "三"]
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tabs(claw, 2) as (one, two):
        await one.send("一")
        dictated.say("慢慢说")
        await expect(one.answer).to_have_text("慢慢说")
        await two.sessions.click()
        await expect(two.answer).to_have_text("慢慢说")
        await one.page.set_input_files("#file", note)
        await expect(one.page.locator("#files .chip")).to_have_count(1)
        await expect(one.page.locator("#files .spinner")).to_have_count(0)
        for text in said[1:]:
            await one.send(text)
        for _ in ("live", "reloaded"):
            for tab in (one, two):
                await expect(tab.turns.locator(".bubble")).to_have_text(said)
                await expect(tab.turns.nth(1).locator(".chip")).to_have_text("note.txt")
                await expect(tab.turns.nth(2)).to_contain_text("还有 2 条")
            await one.page.reload()
        await expect(one.turns.locator(".bubble")).to_have_text(said)
        dictated.end()
        dictated.end("二。")
        dictated.end("三。")
        for tab in (one, two):
            await tab.ended(4)
            await expect(tab.turns.locator(".bubble")).to_have_text(said)
            await expect(tab.turns.locator(".md")).to_have_text(["慢慢说", "二。", "三。"])
            await expect(tab.turns.locator(".chip")).to_have_text("note.txt")


async def test_typed_commands_show_their_results_and_new_leads_to_another_chat(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        await tab.send("/help")
        await tab.ended(1)
        await expect(tab.answer.locator("pre")).to_contain_text(
            re.compile(r"^/ping  \S.*\n/help  所有命令", re.M)
        )
        await tab.send("/timers")
        await tab.ended(2)
        await expect(tab.answer.locator("pre")).to_have_text("（空）/ (nothing)")
        await tab.send("/clear")
        await tab.ended(3)
        await expect(tab.answer).to_contain_text("之前的对话已不再给模型看")
        await tab.send("/nothing")
        await tab.ended(4)
        await tab.send("/new")
        await expect(tab.turns).to_have_count(0)
        await expect(tab.page.locator(".hello")).to_be_visible()


async def test_a_message_sent_during_an_answer_waits_its_turn_and_stop_means_the_running_one(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await tab.send("一")
        dictated.say("慢慢说")
        await expect(tab.answer).to_have_text("慢慢说")
        await tab.send("二")
        await expect(tab.turns.last).to_contain_text("前面还有 1 条")
        await tab.send("三")
        await expect(tab.turns.last).to_contain_text("前面还有 2 条")
        await tab.page.keyboard.press("Escape")
        await expect(tab.turns.first).to_contain_text("已停止")
        await expect(tab.turns.last).to_contain_text("前面还有 1 条")
        dictated.end("说完了。")
        await expect(tab.turns.nth(1)).to_contain_text("说完了。")
        dictated.end("也说完了。")
        await tab.ended(3)
        assert await tab.prose() == "也说完了。"
        await expect(tab.turns.locator(".bubble")).to_have_text(["一", "二", "三"])


async def test_the_place_of_a_waiting_message_is_right_after_a_reconnect_and_a_command_that_failed(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw, excuse="lost") as tab:
        await tab.send("一")
        dictated.say("慢慢说")
        await expect(tab.answer).to_have_text("慢慢说")
        await tab.send("/model nosuchmodel")
        for number, text in enumerate(("二", "三", "四"), 2):
            await tab.send(text)
            await expect(tab.turns.last).to_contain_text(f"前面还有 {number} 条")
        await tab.page.context.set_offline(True)
        dictated.end("。")
        await eventually(lambda: len(dictated.requests) == 2)
        await tab.page.context.set_offline(False)
        await expect(tab.turns.last).to_contain_text("前面还有 2 条")
        await tab.send("/model nosuchmodel")
        await tab.send("五")
        for text, left in (("二", 3), ("三", 2), ("四", 0)):
            dictated.end(f"{text}完")
            if left:
                await expect(tab.turns.last).to_contain_text(f"前面还有 {left} 条")
        await tab.send("/model nosuchmodel")
        await expect(tab.turns.last).to_contain_text("前面还有 1 条")
        await tab.page.reload()  # which does not know under what id it was sent
        await expect(tab.turns.last).to_contain_text("前面还有 1 条")
        dictated.end("五完")
        await expect(tab.turns.last).to_contain_text("nosuchmodel")
        await expect(tab.turns.last).to_have_attribute("data-state", "ended")
        await expect(tab.page.locator("#stop")).to_be_hidden()


async def test_enter_that_ends_a_composition_does_not_send_and_the_next_one_does(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        await tab.is_connected()
        await tab.field.focus()
        ime = await tab.page.context.new_cdp_session(tab.page)
        await tab.page.evaluate(
            "window.composed = []; for (const kind of ['compositionstart', 'compositionend'])"
            "document.addEventListener(kind, (event) => composed.push(kind));"
            "document.addEventListener('keydown', (event) => composed.push([event.key, event.isComposing, event.keyCode]))"
        )
        enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter"}
        for pinyin in ("n", "ni", "ni'hao"):
            composition = {"text": pinyin, "selectionStart": len(pinyin), "selectionEnd": len(pinyin)}
            await ime.send("Input.imeSetComposition", composition)
        await ime.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 13})
        await expect(tab.turns).to_have_count(0)
        await ime.send("Input.insertText", {"text": "你好"})
        await expect(tab.field).to_have_value("你好")
        # Safari ends the composition before it sends the key, which then has the code of an input method.
        await ime.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 229})
        seen = await tab.page.evaluate("composed")
        assert seen == ["compositionstart", ["Enter", True, 13], "compositionend", ["Enter", False, 229]]
        await expect(tab.field).to_have_value("你好")
        await expect(tab.turns).to_have_count(0)
        await tab.page.keyboard.press("Shift+Enter")
        await tab.page.keyboard.type("again")
        await expect(tab.field).to_have_value("你好\nagain")
        await tab.page.keyboard.press("Enter")
        await tab.ended(1)
        await expect(tab.turns.locator(".bubble")).to_have_text(["你好 again"])


async def test_the_keyboard_alone_sends_stops_opens_cards_and_changes_chats(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await tab.is_connected()
        press, write = tab.page.keyboard.press, tab.page.keyboard.type
        await expect(tab.field).to_be_focused()
        await write("first")
        await press("Enter")
        dictated.call("calculator", expression="1+1")
        dictated.say("It is")
        await expect(tab.answer).to_contain_text("It is")
        await press("Tab")
        await expect(tab.stop).to_be_focused()
        await press("Enter")
        await tab.ended(1)
        await expect(tab.field).to_be_focused()
        await tab.press_until_focused("Shift+Tab", ".tool summary")
        await press("Enter")
        await expect(tab.answer.locator(".tool pre").last).to_have_text("2")
        await tab.press_until_focused("Shift+Tab", "#new-chat")
        await press("Enter")
        await expect(tab.turns).to_have_count(0)
        await expect(tab.field).to_be_focused()
        await write("second")
        await press("Enter")
        dictated.end("Yes.")
        await tab.ended(1)
        await expect(tab.sessions).to_have_text(["second", "first"])
        await tab.press_until_focused("Shift+Tab", "#sessions a:not([aria-current])")
        await press("Enter")
        await expect(tab.page.locator("#title")).to_have_text("first")
        await expect(tab.turns.locator(".bubble")).to_have_text(["first"])
