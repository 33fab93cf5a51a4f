"""The panels beside the chat: memory, skills, tools, usage, what waits, settings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import Locator, expect

from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.session.models import Usage
from miniclaw.skills.models import Skill
from tests.support.claw import running_claw

if TYPE_CHECKING:
    from tests.support.browser import Chromium, Tab

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def opened(tab: Tab, name: str) -> Locator:
    """Open a panel by its button."""
    await tab.page.get_by_role("group", name="面板").get_by_role("button", name=name).click()
    panel = tab.page.get_by_role("complementary", name=name)
    await expect(panel.get_by_role("heading", level=2)).to_be_focused()
    return panel


async def test_memories_are_seen_searched_added_edited_superseded_deleted_and_exported(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        await claw.memory.save("owner", "likes <img src=x onerror=report(1)> tea")
        await claw.memory.save("owner", "perhaps moves", status="proposed")
        async with chromium.tab(claw) as tab:
            panel = await opened(tab, "记忆")
            cards = panel.get_by_role("listitem")
            await expect(cards.filter(has_text="likes <img src=x onerror=report(1)> tea")).to_have_count(1)

            async def fill(dialog: str, text: str, button: str) -> None:
                form = tab.page.get_by_role("dialog", name=dialog)
                await form.get_by_label("内容").fill(text)
                await form.get_by_role("button", name=button).click()
                await expect(form).to_have_count(0)

            async def act(card: str, item: str) -> None:
                await cards.filter(has_text=card).get_by_role("button", name="操作").click()
                await tab.page.get_by_role("menuitem", name=item).click()

            await panel.get_by_role("button", name="添加记忆").click()
            await fill("添加记忆", "lives in Hangzhou", "保存")
            await act("Hangzhou", "编辑")
            await fill("编辑", "lives in Suzhou", "保存")
            await act("Suzhou", "用新内容取代")
            await fill("用新内容取代", "lives in Shanghai", "保存")
            await expect(cards.filter(has_text="Suzhou")).to_have_count(0)
            await panel.get_by_role("searchbox").fill("shanghai")
            await expect(cards).to_have_count(1)
            await act("Shanghai", "删除")
            await tab.page.get_by_role("dialog").get_by_role("button", name="删除").click()
            await expect(cards).to_have_count(0)
            await panel.get_by_role("searchbox").fill("")
            async with tab.page.expect_download() as download:
                await panel.get_by_role("link", name="导出全部").click()
            path = await (await download.value).path()
            assert "tea" in json.dumps(json.loads(path.read_text(encoding="utf-8")))
            await tab.page.keyboard.press("Escape")
            await expect(panel).to_be_hidden()
            current = await claw.memory.list("owner")
            assert "lives in" not in str([one.content for one in current])


async def test_a_form_stays_when_a_selection_ends_beside_it_or_its_edge_is_clicked(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw, chromium.tab(claw) as tab:
        panel = await opened(tab, "记忆")
        await panel.get_by_role("button", name="添加记忆").click()
        form = tab.page.get_by_role("dialog", name="添加记忆")
        await form.get_by_label("内容").fill("five minutes of writing")
        edge, field = await form.bounding_box(), await form.get_by_label("内容").bounding_box()
        assert edge is not None and field is not None
        mouse = tab.page.mouse
        await mouse.move(field["x"] + 80, field["y"] + 12)
        await mouse.down()
        await mouse.move(edge["x"] - 40, field["y"] + 12, steps=4)
        await mouse.up()
        await mouse.click(edge["x"] + 6, edge["y"] + 6)
        await mouse.click(edge["x"] - 40, edge["y"] + 6)
        await expect(form.get_by_label("内容")).to_have_value("five minutes of writing")
        await tab.page.keyboard.press("Escape")
        await expect(form).to_have_count(0)


async def test_skills_are_switched_on_for_the_chat_and_tools_and_servers_tell_how_they_are(
    tmp_path: Path, chromium: Chromium
) -> None:
    telling = {"command": "sh", "args": ["-c", "echo no $KEY >&2; exit 3"], "env": {"KEY": "sk-0123456789"}}
    servers = {"broken": {"command": "no-such-program-xyz"}, "telling": telling}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    provider = ScriptedProvider([LLMResponse(text="好。")])
    async with running_claw(tmp_path, provider, web=True) as claw, chromium.tab(claw) as tab:
        skill = Skill(name="tea-art", description="Brews tea.", trigger=("龙井",), system_prompt="x")
        claw.skills.register(skill)
        panel = await opened(tab, "技能")
        await expect(panel).to_contain_text("打开一个对话后")
        await tab.ask("龙井怎么泡")
        await opened_again(tab, "技能")
        card = panel.get_by_role("listitem").filter(has_text="tea-art")
        await expect(card).to_contain_text("上一条消息提到了它：trigger `龙井`")
        await card.get_by_role("button", name="打开").click()
        await expect(card.get_by_role("button", name="关闭")).to_be_visible()
        (row,) = await claw.sessions.list("owner")
        assert row.metadata["skills"] == ["tea-art"]
        async with asyncio.timeout(20):
            while "exit code 3" not in str(claw.servers.status()):
                await asyncio.sleep(0.02)
        panel = await opened(tab, "工具")
        broken = panel.get_by_role("listitem").filter(has_text="broken")
        await expect(broken).to_contain_text("no-such-program-xyz")
        told = panel.get_by_role("listitem").filter(has_text="telling")
        await expect(told).to_contain_text("no ***")
        await broken.get_by_role("button", name="关闭").click()
        await expect(broken).to_contain_text("已关闭")
        await expect(panel.get_by_role("listitem").filter(has_text="calculator")).to_contain_text("只读")


async def opened_again(tab: Tab, name: str) -> None:
    """Close and open a panel."""
    await tab.page.keyboard.press("Escape")
    await opened(tab, name)


class TwoModels(ScriptedProvider):
    """A server that offers a second model."""

    async def models(self) -> list[str]:
        return ["scripted", "other"]


RENAME = """id => fetch(`./api/sessions/${id}`, {
  method: "PATCH", headers: {"Content-Type": "application/json"}, body: JSON.stringify({title: "Other"})
})"""


async def test_usage_waiting_approvals_and_settings(tmp_path: Path, chromium: Chromium) -> None:
    used = Usage(input_tokens=1200, output_tokens=34, model="scripted", calls=1)
    call = ToolCall.of("call_1", "memory_delete", {"memory_id": "mem_\u202eenon"})
    script: list[Any] = [LLMResponse(tool_calls=(call,), usage=used), LLMResponse(text="好。", usage=used)]
    async with running_claw(tmp_path, TwoModels(script), web=True) as claw:
        async with chromium.tab(claw) as tab:
            await tab.send("删掉它")
            await expect(tab.answer.locator(".approval pre")).to_contain_text(r"mem_\u202eenon")
            await tab.new_chat()
            await expect(tab.page.locator("#waiting")).to_have_text("1")
            # Escape closes the menu, and neither the panel nor the waiting turn with it.
            panel = await opened(tab, "待办")
            await tab.page.locator("#sessions li").hover()
            await tab.page.locator("#sessions li button").click()
            await expect(tab.page.get_by_role("menu")).to_be_visible()
            await tab.page.keyboard.press("Escape")
            await expect(tab.page.get_by_role("menu")).to_have_count(0)
            deny = panel.get_by_role("button", name="拒绝")
            await deny.focus()
            shown = await deny.element_handle()
            (session,) = await claw.sessions.list("owner")
            await tab.page.evaluate(RENAME, session.session_id)
            await tab.page.wait_for_function("shown => !shown.isConnected", arg=shown)
            await expect(deny).to_be_focused()
            await deny.click()
            await expect(panel).to_contain_text("没有等待许可的调用")
            await expect(panel).to_contain_text("没有未送达的回答")
            await expect(tab.page.locator("#waiting")).to_have_text("")
            await tab.sessions.click()
            await tab.ended(1)
            for _ in ("live", "from the log"):
                await expect(tab.turns.last.locator(".usage").first).to_contain_text("2,400 输入")
                await tab.page.reload()
                await tab.ended(1)
            panel = await opened(tab, "用量")
            await expect(panel.get_by_role("row").last).to_contain_text("2,40068")
            panel = await opened(tab, "设置")
            await expect(panel.get_by_label("本次对话的模型")).to_have_value("scripted")
            await panel.get_by_label("本次对话的模型").select_option("other")
            await tab.ended(2)
            await expect(tab.turns.last.locator(".bubble")).to_have_text("/model other")
            (session,) = await claw.sessions.list("owner")
            assert session.metadata["model"] == "other"
            await panel.get_by_label("主题").select_option("dark")
            await expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
            await panel.get_by_label("语言").select_option("en")
            await expect(tab.page.get_by_role("complementary", name="Settings")).to_be_visible()


async def test_a_failed_delivery_is_shown_and_sent_again(tmp_path: Path, chromium: Chromium) -> None:
    dead: dict[str, object] = {
        "key": "turn_1.0",
        "turn_id": "turn_1",
        "channel": "slack",
        "conversation": "C1",
    }
    dead |= {"state": "dead", "attempts": 3, "error": "not_in_channel"}
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw, chromium.tab(claw) as tab:
        asked: list[str] = []

        async def rows(route: Any) -> None:
            await route.fulfill(json={"deliveries": [] if asked else [dead]})

        async def again(route: Any) -> None:
            asked.append(route.request.method)
            await route.fulfill(json={"key": dead["key"], "state": "pending"})

        await tab.page.route("**/api/deliveries", rows)
        await tab.page.route("**/api/deliveries/turn_1.0/retry", again)
        panel = await opened(tab, "待办")
        await expect(panel).to_contain_text("not_in_channel")
        await panel.get_by_role("button", name="重新发送").click()
        await expect(panel).to_contain_text("没有未送达的回答")
        assert asked == ["POST"]
