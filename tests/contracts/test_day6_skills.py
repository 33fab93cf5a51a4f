"""Day 6 and the skills: what a file must be, which of them fits, what the model is told, which tools stay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import day5_tools
import day6_skills
from miniclaw import front_matter
from miniclaw.errors import SkillError
from miniclaw.skills import loader, manager, models, tools
from miniclaw.tools.registry import ToolRegistry
from tests.contracts.support import both

chapter: Any = SimpleNamespace(**{name: getattr(day6_skills, name) for name in day6_skills.__all__})
core: Any = SimpleNamespace(
    FrontMatter=front_matter.FrontMatter,
    FrontMatterProblem=front_matter.FrontMatterProblem,
    Skill=models.Skill,
    SkillError=SkillError,
    SkillLoader=loader.SkillLoader,
    SkillManager=manager.SkillManager,
    parse_front_matter=front_matter.parse_front_matter,
    skill_tools=tools.skill_tools,
)
sides = both(chapter, core)

REFUND = """\
---
name: refund
description: Give money back.
version: 1.10
tags: [售后, after]
trigger: 退款, 退我
required_tools:
  - refund
allowed_tools: [refund, calculator]
---
先查再退。
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def skill(side: Any, name: str, **more: Any) -> Any:
    return side.Skill(
        **{"name": name, "description": f"about {name}", "system_prompt": f"how to {name}", **more}
    )


def made(side: Any, *skills: Any, known: tuple[str, ...] = ("refund", "calculator", "datetime")) -> Any:
    found = side.SkillManager((), tools=lambda: known)
    for one in skills:
        found.register(one)
    return found


@sides
def test_front_matter_gives_texts_and_lists_and_nothing_is_guessed(side: Any) -> None:
    parsed = side.parse_front_matter(f"\ufeff{REFUND}".replace("\n", "\r\n"))
    assert isinstance(parsed, side.FrontMatter)
    assert parsed.fields["version"] == "1.10" and parsed.fields["tags"] == ["售后", "after"]
    assert parsed.fields["required_tools"] == ["refund"] and parsed.body == "先查再退。\n"


@sides
@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("# no\n", 1, "does not begin"),
        ("---\nname: a\n", 1, "no closing line"),
        ("---\nname: a\nname: b\n---\n", 3, "stands there twice"),
    ],
)
def test_bad_front_matter_is_told_with_its_line(side: Any, text: str, line: int, reason: str) -> None:
    parsed = side.parse_front_matter(text)
    assert isinstance(parsed, side.FrontMatterProblem)
    assert parsed.line == line and reason in parsed.reason


@sides
@pytest.mark.parametrize(
    "head",
    [
        "trigger: - 退款",
        "trigger: [退款, *x]",
        "trigger: *x",
        "trigger: ,",
        "trigger: 退款: 退我",
        "trigger: {退款",
        'trigger: "退款"，退我',
        "trigger:\n  - *x",
    ],
)
def test_a_value_that_is_not_known_is_told_with_its_line(side: Any, head: str) -> None:
    parsed = side.parse_front_matter(f"---\nname: a\n{head}\n---\n")
    assert isinstance(parsed, side.FrontMatterProblem) and parsed.line in (3, 4)


@sides
def test_a_list_holds_words_only_and_a_chinese_comma_separates_them(side: Any, tmp_path: Path) -> None:
    head = "---\nname: a\ndescription: x\ntrigger:"
    for value in ("\n  - [退款, 退我]", " [退款, [退我]]", "\n  - 词: 退款", "\n  - {refund}"):
        write(tmp_path / "a.md", f"{head}{value}\n---\nb\n")
        found = side.SkillLoader().load([tmp_path])
        assert not found.skills and len(found.findings) == 1
    write(tmp_path / "a.md", f"{head} [退款，退我]\n---\nb\n")
    (one,) = side.SkillManager([tmp_path]).list()
    assert one.trigger == ("退款", "退我")


@sides
def test_a_file_becomes_a_skill(side: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "refund" / "SKILL.md", REFUND)
    found = side.SkillLoader().load_file(tmp_path / "refund")
    assert (found.name, found.version, found.trigger) == ("refund", "1.10", ("退款", "退我"))
    assert (found.required_tools, found.allowed_tools) == (("refund",), ("refund", "calculator"))
    assert (found.system_prompt, found.path) == ("先查再退。", path)


@sides
def test_a_bad_file_is_told_by_line_and_keeps_no_other_from_loading(side: Any, tmp_path: Path) -> None:
    write(tmp_path / "refund" / "SKILL.md", REFUND)
    bad = write(tmp_path / "other" / "SKILL.md", "---\ndescription: x\nname: another\n---\nb\n")
    write(tmp_path / "empty.md", "---\nname: empty\ndescription: x\n---\n \n")
    loaded = side.SkillLoader().load([tmp_path, tmp_path / "nowhere"])
    assert list(loaded.skills) == ["refund"]
    assert any(str(one).startswith(f"{bad}:3: ") and "its directory" in one.reason for one in loaded.findings)
    assert len(loaded.findings) == 2
    with pytest.raises(side.SkillError, match=":3: "):
        side.SkillLoader().load_file(bad)


@sides
def test_a_mistyped_key_is_told_and_the_skill_loads_all_the_same(side: Any, tmp_path: Path) -> None:
    head = "---\nname: a\ndescription: x\ntriger: 退款\nargument-hint: mine\n---\nb\n"
    path = write(tmp_path / "a.md", head)
    found = side.SkillManager([tmp_path])
    assert [one.name for one in found.list()] == ["a"] and found.match("退款") == []
    assert [str(one) for one in found.findings] == [
        f"{path}:4: `triger` is no field and is ignored; did you mean `trigger`?"
    ]
    assert side.SkillLoader().load_file(path).findings == found.findings


@sides
def test_the_earlier_directory_counts(side: Any, tmp_path: Path) -> None:
    for place in ("mine", "theirs"):
        write(tmp_path / place / "a.md", f"---\nname: a\ndescription: x\n---\n{place}\n")
    loaded = side.SkillLoader().load([tmp_path / "mine", tmp_path / "theirs"])
    assert loaded.skills["a"].system_prompt == "mine" and loaded.findings == []


@sides
def test_words_suggest_a_skill_and_manual_ones_stay_silent(side: Any) -> None:
    found = made(
        side,
        skill(side, "after", tags=("退款",)),
        skill(side, "refund", trigger=("退款", "log")),
        skill(side, "tone", trigger="manual", tags=("退款",)),
    )
    assert [(one.name, reason) for one, reason in found.match("我要退款")] == [
        ("refund", "trigger `退款`"),
        ("after", "tag `退款`"),
    ]
    assert [one.name for one, _ in found.match("the LOG file")] == ["refund"]
    assert found.match("how do I login") == []


@sides
def test_a_skill_is_turned_on_and_off_in_a_set_that_the_caller_keeps(side: Any) -> None:
    found = made(side, skill(side, "refund"), skill(side, "ship", required_tools=("send",)))
    active = found.activate(frozenset(), "refund")
    assert active == {"refund"} and found.deactivate(active, "refund") == frozenset()
    for name in ("nothing", "ship"):
        with pytest.raises(side.SkillError):
            found.activate(active, name)
    assert "no tool `send`" in found.missing(found.get("ship"))


@sides
def test_an_active_skill_narrows_the_tools(side: Any) -> None:
    found = made(
        side,
        skill(side, "refund", required_tools=("refund",)),
        skill(side, "sums", allowed_tools=("calculator", "elsewhere")),
    )
    assert found.tools_for(("refund",)) is None
    both_active = found.tools_for(("refund", "sums"))
    assert {"refund", "calculator", "load_skill"} <= both_active
    assert "datetime" not in both_active and "elsewhere" not in both_active


@sides
def test_the_prompt_lists_all_and_shows_what_is_active(side: Any) -> None:
    found = made(
        side, skill(side, "refund"), skill(side, "sums"), skill(side, "ship", required_tools=("send",))
    )
    prompt = found.prompt(("refund",), token_limit=2000)
    assert "- sums: about sums" in prompt and "load_skill" in prompt and "ship" not in prompt
    assert '<skill name="refund">\nhow to refund\n</skill>' in prompt and "how to sums" not in prompt
    assert found.prompt(token_limit=1) == ""


@sides
def test_a_changed_file_is_read_without_a_restart(side: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.md", "---\nname: a\ndescription: x\n---\none\n")
    found = side.SkillManager([tmp_path])
    assert not found.reload_if_changed()
    write(tmp_path / "a.md", "---\nname: a\ndescription: x\n---\none and two\n")
    assert found.reload_if_changed() and found.get("a").system_prompt == "one and two"


@sides
async def test_the_model_reads_a_skill_by_a_tool(side: Any) -> None:
    found = made(
        side, skill(side, "refund", required_tools=("refund",)), skill(side, "ship", required_tools=("x",))
    )
    box = day6_box(side, found)
    result = await box.execute("load_skill", {"name": "refund"})
    assert result.ok and "how to refund" in result.content and "these tools: refund." in result.content
    assert "no skill `x`" in (await box.execute("load_skill", {"name": "x"})).content
    assert "cannot be used here" in (await box.execute("load_skill", {"name": "ship"})).content


def day6_box(side: Any, found: Any) -> Any:
    registry = ToolRegistry if side is core else day5_tools.ToolRegistry
    return registry(side.skill_tools(found))
