"""The tools that come with miniClaw and need nothing of the rest of it."""

from collections.abc import Iterable

from miniclaw.tools.base import Tool
from miniclaw.tools.builtins.calculator_tool import calculator_tool
from miniclaw.tools.builtins.datetime_tool import datetime_tool
from miniclaw.tools.builtins.http_request_tool import http_request_tool

__all__ = ["builtin_tools", "calculator_tool", "datetime_tool", "http_request_tool"]


def builtin_tools(*, http_allow: Iterable[str] = ()) -> list[Tool]:
    """The tools; `http_allow` names private services (`host:port`) that `http_request` may reach."""
    return [datetime_tool(), calculator_tool(), http_request_tool(allow=frozenset(http_allow))]
