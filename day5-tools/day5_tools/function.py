"""`@tool`：一个有类型的函数，变成一个工具。Schema 和检查都从注解里来，只做一次。"""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from day4_agent import ToolResult
from day5_tools.base import ConfigError, Risk, Tool, bad_arguments

__all__ = ["FunctionTool", "tool"]


class FunctionTool(Tool):
    """执行一个函数的工具；async 的在事件循环上跑，别的在线程里跑，谁也不挡住。"""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        description: str,
        parameters: dict[str, Any],
        validate: Callable[[Any], dict[str, Any]],
        risk: Risk = "write",
        timeout: float | None = None,
    ) -> None:
        self.name, self.description, self.parameters = name, description, parameters
        self.risk, self.timeout, self.validate, self._function = risk, timeout, validate, function

    async def execute(self, /, **kwargs: Any) -> ToolResult:
        if inspect.iscoroutinefunction(self._function):
            return _result(await self._function(**kwargs))
        return _result(await asyncio.to_thread(self._function, **kwargs))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *, name: str | None = None, risk: Risk = "write", timeout: float | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    risk: Risk = "write",
    timeout: float | None = None,
) -> Any:
    """`@tool` 或 `@tool(risk="read")`：说明取自 docstring 的第一段和 `Args:` 里的每一行。"""

    def make(function: Callable[..., Any]) -> FunctionTool:
        tool_name = name or str(getattr(function, "__name__", function))
        description, documented = _read_docstring(inspect.getdoc(function) or "")
        try:
            model = _arguments_model(tool_name, function)
            parameters = _schema(model, documented)
        except (NameError, TypeError, ValueError, PydanticUserError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"Tool `{tool_name}`: its signature cannot be read: {reason}") from error
        return FunctionTool(
            function,
            name=tool_name,
            description=description or tool_name.replace("_", " "),
            parameters=parameters,
            validate=partial(_validate, model),
            risk=risk,
            timeout=timeout,
        )

    return make if function is None else make(function)


def _arguments_model(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    """参数变成一个 Pydantic 模型：名字、类型、默认值都在签名里。"""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"Tool `{name}`: `{parameter.name}` cannot be filled by name.")
        if parameter.name not in hints:
            raise ConfigError(f"Tool `{name}`: parameter `{parameter.name}` needs a type annotation.")
        default = ... if parameter.default is parameter.empty else parameter.default
        # 另起名字：`_x`、`json` 这样的，Pydantic 自己要用。
        fields[f"p{len(fields)}"] = (Annotated[hints[parameter.name], Field(alias=parameter.name)], default)
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _validate(model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """参数转好类型，补上默认值；不合适就说清楚是哪一个、为什么。"""
    try:
        values = model.model_validate(dict(arguments))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise bad_arguments(f"`{'.'.join(map(str, one['loc']))}`: {one['msg']}" for one in found) from None
    return {str(field.alias): getattr(values, name) for name, field in model.model_fields.items()}


def _schema(model: type[BaseModel], documented: Mapping[str, str]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.pop("title")
    for name, field in schema["properties"].items():
        field.pop("title", None)  # Pydantic 从名字造的标题，对模型没有用
        if name in documented:
            field.setdefault("description", documented[name])
    return schema


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """第一段，和 `Args:` 里每个参数的那一行。"""
    lines = text.partition("Args:\n")[2].partition("\n\n")[0].splitlines()
    found = (re.match(r"\s+(\w+):\s*(.+)", line) for line in lines)
    return " ".join(text.partition("\n\n")[0].split()), {one[1]: one[2] for one in found if one}


def _result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(content=value)
    return ToolResult(content=json.dumps(value, ensure_ascii=False, default=str), data=value)
