"""What a server has besides tools, its resources and prompts, as one tool of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from miniclaw.errors import MCPError, ToolError
from miniclaw.mcp.client.client import MCPClient
from miniclaw.mcp.client.tools import MOST_SECONDS, read_result
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["LibraryTool", "UsesClient"]

MAX_ROWS: Final = 200
"""Things of each kind that are listed."""
ROW_CHARS: Final = 300


class UsesClient(Protocol):
    """Has a connection to a server."""

    async def use(
        self, work: Callable[..., Awaitable[dict[str, Any]]], context: ToolContext | None
    ) -> dict[str, Any]:
        """What `work` comes to on the connection, with `progress` and `host` for it; raises `MCPError`."""
        ...


class LibraryTool(Tool):
    """Lists and reads a server's resources, and gets its prompts."""

    wants_context = True
    risk = "read"
    compactable = True
    remote_name = "library"
    timeout = MOST_SECONDS

    def __init__(self, server: UsesClient, *, server_name: str) -> None:
        self.name = ""
        self.origin = f"the MCP server `{server_name}`"
        self.description = (
            f"Resources and prompts of the MCP server `{server_name}`. `list` says which there are; `read` gives"
            " the resource of a `uri`; `prompt` gives the text of the prompt `name`, with `arguments`."
        )
        self.parameters = {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["list", "read", "prompt"]},
                "uri": {"type": "string"},
                "name": {"type": "string"},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["action"],
            "additionalProperties": False,
        }
        self._server = server
        self._server_name = server_name

    async def execute(self, /, **kwargs: Any) -> ToolResult:
        """List, read or get."""
        context: ToolContext | None = kwargs.pop("tool_context", None)
        action, uri, name = (kwargs.get(key, "") for key in ("action", "uri", "name"))
        if action == "read" and not uri or action == "prompt" and not name:
            raise ToolError(
                f"`{action}` needs `{'uri' if action == 'read' else 'name'}`; `list` tells which."
            )
        arguments = {key: str(value) for key, value in kwargs.get("arguments", {}).items()}

        async def work(client: MCPClient, **asking: Any) -> dict[str, Any]:
            if action == "read":
                return _as_content(await client.read_resource(uri, **asking))
            if action == "prompt":
                return _as_talk(await client.get_prompt(name, arguments, **asking))
            return {"content": [{"type": "text", "text": await _overview(client)}]}

        try:
            return await read_result(await self._server.use(work, context), context)
        except MCPError as error:
            raise ToolError(f"The MCP server `{self._server_name}`: {error}") from error


def _as_content(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "resource", "resource": one} for one in _rows(result.get("contents"))]}


def _as_talk(result: Mapping[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for message in _rows(result.get("messages")):
        content.append({"type": "text", "text": f"{message.get('role')}:"})
        content += _rows([message.get("content")])
    return {"content": content}


async def _overview(client: MCPClient) -> str:
    kinds = (
        ("Resources", await client.list_resources(), "uri"),
        ("Resources with a place to fill in", await client.list_templates(), "uriTemplate"),
        ("Prompts", await client.list_prompts(), "name"),
    )
    lines = []
    for title, rows, key in kinds:
        if rows:
            lines.append(f"{title}:")
        for row in rows[:MAX_ROWS]:
            given = ", ".join(str(one.get("name")) for one in _rows(row.get("arguments")))
            about = row.get("description") or row.get("title") or ("" if key == "name" else row.get("name"))
            name = f"- {row.get(key)}" + (f" ({given})" if given else "")
            lines.append(" ".join(f"{name}: {about}".split())[:ROW_CHARS] if about else name[:ROW_CHARS])
        if len(rows) > MAX_ROWS:
            lines.append(f"and {len(rows) - MAX_ROWS:,} more")
    return "\n".join(lines)


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
