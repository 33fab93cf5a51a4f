"""The tools by which the model reads a skill and the files beside it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import ToolError
from miniclaw.skills.loader import STANDARD_FILE
from miniclaw.skills.manager import SkillManager
from miniclaw.skills.models import Skill
from miniclaw.tools.base import Tool, ToolResult

__all__ = ["skill_tools"]

MAX_FILE_BYTES: Final = 256 * 1024
LISTED_FILES: Final = 50
PATH_CHARS: Final = 500
"""Of a file beside a skill; a system does not even look for one with a much longer name."""
SEEN_FILES: Final = 2000
"""Entries of a skill's directory that are looked at."""


def skill_tools(manager: SkillManager) -> list[Tool]:
    """The tools over the skills of `manager`."""
    return [_LoadSkill(manager), _ReadSkillFile(manager)]


def _schema(**properties: str) -> dict[str, Any]:
    described = {name: {"type": "string", "description": about} for name, about in properties.items()}
    return {
        "type": "object",
        "properties": described,
        "required": list(described),
        "additionalProperties": False,
    }


class _SkillTool(Tool):
    risk = "read"
    compactable = True
    is_outside = False
    idempotent = True

    def __init__(self, manager: SkillManager) -> None:
        self._manager = manager

    def _skill(self, name: str) -> Skill:
        self._manager.reload_if_changed()
        skill = self._manager.get(name)
        if skill is None:
            names = ", ".join(skill.name for skill in self._manager.list() if skill.trigger != "manual")
            raise ToolError(f"There is no skill `{name}`. The skills are: {names or 'none'}.")
        if lacks := self._manager.missing(skill):
            raise ToolError(f"The skill `{name}` cannot be used here: {lacks}. Tell the user.")
        return skill


class _LoadSkill(_SkillTool):
    name = "load_skill"
    description = "Read the instructions of a skill before doing the kind of task that it is for."
    parameters = _schema(name="The skill's name, as it is listed.")

    async def execute(self, **kwargs: Any) -> ToolResult:
        skill = self._skill(str(kwargs["name"]))
        parts = [skill.system_prompt]
        if skill.required_tools:
            parts.append(f"It counts on these tools: {', '.join(skill.required_tools)}.")
        if files := _files_of(skill):
            parts.append(f"Files beside it, for `read_skill_file`: {_named(files)}.")
        data = {"name": skill.name, "required_tools": list(skill.required_tools), "files": files}
        return ToolResult(content="\n\n".join(parts), data=data)


class _ReadSkillFile(_SkillTool):
    name = "read_skill_file"
    description = "Read a text file that lies beside a skill, such as `references/api.md`."
    parameters = _schema(
        name="The skill's name, as it is listed.",
        path="The file, relative to the skill, as `load_skill` names it.",
    )

    async def execute(self, **kwargs: Any) -> ToolResult:
        skill, path = self._skill(str(kwargs["name"])), str(kwargs["path"])
        if not _is_beside(skill, path):
            named = _named(_files_of(skill)) or "none"
            raise ToolError(f"`{skill.name}` has no file `{path[:PATH_CHARS]}`. Its files are: {named}.")
        assert skill.path is not None
        try:
            with (skill.path.parent / path).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ToolError(f"`{path}` cannot be read as text: {type(error).__name__}.") from error
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"`{path}` is larger than {MAX_FILE_BYTES >> 10} kB.")
        return ToolResult(content=text)


def _files_of(skill: Skill) -> list[str]:
    """The files in the directory of a skill, by relative path."""
    if skill.path is None or skill.path.name != STANDARD_FILE:
        return []
    root = skill.path.parent
    names = (path.relative_to(root).as_posix() for path in sorted(islice(root.rglob("*"), SEEN_FILES)))
    return [name for name in names if _is_beside(skill, name)]


def _is_beside(skill: Skill, name: str) -> bool:
    """Whether a skill has this file beside it; what leads out of its directory by a link is not there."""
    if skill.path is None or skill.path.name != STANDARD_FILE:
        return False
    root, relative = skill.path.parent, Path(name)
    return (
        len(name) <= PATH_CHARS
        and not relative.is_absolute()
        and not any(part.startswith(".") for part in relative.parts)
        and relative.name != STANDARD_FILE
        and (root / relative).is_file()
        and (root / relative).resolve().is_relative_to(root.resolve())
    )


def _named(files: list[str]) -> str:
    more = len(files) - LISTED_FILES
    return ", ".join(files[:LISTED_FILES]) + (f" and {more} more" if more > 0 else "")
