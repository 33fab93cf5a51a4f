"""How the agent behaves: `[agent]` of the settings."""

from miniclaw.config import AgentConfig

__all__ = ["AgentConfig"]
