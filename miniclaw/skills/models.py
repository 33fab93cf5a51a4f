"""What a skill is, and what is said about a file that is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["Skill", "SkillFinding"]


@dataclass(frozen=True, slots=True)
class SkillFinding:
    """Why a file gave no skill, or which of its fields counts for nothing."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        """As compilers write it, so that editors can jump there."""
        return f"{self.path}:{self.line}: {self.reason}"


class Skill(BaseModel):
    """Instructions for a kind of task, read from a Markdown file."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    """What it does and when to use it, for the one who chooses."""
    author: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()
    system_prompt: str
    """The Markdown below the front matter."""
    required_tools: tuple[str, ...] = ()
    """Tools that the instructions count on. It grants nothing: what may run is decided elsewhere."""
    required_programs: tuple[str, ...] = ()
    """Programs that must be on the path."""
    required_env: tuple[str, ...] = ()
    """Environment variables that must be set."""
    allowed_tools: tuple[str, ...] = ()
    """The tools that are enough for it: while it is active, others are not listed. Empty = all."""
    trigger: tuple[str, ...] | Literal["manual"] = ()
    """Words that suggest the skill; `manual` = it is never suggested, only chosen."""
    path: Path | None = None
    """Where it was read from."""
    findings: tuple[SkillFinding, ...] = ()
    """What is odd in its file, although it can be used."""
