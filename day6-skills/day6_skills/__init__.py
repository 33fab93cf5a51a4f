"""第 6 天：技能。写在 Markdown 里的办事手册，用到才翻开。"""

from day6_skills.front_matter import FrontMatter, FrontMatterProblem, parse_front_matter
from day6_skills.loader import LoadedSkills, SkillLoader
from day6_skills.manager import SkillManager
from day6_skills.models import Skill, SkillError, SkillFinding
from day6_skills.tools import skill_tools

__all__ = [
    "FrontMatter",
    "FrontMatterProblem",
    "LoadedSkills",
    "Skill",
    "SkillError",
    "SkillFinding",
    "SkillLoader",
    "SkillManager",
    "parse_front_matter",
    "skill_tools",
]
