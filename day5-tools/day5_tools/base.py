"""工具是什么，它错了怎么说。"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

from day1_gateway import MiniClawError
from day4_agent import ToolResult

__all__ = ["ConfigError", "Tool", "ToolError"]

Risk = Literal["read", "write"]  # `read` 什么也不改变；`write` 要先问人


class ToolError(MiniClawError):
    """工具拒绝或者失败了；模型读这句话，再决定怎么办。"""


def bad_arguments(problems: Iterable[str]) -> ToolError:
    """参数不合适；说清楚了，模型自己会改。"""
    return ToolError(f"Invalid arguments: {'; '.join(problems)}. Call it again with arguments that fit.")


class ConfigError(MiniClawError):
    """写程序的人要改的错，例如两个工具重名；启动时就抛出。"""


class Tool(ABC):
    """模型可以要求调用的东西。有状态就写子类，没有就用 `@tool`。"""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema
    risk: Risk = "write"  # 没写就当会改变东西
    timeout: float | None = None  # 一次最多几秒；`None` 由注册表定

    @abstractmethod
    async def execute(self, /, **kwargs: Any) -> ToolResult:
        """用检查过的参数执行；`ToolError` 会变成失败的结果。"""
