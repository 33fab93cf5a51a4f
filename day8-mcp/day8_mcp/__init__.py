"""第 8 天：MCP。别人的工具拿来用，我们的工具给别人用。"""

from day8_mcp.client import MCPClient, RemoteTool
from day8_mcp.config import read_servers
from day8_mcp.link import HttpLink, StdioLink
from day8_mcp.protocol import MCPError, MCPUnavailable, decode
from day8_mcp.serve import McpHttp, serve_stdio, take_stdio
from day8_mcp.server import MCPServer, RegistryTools

__all__ = ["HttpLink", "MCPClient", "MCPError", "MCPServer", "MCPUnavailable", "McpHttp", "RegistryTools"]
__all__ += ["RemoteTool", "StdioLink", "decode", "read_servers", "serve_stdio", "take_stdio"]
