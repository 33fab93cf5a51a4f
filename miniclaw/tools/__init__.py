"""Tools: functions that the model may ask for."""

from miniclaw.tools.base import Risk, Tool, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["Risk", "Tool", "ToolBox", "ToolContext", "ToolResult"]
