"""The page when things break: reloads, killed servers, lost connections, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import WebSocketRoute, expect

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from tests.support.claw import running_claw, server_process
from tests.support.model import FakeModel, Reply, last_user

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def env_of(model: FakeModel) -> dict[str, str]:
    return {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "fake-chat"}


async def test_what_was_remembered_before_a_restart_is_used_in_a_new_chat_after_it(
    tmp_path: Path, chromium: Chromium
) -> None:
    """A real process with the demo model; the page stays open meanwhile."""
    async with server_process(tmp_path) as server, chromium.tab(server.address, excuse="lost") as tab:
        assert "记住了" in await tab.ask("记住我住在杭州")
        await expect(tab.turns.last.locator(".memories")).to_contain_text("记住了 1 条")
        first = await tab.session()
        assert await server.terminate() == 0
        await expect(tab.page.locator("#light")).to_have_class("light connecting")
        await server.start()
        await tab.is_connected()
        await tab.new_chat()
        assert "杭州" in await tab.ask("我住在哪里？")
        assert await tab.session() != first
        used = tab.turns.last.locator(".memories")
        await used.locator("summary").click()
        await expect(used).to_contain_text("用到 1 条记忆")
        await expect(used.locator("li")).to_have_text("我住在杭州")


async def test_an_answer_goes_on_through_reloads_to_the_same_text_shown_once(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    async with running_claw(tmp_path, dictated, web=True) as claw, chromium.tab(claw) as tab:
        await tab.send("写一首诗")
        dictated.say("## 湖上\n\n水光潋滟")
        await expect(tab.answer.locator("h2")).to_have_text("湖上")
        await tab.page.reload()
        await expect(tab.answer.locator("h2")).to_have_text("湖上")
        await expect(tab.answer.locator(".open")).to_have_text("水光潋滟")
        dictated.say("晴方好，\n")
        await expect(tab.answer.locator(".open")).to_have_text("水光潋滟晴方好，")
        await tab.page.reload()
        dictated.say("山色空濛雨亦奇。\n\n- 苏轼\n")
        await expect(tab.answer.locator("p")).to_have_text("水光潋滟晴方好，\n山色空濛雨亦奇。")
        dictated.end("- 宋\n")
        await tab.ended(1)
        html = await tab.answer.locator(".md").inner_html()
        assert await tab.prose() == "湖上\n\n水光潋滟晴方好，\n山色空濛雨亦奇。\n\n苏轼\n宋"
        await expect(tab.turns.locator(".bubble")).to_have_text(["写一首诗"])
        await tab.page.reload()
        await tab.ended(1)
        assert await tab.answer.locator(".md").inner_html() == html


async def test_after_kill_9_the_page_reconnects_by_itself_and_the_answer_comes_once(
    tmp_path: Path, chromium: Chromium
) -> None:
    """What was not stored is withdrawn and said again, what was stored stays."""
    killed, hold = asyncio.Event(), asyncio.Event()

    def script(messages: list[dict[str, Any]], number: int) -> Reply:
        match number:
            case 1:
                return {"text": "先算一下。", "calls": [("calculator", {"expression": "37*43"})]}
            case 2:
                return {"text": "我想，它是**质数**。\n\n因为", "hold": killed}
            case _:
                return {"text": "1591 是个**合数**。\n\n它等于 37 乘 43。", "hold": hold}

    async with (
        FakeModel(script) as model,
        server_process(tmp_path, env=env_of(model)) as server,
        chromium.tab(server.address, excuse="lost") as tab,
    ):
        await tab.send("1591 是质数吗？")
        await expect(tab.answer.locator(".md").last).to_have_text("我想，它是质数。")
        await server.kill()
        killed.set()
        await expect(tab.page.locator("#light")).to_have_class("light connecting")
        await expect(tab.answer).to_contain_text("我想，它是质数。")
        await server.start()
        await expect(tab.answer.locator(".md").last).to_have_text("1591 是个合数。")
        await expect(tab.turns.last).to_have_attribute("data-state", "writing")
        hold.set()
        for _ in ("live", "from the log"):
            await tab.ended(1)
            assert await tab.prose() == "先算一下。\n\n1591 是个合数。\n\n它等于 37 乘 43。"
            await expect(tab.answer.locator(".tool")).to_have_attribute("data-state", "ok")
            await expect(tab.turns.locator(".bubble")).to_have_text(["1591 是质数吗？"])
            await tab.page.reload()
        assert len(model.requests) == 3 and model.refused == []


async def test_messages_written_while_the_server_is_away_are_sent_exactly_once_and_in_order(
    tmp_path: Path, chromium: Chromium
) -> None:
    def script(messages: list[dict[str, Any]], number: int) -> Reply:
        return {"text": f"答：{last_user(messages)}"}

    async with (
        FakeModel(script) as model,
        server_process(tmp_path, env=env_of(model)) as server,
        chromium.tab(server.address, excuse="lost") as tab,
    ):
        assert await tab.ask("一") == "答：一"
        await server.kill()
        await expect(tab.page.locator("#connection")).to_contain_text("连接断开")
        await tab.send("二")
        await tab.send("三")
        await expect(tab.turns.locator(".bubble")).to_have_text(["一", "二", "三"])
        await expect(tab.turns.last).to_contain_text("连接恢复后发送")
        await server.start()
        # "Try again", unless the page is back by itself.
        await tab.page.locator("#retry").dispatch_event("click")
        for _ in ("live", "from the log"):
            await tab.ended(3)
            await expect(tab.page.locator("#connection")).to_be_hidden()
            await expect(tab.turns.locator(".bubble")).to_have_text(["一", "二", "三"])
            await expect(tab.turns.locator(".md")).to_have_text(["答：一", "答：二", "答：三"])
            await tab.page.reload()
        assert [last_user(request["messages"]) for request in model.requests] == ["一", "二", "三"]


@pytest.mark.parametrize("way", ["reconnect", "reload", "bare address"])
async def test_a_first_message_whose_receipt_was_lost_is_sent_again_and_taken_once(
    tmp_path: Path, chromium: Chromium, way: str
) -> None:
    asked, lines = asyncio.Event(), list[WebSocketRoute]()

    async def answer(messages: list[Message]) -> LLMResponse:
        asked.set()
        return LLMResponse(text="在。")

    def lose(line: WebSocketRoute) -> None:
        """On the first line nothing comes back once a text was sent."""
        server, is_first = line.connect_to_server(), not lines
        lines.append(line)
        said = asyncio.Event()

        def to_server(frame: str | bytes) -> None:
            if '"msg_type":"text"' in str(frame):
                said.set()
            server.send(frame)

        line.on_message(to_server)
        server.on_message(lambda frame: None if is_first and said.is_set() else line.send(frame))

    provider = ScriptedProvider([answer])
    async with running_claw(tmp_path, provider, web=True) as claw, chromium.tab(claw) as tab:
        home = tab.page.url
        await tab.page.route_web_socket("**/ws*", lose)
        await tab.page.reload()
        await tab.is_connected()
        await tab.send("在吗？")
        await asyncio.wait_for(asked.wait(), 20)
        await expect(tab.turns.last).to_contain_text("正在发送…")
        if way == "reconnect":
            await lines[0].close()
        else:
            await (tab.page.reload() if way == "reload" else tab.page.goto(home))
        await tab.ended(1)
        assert await tab.prose() == "在。"
        await expect(tab.turns.locator(".bubble")).to_have_text(["在吗？"])
        assert len(provider.requests) == len(await claw.sessions.list()) == 1
