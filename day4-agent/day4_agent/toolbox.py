"""运行时对“一组工具”的全部要求。工具怎么写是第 5 天的事，这里只有约定。"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["ToolBox", "ToolResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """一次调用的结果。失败也是结果：模型读到它，再决定怎么办。"""

    ok: bool = True
    content: str = ""
    """模型读到的文字。"""
    data: Any = None
    """同样的内容，给程序用。"""
    error: str | None = None

    @classmethod
    def failure(cls, error: str) -> ToolResult:
        return cls(ok=False, content=f"Error: {error}", error=error)


class ToolBox(Protocol):
    """能列出自己（Chat Completions 的样子），能按名字执行；除了取消，什么都不抛出。"""

    def get_openai_tools(self) -> list[dict[str, Any]]: ...

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult: ...
