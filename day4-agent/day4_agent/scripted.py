"""照着剧本说话的“模型”：测试、示例、没有密钥的时候都靠它。"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from day4_agent.providers import Chunks, LLMChunk, LLMResponse, Message, Messages, ModelError

__all__ = ["ScriptedProvider"]

Script = LLMResponse | ModelError | Callable[[list[Message]], Awaitable[LLMResponse]]


class ScriptedProvider:
    """每次请求取剧本的下一行：回答、要抛的错，或看了消息再答的 async 函数；`requests` 记着问过什么。"""

    def __init__(self, script: Iterable[Script], *, piece: int = 4) -> None:
        self._script = list(script)
        self._piece = piece
        self.requests: list[list[Message]] = []

    async def chat(self, messages: Messages, tools: Messages | None = None) -> LLMResponse:
        self.requests.append([dict(message) for message in messages])
        if not self._script:
            raise ModelError("model_error", "The script has ended.")
        line = self._script.pop(0)
        if isinstance(line, ModelError):
            raise line
        return line if isinstance(line, LLMResponse) else await line(list(messages))

    async def stream(self, messages: Messages, tools: Messages | None = None) -> Chunks:
        response = await self.chat(messages, tools)
        for start in range(0, len(response.text), self._piece):
            yield LLMChunk(text=response.text[start : start + self._piece])
        yield LLMChunk(response=response)

    async def close(self) -> None:
        """没有什么要放掉。"""
