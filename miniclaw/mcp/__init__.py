"""Model Context Protocol."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.mcp.server import MCPServer

__all__ = [
    "MCPServer",
]

__getattr__ = exports(
    __name__,
    {
        "MCPServer": "server",
    },
)
