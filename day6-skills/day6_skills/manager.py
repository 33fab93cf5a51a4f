"""有哪些技能，哪个合适，给模型看多少，用的时候收起哪些工具。

哪些技能正在用，是会话的事：管理员不记，由调用的人拿着一个名字的集合。
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from day6_skills.loader import Signature, SkillLoader
from day6_skills.models import Skill, SkillError, SkillFinding

__all__ = ["SkillManager"]

logger = logging.getLogger(__name__)

READING: Final = frozenset({"load_skill"})  # 翻手册的工具，哪个技能也不能收走
HEADER: Final = (
    "There are written instructions for some tasks. When the user asks for one of these tasks, and only then, "
    "call the function `load_skill` with the task's name first:"
)


class SkillManager:
    """几个目录里的、和登记进来的技能。

    Args:
        directories: 到哪里找；重名的，排在前面的算数。
        tools: 现在有哪些工具；缺工具的技能不拿出来。不给，就当技能要的都有。
    """

    def __init__(
        self, directories: Sequence[Path] = (), *, tools: Callable[[], Collection[str]] | None = None
    ) -> None:
        self._directories = tuple(directories)
        self._tools = tools
        self._loader = SkillLoader()
        self._registered: dict[str, Skill] = {}
        self._scanned: list[Signature] | None = None
        self._skills: dict[str, Skill] = {}
        self.findings: tuple[SkillFinding, ...] = ()
        self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """文件变了就重读，返回变没变；每一轮开始时叫一次，改技能不用重启。"""
        scanned = self._loader.scan(self._directories)
        if scanned == self._scanned:
            return False
        loaded = self._loader.load(self._directories)
        for finding in loaded.findings:
            logger.warning("skill file: %s", finding)
        self._scanned, self.findings = scanned, tuple(loaded.findings)
        self._skills = dict(sorted({**loaded.skills, **self._registered}.items()))
        return True

    def register(self, skill: Skill) -> None:
        """加一个不在目录里的技能；它排在目录里同名的前面。"""
        if skill.name in self._registered:
            raise SkillError(f"a skill `{skill.name}` is registered already")
        self._registered[skill.name] = skill
        self._skills = dict(sorted({**self._skills, skill.name: skill}.items()))

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)

    def missing(self, skill: Skill) -> str:
        """它需要而这里没有的，一句话；空就是能用。"""
        known = skill.required_tools if self._tools is None else self._tools()
        lacks = [name for name in skill.required_tools if name not in known]
        return "; ".join(f"there is no tool `{name}`, which the skill requires" for name in lacks)

    def activate(self, active: Collection[str], name: str) -> frozenset[str]:
        """`active` 再加上它；没有这个技能，或者缺工具，就是 `SkillError`。"""
        skill = self.get(name)
        if skill is None:
            raise SkillError(f"There is no skill `{name}`; there are: {', '.join(self._skills) or 'none'}")
        if lacks := self.missing(skill):
            raise SkillError(f"The skill `{name}` cannot be used: {lacks}")
        return frozenset(active) | {name}

    @staticmethod
    def deactivate(active: Collection[str], name: str) -> frozenset[str]:
        """`active` 去掉它。"""
        return frozenset(active) - {name}

    def tools_for(self, active: Collection[str]) -> frozenset[str] | None:
        """正在用的技能说“这些就够了”的工具；谁也没限，或者说的这里一样也没有，就是 `None`。"""
        chosen = [skill for name in active if (skill := self.get(name)) is not None]
        wished = {tool for skill in chosen for tool in skill.allowed_tools}
        named = wished if self._tools is None else wished & frozenset(self._tools())
        if wished and not named:  # 别家的技能，或者写错了字
            logger.warning("there is no tool called %s; nothing is narrowed", ", ".join(sorted(wished)))
        required = {tool for skill in chosen for tool in skill.required_tools}
        return frozenset(named | required | READING) if named else None

    def match(self, text: str) -> list[tuple[Skill, str]]:
        """话里提到的技能，最有把握的在前，带着理由；`manual` 的从不自己出来。"""
        folded = text.casefold()
        found: list[tuple[int, Skill, str]] = []
        for skill in self._usable():
            if skill.trigger == "manual":
                continue
            if word := _first_in(skill.trigger, folded):
                found.append((0, skill, f"trigger `{word}`"))
            elif word := _first_in(skill.tags, folded):
                found.append((1, skill, f"tag `{word}`"))
        return [(skill, reason) for _, skill, reason in sorted(found, key=lambda one: one[0])]

    # region prompt
    def prompt(self, active: Collection[str] = (), *, token_limit: int) -> str:
        """系统提示词里关于技能的一段：全部只有目录，正在用的才有正文。

        目录不超过 `token_limit`（按一个字一个 token 估，宁多勿少），装不下的不列。
        """
        lines, left = [], token_limit - len(HEADER)
        for skill in self._usable():
            line = f"- {skill.name}: {' '.join(skill.description.split())}"
            left -= len(line) + 1
            if left < 0:
                break
            lines.append(line)
        chosen = [skill for skill in self._usable() if skill.name in active]
        listing = ["\n".join([HEADER, *lines])] if lines else []
        bodies = [f'<skill name="{skill.name}">\n{skill.system_prompt}\n</skill>' for skill in chosen]
        return "\n\n".join(listing + bodies)

    # endregion

    def list(self) -> list[Skill]:
        """全部，按名字。"""
        return [*self._skills.values()]

    def _usable(self) -> Sequence[Skill]:
        return [skill for skill in self._skills.values() if not self.missing(skill)]


def _first_in(words: Iterable[str], folded: str) -> str | None:
    """第一个出现的词；拉丁字母的要是整个词，`log` 不在 `login` 里。"""
    for word in words:
        inner = re.escape(word.casefold())
        pattern = rf"(?<![a-z0-9]){inner}(?![a-z0-9])" if word.isascii() else inner
        if re.search(pattern, folded):
            return word
    return None
