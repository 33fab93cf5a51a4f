"""把四样合起来：会话存下每一句，长期记忆想起该想的，短期记忆放进窗口，循环去问模型。"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from day3_session import Entry, Session, SessionManager
from day4_agent import AgentConfig, AgentRuntime, Finished, LLMChunk, LLMProvider, ToolResult, legal
from day4_agent.providers import ModelError
from day7_memory.context import SystemPromptBuilder
from day7_memory.long_term import LongTermMemory
from day7_memory.models import MemoryStoreError
from day7_memory.short_term import Message, ShortTermMemory, oldest_turns, summary_request

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentReply:
    """一次回答：话、到此为止的历史、用到的记忆。"""

    text: str
    history: list[Message]
    used_memories: list[dict[str, Any]]


class MemoryToolBox:
    """模型手里只有一个工具：记住。主人在这里定死，模型改不了。"""

    def __init__(self, memory: LongTermMemory, scope: str) -> None:
        self._memory, self._scope = memory, scope

    def get_openai_tools(self) -> list[dict[str, Any]]:
        text = {"type": "string"}
        kinds = {"type": "string", "enum": ["semantic", "episodic", "procedural"], "default": "semantic"}
        parameters = {
            "type": "object",
            "properties": {"content": text, "context": text, "memory_type": kinds},
            "required": ["content"],
        }
        says = "Remember one fact beyond this conversation, in a full sentence, when the user asks for it."
        function = {"name": "memory_save", "description": says, "parameters": parameters}
        return [{"type": "function", "function": function}]

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """存下；存不了也只是一个结果，模型自己告诉用户。"""
        if name != "memory_save":
            return ToolResult.failure(f"there is no tool `{name}`")
        try:
            known = {key: str(arguments[key]) for key in ("context", "memory_type") if key in arguments}
            record = await self._memory.save(self._scope, str(arguments.get("content") or ""), **known)
        except MemoryStoreError as error:
            return ToolResult.failure(f"{error}")
        return ToolResult(content=f"Saved as {record.memory_id}.", data={"memory_id": record.memory_id})


class _Turn:
    """一轮的历史：每一步先存进会话；给模型看的是放进窗口之后的样子。"""

    def __init__(self, sessions: SessionManager, session: Session, window: ShortTermMemory):
        self._sessions, self._session, self._window = sessions, session, window
        self._turn_id, self._step, self.system = f"turn_{secrets.token_hex(12)}", 0, ""

    def messages(self) -> list[Message]:
        return self._window.fit(self.system, legal(visible(self._session)))

    async def append(self, message: Message) -> None:
        await self._sessions.append(self._session, [Entry(self._turn_id, self._step, message)])
        self._step += 1


def visible(session: Session) -> list[Message]:
    """日志里摘要之后的部分；日志本身从不改写。"""
    return [entry.message for entry in session.messages[_summary(session)[1] :]]


def _summary(session: Session) -> tuple[str, int]:
    """摘要，和它说的是前几条；样子不对的，就当还没有。"""
    match session.metadata.get("summary"):
        case {"text": str(text), "position": int(position)} if 0 <= position < len(session.messages):
            return text, position
    return "", 0


class MemoryChat:
    """记得住人的聊天；同一个人一次一句，不同的人互不等待。"""

    def __init__(
        self,
        provider: LLMProvider,
        memory: LongTermMemory,
        sessions: SessionManager,
        *,
        builder: SystemPromptBuilder | None = None,
        config: AgentConfig | None = None,
        max_tokens: int = 128_000,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._provider, self._memory, self._sessions = provider, memory, sessions
        self._builder = builder or SystemPromptBuilder()
        self._runtime = AgentRuntime(provider, config or AgentConfig())
        self._max_tokens, self._window, self._today = max_tokens, ShortTermMemory(max_tokens), today
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # region reply
    async def reply(
        self, user_id: str, text: str, *, skills: str = "", show: Callable[[str], None] = lambda _: None
    ) -> AgentReply:
        """想起来，存下问题，拼提示词，跑循环，存下回答。"""
        async with self._locks.setdefault(user_id, asyncio.Lock()):
            session = await self._sessions.get_or_create(user_id, "chat", conversation="chat")
            used = self._builder.fitting(await self._memory.search(user_id, text))
            turn = _Turn(self._sessions, session, self._window)
            await turn.append({"role": "user", "content": text})
            turn.system = await self._system(session, used, skills)
            async with aclosing(self._runtime.run(turn, MemoryToolBox(self._memory, user_id))) as events:
                async for event in events:
                    if isinstance(event, LLMChunk):
                        show(event.text)
                    elif isinstance(event, Finished):
                        if not (said := event.response.text):
                            show(said := "Stopped: a limit was reached.")
                        await turn.append({"role": "assistant", "content": said})
            history = [entry.message for entry in session.messages]
            memories = [{"memory_id": one.record.memory_id, "content": one.record.content} for one in used]
            return AgentReply(said, history, memories)

    # endregion

    # region compact
    async def _system(self, session: Session, used: Any, skills: str) -> str:
        """系统提示词；谈话放不下了，先请模型把最早的几轮写成摘要。"""
        earlier, position = _summary(session)
        parts = {"skills": skills, "memories": used, "today": self._today()}
        system = self._builder.build(**parts, summary=earlier)
        history, room = visible(session)[:-1], self._window.room(system)
        end = oldest_turns(history, room // 2) if oldest_turns(history, room) else 0
        if not end:
            return system
        asked = summary_request(history[:end], window=self._max_tokens, earlier=earlier)
        try:
            if not (said := (await self._provider.chat(asked)).text.strip()):
                return system  # 没写出来：这一次先由窗口截断
        except ModelError as error:
            logger.warning("no summary of %s: %s", session.session_id, error)
            return system
        written = {"text": said, "position": position + end}
        await self._sessions.update(session, summary=written)
        logger.info("the first %d messages of %s are summarised", written["position"], session.session_id)
        return self._builder.build(**parts, summary=said)

    # endregion
