"""What miniClaw itself offers to MCP clients, put together."""

from __future__ import annotations

from typing import Final

from miniclaw.mcp.ask import AskAgent, Door
from miniclaw.mcp.library import Library
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.skill_prompts import SkillPrompts
from miniclaw.mcp.toolset import RegistryTools

__all__ = ["product_server"]

LIST_MS: Final = 5_000
"""How long a client may keep a list; tools and skills are files that change while we run."""
INSTRUCTIONS: Final = (
    "miniclaw is the user's personal agent. `ask_agent` talks to it: it remembers, has skills and acts by"
    " itself. Sessions and memories are resources, skills are prompts."
)


def product_server(
    *, tools: RegistryTools, door: Door, library: Library, skills: SkillPrompts, watches: bool = False
) -> MCPServer:
    """The tools, `ask_agent`, sessions and memories, skills, and completion for them."""
    return MCPServer(
        instructions=INSTRUCTIONS,
        tools=[AskAgent(door), tools],
        resources=[library],
        prompts=[skills],
        completions=[library, skills],
        ttl_ms=LIST_MS,
        watches=watches,
    )
