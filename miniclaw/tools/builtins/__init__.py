"""The tools that come with miniClaw and need nothing of the rest of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from miniclaw.settings import ToolSettings
from miniclaw.tools.base import Tool
from miniclaw.tools.builtins.calculator_tool import calculator_tool
from miniclaw.tools.builtins.datetime_tool import datetime_tool
from miniclaw.tools.builtins.file_tools import file_tools
from miniclaw.tools.builtins.http_request_tool import http_request_tool
from miniclaw.tools.builtins.order_status_tool import get_order_status
from miniclaw.tools.builtins.run_command_tool import run_command_tool
from miniclaw.tools.builtins.todo_tool import todo_tool
from miniclaw.tools.builtins.web_search_tool import choose_backend, web_search_tool
from miniclaw.tools.workspace import Workspace

__all__ = [
    "builtin_tools",
    "calculator_tool",
    "datetime_tool",
    "file_tools",
    "http_request_tool",
    "run_command_tool",
    "todo_tool",
    "web_search_tool",
]

INSIDE = frozenset({"calculator", "datetime", "edit_file", "todo", "write_file"})
"""Tools that tell nothing but what they were given, and the time."""
_NOTE = 500
"""Characters that a page leaves free for the note at its end."""


def builtin_tools(settings: ToolSettings | None = None) -> list[Tool]:
    """The tools as they are set."""
    given = settings or ToolSettings()
    of: Callable[[Path], Workspace] = partial(
        Workspace, file_bytes=given.file_bytes, total_bytes=given.workspace_bytes
    )
    search = choose_backend(
        given.search_backend, given.tavily_api_key, given.tavily_base_url, given.searxng_url
    )
    tools = [
        datetime_tool(),
        calculator_tool(),
        http_request_tool(allow=frozenset(given.http_allow)),
        web_search_tool(search),
        *file_tools(of, page=max(given.result_chars - _NOTE, 250)),
        todo_tool(of),
        get_order_status,
    ]
    for one in tools:
        one.is_outside = one.name not in INSIDE
    return [*tools, run_command_tool()] if given.run_command else tools
