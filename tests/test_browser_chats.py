"""Chats in the page: found, renamed, branched, deleted; messages edited, quoted, sent with files and by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Route, expect

from miniclaw.agent.demo import DemoProvider
from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from tests.support.claw import running_claw
from tests.support.model import last_user

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider, Tab

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def echo(messages: list[Message]) -> LLMResponse:
    said = [message["content"] for message in messages if message["role"] == "user"]
    return LLMResponse(text=f"{len(said)}: {last_user(messages).upper()}")


async def choose(tab: Tab, chat: str, item: str) -> None:
    """Open a chat's menu and choose an item."""
    row = tab.page.locator("#sessions li", has=tab.page.get_by_role("link", name=chat, exact=True))
    await row.hover()
    await row.get_by_role("button").click()
    await tab.page.get_by_role("menuitem", name=item, exact=True).click()


async def test_chats_are_found_renamed_forked_exported_and_deleted_with_a_way_back(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with (
        running_claw(tmp_path, ScriptedProvider([echo] * 4), web=True) as claw,
        chromium.tabs(claw, 2) as (one, two),
    ):
        for tab in (two, one):  # the first to know its user has one that does not yet begin anew
            await tab.is_connected()
        await one.page.bring_to_front()  # frames of a tab behind another come once a second
        for text in ("green tea", "black coffee"):
            await one.new_chat()
            await one.ask(text)
        search = one.page.get_by_role("searchbox", name="搜索对话")
        await search.fill("GREEN TE")
        await expect(one.sessions).to_have_text(["green tea", "green tea1: GREEN TEA", "green teagreen tea"])
        for query in ("GREEN TE", "BLACK"):  # what was said live is found too
            await search.fill(query)
            await one.page.locator("a.hit", has_text=query).first.click()
            await expect(one.thread.locator(".turn.found .bubble")).to_contain_text(query.lower())
        await search.fill("nowhere")
        await expect(one.page.locator("#sessions")).to_have_text("没有找到")
        await search.fill("")
        await choose(one, "green tea", "重命名")
        dialog = one.page.get_by_role("dialog", name="重命名")
        await expect(dialog.get_by_label("标题")).to_be_focused()
        await dialog.get_by_label("标题").fill("<b>tea</b>")
        await one.page.keyboard.press("Enter")
        for tab in (one, two):
            await expect(tab.sessions).to_have_text(["black coffee", "<b>tea</b>"])
        await expect(one.page.get_by_role("button", name="“<b>tea</b>”的操作")).to_be_focused()
        await choose(one, "<b>tea</b>", "从这里分叉")
        await one.ended(1)
        await expect(one.page.locator("#sessions a[aria-current]")).to_have_text("<b>tea</b>")
        assert await one.ask("and cups") == "2: AND CUPS"
        await expect(two.sessions).to_have_count(3)
        async with one.page.expect_download() as download:
            await choose(one, "black coffee", "导出为 Markdown")
        path = await (await download.value).path()
        assert "BLACK COFFEE" in path.read_text(encoding="utf-8")
        await choose(one, "black coffee", "删除")
        await expect(one.sessions).to_have_count(2)
        await one.page.keyboard.press("Control+Shift+;")  # "copied", which takes no undo away
        await expect(one.page.locator(".toast")).to_have_count(2)
        await one.page.get_by_role("button", name="撤销").click()
        await expect(one.sessions).to_have_count(3)
        # The open chat is left at once, comes back where it is wanted again, and so it does when it is opened.
        await one.page.get_by_role("link", name="black coffee").click()
        await one.ended(1)
        for wanted in (one.page.get_by_role("button", name="撤销").click, one.page.go_back):
            await choose(one, "black coffee", "删除")
            await expect(one.turns).to_have_count(0)
            await wanted()
            await one.ended(1)
            await expect(one.page.locator("#sessions a[aria-current]")).to_have_text("black coffee")
        await choose(one, "black coffee", "重命名")  # to nothing: then it is called like its first message
        await dialog.get_by_label("标题").fill("")
        await one.page.keyboard.press("Enter")
        await expect(one.page.locator("#title")).to_have_text("black coffee")
        await choose(one, "black coffee", "删除")
        await one.page.reload()  # who leaves the page meant it
        for tab in (one, two):
            await expect(tab.sessions).to_have_text(["<b>tea</b>", "<b>tea</b>"])
        assert len(await claw.sessions.list("owner")) == 2


async def test_an_answer_is_asked_for_again_a_message_edited_and_a_part_quoted_and_nothing_is_lost(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with (
        running_claw(tmp_path, ScriptedProvider([echo] * 6), web=True) as claw,
        chromium.tab(claw) as tab,
    ):
        await tab.ask("one")
        assert await tab.ask("two") == "2: TWO"
        first = await tab.session()
        await tab.turns.last.get_by_role("button", name="重新回答").click()
        await expect(tab.page.locator("#sessions a")).to_have_count(2)
        await tab.ended(2)
        await expect(tab.turns.locator(".bubble")).to_have_text(["one", "two"])
        assert await tab.session() != first
        # The arrow up in an empty message edits the last one.
        await tab.field.press("ArrowUp")
        edit = tab.turns.last.get_by_role("textbox", name="编辑后重新发送")
        await expect(edit).to_have_value("two")
        await edit.press("Escape")
        await expect(edit).to_have_count(0)
        await tab.turns.first.hover()
        await tab.turns.first.get_by_role("button", name="编辑后重新发送").click()
        await edit.or_(tab.turns.first.get_by_role("textbox")).fill("uno")
        await tab.page.keyboard.press("Enter")
        await expect(tab.page.locator("#sessions a")).to_have_count(3)
        await tab.ended(1)
        assert await tab.prose() == "1: UNO"
        await tab.turns.last.get_by_role("button", name="引用").click()
        await expect(tab.field).to_have_value("> 1: UNO\n\n")
        await expect(tab.field).to_be_focused()
        # Drafts belong to their chats.
        await tab.page.goto(f"{tab.page.url.partition('#')[0]}#{first}")
        await tab.ended(2)
        await expect(tab.turns.locator(".bubble")).to_have_text(["one", "two"])
        await expect(tab.field).to_have_value("")
        await tab.page.go_back()
        await expect(tab.field).to_have_value("> 1: UNO\n\n")


async def test_an_edit_that_cannot_be_sent_stays_open_with_its_text_and_says_why(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw, excuse="lost") as tab:
        await tab.send("one")
        dictated.say("first")
        await expect(tab.answer).to_contain_text("first")
        await tab.send("two")
        await expect(tab.turns.last).to_contain_text("排队中")
        await tab.field.press("ArrowUp")
        edit = tab.turns.last.get_by_role("textbox")
        for words, problem in (("rewritten", "这条消息还没轮到"), ("rewritten again", "服务器没有响应")):
            await edit.fill(words)
            await edit.press("Enter")
            await expect(tab.page.locator("#toasts")).to_contain_text(problem)
            await expect(edit).to_have_value(words)
            await tab.page.context.set_offline(True)
        await tab.page.context.set_offline(False)
        dictated.end()
        dictated.end("second")
        await expect(tab.answer).to_contain_text("second")
        await edit.press("Enter")
        await expect(tab.sessions).to_have_count(2)
        dictated.end("third")
        await tab.ended(2)
        await expect(tab.turns.locator(".bubble")).to_have_text(["one", "rewritten again"])


async def test_a_slash_opens_the_commands_and_keys_lead_everywhere(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, DemoProvider(pace=0), web=True) as claw, chromium.tab(claw) as tab:
        await tab.is_connected()
        menu, press = tab.page.get_by_role("listbox", name="命令"), tab.page.keyboard.press
        await tab.page.keyboard.type("/re")
        await expect(menu.get_by_role("option", selected=True)).to_contain_text("/rename")
        await press("ArrowDown")
        await expect(menu.get_by_role("option", selected=True)).to_contain_text("/remember")
        await press("Escape")
        await expect(menu).to_be_hidden()
        await tab.page.keyboard.type("m")
        await press("Tab")
        await expect(tab.field).to_have_value("/remember ")
        await tab.page.keyboard.type("tea is green")
        await press("Enter")
        await tab.ended(1)
        assert [one.content for one in await claw.memory.list("owner")] == ["tea is green"]
        await press("Control+/")
        sheet = tab.page.get_by_role("dialog", name="键盘快捷键")
        await expect(sheet).to_contain_text("命令菜单")
        await press("Escape")
        await expect(sheet).to_have_count(0)
        await press("Control+k")
        await expect(tab.page.get_by_role("searchbox")).to_be_focused()
        await tab.field.click()  # the list covers nothing where there is room beside it
        await expect(tab.field).to_be_focused()
        await press("Control+Shift+O")
        await expect(tab.page.locator(".hello")).to_be_visible()
        await expect(tab.field).to_be_focused()


async def test_an_answer_in_another_chat_is_marked_unread_until_somebody_looks(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with (
        running_claw(tmp_path, dictated, web=True) as claw,
        chromium.tabs(claw, 2) as (one, two),
    ):
        await one.page.bring_to_front()
        for tab in (one, two):
            await tab.is_connected()
        await one.send("slow")
        dictated.say("Wait")
        await expect(one.answer).to_have_text("Wait")
        await one.new_chat()
        dictated.end(" for it.")
        mark = ".mark.fresh"
        for tab in (one, two):
            await expect(tab.sessions.locator(mark)).to_have_count(1)
        await one.sessions.click()
        for tab in (one, two):
            await expect(tab.sessions.locator(mark)).to_have_count(0)
        await two.page.reload()
        await expect(two.sessions).to_have_text("slow")
        assert await one.prose() == "Wait for it."


async def test_files_are_pasted_dropped_taken_back_and_sent_with_the_message(
    tmp_path: Path, chromium: Chromium
) -> None:
    """Against the contract of `POST /api/uploads`: one field `file`, answered by an id."""
    names: list[str] = []

    async def upload(route: Route) -> None:
        body = (route.request.post_data_buffer or b"").decode("utf-8", "replace")
        name = body.partition('filename="')[2].partition('"')[0]
        assert 'name="file"' in body
        names.append(name)
        if name == "evil.exe":
            error = {"error": {"code": "unsupported", "message": "No programs <img src=x>."}}
            return await route.fulfill(status=400, json=error)
        made = {"id": f"upl_{len(names)}", "name": name, "type": "text/plain", "bytes": 1}
        return await route.fulfill(status=201, json=made)

    give = """(kind, name) => {
      const data = new DataTransfer();
      data.items.add(new File(["x"], name, {type: "text/plain"}));
      const target = document.querySelector("#message");
      const event = kind === "paste"
        ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})
        : new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
      target.dispatchEvent(event);
    }"""
    async with running_claw(tmp_path, ScriptedProvider([echo] * 2), web=True) as claw:
        async with chromium.tab(claw, excuse="bad request") as tab:
            sent: list[str] = []
            tab.page.on("websocket", lambda ws: ws.on("framesent", lambda frame: sent.append(str(frame))))
            await tab.page.route("**/api/uploads", upload)
            await tab.page.reload()
            await tab.is_connected()
            chips = tab.page.locator("#files .chip")
            for kind, name in (("paste", "<b>a</b>.txt"), ("drop", "b.txt"), ("drop", "evil.exe")):
                await tab.page.evaluate(f"([kind, name]) => ({give})(kind, name)", [kind, name])
            await expect(chips).to_have_text(["<b>a</b>.txt", "b.txt", "evil.exeNo programs <img src=x>."])
            await tab.page.set_input_files(
                "#file", {"name": "c.md", "mimeType": "text/markdown", "buffer": b"y"}
            )
            await expect(chips).to_have_count(4)
            await tab.page.get_by_role("button", name="移除 b.txt").click()
            await expect(chips).to_have_count(3)
            await tab.field.press("Enter")  # nothing leaves while a file is missing
            await expect(tab.page.locator(".toast")).to_contain_text("先移除")
            await tab.page.get_by_role("button", name="移除 evil.exe").click()
            await tab.field.press("Enter")
            await expect(chips).to_have_count(0)
            await expect(tab.turns.last.locator(".chip")).to_have_text(["<b>a</b>.txt", "c.md"])
            await expect(tab.turns.last.locator(".bubble")).to_have_text("请看附件。")
            (frame,) = [json.loads(frame) for frame in sent if '"msg_type":"text"' in frame]
            ids = [one["id"] for one in frame["payload"]["attachments"]]
            assert ids == [f"upl_{names.index(name) + 1}" for name in ("<b>a</b>.txt", "c.md")]
