"""让模型自己翻手册的工具。"""

from __future__ import annotations

from day5_tools import Tool, ToolError, tool
from day6_skills.manager import SkillManager

__all__ = ["skill_tools"]


def skill_tools(manager: SkillManager) -> list[Tool]:
    """目录在提示词里，正文在这里：要用哪本，先读哪本。"""

    @tool(risk="read")
    async def load_skill(name: str) -> str:
        """Read the instructions of a skill before doing the kind of task that it is for.

        Args:
            name: The skill's name, as it is listed.
        """
        # region load
        manager.reload_if_changed()
        skill = manager.get(name)
        if skill is None:
            names = ", ".join(one.name for one in manager.list())
            raise ToolError(f"There is no skill `{name}`. The skills are: {names or 'none'}.")
        if lacks := manager.missing(skill):
            raise ToolError(f"The skill `{name}` cannot be used here: {lacks}. Tell the user.")
        needs = f"\n\nIt counts on these tools: {', '.join(skill.required_tools)}."
        return skill.system_prompt + (needs if skill.required_tools else "")
        # endregion

    return [load_skill]
