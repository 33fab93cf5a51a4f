"""Makes the tools and skills of a data directory; who only needs these loads no agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from functools import reduce
from pathlib import Path

from miniclaw.agent.masking import secrets_of
from miniclaw.config import Settings
from miniclaw.skills.manager import BUNDLED, SkillManager
from miniclaw.tools.base import Tool
from miniclaw.tools.builtins import builtin_tools
from miniclaw.tools.hooks import Hooks
from miniclaw.tools.loading import OwnTools
from miniclaw.tools.registry import ToolRegistry

__all__ = ["skills_of", "tools_of"]


def tools_of(
    settings: Settings, data_dir: Path, more: Iterable[Tool] = (), *, token: str = ""
) -> ToolRegistry:
    """The built-in tools, `more`, and the operator's own; no result of them shows a secret of the settings."""
    secrets = secrets_of(settings, token)
    registry = ToolRegistry(
        (*builtin_tools(settings.tools), *more),
        default_timeout=settings.agent.tool_timeout,
        result_chars=settings.tools.result_chars,
        hooks=Hooks(settings.hooks, data_dir) if settings.hooks else None,
        hide=lambda text: reduce(lambda left, secret: left.replace(secret, "[secret]"), secrets, text),
    )
    OwnTools(registry, data_dir / "tools", reserved=("delegate", "schedule"))
    return registry


def skills_of(
    settings: Settings, data_dir: Path, *, tools: Callable[[], Collection[str]] | None = None
) -> SkillManager:
    """The skills of a data directory, of the configured paths, and the bundled ones, in this order."""
    paths = [Path(path).expanduser() for path in settings.skills.paths]
    return SkillManager([data_dir / "skills", *paths, BUNDLED], tools=tools, env=os.environ)
