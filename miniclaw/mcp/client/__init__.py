"""The client half of MCP: other people's servers, whose tools become ours."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.mcp.client.client import MCPClient

__all__ = ["MCPClient"]

__getattr__ = exports(__name__, {"MCPClient": "client"})
