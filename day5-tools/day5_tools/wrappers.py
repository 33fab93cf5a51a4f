"""套在工具箱外面的工具箱：只露出几样，或者动手之前先问人。"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from day4_agent import ToolBox, ToolResult
from day5_tools.base import Tool

__all__ = ["ApprovalTools", "FilteredTools"]

Ask = Callable[[Tool, Mapping[str, Any], None], Awaitable[str | None]]


class _Box(ToolBox, Protocol):
    """还能按名字找到工具的 `ToolBox`；注册表和下面两个都是。"""

    def find(self, name: str) -> Tool | None: ...


class FilteredTools:
    """只有 `keep` 点头的工具；别的就像不存在。"""

    def __init__(self, inner: _Box, keep: Callable[[str], bool]) -> None:
        self._inner, self._keep = inner, keep

    def get_openai_tools(self) -> list[dict[str, Any]]:
        return [one for one in self._inner.get_openai_tools() if self._keep(one["function"]["name"])]

    def find(self, name: str) -> Tool | None:
        return self._inner.find(name) if self._keep(name) else None

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self.find(name) is None:
            known = ", ".join(row["function"]["name"] for row in self.get_openai_tools())
            return ToolResult.failure(f"There is no tool `{name}` here. The tools are: {known or 'none'}.")
        return await self._inner.execute(name, arguments)


class ApprovalTools:
    """会改变东西的调用，先问 `ask`：返回 `None` 就执行，返回一句话就是不行的理由。"""

    def __init__(self, inner: _Box, ask: Ask) -> None:
        self._inner, self._ask = inner, ask

    def get_openai_tools(self) -> list[dict[str, Any]]:
        return self._inner.get_openai_tools()

    def find(self, name: str) -> Tool | None:
        return self._inner.find(name)

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        tool = self._inner.find(name)
        if tool is not None and tool.risk != "read":
            try:
                reason = await self._ask(tool, arguments, None)  # 第三个在 miniclaw 里是调用的上下文
            except Exception as error:  # 边界：没问成就是没答应
                logging.getLogger(__name__).exception("asking about %s failed", name)
                reason = f"asking about it failed ({type(error).__name__})"
            if reason is not None:
                return ToolResult.failure(f"`{name}` was not run: {reason}")
        return await self._inner.execute(name, arguments)
