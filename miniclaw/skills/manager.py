"""The skills there are, which of them fit a text, and what the model is told of them.

Which skills are active belongs to a session and is kept by the caller, as a set of names.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import SkillError
from miniclaw.skills.loader import Signature, SkillLoader, finding_at
from miniclaw.skills.models import Skill, SkillFinding
from miniclaw.text import fold, tokenize
from miniclaw.tokens import estimate_tokens

__all__ = ["BUNDLED", "SkillManager"]

logger = logging.getLogger(__name__)

BUNDLED: Final = Path(__file__).parent / "bundled"
"""The skills that come with miniClaw."""
MATCHED_CHARS: Final = 8_000
"""Characters of a text that are looked at for matching skills."""
ENOUGH_SHARED: Final = 6
"""The weight of what a text must share with a description: two words, or three pairs of CJK characters."""

READING: Final = frozenset({"load_skill", "read_skill_file"})
"""The tools that read skills; no skill narrows them away."""

_HEADER: Final = (
    "There are written instructions for some tasks. They are no functions; when the user asks for one of these "
    "tasks, and only then, call the function `load_skill` with the task's name first:"
)
_MORE: Final = "({} more are not listed.)"
_HINT: Final = "What the user says fits the task {}; call `load_skill` with that name before anything else."
MOST_HINTS: Final = 2
_LOST: Final = (
    "The active skill {} cannot be read any more; its limit on the tools stays. `miniclaw skills list` says "
    "why, and `/skills -NAME` switches it off."
)
_GONE: Final = (
    "The tools that an active skill is limited to are gone: {}. `miniclaw tools list` says why, and "
    "`/skills -NAME` switches the skill off."
)


class SkillManager:
    """Skills from directories and from `register`, as they are on disk now.

    Args:
        directories: where to look; of two skills with one name, that of the earlier directory counts.
        tools: the names of the tools there are; a skill that requires others is not offered.
        env: the names of the environment variables that are set.
    """

    def __init__(
        self,
        directories: Sequence[Path] = (BUNDLED,),
        *,
        tools: Callable[[], Collection[str]] | None = None,
        env: Collection[str] = (),
    ) -> None:
        self._directories = tuple(directories)
        self._tools = tools
        self._env = frozenset(env)
        self._loader = SkillLoader()
        self._registered: dict[str, Skill] = {}
        self._scanned: list[tuple[str, Signature]] | None = None
        self._skills: dict[str, Skill] = {}
        self._findings: tuple[SkillFinding, ...] = ()
        self.reload_if_changed()

    @property
    def findings(self) -> tuple[SkillFinding, ...]:
        """What is wrong with files that gave no skill, is odd in others, and what these lack."""
        odd = (finding for skill in self._registered.values() for finding in skill.findings)
        lacks = (
            finding_at(skill, key, what)
            for skill in self._skills.values()
            for key, what in self._lacks(skill)
        )
        return (*self._findings, *odd, *lacks)

    def reload_if_changed(self) -> bool:
        """Take in what changed on disk; costs a look at each file's status. Returns whether anything did."""
        scanned = self._loader.scan(self._directories)
        if scanned == self._scanned:
            return False
        loaded = self._loader.load(self._directories)
        for finding in loaded.findings:
            if finding not in self._findings:
                logger.warning("skill file: %s", finding)
        self._scanned = scanned
        self._findings = tuple(loaded.findings)
        self._skills = dict(sorted({**loaded.skills, **self._registered}.items()))
        return True

    def of(self, directories: Sequence[Path]) -> SkillManager:
        """The skills of other directories, measured by the same tools and environment."""
        return SkillManager(directories, tools=self._tools, env=self._env)

    def register(self, skill: Skill) -> None:
        """Add a skill that is in no directory; it goes before one of the same name that is.

        Raises:
            SkillError: a skill of that name was registered already.
        """
        if skill.name in self._registered:
            raise SkillError(f"a skill `{skill.name}` is registered already")
        self._registered[skill.name] = skill
        self._skills = dict(sorted({**self._skills, skill.name: skill}.items()))

    def get(self, name: str) -> Skill | None:
        """The skill of that name, if there is one."""
        return self._skills.get(name)

    def missing(self, skill: Skill) -> str:
        """What a skill needs that is not there, in a sentence; empty = it can be used."""
        return "; ".join(what for _, what in self._lacks(skill))

    def _lacks(self, skill: Skill) -> Iterator[tuple[str, str]]:
        known = self._tools() if skill.required_tools and self._tools is not None else skill.required_tools
        for name in skill.required_tools:
            if name not in known:
                yield "required_tools", f"there is no tool `{name}`, which the skill requires"
        for name in skill.required_programs:
            if shutil.which(name) is None:
                yield "required_programs", f"the program `{name}`, which the skill requires, is not installed"
        for name in skill.required_env:
            if name not in self._env:
                yield "required_env", f"`{name}`, which the skill requires, is not set in the environment"

    def _usable(self) -> list[Skill]:
        return [skill for skill in self._skills.values() if next(self._lacks(skill), None) is None]

    def tools_for(self, active: Collection[str]) -> frozenset[str] | None:
        """The tools that the active skills name as enough; `None` when none of them narrows the set.

        A skill made for another host names tools that are not here; such names narrow nothing.
        """
        return self.narrowing(active)[0]

    def narrowing(
        self, active: Collection[str], before: Collection[str] = ()
    ) -> tuple[frozenset[str] | None, str]:
        """`tools_for`, and what the user should know of it; empty = nothing.

        `before` are the tools of the last time that nothing was to be told: where a skill cannot be read any
        more they stay, and where none of its tools is left there are none but those that read.
        """
        known = frozenset(self._tools() if self._tools else ())
        chosen = [skill for name in active if (skill := self._skills.get(name)) is not None]
        allowed = {tool for skill in chosen for tool in skill.allowed_tools}
        required = {tool for skill in chosen for tool in skill.required_tools}
        lost = sorted(set(active) - self._skills.keys())
        if lost and before:
            return frozenset({*before, *(allowed & known), *required}), _LOST.format(", ".join(lost))
        if allowed & known:
            return frozenset(allowed & known | required | READING), ""
        if gone := sorted(allowed & set(before)):
            return frozenset(required | READING), _GONE.format(", ".join(gone))
        return None, ""

    def activate(self, active: Collection[str], name: str) -> frozenset[str]:
        """`active` with that skill.

        Raises:
            SkillError: there is no such skill, or it lacks something.
        """
        skill = self._skills.get(name)
        if skill is None:
            raise SkillError(f"There is no skill `{name}`; there are: {', '.join(self._skills) or 'none'}")
        if lacks := self.missing(skill):
            raise SkillError(f"The skill `{name}` cannot be used: {lacks}")
        return frozenset(active) | {name}

    @staticmethod
    def deactivate(active: Collection[str], name: str) -> frozenset[str]:
        """`active` without that skill."""
        return frozenset(active) - {name}

    def match(self, text: str, *, with_descriptions: bool = True) -> list[tuple[Skill, str]]:
        """The skills that a text suggests, the surest first, each with the reason.

        A trigger or a tag must stand in the text, as a word where it is written in Latin letters; a
        description must share several words. A skill with the trigger `manual` is never suggested.
        """
        folded = fold(text[:MATCHED_CHARS])
        found: list[tuple[int, Skill, str]] = []
        for skill in self._usable():
            if skill.trigger == "manual":
                continue
            if word := _first_in(skill.trigger, folded):
                found.append((0, skill, f"trigger `{word}`"))
                continue
            if word := _first_in(skill.tags, folded):
                found.append((1, skill, f"tag `{word}`"))
                continue
            if not with_descriptions:
                continue
            shared = _terms(folded) & _terms(skill.description)
            if _weight(shared) >= ENOUGH_SHARED:
                named = ", ".join(f"`{term}`" for term in sorted(shared)[:5])
                found.append((2, skill, f"description shares {named}"))
        return [(skill, reason) for _, skill, reason in sorted(found, key=lambda item: item[0])]

    def prompt(self, active: Collection[str] = (), *, token_limit: int) -> str:
        """What the system prompt says of skills: all but `manual` ones by name and description, active ones in full.

        The list keeps within `token_limit`: what does not fit with its description is there by name, and
        what does not fit by name is counted. Names in `active` that are no skill are left out.
        """
        usable = self._usable()
        listed = tuple((skill.name, skill.description) for skill in usable if skill.trigger != "manual")
        parts = [_listing(listed, token_limit)]
        parts += (
            f'<skill name="{skill.name}">\n{skill.system_prompt}\n</skill>'
            for skill in usable
            if skill.name in active
        )
        return "\n\n".join(part for part in parts if part)

    def hint(self, text: str, active: Collection[str] = ()) -> str:
        """What the prompt says of skills that a message suggests by a trigger or tag; empty for none."""
        found = [s.name for s, _ in self.match(text, with_descriptions=False) if s.name not in active]
        return _HINT.format(" or ".join(f"`{name}`" for name in found[:MOST_HINTS])) if found else ""

    def list(self) -> list[Skill]:
        """All skills, by name."""
        return list(self._skills.values())

    def rows(self, active: Collection[str] = (), text: str = "") -> Sequence[dict[str, Any]]:
        """All skills as lists show them: `missing` says why one cannot be used, `match` why `text` suggests it."""
        reasons = {skill.name: reason for skill, reason in self.match(text)}
        gone = "its file is gone or broken; the session keeps its tools until it is switched off"
        shown = {"description": "", "version": "", "active": True, "missing": gone, "match": ""}
        return [{"name": name, **shown} for name in sorted({*active} - self._skills.keys())] + [
            {
                "name": skill.name,
                "description": skill.description,
                "version": skill.version,
                "active": skill.name in active,
                "missing": self.missing(skill),
                "match": reasons.get(skill.name, ""),
            }
            for skill in self._skills.values()
        ]


def _weight(terms: Iterable[str]) -> int:
    """How much the terms tell: a pair of CJK characters less than a word, a single one nothing."""
    return sum(3 if term.isascii() else 2 for term in terms)


@lru_cache(maxsize=1024)
def _terms(text: str) -> frozenset[str]:
    return frozenset(term for term in tokenize(text) if len(term) > 1)


def _first_in(words: Iterable[str], folded: str) -> str | None:
    return next((word for word in words if _pattern(word).search(folded)), None)


@lru_cache(maxsize=1024)
def _pattern(word: str) -> re.Pattern[str]:
    """Finds a word in folded text; a Latin edge must be the edge of a word there, as `log` is not in `login`."""
    folded = fold(word)
    before = "(?<![a-z0-9])" if re.match("[a-z0-9]", folded) else ""
    after = "(?![a-z0-9])" if re.search("[a-z0-9]$", folded) else ""
    return re.compile(before + re.escape(folded) + after)


@lru_cache(maxsize=64)
def _listing(skills: tuple[tuple[str, str], ...], token_limit: int) -> str:
    """Names and descriptions within a limit; the same at every turn until a skill changes."""
    lines = [f"- {name}" for name, _ in skills]
    left = token_limit - estimate_tokens(_HEADER + "\n") - estimate_tokens(_MORE.format(len(skills)))
    count = 0
    while count < len(lines) and left >= (cost := estimate_tokens(lines[count] + "\n")):
        left -= cost
        count += 1
    if count == 0:
        return ""
    for index, (name, description) in enumerate(skills[:count]):
        line = f"- {name}: {' '.join(description.split())}"
        extra = estimate_tokens(line + "\n") - estimate_tokens(lines[index] + "\n")
        if extra <= left:
            left -= extra
            lines[index] = line
    more = [_MORE.format(len(skills) - count)] if count < len(skills) else []
    return "\n".join([_HEADER, *lines[:count], *more])
