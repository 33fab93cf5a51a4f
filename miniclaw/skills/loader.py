"""Reads skill files: `<name>/SKILL.md` of the Agent Skills standard (agentskills.io), and single Markdown files.

Owns the file formats and which of two skills of one name counts. A file that cannot be used becomes a
finding and keeps no other from loading.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import SkillError
from miniclaw.front_matter import FrontMatter, FrontMatterProblem, parse_front_matter
from miniclaw.skills.models import Skill, SkillFinding

__all__ = ["LoadedSkills", "STANDARD_FILE", "Signature", "SkillLoader", "finding_at"]

Signature = tuple[int, int, int]
"""Time of change, size and inode: what tells a changed file from an unchanged one without reading it."""

STANDARD_FILE: Final = "SKILL.md"
MAX_FILE_BYTES: Final = 256 * 1024
"""A larger file would fill the model's window and is no skill."""

_LIMITS: Final = {"name": 64, "description": 1024, "compatibility": 500}
_TEXTS: Final = ("license", "compatibility", "author", "version")
_LISTS: Final = (
    *("tags", "required_tools", "required_programs", "required_env", "trigger"),
    *("allowed-tools", "allowed_tools"),
)
_STANDARD_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SEPARATOR = re.compile(r"[,，、;；\n]")


@dataclass(slots=True)
class LoadedSkills:
    """What a load gave: usable skills by name, and what was wrong with the other files."""

    skills: dict[str, Skill] = field(default_factory=dict)
    findings: list[SkillFinding] = field(default_factory=list)


class SkillLoader:
    """Loads skills; a file that did not change since the last load is not read again."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, Skill | SkillFinding]] = {}

    def load_file(self, path: Path) -> Skill:
        """The skill in a file, or in the `SKILL.md` of a directory.

        Raises:
            SkillError: it cannot be used; the text names file, line and reason.
        """
        result = _read(path / STANDARD_FILE if path.is_dir() else path)
        if isinstance(result, SkillFinding):
            raise SkillError(str(result))
        return result

    def load(self, directories: Iterable[Path]) -> LoadedSkills:
        """The skills of several directories; of two with one name, that of the earlier directory counts."""
        loaded = LoadedSkills()
        known: dict[Path, tuple[Signature, Skill | SkillFinding]] = {}
        for directory in directories:
            here: dict[str, Path] = {}
            for name, signature in _files(directory).items():
                path = Path(name)
                before = self._known.get(path)
                result = before[1] if before and before[0] == signature else _read(path)
                known[path] = signature, result
                if isinstance(result, SkillFinding):
                    loaded.findings.append(result)
                elif result.name in here:
                    reason = f"the name `{result.name}` is taken by {here[result.name]}"
                    loaded.findings.append(SkillFinding(path, 1, reason))
                else:
                    here[result.name] = path
                    loaded.skills.setdefault(result.name, result)
                    loaded.findings += result.findings
        self._known = known
        return loaded

    def scan(self, directories: Iterable[Path]) -> list[tuple[str, Signature]]:
        """What tells whether a new load could give something else; opens no file."""
        return [item for directory in directories for item in _files(directory).items()]


def _files(directory: Path) -> dict[str, Signature]:
    """The skill files of a directory, in order of their names; as texts, since this is done at each turn."""
    found: dict[str, Signature] = {}
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return found
    except OSError:
        return {str(directory): (0, 0, 0)}  # reading it gives the finding
    for name in names:
        if name.startswith("."):
            continue
        path = f"{directory}/{name}" if name.endswith(".md") else f"{directory}/{name}/{STANDARD_FILE}"
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.exists(f"{directory}/{name}/{STANDARD_FILE.lower()}"):
                found[f"{directory}/{name}"] = (0, 0, 0)
        except OSError:
            found[path] = (0, 0, 0)
        else:
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe that nobody writes to must not wait for somebody."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: Path) -> Skill | SkillFinding:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            if (path / STANDARD_FILE.lower()).exists():
                return SkillFinding(path, 1, f"its file has to be called `{STANDARD_FILE}`, in capitals")
            return SkillFinding(path, 1, "it cannot be read: it is no regular file")
        with open(path, "rb", opener=_without_waiting) as file:
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
    for key, reason in _problems(parsed, path):
        return SkillFinding(path, _line_of(key, parsed.head), reason)
    return _build(parsed, path)


def _line_of(key: str, head: str) -> int:
    match = re.search(rf"^[ \t]*['\"]?{re.escape(key)}['\"]?\s*:", head, re.MULTILINE)
    return head.count("\n", 0, match.start()) + 2 if match else 1


def _problems(parsed: FrontMatter, path: Path) -> Iterator[tuple[str, str]]:
    """What is wrong with the fields: the field and the reason."""
    fields = parsed.fields
    for key in ("name", "description"):
        value = fields.get(key)
        if not isinstance(value, str) or not value.strip():
            yield key, f"`{key}` is missing or no text"
            return
    for key in _TEXTS:
        if not isinstance(fields.get(key, ""), str):
            yield key, f"`{key}` must be text"
    for key, limit in _LIMITS.items():
        if len(fields.get(key, "")) > limit:
            yield key, f"`{key}` is longer than {limit} characters"
    for key in _LISTS:
        value = fields.get(key, "")
        if not all(isinstance(item, str) for item in (value if isinstance(value, list) else [value])):
            yield key, f"`{key}` must be a list of words, or words separated by commas"
    metadata = fields.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        yield "metadata", "`metadata` must map names to texts"
    trigger = _words(fields.get("trigger") or metadata.get("trigger") or "")
    if "manual" in trigger and len(trigger) > 1:
        yield "trigger", "`trigger` is either `manual` or a list of keywords"
    yield from _name_problems(fields["name"].strip(), path)
    if not parsed.body.strip():
        yield "", "there are no instructions below the front matter"


def _name_problems(name: str, path: Path) -> Iterator[tuple[str, str]]:
    if path.name != STANDARD_FILE:
        if not name.isprintable():
            yield "name", "`name` must be one line of printable characters"
    elif _STANDARD_NAME.fullmatch(name) is None:
        yield "name", f"`name` must be small letters and digits with single hyphens between, not {name!r}"
    elif name != path.resolve().parent.name and name != path.parent.name:
        yield "name", f"`name` must be that of its directory, `{path.parent.name}`, not `{name}`"


def _build(parsed: FrontMatter, path: Path) -> Skill:
    # A file of the standard keeps under `metadata` what the standard has no field for.
    fields: Mapping[str, Any] = {**(parsed.fields.get("metadata") or {}), **parsed.fields}
    trigger = _words(fields.get("trigger", ""))
    return Skill(
        name=fields["name"].strip(),
        description=fields["description"].strip(),
        author=fields.get("author", ""),
        version=fields.get("version", ""),
        tags=_words(fields.get("tags", "")),
        system_prompt=parsed.body.strip(),
        required_tools=_words(fields.get("required_tools", "")),
        required_programs=_words(fields.get("required_programs", "")),
        required_env=_words(fields.get("required_env", "")),
        allowed_tools=_tool_names(fields.get("allowed-tools") or fields.get("allowed_tools") or ""),
        trigger="manual" if trigger == ("manual",) else trigger,
        path=path,
        findings=tuple(_mistyped(parsed, path)),
    )


def _mistyped(parsed: FrontMatter, path: Path) -> Iterator[SkillFinding]:
    known = (*_LIMITS, *_TEXTS, *_LISTS, "metadata")
    for key in (key for key in parsed.fields if key not in known):  # a field of others is like none of ours
        if close := difflib.get_close_matches(key.lower(), known, 1, 0.8):
            yield SkillFinding(
                path,
                _line_of(key, parsed.head),
                f"`{key}` is no field and is ignored; did you mean `{close[0]}`?",
            )


def _tool_names(value: str | list[str]) -> tuple[str, ...]:
    """Names separated by spaces or commas; what stands in brackets behind one, as in `Bash(git:*)`, is left out."""
    text = " ".join(value) if isinstance(value, list) else value
    return tuple(dict.fromkeys(re.findall(r"[^\s,()]+", re.sub(r"\([^()]*\)", " ", text))))


def finding_at(skill: Skill, key: str, reason: str) -> SkillFinding:
    """A finding about one field of a skill's file."""
    path = skill.path or Path(skill.name)
    try:
        parsed = parse_front_matter(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return SkillFinding(path, 1, reason)
    return SkillFinding(path, _line_of(key, parsed.head) if isinstance(parsed, FrontMatter) else 1, reason)


def _words(value: str | list[str]) -> tuple[str, ...]:
    parts = value if isinstance(value, list) else _SEPARATOR.split(value)
    words = (
        word.strip() for part in parts for word in re.split("[，、；]", part)
    )  # `[退款，退我]` is one text to YAML
    return tuple(dict.fromkeys(filter(None, words)))
