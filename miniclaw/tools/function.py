"""`@tool`: a typed function becomes a tool. Its schema and its validator are built once, from the annotations."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Annotated, Any, Generic, Literal, ParamSpec, TypeVar, get_args, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from miniclaw.errors import ConfigError, ToolError
from miniclaw.gateway.protocol import plain_text
from miniclaw.tools.arguments import validate_model
from miniclaw.tools.base import Risk, Tool, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.foreign import in_thread, prints_aside

__all__ = ["FunctionTool", "origin_of", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

AnyRisk = Risk | Callable[[Mapping[str, Any]], Risk]

_DATA_KEYWORDS = frozenset({"default", "const", "enum", "examples"})
_NAMED_SCHEMAS = frozenset({"properties", "$defs"})


class FunctionTool(Tool, Generic[P, R]):
    """A tool that runs a function and can still be called as that function.

    An async function runs on the loop, any other in a thread; a thread cannot be stopped, so after a
    time-out it may still be at work.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        description: str,
        parameters: dict[str, Any],
        validate: Callable[[object], dict[str, Any]],
        context: inspect.Parameter | None = None,
        risk: AnyRisk = "write",
        timeout: float | None = None,
        compactable: bool = False,
        idempotent: bool = False,
        aliases: tuple[str, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.description = description
        self.parameters = parameters
        self.risk = risk
        self.timeout = timeout
        self.compactable = compactable
        self.idempotent = idempotent
        self.aliases = aliases
        self.wants_context = context is not None
        self.blocks = not inspect.iscoroutinefunction(function)
        self._function = function
        self._validate = validate
        self._context = context

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def validate(self, arguments: object) -> dict[str, Any]:
        """The keyword arguments of the function; raises `ToolError`."""
        return self._validate(arguments)

    async def execute(self, /, **kwargs: Any) -> ToolResult:
        """Run the function with validated arguments and turn what it returns into a result."""
        if self._context is not None:
            context = kwargs.pop("tool_context", None)
            if context is None and self._context.default is self._context.empty:
                raise ToolError("This works only inside a conversation.")
            kwargs[self._context.name] = context
        function: Callable[..., Any] = self._function
        value = await in_thread(lambda: _result(function(**kwargs))) if self.blocks else function(**kwargs)
        if isinstance(value, ToolResult):
            return value
        # Our own tools may start tasks that print for the user.
        with contextlib.nullcontext() if self.__module__.startswith("miniclaw.") else prints_aside():
            result: ToolResult = _result(await value)
            return result


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    risk: AnyRisk = "write",
    timeout: float | None = None,
    compactable: bool = False,
    idempotent: bool = False,
    aliases: tuple[str, ...] = (),
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    risk: AnyRisk = "write",
    timeout: float | None = None,
    compactable: bool = False,
    idempotent: bool = False,
    aliases: tuple[str, ...] = (),
) -> Any:
    """Make a tool of a typed function: `@tool` or `@tool(risk="read", ...)`.

    The model is told the docstring's first paragraph and each parameter's `Field` text or line of `Args:`, but
    of no `ToolContext`, which is filled in. It returns a text, a `ToolResult`, or what can be written as JSON.

    Raises:
        ConfigError: a parameter has no usable annotation, or the function takes `*args` or `**kwargs`.
    """

    def make(function: Callable[..., Any]) -> FunctionTool[..., Any]:
        tool_name = name or str(getattr(function, "__name__", ""))
        model, context = _arguments_model(tool_name, function)
        description, documented = _read_docstring(inspect.getdoc(function) or "")
        parameters, extra = _schema(tool_name, model, documented)
        return FunctionTool(
            function,
            name=tool_name,
            description=description or tool_name.replace("_", " "),
            parameters=parameters,
            validate=functools.partial(validate_model, model, extra=extra),
            context=context,
            risk=risk,
            timeout=timeout,
            compactable=compactable,
            idempotent=idempotent,
            aliases=aliases,
        )

    return make if function is None else make(function)


def _arguments_model(
    name: str, function: Callable[..., Any]
) -> tuple[type[BaseModel], inspect.Parameter | None]:
    """The model of the parameters, and the parameter that takes the context."""
    if isinstance(function, type) or not hasattr(function, "__name__"):
        raise ConfigError(f"`@tool` takes a function, and {function!r} is none; write one that calls it.")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"Tool `{name}`: an annotation cannot be read ({error}).") from error
    fields: dict[str, Any] = {}
    context = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"Tool `{name}`: `{parameter.name}` cannot be filled by name; list the parameters."
            )
        if parameter.name not in hints:
            raise ConfigError(f"Tool `{name}`: parameter `{parameter.name}` needs a type annotation.")
        hint = hints[parameter.name]
        if hint is ToolContext or ToolContext in get_args(hint):
            if context is not None:
                raise ConfigError(f"Tool `{name}`: two parameters take the context; leave one.")
            context = parameter
            continue
        # Fields have neutral names, so that a parameter may be called `json`, `copy` or `_x`.
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"p{len(fields)}"] = (Annotated[hint, Field(alias=parameter.name)], default)
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields), context
    except PydanticUserError as error:
        raise ConfigError(f"Tool `{name}`: a parameter's type is not supported ({_first(error)}).") from error


def _schema(
    name: str, model: type[BaseModel], documented: Mapping[str, str]
) -> tuple[dict[str, Any], Literal["forbid"] | None]:
    """The JSON Schema, and whether models inside it are closed too: unless one asks for other fields itself."""
    try:
        schema: dict[str, Any] = _without_titles(model.model_json_schema())
    except PydanticUserError as error:
        raise ConfigError(f"Tool `{name}`: a parameter has no JSON Schema ({_first(error)}).") from error
    for parameter, text in documented.items():
        if parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    inner = [one for one in schema.get("$defs", {}).values() if "properties" in one]
    if any(one.get("additionalProperties") for one in inner):
        return schema, None
    for one in inner:
        one["additionalProperties"] = False
    return schema, "forbid"


def _first(error: PydanticUserError) -> str:
    return error.message.partition(". ")[0]


def _without_titles(node: Any) -> Any:
    """The schema without the titles that Pydantic makes of names; they tell a model nothing."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DATA_KEYWORDS:
            kept[key] = value
        elif key in _NAMED_SCHEMAS:
            kept[key] = {name: _without_titles(schema) for name, schema in value.items()}
        elif key != "title":
            kept[key] = _without_titles(value)
    return kept


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the texts of the `Args:` section by parameter."""
    summary = " ".join(text.partition("\n\n")[0].split())
    section = re.search(r"^Args:[ ]*\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
    documented: dict[str, str] = {}
    if section is None:
        return summary, documented
    current = ""
    for line in inspect.cleandoc(section[1]).splitlines():
        entry = re.match(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
        if entry:
            current = entry[1]
            documented[current] = entry[2]
        elif current and line.strip():
            documented[current] = f"{documented[current]} {line.strip()}".strip()
    return summary, documented


def _jsonable(value: object) -> Any:
    if isinstance(value, Iterator | AsyncIterator):
        raise ToolError("The tool returned a generator or iterator, which may have no end; return a list.")
    return to_jsonable_python(value)


def _result(value: object) -> Any:
    """A `ToolResult`; what is to be awaited first comes back as it is."""
    if isinstance(value, ToolResult) or inspect.isawaitable(value):
        return value
    if isinstance(value, str):
        return ToolResult(content=value)
    try:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_jsonable)
    except (ValueError, TypeError, RecursionError, PydanticSerializationError) as error:
        raise ToolError("The tool returned a value that cannot be written as JSON.") from error
    content = plain_text(content)
    return ToolResult(content=content, data=json.loads(content))


def origin_of(tool: Tool) -> str:
    """Where a tool comes from, for messages about it."""
    if tool.origin:
        return tool.origin
    code = inspect.unwrap(tool) if isinstance(tool, FunctionTool) else type(tool)
    if inspect.isfunction(code):
        return f"{code.__code__.co_filename}:{code.__code__.co_firstlineno}"
    return f"{type(tool).__module__}.{type(tool).__qualname__}"
