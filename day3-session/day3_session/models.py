"""会话，和它的日志里的一条。"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

__all__ = ["Entry", "Session"]


@dataclass(slots=True)
class Entry:
    """一轮里的一步；追加之后不再改动。"""

    turn_id: str
    step: int
    """0 是用户的话；`(turn_id, step)` 独一无二，所以重复追加不会变成两条。"""
    message: dict[str, Any]
    """模型要的样子：`role`、`content`……"""
    at: float = 0.0
    """从纪元算起的秒；给人看，从不拿来排序。"""
    meta: dict[str, Any] | None = None
    """模型看不到的：用时、花费、成没成。"""
    position: int = -1
    """在日志里的位置，从 0 开始；追加时由存储填上。"""


class Session(BaseModel):
    """一次谈话：是谁的，在哪里谈，谈了什么。"""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session_id: str
    user_id: str
    channel: str
    key: str | None = None
    """谈话的地方（渠道、对话、线程、人），有了它才能再找到。"""
    thread: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    messages: SkipValidation[list[Entry]] = Field(default_factory=list, exclude=True)
    """日志另存，不写进这一份：写一句话不该重写整本。"""
    metadata: dict[str, Any] = Field(default_factory=dict)

    def extend(self, entries: list[Entry]) -> None:
        """把已经存下的几条接到内存里的日志后面；已经有的跳过。"""
        have = {(entry.turn_id, entry.step) for entry in self.messages}
        for entry in entries:
            if (key := (entry.turn_id, entry.step)) not in have:
                have.add(key)
                self.messages.append(entry)
