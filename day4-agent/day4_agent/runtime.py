"""ReAct 循环：问模型，执行它要的工具，把结果给它看，再问，直到它回答或者碰到上限。"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal

from day4_agent.config import AgentConfig
from day4_agent.providers import LLMChunk, LLMProvider, LLMResponse, ModelError, ToolCall
from day4_agent.toolbox import ToolBox, ToolResult
from day4_agent.transcript import Transcript

__all__ = ["AgentRuntime", "Finished", "Stop", "ToolFinished", "ToolStarted"]

logger = logging.getLogger(__name__)

REPEATS: Final = 3  # 同一个调用、同样的参数，一轮里最多执行几次
CUT_CALL: Final = "the answer was cut off: the arguments are not a JSON object; send a shorter call"
BAD_ARGUMENTS: Final = "the arguments are not a JSON object, so the call was not run; send it again"


@dataclass(frozen=True, slots=True)
class Stop:
    """到了哪个上限。"""

    limit: Literal["iterations", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """开始一个调用。"""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """一个调用有了结果，而且已经记下。"""

    call: ToolCall
    result: ToolResult
    ms: int


@dataclass(frozen=True, slots=True)
class Finished:
    """总是最后一个事件：回答（由拿到它的人写进历史），或者碰到的上限。"""

    response: LLMResponse
    stop: Stop | None = None


AgentEvent = LLMChunk | ToolStarted | ToolFinished | Finished


class AgentRuntime:
    """一个模型加一份设置；同一个对象可以同时跑很多轮。"""

    def __init__(self, provider: LLMProvider, config: AgentConfig) -> None:
        self.provider = provider
        self.config = config

    async def run(self, transcript: Transcript, toolbox: ToolBox) -> AsyncGenerator[AgentEvent, None]:
        """从历史停下的地方接着走；模型答不了就抛 `ModelError`。"""
        turn = _Turn(self.config, transcript, toolbox)
        # region loop
        for _ in range(self.config.max_iterations):
            response = LLMResponse()
            stream = self.provider.stream(transcript.messages(), toolbox.get_openai_tools() or None)
            async with aclosing(stream) as chunks:  # 读的人走了，连接也要还回去
                async for chunk in chunks:
                    response = chunk.response or response
                    if chunk.response is None:
                        yield chunk
            if response.tool_calls:
                async with aclosing(turn.act(response)) as events:
                    async for event in events:
                        yield event
            elif response.text.strip():
                yield Finished(response)
                return
            else:
                advice = "raise `max_tokens`" if response.finish == "length" else "ask in other words"
                raise ModelError("empty_answer", f"The model gave no answer; {advice}.")
            if turn.stop is not None:
                break
        yield Finished(LLMResponse(), turn.stop or Stop("iterations"))
        # endregion


class _Turn:
    """一轮里数着的东西，和每个调用怎么办。"""

    def __init__(self, config: AgentConfig, transcript: Transcript, toolbox: ToolBox) -> None:
        self._config, self._transcript, self._toolbox = config, transcript, toolbox
        self._seen: Counter[tuple[str, str]] = Counter()
        self._calls = 0
        self.stop: Stop | None = None

    async def act(self, response: LLMResponse) -> AsyncGenerator[AgentEvent, None]:
        """先记下模型要做什么，再一个一个做；每个调用都有一个结果。"""
        await self._transcript.append(response.to_message())
        for call in response.tool_calls:
            yield ToolStarted(call)
            began = time.perf_counter()
            result = await self._outcome(call, is_cut=response.finish == "length")
            ms = round((time.perf_counter() - began) * 1000)
            message = {"role": "tool", "tool_call_id": call.id, "content": result.content}
            await self._transcript.append(message)
            logger.info("tool %s %s in %d ms", call.name, "finished" if result.ok else "failed", ms)
            yield ToolFinished(call, result, ms)

    async def _outcome(self, call: ToolCall, *, is_cut: bool) -> ToolResult:
        if self._calls >= self._config.max_tool_calls:
            self.stop = Stop("tool_calls")
            return ToolResult.failure("this turn has used up its tool calls; the call was not run")
        self._calls += 1
        if call.arguments is None or is_cut:
            return ToolResult.failure(CUT_CALL if is_cut else BAD_ARGUMENTS)
        key = call.name, json.dumps(call.arguments, sort_keys=True)
        self._seen[key] += 1
        if self._seen[key] > REPEATS:
            return ToolResult.failure(
                f"`{call.name}` was called {REPEATS} times like this; do something else"
            )
        try:
            async with asyncio.timeout(self._config.tool_timeout):
                return await self._toolbox.execute(call.name, call.arguments)
        except TimeoutError:
            return ToolResult.failure(f"`{call.name}` did not finish in time; what it did is unknown")
