"""没有密钥时用的“模型”：几条规则，够看出记忆怎么来怎么去。"""

import re
from collections.abc import AsyncGenerator

from day4_agent import LLMChunk, LLMResponse, ToolCall
from day4_agent.providers import Messages


class LocalModel:
    """说“记住……”就调用工具；别的，从提示词里的记忆找答案。"""

    async def chat(self, messages: Messages, tools: Messages | None = None) -> LLMResponse:
        """看最后一条，决定说什么。"""
        last, system = messages[-1], str(messages[0]["content"])
        if last["role"] == "tool":
            return LLMResponse(text="记住了。" if last["content"].startswith("Saved") else "没能记住。")
        asked = str(last["content"])
        if system.startswith("Summarise"):
            return LLMResponse(text=f"之前聊过：{asked[:60]}……")
        if (found := re.match(r"(?:请)?记住[，,：: ]*(.+)", asked)) and tools:
            return LLMResponse(
                tool_calls=(ToolCall.of("c1", "memory_save", {"content": found[1]}),), finish="tool_calls"
            )
        known = re.findall(r"^- \[.*?\] (.+)$", system, re.MULTILINE)
        return LLMResponse(text=f"我记得：{'；'.join(known)}" if known else "这个我还不知道。")

    async def stream(
        self, messages: Messages, tools: Messages | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        """一小块一小块地说。"""
        response = await self.chat(messages, tools)
        for place in range(0, len(response.text), 4):
            yield LLMChunk(text=response.text[place : place + 4])
        yield LLMChunk(response=response)

    async def close(self) -> None:
        """没有什么要放掉。"""
