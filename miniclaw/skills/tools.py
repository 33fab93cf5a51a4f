"""The tool by which the model reads a skill."""

from __future__ import annotations

from typing import Any

from miniclaw.errors import ToolError
from miniclaw.skills.manager import SkillManager
from miniclaw.tools.base import Tool, ToolResult

__all__ = ["skill_tools"]


def skill_tools(manager: SkillManager) -> list[Tool]:
    """The tools over the skills of `manager`."""
    return [_LoadSkill(manager)]


class _LoadSkill(Tool):
    name = "load_skill"
    description = "Read the instructions of a skill before doing the kind of task that it is for."
    parameters = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "The skill's name, as it is listed."}},
        "required": ["name"],
        "additionalProperties": False,
    }
    risk = "read"
    compactable = True
    idempotent = True

    def __init__(self, manager: SkillManager) -> None:
        self._manager = manager

    async def execute(self, **kwargs: Any) -> ToolResult:
        name = str(kwargs["name"])
        self._manager.reload_if_changed()
        skill = self._manager.get(name)
        if skill is None:
            names = ", ".join(skill.name for skill in self._manager.list())
            raise ToolError(f"There is no skill `{name}`. The skills are: {names or 'none'}.")
        needs = (
            f"\n\nIt counts on these tools: {', '.join(skill.required_tools)}."
            if skill.required_tools
            else ""
        )
        data = {"name": skill.name, "required_tools": list(skill.required_tools)}
        return ToolResult(content=skill.system_prompt + needs, data=data)
