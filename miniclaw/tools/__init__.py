"""Tools: functions that the model may ask for."""

from miniclaw.errors import ToolError
from miniclaw.tools.base import Risk, Tool, ToolBox, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.function import tool
from miniclaw.tools.registry import ToolRegistry
from miniclaw.tools.workspace import Workspace

__all__ = ["Risk", "Tool", "ToolBox", "ToolContext", "ToolError", "ToolRegistry", "ToolResult"]
__all__ += ["Workspace", "tool"]
