"""Tools: functions that the model may ask for."""

from miniclaw.tools.base import Risk, Tool, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.function import tool
from miniclaw.tools.registry import ToolRegistry

__all__ = ["Risk", "Tool", "ToolBox", "ToolContext", "ToolRegistry", "ToolResult", "tool"]
