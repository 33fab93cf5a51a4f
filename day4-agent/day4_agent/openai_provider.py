"""OpenAI 兼容接口上的模型：一个请求，一条流，几种错误，等一等再试。"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError

from day4_agent.providers import Chunks, LLMChunk, LLMResponse, Messages, ModelError, ToolCall, whole

__all__ = ["OpenAIProvider"]

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5  # 第一次重试前等几秒；以后每次加倍
MAX_PAUSE: Final = 30.0  # 服务器要求等得更久，就不等了：人还在屏幕前面
NO_ANSWER: Final = "The model server sent something that is no answer."
_STATUS: Final = {401: "auth", 402: "quota", 403: "auth", 404: "not_found", 429: "rate_limited"}


class OpenAIProvider:
    """一个 OpenAI 兼容服务器上的模型；`api_key` 对本机的服务器可以是任何词。"""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        read_timeout: float = 120.0,
        max_retries: int = 2,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = AsyncOpenAI(api_key=api_key, base_url=base_url, timeout=read_timeout, max_retries=0)
        raw = {"model": model, "temperature": temperature, "max_tokens": max_tokens, "extra_body": parameters}
        self._parameters: Any = {name: value for name, value in raw.items() if value is not None}
        self._retries, self._sleep = max_retries, sleep

    async def close(self) -> None:
        await self._client.close()

    async def chat(self, messages: Messages, tools: Messages | None = None) -> LLMResponse:
        return await whole(self.stream(messages, tools))

    def stream(self, messages: Messages, tools: Messages | None = None) -> Chunks:
        return self._ask(messages, tools)

    async def _ask(self, messages: Messages, tools: Messages | None) -> Chunks:
        """失败了再试，只在还没有人看到半句话的时候。"""
        for tries in range(self._retries + 1):
            is_shown = False
            try:
                async with aclosing(self._receive(messages, tools)) as chunks:
                    async for chunk in chunks:
                        is_shown = is_shown or bool(chunk.text)
                        yield chunk
                return
            except (OpenAIError, ModelError, ValueError) as error:
                failure = _failure(error)
                pause = FIRST_PAUSE * 2**tries if failure.retry_after is None else failure.retry_after
                if is_shown or not failure.retryable or tries == self._retries or pause > MAX_PAUSE:
                    raise failure from error
            logger.info("the model failed (%s); again in %.1f s", failure.code, pause)
            await self._sleep(pause)

    async def _receive(self, messages: Messages, tools: Messages | None) -> Chunks:
        more: dict[str, Any] = {"tools": list(tools)} if tools else {}
        stream = await self._client.chat.completions.create(
            messages=cast(Any, list(messages)), stream=True, **self._parameters, **more
        )
        answer = _Answer()
        async with stream:
            async for event in stream:
                try:  # 客户端不管形状：缺的、换了类型的，用到时才知道
                    text = answer.add(event)
                except (AttributeError, TypeError, LookupError) as error:
                    raise ModelError("model_error", NO_ANSWER, retryable=True) from error
                if text:
                    yield LLMChunk(text=text)
        yield LLMChunk(response=answer.finish())


class _Answer:
    """把碎片拼成回答：话是一点一点来的，一个调用的参数也是。"""

    def __init__(self) -> None:
        self._text, self._finish = "", cast(Any, None)
        self._calls: dict[int, list[str]] = {}

    def add(self, event: Any) -> str:
        """收下一块，返回里面的话。"""
        if not event.choices:  # 有的服务器最后会来一块没有 choices 的用量
            return ""
        choice = event.choices[0]
        for part in choice.delta.tool_calls or ():
            number = part.index  # 有的服务器不写：有编号的是新的一个，没有的接着上一个
            if number is None:
                number = len(self._calls) if part.id else len(self._calls) - 1
            call = self._calls.setdefault(number, ["", "", ""])
            call[0] = str(part.id or call[0])
            call[1] += part.function.name or ""
            call[2] += part.function.arguments or ""
        self._finish = choice.finish_reason or self._finish
        self._text += (text := str(choice.delta.content or ""))
        return text

    def finish(self) -> LLMResponse:
        if self._finish is None:  # 没有等到结束的记号，就是断了；客户端并不报错
            raise ModelError("model_unreachable", "The model's stream was cut.", retryable=True)
        calls = tuple(ToolCall(a, b, raw, _read(raw)) for a, b, raw in self._calls.values())
        return LLMResponse(text=self._text, tool_calls=calls, finish=self._finish)


def _read(raw: str) -> dict[str, Any] | None:
    try:
        value = json.loads(raw or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _failure(error: Exception) -> ModelError:
    if isinstance(error, ModelError):
        return error
    if isinstance(error, APIConnectionError):  # 超时也是它
        return ModelError("model_unreachable", "The model server cannot be reached.", retryable=True)
    if not isinstance(error, APIStatusError):
        return ModelError("model_error", NO_ANSWER, retryable=True)
    status, wait = error.status_code, error.response.headers.get("retry-after", "")
    return ModelError(
        f"model_{_STATUS.get(status, 'error')}",
        f"The model server answered {status}.",
        retryable=status in (408, 429) or status >= 500,
        retry_after=float(wait) if wait.isdecimal() else None,
    )
