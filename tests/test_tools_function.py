"""`@tool`: schema, validation, injection and results of tools made of functions."""

from __future__ import annotations

import asyncio
import enum
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from miniclaw.errors import ConfigError, ToolError
from miniclaw.tools import ToolContext, ToolRegistry, ToolResult, tool
from miniclaw.tools.function import FunctionTool


class Colour(enum.Enum):
    """What the paint is like."""

    RED = "red"
    BLUE = "blue"


class Free(BaseModel):
    model_config = {"extra": "allow"}


class Point(BaseModel):
    title: str
    x: float = 0.0


@dataclass
class Answer:
    name: str
    size: int


def context(tmp_path: Path) -> ToolContext:
    return ToolContext(
        user_id="owner", scope="owner", session_id="ses_1", turn_id="turn_1", workspace=tmp_path
    )


async def run(made: FunctionTool[..., Any], /, **arguments: Any) -> ToolResult:
    return await made.execute(**made.validate(arguments))


@tool(risk="read", timeout=3, compactable=True, idempotent=True, name="weather_report")
async def weather(
    city: str,
    days: Annotated[int, Field(ge=1, description="from the field")] = 1,
    *,
    unit: Literal["c", "f"] = "c",
    colour: Colour | None = None,
    where: list[Point] | None = None,
    json: bool = False,
) -> str:
    """Tell the weather
    of a city.

    It is never wrong.

    Args:
        city: the city,
            also in Chinese.
        days (int): from the docstring
        unit: Celsius or Fahrenheit

    Returns:
        city: this is not about the parameter.
    """
    return f"{city} {days} {unit} {colour} {where} {json}"


def test_the_decorator_sets_what_it_is_told_and_reads_the_docstring() -> None:
    assert weather.name == "weather_report"
    assert weather.description == "Tell the weather of a city."
    assert (weather.risk, weather.timeout, weather.compactable, weather.idempotent) == ("read", 3, True, True)


def test_the_schema_says_what_the_annotations_say() -> None:
    assert weather.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the city, also in Chinese."},
            "days": {"type": "integer", "minimum": 1, "default": 1, "description": "from the field"},
            "unit": {
                "type": "string",
                "enum": ["c", "f"],
                "default": "c",
                "description": "Celsius or Fahrenheit",
            },
            "colour": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}], "default": None},
            "where": {
                "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Point"}}, {"type": "null"}],
                "default": None,
            },
            "json": {"type": "boolean", "default": False},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {
            "Colour": {
                "description": "What the paint is like.",
                "enum": ["red", "blue"],
                "type": "string",
            },
            "Point": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "x": {"type": "number", "default": 0.0}},
                "required": ["title"],
                "additionalProperties": False,
            },
        },
    }


async def test_a_model_inside_may_ask_for_other_fields() -> None:
    @tool
    def take(what: Free) -> Any:
        """Take it."""
        return what.model_dump()

    assert take.parameters["$defs"]["Free"]["additionalProperties"] is True
    assert (await run(take, what={"a": 1})).data == {"a": 1}


async def test_arguments_arrive_converted_and_with_defaults() -> None:
    result = await run(weather, city="北京", days="2", colour="red", where=[{"title": "here"}])
    assert result == ToolResult(content="北京 2 c Colour.RED [Point(title='here', x=0.0)] False")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "`city`: Field required"),
        ({"city": "x", "days": 0}, "`days`: Input should be greater than or equal to 1"),
        ({"city": "x", "unit": "k"}, "`unit`: Input should be 'c' or 'f'"),
        ({"city": "x", "where": [{"title": "t", "z": 1}]}, "`where.0.z`: Extra inputs are not permitted"),
        ({"city": "x", "where": [{}]}, "`where.0.title`: Field required"),
        ({"city": "x", "wind": 1}, "`wind`: Extra inputs are not permitted"),
        (["x"], "they should be a JSON object"),
    ],
)
def test_a_refusal_names_the_field_and_the_reason(arguments: object, problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        weather.validate(arguments)
    assert str(caught.value) == f"Invalid arguments: {problem}. Call it again with arguments that fit."


def test_a_refusal_lists_a_few_problems_and_no_more() -> None:
    with pytest.raises(ToolError) as caught:
        weather.validate({f"extra{number}": number for number in range(50)})
    assert str(caught.value).count(";") == 4


async def test_the_tool_is_still_the_function() -> None:
    assert await weather("Oslo", unit="f") == "Oslo 1 f None None False"
    assert weather.__doc__ is not None


def test_a_bare_decorator_makes_a_write_tool_named_like_the_function() -> None:
    @tool
    def send_mail(to: str) -> str:
        return to

    assert (send_mail.name, send_mail.risk, send_mail.timeout) == ("send_mail", "write", None)
    assert send_mail.description == "send mail"
    assert send_mail("a") == "a"


async def test_parameters_may_have_names_that_models_use_themselves() -> None:
    @tool
    def odd(json: int, copy: int, model_config: int, _x: int, schema: int = 4) -> list[int]:
        return [json, copy, model_config, _x, schema]

    result = await run(odd, json=1, copy=2, model_config=3, _x=9)
    assert result.data == [1, 2, 3, 9, 4]


async def test_a_sync_function_runs_in_a_thread_and_an_async_one_on_the_loop() -> None:
    @tool
    def sync() -> bool:
        return threading.current_thread() is threading.main_thread()

    @tool
    async def coroutine() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await run(sync)).data is False
    assert (await run(coroutine)).data is True


async def test_a_sync_function_that_returns_a_coroutine_is_awaited() -> None:
    @tool
    def later() -> Any:
        return asyncio.sleep(0, "done")

    assert (await run(later)).content == "done"


@pytest.mark.parametrize(
    ("value", "content", "data"),
    [
        ("text", "text", None),
        ({"城": [1, (2,)]}, '{"城": [1, [2]]}', {"城": [1, [2]]}),
        (None, "null", None),
        (Answer("a", 1), '{"name": "a", "size": 1}', {"name": "a", "size": 1}),
        (Point(title="t"), '{"title": "t", "x": 0.0}', {"title": "t", "x": 0.0}),
        ([Colour.RED, Path("a/b")], '["red", "a/b"]', ["red", "a/b"]),
        (["\udc80"], '["\ufffd"]', ["\ufffd"]),
    ],
)
async def test_what_a_function_returns_becomes_text_and_data(value: Any, content: str, data: Any) -> None:
    @tool
    def give() -> Any:
        return value

    assert await run(give) == ToolResult(content=content, data=data)


async def test_a_result_passes_as_it_is() -> None:
    result = ToolResult.failure("no")

    @tool
    def give() -> ToolResult:
        return result

    assert await run(give) is result


@pytest.mark.parametrize("value", [object(), float("nan"), {1: {object(): 2}}])
async def test_a_value_that_is_no_json_is_a_failure_of_the_tool(value: object) -> None:
    @tool
    def give() -> Any:
        return value

    with pytest.raises(ToolError, match="cannot be written as JSON"):
        await run(give)


@pytest.mark.parametrize("inside", [False, True])
async def test_a_generator_is_refused_instead_of_followed_without_end(inside: bool) -> None:
    @tool
    def give() -> object:
        """Give something."""
        return [count()] if inside else (number for number in count())

    with pytest.raises(ToolError, match="return a list"):
        await run(give)


async def test_a_blocking_functions_result_is_written_in_its_thread() -> None:
    seen = []

    class Slow(dict[str, int]):
        def items(self) -> Any:
            seen.append(threading.current_thread() is threading.main_thread())
            return super().items()

    @tool
    def give() -> object:
        """Give something."""
        return Slow(a=1)

    assert (await run(give)).data == {"a": 1}
    assert seen and not any(seen)


async def test_stop_iteration_in_a_thread_fails_at_once() -> None:
    """A future cannot carry it: without care the call would hang until its time limit."""

    @tool
    def first() -> int:
        return next(iter(()))

    async with asyncio.timeout(5):
        with pytest.raises(ToolError, match="StopIteration"):
            await run(first)


async def test_the_context_is_injected_by_its_type_and_never_shown(tmp_path: Path) -> None:
    @tool
    def who(greeting: str, ctx: ToolContext) -> str:
        return f"{greeting} {ctx.user_id}"

    assert list(who.parameters["properties"]) == ["greeting"]
    assert who.wants_context
    registry = ToolRegistry([who])
    result = await registry.execute("who", {"greeting": "hi"}, context(tmp_path))
    assert result.content == "hi owner"
    refused = await registry.execute(
        "who", {"greeting": "hi", "ctx": {"user_id": "admin"}}, context(tmp_path)
    )
    assert "`ctx`: Extra inputs are not permitted" in refused.content


async def test_a_context_is_only_needed_where_it_has_no_default(tmp_path: Path) -> None:
    @tool
    def needs(ctx: ToolContext) -> str:
        return ctx.user_id

    @tool
    def can_do_without(context: ToolContext | None = None) -> str:
        return context.user_id if context else "nobody"

    registry = ToolRegistry([needs, can_do_without])
    assert (await registry.execute("needs", {})).error == "This works only inside a conversation."
    assert (await registry.execute("can_do_without", {})).content == "nobody"
    assert (await registry.execute("can_do_without", {}, context(tmp_path))).content == "owner"


def test_a_function_that_cannot_be_called_by_name_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="Tool `many`: `args` cannot be filled by name"):

        @tool
        def many(*args: int) -> None: ...

    with pytest.raises(ConfigError, match="cannot be filled by name"):

        @tool
        def positional(a: int, /) -> None: ...


def test_what_is_no_function_or_takes_the_context_twice_is_a_config_error() -> None:
    class Callable_:
        def __call__(self) -> None: ...

    for given in (functools.partial(print, "x"), Callable_(), Callable_):
        with pytest.raises(ConfigError, match="takes a function"):
            tool(name="x")(given)

    with pytest.raises(ConfigError, match="Tool `twice`: two parameters take the context"):

        @tool
        def twice(a: ToolContext, b: ToolContext | None = None) -> None: ...


def test_a_parameter_without_usable_annotation_is_a_config_error() -> None:
    def bare(a) -> None: ...  # type: ignore[no-untyped-def]  # what is refused

    with pytest.raises(ConfigError, match="parameter `a` needs a type annotation"):
        tool(bare)

    def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - what is refused

    with pytest.raises(ConfigError, match="Tool `unknown`: an annotation cannot be read"):
        tool(unknown)

    with pytest.raises(ConfigError, match="Tool `odd`: a parameter's type is not supported"):

        @tool
        def odd(lock: threading.Thread) -> None: ...

    with pytest.raises(ConfigError, match="Tool `call`: a parameter has no JSON Schema"):

        @tool
        def call(back: Callable[[], int]) -> None: ...


HANGING = """
import asyncio, threading
from miniclaw.tools import ToolRegistry, tool

@tool(timeout=0.05)
def hang() -> str:
    threading.Event().wait()
    return ""

print(asyncio.run(ToolRegistry([hang]).execute("hang", {})).content)
"""


def test_a_blocking_function_that_hangs_does_not_keep_the_program_from_ending() -> None:
    """A thread cannot be stopped, and asyncio waits for those of its own pool."""
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, encoding="utf-8", timeout=50, check=True
    )
    assert "did not finish within 0.05 s" in done.stdout


async def test_more_blocking_calls_than_threads_wait_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniclaw.tools.foreign.PLACES", 1)
    monkeypatch.setattr("miniclaw.tools.foreign._at_work", set())  # other tests leave some that hang
    monkeypatch.setattr("miniclaw.tools.foreign._abandoned", set())
    go = threading.Event()

    @tool
    def wait() -> str:
        go.wait()
        return "done"

    calls = [asyncio.create_task(run(wait)) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()
    assert [result.content for result in await asyncio.gather(*calls)] == ["done"] * 3


async def test_an_error_in_a_thread_is_the_error_of_the_call() -> None:
    @tool
    def fail() -> str:
        raise ToolError("not today")

    with pytest.raises(ToolError, match="not today"):
        await run(fail)
