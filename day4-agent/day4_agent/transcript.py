"""一轮的每一步写到哪里：运行时只管追加，存在哪儿由会话决定。"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from day4_agent.providers import Message

__all__ = ["SessionTranscript", "Transcript", "legal"]

INTERRUPTED: Final = (
    "This call was interrupted; it is not known whether it happened. Check before you repeat it."
)


class Transcript(Protocol):
    """运行时眼里的会话：模型现在该看到什么；记下一步，返回时已经存好。"""

    def messages(self) -> list[Message]: ...

    async def append(self, message: Message) -> None: ...


class SessionTranscript:
    """一个会话：`history` 在原处变长，`system` 从不写进去；`store` 存一条消息，没有就只在内存里。"""

    def __init__(
        self,
        history: list[Message],
        *,
        system: str = "",
        store: Callable[[Message], Awaitable[None]] | None = None,
    ) -> None:
        self._history, self._system, self._store = history, system, store

    def messages(self) -> list[Message]:
        head: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        return head + legal(self._history)

    async def append(self, message: Message) -> None:
        if self._store is not None:
            await self._store(message)  # 先存好，再让模型看见
        self._history.append(message)


def legal(messages: Iterable[Message]) -> list[Message]:
    """每个调用后面紧跟一个结果的历史；日志从不改写，补的结果只在这份视图里。"""
    view: list[Message] = []
    waiting: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                continue  # 没有人等的结果
            waiting.remove(message["tool_call_id"])
        else:
            view += [{"role": "tool", "tool_call_id": one, "content": INTERRUPTED} for one in waiting]
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
        view.append(message)
    return view[:-1]
