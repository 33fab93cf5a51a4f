"""读文件：好的读进来，坏的说清楚，谁也不连累谁。"""

from pathlib import Path

import pytest

from day6_skills import SkillError, SkillFinding, SkillLoader
from day6_skills.loader import MAX_FILE_BYTES

GOOD = """\
---
name: {name}
description: 退款
author: 店主
tags: 售后，refund
trigger: [退款, 退我]
required_tools: [refund]
allowed_tools: refund、calculator
---
先查再退。
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_directory_with_its_file_and_a_single_file_are_skills(tmp_path: Path) -> None:
    path = write(tmp_path / "refund" / "SKILL.md", GOOD.format(name="refund"))
    write(tmp_path / "tone.md", "---\nname: 口气\ndescription: 说话\ntrigger: manual\n---\n短。\n")
    loaded = SkillLoader().load([tmp_path, tmp_path / "nowhere"])
    assert loaded.findings == [] and list(loaded.skills) == ["refund", "口气"]
    refund = loaded.skills["refund"]
    assert (refund.author, refund.tags, refund.trigger) == ("店主", ("售后", "refund"), ("退款", "退我"))
    assert (refund.required_tools, refund.allowed_tools) == (("refund",), ("refund", "calculator"))
    assert (refund.system_prompt, refund.path) == ("先查再退。", path)
    assert loaded.skills["口气"].trigger == "manual"
    assert SkillLoader().load_file(tmp_path / "refund") == refund


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.md", "---\ndescription: x\n---\nb", 1, "`name` is missing"),
        ("a.md", "---\nname: a\n---\nb", 1, "`description` is missing"),
        ("a.md", "---\nname: a\ndescription: x\nversion: [1]\n---\nb", 4, "`version` must be text"),
        ("a.md", "---\nname: a\ndescription: x\n---\n \n", 1, "no instructions"),
        ("a/SKILL.md", "---\ndescription: x\nname: b\n---\nb", 3, "its directory, `a`, not `b`"),
        ("a.md", "# no", 1, "does not begin"),
        ("a.md", "x" * (MAX_FILE_BYTES + 1), 1, "larger than"),
    ],
)
def test_a_file_that_is_no_skill_is_told_with_file_line_and_reason(
    tmp_path: Path, name: str, text: str, line: int, reason: str
) -> None:
    path = write(tmp_path / name, text)
    (finding,) = SkillLoader().load([tmp_path]).findings
    assert (finding.path, finding.line) == (path, line) and reason in finding.reason
    with pytest.raises(SkillError, match=f":{line}: "):
        SkillLoader().load_file(path)


def test_what_is_no_text_and_what_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"---\nname: \xff\n---\n")
    (finding,) = SkillLoader().load([tmp_path]).findings
    assert (finding.line, finding.reason) == (2, "it is not UTF-8")
    with pytest.raises(SkillError, match="cannot be read"):
        SkillLoader().load_file(tmp_path / "b.md")


def test_a_bad_file_keeps_no_other_from_loading(tmp_path: Path) -> None:
    write(tmp_path / "a.md", "bad")
    write(tmp_path / "b.md", "---\nname: b\ndescription: x\n---\nb")
    loaded = SkillLoader().load([tmp_path])
    assert list(loaded.skills) == ["b"] and len(loaded.findings) == 1


def test_of_two_with_one_name_the_earlier_directory_counts(tmp_path: Path) -> None:
    for place, text in (("mine", "我的"), ("theirs", "他们的")):
        write(tmp_path / place / "a.md", f"---\nname: a\ndescription: x\n---\n{text}")
    write(tmp_path / "mine" / "again.md", "---\nname: a\ndescription: x\n---\n又一个")
    loaded = SkillLoader().load([tmp_path / "mine", tmp_path / "theirs"])
    assert loaded.skills["a"].system_prompt == "我的"
    (finding,) = loaded.findings
    assert "is taken by" in finding.reason


def test_a_finding_is_written_as_editors_read_it() -> None:
    assert str(SkillFinding(Path("a.md"), 3, "no")) == "a.md:3: no"
