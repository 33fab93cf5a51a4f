"""Skills as MCP prompts: the instructions, and behind them the task that the user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from miniclaw.errors import MCPError
from miniclaw.mcp.call import Call
from miniclaw.mcp.offers import Object
from miniclaw.mcp.protocol import INVALID_PARAMS

if TYPE_CHECKING:  # a server answers before it needs them
    from miniclaw.skills.manager import SkillManager

__all__ = ["SkillPrompts"]

ARGUMENT: Final = {"name": "task", "description": "What to do with it.", "required": False}


class SkillPrompts:
    """Offers the skills that can be used here.

    Args:
        skills: makes the manager when it is first needed.
    """

    def __init__(self, skills: Callable[[], SkillManager]) -> None:
        self._make = skills
        self._skills: SkillManager | None = None

    async def list_prompts(self, call: Call) -> Sequence[Object]:
        """The skills, by name."""
        manager = self._open()
        return [
            {"name": skill.name, "description": skill.description, "arguments": [ARGUMENT]}
            for skill in manager.list()
            if not manager.missing(skill)
        ]

    async def get_prompt(self, name: str, arguments: Mapping[str, str], call: Call) -> Object | None:
        """The skill's instructions as the user's message."""
        manager = self._open()
        skill = manager.get(name)
        if skill is None:
            return None
        if lacks := manager.missing(skill):
            raise MCPError(INVALID_PARAMS, f"The skill `{name}` cannot be used here: {lacks}.")
        task = arguments.get("task", "").strip()
        text = skill.system_prompt + (f"\n\n{task}" if task else "")
        return {
            "description": skill.description,
            "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
        }

    async def complete(
        self, ref: Object, name: str, value: str, context: Mapping[str, str], call: Call
    ) -> Sequence[str] | None:
        """Of the task: the words that suggest the skill."""
        skill = self._open().get(str(ref.get("name"))) if ref.get("type") == "ref/prompt" else None
        if skill is None or name != ARGUMENT["name"]:
            return None
        words = skill.trigger if isinstance(skill.trigger, tuple) else ()
        return [word for word in words if word.casefold().startswith(value.casefold())]

    def _open(self) -> SkillManager:
        if self._skills is None:
            self._skills = self._make()
        self._skills.reload_if_changed()
        return self._skills
