"""读技能文件：`<名字>/SKILL.md`，或者单独一个 `.md`。坏的一个不妨碍好的一群。"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from day6_skills.front_matter import FrontMatterProblem, parse_front_matter
from day6_skills.models import Skill, SkillError, SkillFinding

__all__ = ["LoadedSkills", "SkillLoader"]

STANDARD_FILE: Final = "SKILL.md"
MAX_FILE_BYTES: Final = 256 * 1024  # 再大就塞满模型的窗口，也就不是技能了
TEXTS: Final = ("name", "description", "author", "version")
LISTS: Final = ("tags", "required_tools", "allowed_tools", "trigger")

Signature = tuple[Path, int, int]


@dataclass(slots=True)
class LoadedSkills:
    """读出来的：能用的技能，和别的文件错在哪里。"""

    skills: dict[str, Skill] = field(default_factory=dict)
    findings: list[SkillFinding] = field(default_factory=list)


class SkillLoader:
    """从目录里读技能；没有状态。"""

    def load_file(self, path: Path) -> Skill:
        """一个文件（或一个目录的 `SKILL.md`）里的技能；用不了就是 `SkillError`。"""
        result = _read(path / STANDARD_FILE if path.is_dir() else path)
        if isinstance(result, SkillFinding):
            raise SkillError(str(result))
        return result

    def load(self, directories: Iterable[Path]) -> LoadedSkills:
        """几个目录里的技能；重名的，排在前面的目录算数。"""
        loaded = LoadedSkills()
        for directory in directories:
            here: dict[str, Path] = {}
            for path in _files(directory):
                result = _read(path)
                if isinstance(result, SkillFinding):
                    loaded.findings.append(result)
                elif result.name in here:
                    reason = f"the name `{result.name}` is taken by {here[result.name]}"
                    loaded.findings.append(SkillFinding(path, 1, reason))
                else:
                    here[result.name] = path
                    loaded.skills.setdefault(result.name, result)
                    loaded.findings += result.findings
        return loaded

    def scan(self, directories: Iterable[Path]) -> list[Signature]:
        """看一眼文件变没变，不打开任何一个。"""
        found: list[Signature] = []
        for path in (path for directory in directories for path in _files(directory)):
            with suppress(OSError):  # 刚刚被删掉了，下一眼再说
                status = path.stat()
                found.append((path, status.st_mtime_ns, status.st_size))
        return found


def _files(directory: Path) -> list[Path]:
    """一个目录里的技能文件，按名字排好；目录不在就是没有。"""
    found = [*directory.glob("*.md"), *directory.glob(f"*/{STANDARD_FILE}")]
    return sorted(path for path in found if not path.name.startswith(".") and path.is_file())


def _read(path: Path) -> Skill | SkillFinding:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        return SkillFinding(path, 1, f"it cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return SkillFinding(path, data.count(b"\n", 0, error.start) + 1, "it is not UTF-8")
    if len(data) > MAX_FILE_BYTES:
        return SkillFinding(path, 1, f"it is larger than {MAX_FILE_BYTES} bytes")
    parsed = parse_front_matter(text)
    if isinstance(parsed, FrontMatterProblem):
        return SkillFinding(path, parsed.line, parsed.reason)
    for key, reason in _problems(parsed.fields, parsed.body, path):
        return SkillFinding(path, _line_of(key, text), reason)
    odd = tuple(SkillFinding(path, _line_of(key, text), reason) for key, reason in _mistyped(parsed.fields))
    return _build(parsed.fields, parsed.body, path).model_copy(update={"findings": odd})


def _problems(fields: dict[str, Any], body: str, path: Path) -> Iterator[tuple[str, str]]:
    """哪个字段不对，为什么。"""
    for key in ("name", "description"):
        if not fields.get(key):
            yield key, f"`{key}` is missing or no text"
    for key in TEXTS:
        if not isinstance(fields.get(key, ""), str):
            yield key, f"`{key}` must be text"
    if path.name == STANDARD_FILE and fields["name"] != path.parent.name:
        yield "name", f"`name` must be that of its directory, `{path.parent.name}`, not `{fields['name']}`"
    if not body.strip():
        yield "", "there are no instructions below the front matter"


def _mistyped(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """不认的键照样放过，别家的技能也读得进来；可是很像认得的那一个，多半是打错了。"""
    known = (*TEXTS, *LISTS)
    for key in (key for key in fields if key not in known):
        if close := difflib.get_close_matches(key.lower(), known, 1, 0.8):
            yield key, f"`{key}` is no field and is ignored; did you mean `{close[0]}`?"


def _line_of(key: str, text: str) -> int:
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if key and line.startswith(f"{key}:")), 1)


def _build(fields: dict[str, Any], body: str, path: Path) -> Skill:
    texts = {key: fields[key] for key in TEXTS if fields.get(key)}
    lists: dict[str, Any] = {key: _words(fields.get(key, "")) for key in LISTS}
    if lists["trigger"] == ("manual",):
        lists["trigger"] = "manual"
    return Skill(**texts, **lists, system_prompt=body.strip(), path=path)


def _words(value: str | list[str]) -> tuple[str, ...]:
    """一个列表，或者逗号隔开的几个词；中文的逗号和顿号也行。"""
    parts = value if isinstance(value, list) else value.split(",")
    words = (word.strip() for part in parts for word in re.split("[，、]", part))
    return tuple(dict.fromkeys(filter(None, words)))
