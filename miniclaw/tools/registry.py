"""The set of tools: what the model is told of them, and the one place where a call is carried out.

Whether a call is allowed is decided before it comes here; only what is `forbidden` is refused here too.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from miniclaw.errors import ConfigError, OutsideWorkspace, ToolError
from miniclaw.gateway.protocol import new_id, plain_text
from miniclaw.tools.arguments import ValidatesArguments, check_arguments, optional_without_null
from miniclaw.tools.base import Risk, Tool, ToolResult, ToolSource, fault_of
from miniclaw.tools.context import ToolContext
from miniclaw.tools.exports import chat_form, mcp_form, responses_form
from miniclaw.tools.foreign import contained, is_cancelled, kind_of, tasks_contained, text_of, trace_of
from miniclaw.tools.function import FunctionTool, origin_of
from miniclaw.tools.hints import in_reach, no_such_tool
from miniclaw.tools.results import readable
from miniclaw.tools.risk import risk_of

if TYPE_CHECKING:
    from miniclaw.tools.hooks import Hooks

__all__ = ["ToolRegistry"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What the Chat Completions API takes as a function's name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    validate: Callable[[object], dict[str, Any]]
    optional: frozenset[str]
    """Parameters that `null` leaves out."""


class ToolRegistry:
    """Tools by name; meets `ToolBox`.

    A tool whose risk is fixed as `forbidden` keeps its name but is as if it were not there.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        default_timeout: float = 60.0,
        result_chars: int = 20_000,
        hooks: Hooks | None = None,
        hide: Callable[[str], str] = str,
        new_id: Callable[[str], str] = new_id,
    ) -> None:
        """Register `tools`.

        Args:
            tools: the tools to begin with.
            default_timeout: seconds for a call of a tool that names no limit itself.
            result_chars: how much of a result the model gets to read.
            hooks: run before and after each call.
            hide: takes the operator's secrets out of a text.
            new_id: makes the names of the files that keep whole results.
        """
        self._entries: dict[str, _Entry] = {}
        self._aliases: dict[str, str] = {}
        self.source: ToolSource | None = None
        """Asked for changes whenever the tools are listed."""
        self._default_timeout = default_timeout
        self._result_chars = result_chars
        self._new_id = new_id
        self.hooks = hooks
        self.hide = hide
        if hooks is not None:
            hooks.hide = hide
        self._forms: dict[object, list[dict[str, Any]]] = {}
        for tool in tools:
            self.register(tool)

    @overload
    def register(self, tool: Tool, /) -> str: ...

    @overload
    def register(
        self,
        name: str,
        description: str,
        parameters: dict[str, Any],
        handler: Callable[..., Any],
        compactable: bool = False,
        *,
        risk: Risk = "write",
    ) -> str: ...

    def register(
        self,
        name: Tool | str,
        description: str = "",
        parameters: dict[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        compactable: bool = False,
        *,
        risk: Risk = "write",
    ) -> str:
        """Add a tool, or a function with a JSON Schema written by hand; its name.

        Raises:
            ConfigError: the name is taken or cannot be a function's name, or the tool is not declared soundly.
        """
        if isinstance(name, Tool):
            return self._add(name)
        if parameters is None or handler is None:
            raise ConfigError(f"Tool `{name}` needs its parameters (a JSON Schema) and a handler.")
        made: FunctionTool[..., Any] = FunctionTool(
            handler,
            name=name,
            description=description,
            parameters=parameters,
            validate=functools.partial(check_arguments, parameters),
            compactable=compactable,
            risk=risk,
        )
        return self._add(made)

    def remove(self, name: str) -> None:
        """Take a tool out; one that is not there is no error."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._forms.clear()
            self._aliases = {alias: of for alias, of in self._aliases.items() if of != name}

    async def reload(self, *, only_changed: bool = False) -> None:
        """Read the operator's own tools anew, or those files only that changed."""
        if self.source is not None:
            await (self.source.refreshed() if only_changed else self.source.reload())

    def find(self, name: str) -> Tool | None:
        """The listed tool of that name or alias."""
        entry = self._listed(name)
        return entry.tool if entry else None

    def names(self) -> list[str]:
        """The names of the listed tools, in order of registration."""
        return [tool.name for tool in self]

    def __iter__(self) -> Iterator[Tool]:
        """The listed tools, in order of registration."""
        return (entry.tool for entry in self._entries.values() if entry.tool.risk != "forbidden")

    def get_openai_tools(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """The tools as the Chat Completions API lists them; `strict` marks those whose schema can be held to.

        The same list object while nothing changes, so it can be compared and cached by identity.
        """
        return self._form(("chat", strict), lambda: chat_form(self, strict=strict))

    def get_responses_tools(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """The tools as the Responses API lists them; the same list object while nothing changes."""
        return self._form(("responses", strict), lambda: responses_form(self, strict=strict))

    def get_mcp_tools(self) -> list[dict[str, Any]]:
        """The tools as MCP's `tools/list` has them; the same list object while nothing changes."""
        return self._form("mcp", lambda: mcp_form(self))

    def _form(self, key: object, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        if self.source is not None:
            self.source.refresh()
        if key not in self._forms:
            self._forms[key] = make()
        return self._forms[key]

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Check the arguments and run the tool; whatever goes wrong is a failed result.

        Only cancellation is raised. A text too long for the model is cut, and kept whole in the workspace.
        """
        entry = self._listed(name)
        if entry is None:
            return self._failure(no_such_tool(name, self.names()))
        started = time.perf_counter()
        result = await self._hooked(entry, arguments, context)
        if context is not None and entry.tool.is_outside:
            context.outside.append(entry.tool.name)
        logger.info(
            "tool %s %s in %.0f ms",
            entry.tool.name,
            "finished" if result.ok else "failed",
            (time.perf_counter() - started) * 1000,
            extra={"session_id": context.session_id, "turn_id": context.turn_id} if context else {},
        )
        return result

    async def _hooked(
        self, entry: _Entry, arguments: Mapping[str, Any], context: ToolContext | None
    ) -> ToolResult:
        if self.hooks is None:
            return await self._run(entry, arguments, context)
        about: dict[str, Any] = {"tool": entry.tool.name, "arguments": dict(arguments)}
        if context is not None:
            about |= {name: getattr(context, name) for name in ("user_id", "session_id", "turn_id")}
        if reason := await self.hooks.run("before_tool", about):
            return self._failure(f"`{entry.tool.name}` was not run: {reason}")
        result = await self._run(entry, arguments, context)
        about |= {"ok": result.ok, "content": result.content}
        if reason := await self.hooks.run("after_tool", about):
            return self._failure(f"`{entry.tool.name}` has run, but its result is withheld: {reason}")
        return result

    async def _run(
        self, entry: _Entry, arguments: Mapping[str, Any], context: ToolContext | None
    ) -> ToolResult:
        tool = entry.tool
        try:
            given = {k: v for k, v in arguments.items() if v is not None or k not in entry.optional}
            values = entry.validate(given)
            of, known = (context.judged if context else None) or (None, None)
            risk = await risk_of(tool, given, known if of is arguments else None)
            if risk == "forbidden":
                raise ToolError("This is forbidden with these arguments. Find another way.")
            if tool.wants_context:
                values["tool_context"] = context
            result = await self._in_time(tool, values, tries=2 if risk == "read" else 1)
            return await readable(result, self._result_chars, context, hide=self.hide, new_id=self._new_id)
        except ToolError as error:
            hint = in_reach(tool, self) if isinstance(error, OutsideWorkspace) else ""
            return self._failure((text_of(error) or "The tool refused and gave no reason.") + hint)
        except BaseException as error:  # boundary: a fault in one tool ends neither the turn nor the program
            if is_cancelled(error):
                raise
            logger.error("tool %s failed\n%s", tool.name, self.hide(trace_of(error)))
            return self._failure(
                f"`{tool.name}` failed inside ({kind_of(error)}). The fault is in the tool: do not repeat the"
                " same call; find another way or tell the user."
            )

    async def _in_time(self, tool: Tool, values: dict[str, Any], tries: int) -> ToolResult:
        seconds = self._default_timeout if tool.timeout is None else tool.timeout
        while True:
            try:
                async with asyncio.timeout(seconds) as limit:
                    with tasks_contained():
                        return await contained(tool.execute(**values))
            except TimeoutError:
                tries -= 1
                if not tries and not limit.expired():
                    raise  # the tool's own, which says nothing of the time that it has
                hangs = limit.expired() and isinstance(tool, FunctionTool) and tool.blocks
                if hangs or not tries:
                    raise ToolError(
                        f"`{tool.name}` did not finish within {seconds:g} s and was stopped. What it did until"
                        " then is unknown: check before you repeat it, or ask for less at a time."
                    ) from None

    def _failure(self, text: str) -> ToolResult:
        return ToolResult.failure(self.hide(plain_text(text))[: self._result_chars])

    def _listed(self, name: str) -> _Entry | None:
        entry = self._entries.get(self._aliases.get(name, name))
        return None if entry is None or entry.tool.risk == "forbidden" else entry

    def _add(self, tool: Tool) -> str:
        if fault := fault_of(tool):
            named = getattr(tool, "name", type(tool).__name__)
            raise ConfigError(f"Tool `{named}` ({origin_of(tool)}): {fault}")
        own, aliases = tool.name, tool.aliases
        if not _NAME.fullmatch(own):
            raise ConfigError(
                f"Tool name {own!r} ({origin_of(tool)}): use up to 64 letters, digits, `_` and `-`."
            )
        for name in (own, *aliases):
            taken = self._entries.get(self._aliases.get(name, name))
            if taken is not None:
                raise ConfigError(
                    f"Two tools are called `{name}`: {origin_of(taken.tool)} and {origin_of(tool)}. Rename one."
                )
        if isinstance(tool, ValidatesArguments):
            validate = tool.validate
        else:
            validate = functools.partial(check_arguments, tool.parameters)
        self._entries[own] = _Entry(tool, validate, optional_without_null(tool.parameters))
        self._aliases |= dict.fromkeys(aliases, own)
        self._forms.clear()
        return own
