"""第 6 天接第 4、5 天：技能进了提示词，收起了工具；模型也能自己翻。"""

from __future__ import annotations

import asyncio
from typing import Any

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    LLMResponse,
    ScriptedProvider,
    SessionTranscript,
    ToolBox,
    ToolCall,
)
from day5_tools import FilteredTools, ToolRegistry, calculator_tool, get_order_status
from day6_skills import Skill, SkillManager, skill_tools

REFUND = Skill(
    name="refund",
    description="退款",
    system_prompt="先查再退。",
    trigger=("退款",),
    required_tools=("get_order_status",),
    allowed_tools=("get_order_status",),
)


def parts() -> tuple[ToolRegistry, SkillManager]:
    registry = ToolRegistry([get_order_status, calculator_tool()])
    skills = SkillManager(tools=registry.names)
    skills.register(REFUND)
    for tool in skill_tools(skills):
        registry.register(tool)
    return registry, skills


async def run(box: ToolBox, system: str, *script: LLMResponse) -> tuple[ScriptedProvider, list[str]]:
    provider = ScriptedProvider(script)
    history: list[dict[str, Any]] = [{"role": "user", "content": "4472 退款"}]
    async with asyncio.timeout(5):
        async for _ in AgentRuntime(provider, AgentConfig()).run(
            SessionTranscript(history, system=system), box
        ):
            pass
    return provider, [message["content"] for message in history if message["role"] == "tool"]


def wants(name: str, /, **arguments: Any) -> LLMResponse:
    return LLMResponse(tool_calls=(ToolCall.of("c1", name, arguments),), finish="tool_calls")


async def test_an_active_skill_is_in_the_prompt_and_its_tools_are_all_there_are() -> None:
    registry, skills = parts()
    ((skill, _),) = skills.match("4472 退款")
    active = skills.activate(frozenset(), skill.name)
    enough = skills.tools_for(active)
    assert enough is not None
    box = FilteredTools(registry, enough.__contains__)
    system = skills.prompt(active, token_limit=1000)
    provider, results = await run(box, system, wants("calculator", expression="1+1"), LLMResponse(text="好"))
    assert "先查再退。" in provider.requests[0][0]["content"]
    assert results == [
        "Error: There is no tool `calculator` here. The tools are: get_order_status, load_skill."
    ]
    assert [row["function"]["name"] for row in box.get_openai_tools()] == ["get_order_status", "load_skill"]


async def test_the_model_opens_a_skill_by_itself() -> None:
    registry, skills = parts()
    system = skills.prompt(token_limit=1000)
    assert "- refund: 退款" in system and "先查再退" not in system
    _, results = await run(registry, system, wants("load_skill", name="refund"), LLMResponse(text="好"))
    assert results == ["先查再退。\n\nIt counts on these tools: get_order_status."]


async def test_a_skill_that_is_not_there_or_lacks_a_tool_is_refused() -> None:
    registry, skills = parts()
    skills.register(REFUND.model_copy(update={"name": "ship", "required_tools": ("send",)}))
    skills.register(Skill(name="plain", description="x", system_prompt="短。"))
    assert (
        "The skills are: plain, refund, ship."
        in (await registry.execute("load_skill", {"name": "x"})).content
    )
    assert "no tool `send`" in (await registry.execute("load_skill", {"name": "ship"})).content
    assert (await registry.execute("load_skill", {"name": "plain"})).content == "短。"
