"""八天拼在一起：两个渠道、会话、记忆、技能、自己的工具和别人的工具。剧本当模型，不要密钥，不联网。"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from day1_gateway import (
    EventBus,
    GatewayMessage,
    GatewayServer,
    MessageRouter,
    MessageType,
    TextPayload,
    event_message,
)
from day2_channel import CLIChannel, pump
from day3_session import Entry, FileStorage, SessionManager
from day4_agent import (
    AgentConfig,
    AgentRuntime,
    Finished,
    LLMResponse,
    ScriptedProvider,
    SessionTranscript,
    ToolCall,
    ToolFinished,
)
from day5_tools import ApprovalTools, ConfigError, FilteredTools, Tool, ToolRegistry, calculator_tool, tool
from day6_skills import SkillManager, skill_tools
from day7_memory import LongTermMemory, SystemPromptBuilder
from day8_mcp import HttpLink, MCPClient, MCPError, RemoteTool, StdioLink, read_servers
from day8_mcp.config import ServerConfig

HERE = Path(__file__).parent
TODAY = datetime(2026, 1, 1, 9, tzinfo=UTC)


def wants(name: str, /, **arguments: Any) -> LLMResponse:
    """模型要一个工具。"""
    return LLMResponse(tool_calls=(ToolCall.of(f"c-{name}", name, arguments),), finish="tool_calls")


SCRIPT = [
    wants("remember", fact="这位客人的订单都寄到杭州"),
    LLMResponse(text="记下了。"),
    wants("mcp__shop__get_order_status", order_id="4471"),
    LLMResponse(text="订单 4471 已发货，顺丰速运，2 天后送到杭州。"),
    wants("mcp__shop__get_order_status", order_id="4472"),
    wants("refund", order_id="4472", amount=20),
    wants("refund", order_id="4472", amount=10),
    LLMResponse(text="订单 4472 退了您 10 元，其余的等店主上班。"),
    wants("mcp__shop__get_order_status", order_id="4472"),
    LLMResponse(text="订单 4472 处理中。"),
]


@tool
async def refund(order_id: str, amount: float) -> str:
    """Give money back for an order."""
    return f"订单 {order_id} 退款 {amount:.2f} 元"


async def ask_owner(tool: Tool, arguments: Mapping[str, Any], _: object) -> str | None:
    """店主的规矩：查和记随便，退钱最多十块。"""
    if tool.name != "refund" or float(arguments.get("amount", 0)) <= 10:
        return None
    print(f"  [店主] {tool.name} {arguments['amount']} 元：不行")
    return "the owner allows 10 yuan at most"


def _link(name: str, config: ServerConfig) -> StdioLink | HttpLink:
    if config.url:
        return HttpLink(config.url, headers=config.headers)
    return StdioLink([config.command, *config.args], env=config.env, name=name)


class Shop:
    """第 1 到 8 天的零件，和一个把它们串起来的 `answer`。"""

    def __init__(self, directory: Path) -> None:
        self.bus, self.router = EventBus(), MessageRouter()
        self.sessions = SessionManager(FileStorage(directory / "sessions"), clock=TODAY.timestamp)
        self.memory = LongTermMemory(directory, clock=TODAY.timestamp)
        self.registry = ToolRegistry([calculator_tool(), refund])
        self.skills = SkillManager([HERE / "skills"], tools=self.registry.names)
        self.builder = SystemPromptBuilder("你是一家小店的客服。")
        self.runtime = AgentRuntime(ScriptedProvider(SCRIPT), AgentConfig())
        for one in skill_tools(self.skills):
            self.registry.register(one)
        self.router.register(MessageType.TEXT, self.answer)

    # region connect
    async def connect(self, file: Path, stack: AsyncExitStack) -> None:
        """`mcp.json` 里的服务器，连上一个，登记一个的工具；连不上的说一声。`stack` 负责最后断开。"""
        try:
            servers, broken = read_servers(file)
        except ConfigError as error:
            print(f"  [没有接上] {error}")
            return
        for reason in broken.values():
            print(f"  [没有接上] {reason}")
        for name, config in servers.items():
            try:
                client = await stack.enter_async_context(MCPClient(partial(_link, name, config)))
                rows = await client.list_tools()
            except MCPError as error:
                print(f"  [没有接上] {name}: {error}")
                continue
            for listed in rows:
                remote = f"mcp__{name}__{listed['name']}"
                more: Any = {"server_name": name, "listed": listed, "is_trusted": config.trusted}
                try:
                    self.registry.register(RemoteTool(client, remote, **more))
                except ConfigError as error:  # 它的名字我们用不了
                    print(f"  [没有接上] {error}")

    # endregion

    # region answer
    async def answer(self, inbound: GatewayMessage) -> GatewayMessage:
        """一条消息的路：会话、技能、记忆、提示词、工具、循环、回答。"""
        assert isinstance(inbound.payload, TextPayload)
        channel, _, user = inbound.source.partition(":")
        text = inbound.payload.text
        session = await self.sessions.get_or_create(user, channel, conversation=inbound.source)
        active = frozenset(skill.name for skill, _ in self.skills.match(text))
        found = self.builder.fitting(await self.memory.search(user, text))
        skills = self.skills.prompt(active, token_limit=800)
        system = self.builder.build(skills=skills, memories=found, today=TODAY)
        print(f"  [{channel}] {text}（技能 {len(active)}，有 {len(found)} 条记忆插入）")
        turn_id = inbound.msg_id

        async def store(message: dict[str, Any]) -> None:
            await self.sessions.append(session, [Entry(turn_id, len(session.messages), message)])

        history = [entry.message for entry in session.messages]
        transcript = SessionTranscript(history, system=system, store=store)
        await transcript.append({"role": "user", "content": text})
        said = await self._run(transcript, user, active)
        return event_message("turn.finished", {"text": said}, target=inbound.source)

    # endregion

    async def _run(self, transcript: SessionTranscript, user: str, active: frozenset[str]) -> str:
        enough = self.skills.tools_for(active)
        box = ToolRegistry([one for name in self.registry.names() if (one := self.registry.find(name))])
        box.register(self._remember(user))
        shown = FilteredTools(box, lambda name: enough is None or name in enough)
        said = ""
        async for event in self.runtime.run(transcript, ApprovalTools(shown, ask_owner)):
            if isinstance(event, ToolFinished):
                print(f"  [{event.call.name}] {event.result.content}")
            elif isinstance(event, Finished):
                await transcript.append(event.response.to_message())
                said = event.response.text
        return said

    def _remember(self, user: str) -> Tool:
        @tool
        async def remember(fact: str) -> str:
            """Remember a fact about this customer, when asked to."""
            await self.memory.save(user, fact)
            return "记住了"

        return remember


async def main() -> None:
    """终端里三句，WebSocket 上一句，走的是同一条路。"""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        env = {"PYTHONPATH": os.pathsep.join(sys.path)}  # 子进程只得到写在这里的
        server = str(HERE / "server.py")
        entry = {"command": sys.executable, "args": [server], "env": env, "trusted": True}  # 自家的，信得过
        (directory / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": entry}}), encoding="utf-8")
        shop = Shop(directory)
        async with AsyncExitStack() as stack:
            await shop.connect(directory / "mcp.json", stack)
            print("工具：" + " ".join(shop.registry.names()))
            lines = ["记住，我的订单都寄到杭州", "我的订单 4471 到哪了？", "4472 一直不发货，退我 20 块"]
            terminal = CLIChannel(shop.bus, user="lin", lines=lines)
            await terminal.start()
            await pump(terminal, shop.router)
            await terminal.stop()
            gateway = GatewayServer(shop.router, shop.bus, port=0)
            await gateway.start()
            async with connect(f"ws://127.0.0.1:{gateway.port}/") as ws:
                frame = {"msg_id": "m1", "msg_type": "text", "payload": {"text": "4472 怎么样了？"}}
                await ws.send(json.dumps(frame, ensure_ascii=False))
                print(json.loads(await ws.recv())["payload"]["data"]["text"])
            await gateway.stop()
        sessions = await shop.sessions.list()
        print(f"留下 {len(sessions)} 个会话、{len(await shop.memory.list('lin'))} 条记忆，别的都关好了。")


if __name__ == "__main__":
    asyncio.run(main())
