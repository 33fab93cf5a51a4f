"""一组工具：告诉模型有哪些，并且是唯一执行调用的地方。"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from day4_agent import ToolResult
from day5_tools.base import ConfigError, Risk, Tool, ToolError, bad_arguments
from day5_tools.function import FunctionTool

__all__ = ["ToolRegistry", "check_arguments"]

logger = logging.getLogger(__name__)

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    **{"string": str, "boolean": bool, "integer": int, "number": (int, float)},
    **{"array": list, "object": dict, "null": type(None)},
}


class ToolRegistry:
    """按名字找到工具；满足第 4 天的 `ToolBox`。"""

    def __init__(
        self, tools: Iterable[Tool] = (), *, default_timeout: float = 60.0, result_chars: int = 20_000
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._default_timeout, self._result_chars = default_timeout, result_chars
        for tool in tools:
            self.register(tool)

    def register(
        self,
        name: Tool | str,
        description: str = "",
        parameters: dict[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        *,
        risk: Risk = "write",
    ) -> None:
        """加一个工具，或者一个函数加一份手写的 JSON Schema；重名是 `ConfigError`。"""
        if isinstance(name, Tool):
            self._add(name)
        elif parameters is None or handler is None:
            raise ConfigError(f"Tool `{name}` needs its parameters (a JSON Schema) and a handler.")
        else:
            about: Any = {"name": name, "description": description, "parameters": parameters}
            check = partial(check_arguments, parameters)
            self._add(FunctionTool(handler, validate=check, risk=risk, **about))

    def _add(self, tool: Tool) -> None:
        if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name) is None:
            raise ConfigError(f"Tool name {tool.name!r}: use up to 64 letters, digits, `_` and `-`.")
        if tool.name in self._tools:
            raise ConfigError(f"Two tools are called `{tool.name}`. Rename one.")
        self._tools[tool.name] = tool

    def names(self) -> list[str]:
        return list(self._tools)

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def get_openai_tools(self) -> list[dict[str, Any]]:
        """清单，写成 Chat Completions 要的样子。"""
        rows = [
            {"name": one.name, "description": one.description, "parameters": one.parameters}
            for one in self._tools.values()
        ]
        return [{"type": "function", "function": row} for row in rows]

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """检查参数，限时执行；怎么错都是失败的结果，只有别人取消它时才抛出。"""
        tool = self.find(name)
        if tool is None:
            known = ", ".join(self.names())
            return ToolResult.failure(f"There is no tool `{name}`. The tools are: {known or 'none'}.")
        seconds = self._default_timeout if tool.timeout is None else tool.timeout
        try:
            by_schema = partial(check_arguments, tool.parameters)
            async with asyncio.timeout(seconds) as limit:
                values = (tool.validate if isinstance(tool, FunctionTool) else by_schema)(arguments)
                return self._fitted(await tool.execute(**values))
        except ToolError as error:
            return ToolResult.failure(str(error))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise  # 真的有人要停；工具自己抛的，不算
            if isinstance(error, TimeoutError) and limit.expired():  # 函数自己也会抛 TimeoutError
                message = f"`{name}` did not finish within {seconds:g} s; its effect is unknown."
                return ToolResult.failure(message)
            logger.exception("tool %s failed", name)  # 细节只进日志
            return ToolResult.failure(f"`{name}` failed inside ({type(error).__name__}). Find another way.")

    def _fitted(self, result: ToolResult) -> ToolResult:
        if (rest := len(result.content) - self._result_chars) <= 0:
            return result
        content = f"{result.content[: self._result_chars]}\n\n[{rest:,} more characters are left out.]"
        return replace(result, content=content)


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """按手写的 JSON Schema 检查最外面一层：缺了、多了、类型不对。"""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    problems = [f"`{name}`: is required" for name in schema.get("required", ()) if name not in arguments]
    for name, value in arguments.items():
        expected = one.get("type", ()) if isinstance(one := properties.get(name), dict) else ()
        kinds = [expected] if isinstance(expected, str) else list(expected)  # `true` 是什么都行
        if name not in properties and schema.get("additionalProperties", True) is False:
            problems.append(f"`{name}`: is not a parameter")
        elif kinds and not any(_fits(value, kind) for kind in kinds):
            problems.append(f"`{name}`: should be of type {' or '.join(kinds)}")
    if problems:
        raise bad_arguments(problems)
    return dict(arguments)


def _fits(value: object, expected: str) -> bool:
    if isinstance(value, bool):  # 在 Python 里它也是整数，在 JSON 里不是
        return expected == "boolean"
    value = int(value) if isinstance(value, float) and value.is_integer() else value  # JSON 里 1.0 是整数
    return isinstance(value, _TYPES.get(expected, object))
