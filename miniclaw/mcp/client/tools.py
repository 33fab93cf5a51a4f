"""A tool of an MCP server as one of ours."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import mimetypes
from collections.abc import Mapping
from typing import Any, Final, Protocol

from miniclaw.errors import MCPError, ToolError
from miniclaw.gateway.protocol import new_id
from miniclaw.mcp.client.fit import fit_schema
from miniclaw.tools.arguments import check_arguments
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.workspace import RESULTS, Workspace

__all__ = ["CallsTools", "RemoteTool", "read_result"]

logger = logging.getLogger(__name__)

MOST_SECONDS: Final = 3700.0
"""The registry's limit; the connection keeps a shorter one that progress and questions prolong."""
DESCRIPTION_CHARS: Final = 4000
MAX_BLOCKS: Final = 100
"""Parts of one result that are kept."""


class CallsTools(Protocol):
    """Carries calls to a server, whether it has just been started again or not."""

    async def call(
        self, tool: str, arguments: Mapping[str, Any], context: ToolContext | None
    ) -> dict[str, Any]:
        """The result of `tools/call`.

        Raises:
            MCPError: there is none.
        """
        ...


class RemoteTool(Tool):
    """One tool.

    Args:
        server: carries the calls.
        name: what the model calls it.
        server_name: where it comes from.
        listed: what `tools/list` says of it.
        is_trusted: whether the server's word is taken that it only reads.
    """

    wants_context = True
    timeout = MOST_SECONDS

    def __init__(
        self,
        server: CallsTools,
        name: str,
        *,
        server_name: str,
        listed: Mapping[str, Any],
        is_trusted: bool,
    ) -> None:
        self.name = name
        self.remote_name = str(listed["name"])
        self.origin = f"the MCP server `{server_name}`"
        annotations = listed.get("annotations")
        hints = annotations if isinstance(annotations, dict) else {}
        text = listed.get("description") or hints.get("title") or listed.get("title") or self.remote_name
        text = str(text)[:DESCRIPTION_CHARS]
        self.description = text.encode("utf-8", "replace").decode()  # half a character cannot be sent
        self.parameters = fit_schema(listed.get("inputSchema"))
        only_reads = is_trusted and hints.get("readOnlyHint") is True
        self.risk = "read" if only_reads else "write"
        self.compactable = only_reads
        self.idempotent = only_reads or (is_trusted and hints.get("idempotentHint") is True)
        self._server = server
        self._server_name = server_name
        self._output = listed.get("outputSchema")

    async def execute(self, /, **kwargs: Any) -> ToolResult:
        """Have the server run it."""
        context: ToolContext | None = kwargs.pop("tool_context", None)
        try:
            result = await self._server.call(self.remote_name, kwargs, context)
        except MCPError as error:
            raise ToolError(f"The MCP server `{self._server_name}`: {error}") from error
        self._check(result)
        return await read_result(result, context)

    def _check(self, result: Mapping[str, Any]) -> None:
        """Say in the log when a result is not what the tool promised; the model gets it all the same."""
        if not isinstance(self._output, dict) or result.get("isError") or "structuredContent" not in result:
            return
        try:
            check_arguments(fit_schema(self._output), result["structuredContent"])
        except ToolError as error:
            logger.warning("%s: a result of %s is not as promised: %s", self.origin, self.remote_name, error)


async def read_result(result: Mapping[str, Any], context: ToolContext | None) -> ToolResult:
    """What a call gave as the model reads it; what is no text goes to a file of the workspace."""
    blocks = result.get("content")
    blocks = blocks if isinstance(blocks, list) else []
    parts = [await _block(block, context) for block in blocks[:MAX_BLOCKS]]
    if len(blocks) > MAX_BLOCKS:
        parts.append(f"[{len(blocks) - MAX_BLOCKS:,} more parts were left out]")
    structured = result.get("structuredContent")
    text = "\n\n".join(part for part in parts if part).encode("utf-8", "replace").decode()
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    if result.get("isError"):
        return ToolResult.failure(text or "The tool failed and gave no reason.")
    return ToolResult(content=text or "(no output)", data=structured)


async def _block(block: object, context: ToolContext | None) -> str:
    if not isinstance(block, dict):
        return ""
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "image" | "audio":
            return await _binary(block.get("data"), block.get("mimeType"), context)
        case "resource_link":
            about = " ".join(str(block[key]) for key in ("title", "description") if block.get(key))
            return f"[resource {block.get('uri')} ({block.get('name')}){': ' if about else ''}{about}]"
        case "resource" if isinstance(inner := block.get("resource"), dict):
            if "text" in inner:
                return f"[resource {inner.get('uri')}]\n{inner['text']}"
            return f"[resource {inner.get('uri')}]\n" + await _binary(
                inner.get("blob"), inner.get("mimeType"), context
            )
        case kind:
            return f"[content of the unknown kind {str(kind)[:50]!r}]"


async def _binary(data: object, kind: object, context: ToolContext | None) -> str:
    """Keep bytes in the workspace; a note on where they are."""
    kind = str(kind or "application/octet-stream")[:100]
    try:
        raw = base64.b64decode(str(data), validate=True)
    except (ValueError, binascii.Error):
        return f"[{kind} that cannot be read: it is not base64]"
    if context is None:
        return f"[{kind}, {len(raw):,} bytes]"
    ending = mimetypes.guess_extension(kind.partition(";")[0].strip()) or ".bin"
    path = f"{RESULTS}/{context.session_id}-{new_id('res')}{ending}"
    try:
        await asyncio.to_thread(Workspace(context.workspace).write, path, raw)
    except ToolError as error:
        logger.warning("a result could not be kept: %s", error)
        return f"[{kind}, {len(raw):,} bytes, which could not be kept]"
    return f"[{kind}, {len(raw):,} bytes, in the file `{path}`]"
