"""翻手册的客服：说到退款，才翻开退款的手册，用不上的工具收起来。剧本当模型，不要密钥，不联网。"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    Finished,
    LLMResponse,
    ScriptedProvider,
    SessionTranscript,
    ToolFinished,
)
from day4_agent import ToolCall as Call
from day5_tools import FilteredTools, ToolRegistry, calculator_tool, datetime_tool, get_order_status, tool
from day6_skills import SkillManager, skill_tools

SKILLS = Path(__file__).parent / "skills"


@tool
async def refund(order_id: str, amount: float) -> str:
    """Give money back for an order.

    Args:
        order_id: The order's number.
        amount: How much, in yuan.
    """
    return f"订单 {order_id} 退款 {amount:.2f} 元"


def wants(name: str, /, **arguments: Any) -> LLMResponse:
    """模型要一个工具。"""
    return LLMResponse(tool_calls=(Call.of(f"c-{name}", name, arguments),), finish="tool_calls")


SCRIPT = [
    LLMResponse(text="您好，要查哪个订单？"),
    wants("get_order_status", order_id="4472"),
    wants("datetime"),
    wants("refund", order_id="4472", amount=10),
    LLMResponse(text="订单 4472 退了您 10 元，其余的等店主上班。"),
]


class Shop:
    """一个会话：历史，和正在用的技能。"""

    def __init__(self) -> None:
        self.registry = ToolRegistry([get_order_status, datetime_tool(), calculator_tool(), refund])
        self.skills = SkillManager([SKILLS], tools=self.registry.names)
        for one in skill_tools(self.skills):
            self.registry.register(one)
        self.runtime = AgentRuntime(
            ScriptedProvider(SCRIPT), AgentConfig(system_prompt="你是一家小店的客服。")
        )
        self.active: frozenset[str] = frozenset()
        self.history: list[dict[str, Any]] = []

    # region turn
    async def ask(self, text: str) -> None:
        """一轮：看话里提到哪本手册，翻开，收起用不上的工具，再走循环。"""
        print(f"你：{text}")
        self.skills.reload_if_changed()
        for skill, reason in self.skills.match(text):
            self.active = self.skills.activate(self.active, skill.name)
            print(f"  [翻开] {skill.name}（{reason}）")
        enough = self.skills.tools_for(self.active)
        box = FilteredTools(self.registry, lambda name: enough is None or name in enough)
        names = [row["function"]["name"] for row in box.get_openai_tools()]
        system = f"{self.runtime.config.system_prompt}\n\n{self.skills.prompt(self.active, token_limit=1000)}"
        print(f"  [提示词 {len(system)} 字，工具 {' '.join(names)}]")
        transcript = SessionTranscript(self.history, system=system)
        await transcript.append({"role": "user", "content": text})
        async for event in self.runtime.run(transcript, box):
            match event:
                case ToolFinished(call, result):
                    print(f"  [{call.name}] {result.content}")
                case Finished(response):
                    await transcript.append(response.to_message())
                    print(f"店：{response.text}")

    # endregion


async def main() -> None:
    """两句话：第一句用不上手册，第二句要退款。"""
    logging.disable(logging.WARNING)
    shop = Shop()
    print("技能：" + "、".join(skill.name for skill in shop.skills.list()))
    for finding in shop.skills.findings:
        print(f"没读成：{finding.path.name}:{finding.line} {finding.reason}")
    await shop.ask("在吗？")
    await shop.ask("4472 一直不发货，退我 20 块。")


if __name__ == "__main__":
    asyncio.run(main())
