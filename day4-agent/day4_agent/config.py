"""智能体怎么做事、做到哪里为止。"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["AgentConfig"]


class AgentConfig(BaseModel):
    """一份只读的设置；写错的键是错误，不会被悄悄忽略。"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system_prompt: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    max_iterations: int = Field(default=20, ge=1)
    """一轮里最多问模型几次。"""
    max_tool_calls: int = Field(default=40, ge=0)
    tool_timeout: float = Field(default=60.0, gt=0)
    """一次工具调用最多几秒。"""
