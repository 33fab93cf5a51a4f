"""加：给模型装一个计数器。

`Counting` 包住任何一个 provider，自己也是一个 provider：`asked` 是问了几次，`letters` 是它一共说了几个字。
包住以后，循环、工具、流式输出都和原来一样。
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from day4_agent import LLMChunk, LLMProvider, LLMResponse


class Counting:
    def __init__(self, inner: LLMProvider) -> None:
        self.inner = inner
        self.asked = 0
        self.letters = 0

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> LLMResponse:
        # 在这里数。
        return await self.inner.chat(messages, tools)

    async def stream(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        async for chunk in self.inner.stream(messages, tools):
            yield chunk  # 在这里数。

    async def close(self) -> None:
        await self.inner.close()
