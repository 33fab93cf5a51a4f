"""The built-in demo model: no model at all, but it shows what the platform does, without key or network.

It reads plain Chinese and English requests by pattern, calls real tools, and says how to set a real model.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Self

from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ModelInfo, ToolCall
from miniclaw.agent.replies import is_chinese
from miniclaw.gateway.protocol import new_id
from miniclaw.session.history import content_text
from miniclaw.session.models import Usage

__all__ = ["DemoProvider"]

NAME: Final = "miniclaw-demo"
PIECE: Final = 6
"""Characters of a streamed piece."""

SUM_CHARS: Final = 60
"""Where a sum is looked for: the work grows much faster than the text."""
_SUM: Final = re.compile(r"[\d(（.][\d\s.+\-*/^%×÷()（）]*[+\-*/^%×÷][\d\s.+\-*/^%×÷()（）]*[\d)）]")
_CLOCK: Final = re.compile(r"几点|时间|日期|几号|星期几|what time|what day|date|clock", re.IGNORECASE)
_REMEMBER: Final = re.compile(
    r"^\s*(?:请)?(?:帮我)?(?:记住|记一下|记下|remember(?: that)?)[:：,，\s]*", re.IGNORECASE
)
_FORGET: Final = re.compile(r"^\s*(?:请)?(?:忘记|忘掉|删除记忆|forget)[:：,，\s]*", re.IGNORECASE)
_LONG: Final = re.compile(r"长一点|长文|故事|详细|介绍一下|long|story|tell me about", re.IGNORECASE)
_MEMORY: Final = re.compile(r"^- \[(mem_\w+), [^\]]*\] (.*)$", re.MULTILINE)

_HELP: Final = (
    "这是 miniOpenClaw 的**演示模型**：它不是真正的语言模型，只认得几种说法，用来看看平台能做什么。\n\n"
    "- `37*43 等于多少`：调用计算器\n- `现在几点`：调用时钟\n- `记住我住在杭州`：写入长期记忆，之后问 `我住在哪里`\n"
    "- `忘记我住在哪里`：删除记忆，会先请你批准\n- `讲一个长一点的故事`：看流式输出，可以随时停止\n\n"
    "要用真正的模型，在 `.env` 里设置 `OPENAI_API_KEY`（或 `OPENAI_BASE_URL` 和 `OPENAI_MODEL`），再重新启动。",
    "This is the **demo model** of miniOpenClaw: no language model at all, it knows a few phrases and shows "
    "what the platform does.\n\n- `what is 37*43`: calls the calculator\n- `what time is it`: calls the clock\n"
    "- `remember that I live in Hangzhou`: saves a memory; then ask `where do I live?`\n"
    "- `forget where I live`: deletes a memory, and asks you first\n- `tell me a long story`: streams, and can be stopped\n\n"
    "For a real model set `OPENAI_API_KEY` (or `OPENAI_BASE_URL` and `OPENAI_MODEL`) in `.env` and start again.",
)
_STORY: Final = (
    "一条消息到达网关，先被写进数据库，然后才得到回执。{n}它排进会话的信箱，一次只处理一条；每一步都先存下来，再走下一步。"
    "哪怕进程在中途被杀掉，重启之后也会从最后一步接着做。\n\n",
    "A message reaches the gateway and is stored before anybody is told so. {n}It waits in its session's mailbox, one at "
    "a time; every step is kept before the next begins, so a killed process goes on where it stopped.\n\n",
)


class DemoProvider:
    """Answers by pattern.

    Args:
        pace: seconds between streamed pieces, so that streaming can be seen.
    """

    def __init__(self, *, pace: float = 0.02) -> None:
        self._pace = pace

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(name=NAME, demo=True, where="built in")

    def with_model(self, name: str) -> Self:
        return self

    async def models(self) -> list[str]:
        return [NAME]

    async def close(self) -> None:
        return None

    async def chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> LLMResponse:
        offered = {tool["function"]["name"] for tool in tools or ()}
        reply = _reply(messages, offered)
        words = sum(len(content_text(message.get("content"))) for message in messages)
        usage = Usage(model=NAME, input_tokens=words // 3, output_tokens=len(str(reply)) // 3, calls=1)
        if isinstance(reply, str):
            return LLMResponse(text=reply, usage=usage)
        return LLMResponse(tool_calls=(reply,), finish="tool_calls", usage=usage)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        response = await self.chat(messages, tools)
        for start in range(0, len(response.text), PIECE):
            await asyncio.sleep(self._pace)
            yield LLMChunk(response.text[start : start + PIECE])
        yield LLMChunk(response=response)


def _reply(messages: Sequence[Message], offered: set[str]) -> str | ToolCall:
    """The answer to the last user message, or the call that comes next."""
    place = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=None)
    if place is None:
        return _HELP[0]
    question = content_text(messages[place].get("content"))
    results = _results(messages[place + 1 :])
    if results:
        return _after_tool(question, *results[-1], offered)
    call = _call_for(question, offered)
    if call is not None:
        return call
    chinese = is_chinese(question)
    memories = (
        _MEMORY.findall(str(messages[0].get("content") or "")) if messages[0]["role"] == "system" else []
    )
    if memories and re.search(r"[?？吗呢]|什么|哪|谁|where|what|who|which|my ", question, re.IGNORECASE):
        known = "\n".join(f"- {content}" for _, content in memories)
        return f"我记得：\n{known}" if chinese else f"I remember:\n{known}"
    if _LONG.search(question):
        story = _STORY[0 if chinese else 1]
        return "".join(f"### {n}\n\n" + story.format(n="") for n in range(1, 13))
    return _HELP[0 if chinese or not question.isascii() else 1]


def _call_for(question: str, offered: set[str]) -> ToolCall | None:
    if "memory_save" in offered and (match := _REMEMBER.match(question)) and question[match.end() :].strip():
        return _call("memory_save", content=question[match.end() :].strip())
    if "memory_search" in offered and (match := _FORGET.match(question)) and question[match.end() :].strip():
        return _call("memory_search", query=question[match.end() :].strip(), limit=1)
    if "calculator" in offered and (found := _SUM.search(question[:SUM_CHARS])):
        return _call("calculator", expression=found.group().strip())
    if "datetime" in offered and _CLOCK.search(question):
        return _call("datetime")
    return None


def _after_tool(
    question: str, name: str, arguments: dict[str, Any], content: str, offered: set[str]
) -> str | ToolCall:
    chinese = is_chinese(question)
    if content.startswith("Error:"):
        return f"没有做成：{content[6:].strip()}" if chinese else f"That did not work: {content[6:].strip()}"
    if name == "calculator":
        return f"{arguments.get('expression')} = **{content}**"
    if name == "datetime":
        return f"现在是：{content}" if chinese else f"It is now: {content}"
    if name == "memory_save":
        return (
            f"好的，记住了：{arguments.get('content')}" if chinese else f"Noted: {arguments.get('content')}"
        )
    if name == "memory_search" and _FORGET.match(question):
        found = re.search(r"mem_\w+", content)
        if found and "memory_delete" in offered:
            return _call("memory_delete", memory_id=found.group())
        return "没有找到这样的记忆。" if chinese else "There is no such memory."
    if name == "memory_delete":
        return "已经删除这条记忆。" if chinese else "The memory is deleted."
    return content


def _results(messages: Sequence[Message]) -> list[tuple[str, dict[str, Any], str]]:
    """Name, arguments and result of each call that was answered, in order."""
    calls = {call["id"]: call["function"] for m in messages for call in m.get("tool_calls") or ()}
    found = []
    for message in messages:
        function = calls.get(message.get("tool_call_id"))
        if message["role"] == "tool" and function is not None:
            found.append((function["name"], json.loads(function["arguments"]), str(message["content"])))
    return found


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall.of(new_id("call"), name, arguments)
