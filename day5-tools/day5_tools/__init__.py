"""第 5 天：工具。一个装饰器，一张注册表，几样真的工具。"""

from day4_agent import ToolResult
from day5_tools.base import ConfigError, Tool, ToolError
from day5_tools.builtins.calculator_tool import calculator_tool
from day5_tools.builtins.datetime_tool import datetime_tool
from day5_tools.builtins.http_request_tool import http_request_tool
from day5_tools.builtins.order_status_tool import get_order_status
from day5_tools.function import FunctionTool, tool
from day5_tools.registry import ToolRegistry, check_arguments
from day5_tools.wrappers import ApprovalTools, FilteredTools

__all__ = ["ApprovalTools", "ConfigError", "FilteredTools", "FunctionTool", "Tool", "ToolError"]
__all__ += ["ToolRegistry", "ToolResult", "calculator_tool", "check_arguments", "datetime_tool"]
__all__ += ["get_order_status", "http_request_tool", "tool"]
