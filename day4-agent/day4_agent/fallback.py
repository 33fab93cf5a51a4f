"""一个模型答不了，就问下一个。"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from day4_agent.providers import Chunks, LLMProvider, LLMResponse, Messages, ModelError, whole

__all__ = ["FallbackProvider"]

logger = logging.getLogger(__name__)

ELSEWHERE: Final = ("model_auth", "model_quota", "model_rate_limited", "model_not_found", "model_unreachable")
"""换一家也许就没事的错。请求本身写错了，换谁都一样。"""


class FallbackProvider:
    """按顺序问几个模型，第一个能答的算数；话已出口，就不换人接着说。"""

    def __init__(self, providers: Sequence[LLMProvider]) -> None:
        self._providers = tuple(providers)

    async def close(self) -> None:
        for provider in self._providers:
            await provider.close()

    async def chat(self, messages: Messages, tools: Messages | None = None) -> LLMResponse:
        return await whole(self.stream(messages, tools))

    def stream(self, messages: Messages, tools: Messages | None = None) -> Chunks:
        return self._ask(messages, tools)

    async def _ask(self, messages: Messages, tools: Messages | None) -> Chunks:
        first: ModelError | None = None
        for provider in self._providers:
            is_shown = False
            try:
                async with aclosing(provider.stream(messages, tools)) as chunks:
                    async for chunk in chunks:
                        is_shown = is_shown or bool(chunk.text)
                        yield chunk
                return
            except ModelError as error:
                if is_shown or not (error.retryable or error.code in ELSEWHERE):
                    raise
                first = first or error  # 报首选的那个错：备用的错往往只是“也没配好”
                logger.warning("a model cannot answer (%s); asking the next one", error)
        raise first or ModelError("model_error", "There is no model to ask.")
