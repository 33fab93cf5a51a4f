"""How the agent behaves; each field is a key of `[agent]` in `miniclaw.toml`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AgentConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The agent loop's limits and the model's parameters."""

    system_prompt: str = ""
    """The persona; empty = the built-in one."""
    model: str = ""
    """Empty = the provider's own."""
    temperature: float | None = None
    max_tokens: int | None = None
    max_iterations: int = 20
    """Model calls in one turn."""
    max_tool_calls: int = 40
    """Tool calls in one turn."""
    turn_timeout: float = 300.0
    """Seconds of one turn, waiting for approvals not counted."""
    tool_timeout: float = 60.0
    """Seconds of one tool call, where the tool does not say."""
