"""技能是什么；文件写坏了，怎么说。"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from day1_gateway import MiniClawError

__all__ = ["Skill", "SkillError", "SkillFinding"]


class SkillError(MiniClawError):
    """技能用不了；文字里有文件、行号和原因。"""


@dataclass(frozen=True, slots=True)
class SkillFinding:
    """一个文件为什么没有变成技能，或者它的哪一行不算数。"""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        """像编译器那样写，编辑器点一下就能跳过去。"""
        return f"{self.path}:{self.line}: {self.reason}"


class Skill(BaseModel):
    """办一类事的说明书，从一个 Markdown 文件读来。"""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    """做什么、什么时候用；给挑选的人（和模型）看。"""
    author: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()
    system_prompt: str
    """front matter 下面的全部正文。"""
    required_tools: tuple[str, ...] = ()
    """少了就用不成的工具。写在这里不等于有权用。"""
    allowed_tools: tuple[str, ...] = ()
    """有这些就够了：它在用的时候，别的工具不露面。空的就是不限。"""
    trigger: tuple[str, ...] | Literal["manual"] = ()
    """话里有这些字就翻开它；`manual` 只能由人点名。"""
    path: Path | None = None
    findings: tuple[SkillFinding, ...] = ()
    """能用，可是文件里有不对的地方。"""
