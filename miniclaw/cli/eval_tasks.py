"""A file of tasks for `miniclaw eval`: what may stand in it, and whether what happened is what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from miniclaw.errors import ConfigError
from miniclaw.tools.base import Risk

__all__ = ["Call", "Expect", "Seen", "Task", "Tool", "fits", "problems", "read_tasks"]

T = TypeVar("T")
FILE_BYTES: Final = 1 << 20
"""How much of a file in the workspace is looked at."""


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"`{text}` is no expression: {error}") from error
    return text


def _relative(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"`{path}` is no path in the workspace")
    return path


Expression = Annotated[str, AfterValidator(_expression)]
"""A regular expression; upper and lower case are one."""
Listed = Annotated[list[T], BeforeValidator(lambda given: given if isinstance(given, list) else [given])]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class Call(_Row):
    """A call that is expected: a tool, and expressions for some of its arguments."""

    tool: str
    args: dict[str, Expression] = {}


class Expect(_Row):
    """What a task expects; examples/tasks.yaml says what each means."""

    contains: Listed[str] = []
    lacks: Listed[str] = []
    regex: Listed[Expression] = []
    called: Listed[
        Annotated[Call, BeforeValidator(lambda given: {"tool": given} if isinstance(given, str) else given)]
    ] = []
    not_called: Listed[str] = []
    stopped_by: str | None = None
    max_tool_calls: int | None = None
    memory: Listed[Expression] = []
    """Each fits a memory that the user has at the end."""
    files: Annotated[
        dict[Annotated[str, AfterValidator(_relative)], Expression],
        BeforeValidator(lambda given: dict.fromkeys(given, "") if isinstance(given, list) else given),
    ] = {}
    """Paths in the workspace that must be there at the end, and what must fit their text."""


class Tool(_Row):
    """A scripted tool; with `needs` there is a result only where the expressions fit the arguments."""

    name: str
    description: str
    parameters: dict[str, Any] = {}
    risk: Risk = "read"
    result: str | None = None
    error: str = "Nothing was found; check the arguments."
    needs: dict[str, Expression] = {}


class Task(_Row):
    """One task of the file; anything else in it is an error."""

    id: str
    prompt: str = ""
    turns: list[str] = []
    """Several messages, instead of `prompt`."""
    offer: list[str] | None = None
    """The built-in tools that there are; left out = all."""
    tools: list[Tool] = []
    approve: Annotated[
        Literal["yes", "no"],  # which YAML reads as truth values
        BeforeValidator(lambda given: ("no", "yes")[given] if isinstance(given, bool) else given),
    ] = "no"
    """The answer to every question."""
    expect: Expect = Expect()

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if bool(self.prompt) == bool(self.turns):
            raise ValueError("it needs a `prompt`, or `turns` instead")
        return self


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file.

    Raises:
        ConfigError: it cannot be read, or a task is not as it should be; says where.
    """
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"`{path}`{line}: this is no YAML: {error.problem}.") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"`{path}` cannot be read: {' '.join(str(error).split())}.") from error
    rows = read.get("tasks") if isinstance(read, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"`{path}` holds no tasks: it needs a list `tasks`.")
    tasks: list[Task] = []
    for number, row in enumerate(rows, 1):
        try:
            tasks.append(Task.model_validate(row))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join([f"task {number}", *map(str, first["loc"])])
            unknown = first["type"] == "extra_forbidden"
            said = "there is no such key" if unknown else first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"`{path}`, {place}: {said}.") from error
        if tasks[-1].id in {task.id for task in tasks[:-1]}:
            raise ConfigError(f"`{path}`, task {number}.id: there is a task `{tasks[-1].id}` already.")
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a task came to."""

    text: str
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    stopped_by: str | None = None
    memories: list[str] = field(default_factory=list)
    workspace: Path = Path()


def fits(wanted: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Whether each expression fits the argument of its name."""
    return all(re.search(pattern, str(arguments.get(name, "")), re.I) for name, pattern in wanted.items())


def problems(expect: Expect, seen: Seen) -> Iterator[str]:
    """What is not as expected, one sentence for each."""
    text, lower, names = repr(seen.text[:80]), seen.text.lower(), {name for name, _ in seen.calls}
    yield from (f"`{part}` is not in {text}" for part in expect.contains if part.lower() not in lower)
    yield from (f"`{part}` is in {text}" for part in expect.lacks if part.lower() in lower)
    yield from (f"/{p}/ does not fit {text}" for p in expect.regex if not re.search(p, seen.text, re.I))
    left = iter(seen.calls)  # in this order, others between them
    for one in expect.called:
        if not any(one.tool == name and fits(one.args, arguments) for name, arguments in left):
            yield f"no call of {one.tool} {one.args or ''} in order; there were {seen.calls}"[:300]
            break
    for name in expect.not_called:
        if name in names or (name == "*" and names):
            yield f"{name} was called: {sorted(names)}"
    if expect.stopped_by not in (None, seen.stopped_by):
        yield f"stopped by {seen.stopped_by}, not by {expect.stopped_by}"
    if expect.max_tool_calls is not None and len(seen.calls) > expect.max_tool_calls:
        yield f"{len(seen.calls)} tool calls, {expect.max_tool_calls} at most"
    yield from _left(expect, seen)


def _left(expect: Expect, seen: Seen) -> Iterator[str]:
    """What is not left behind as expected."""
    for pattern in expect.memory:
        if not any(re.search(pattern, memory, re.I) for memory in seen.memories):
            yield f"no memory fits /{pattern}/; there are {seen.memories}"[:300]
    for name, pattern in expect.files.items():
        path = seen.workspace / name
        if not path.is_file():
            yield f"there is no file {name}"
        elif pattern:
            with path.open("rb") as file:
                held = file.read(FILE_BYTES).decode("utf-8", "replace")
            if not re.search(pattern, held, re.I):
                yield f"/{pattern}/ does not fit {name}, which holds {held[:80]!r}"
