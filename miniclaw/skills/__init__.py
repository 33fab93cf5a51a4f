"""Skills: instructions for kinds of tasks, in Markdown files that people write and share."""

from miniclaw.skills.loader import LoadedSkills, SkillLoader
from miniclaw.skills.manager import BUNDLED, SkillManager
from miniclaw.skills.models import Skill, SkillFinding
from miniclaw.skills.tools import skill_tools

__all__ = ["BUNDLED", "LoadedSkills", "Skill", "SkillFinding", "SkillLoader", "SkillManager", "skill_tools"]
