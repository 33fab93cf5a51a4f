"""Skills: what is read from files, what is said of broken ones, and what the model is told."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.cli import main
from miniclaw.errors import SkillError
from miniclaw.skills import BUNDLED, Skill, SkillLoader, SkillManager, skill_tools
from miniclaw.tokens import estimate_tokens
from miniclaw.tools import ToolRegistry
from miniclaw.tools.builtins.order_status_tool import get_order_status


def standard(root: Path, name: str, head: str = "", body: str = "Do it.", directory: str = "") -> Path:
    """Write a skill in the form of the Agent Skills standard."""
    path = root / (directory or name) / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"---\nname: {name}\n{head or 'description: Does it.'}\n---\n{body}\n"
    path.write_bytes(text.encode("utf-8"))
    return path


def single(root: Path, file: str, head: str, body: str = "Do it.") -> Path:
    """Write a skill that is one Markdown file."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / file
    path.write_bytes(f"---\n{head}\n---\n{body}\n".encode())
    return path


def reason(root: Path) -> str:
    """What is said of the only file that is broken, without its path."""
    [finding] = SkillLoader().load([root]).findings
    return f"{finding.line}: {finding.reason}"


# --- one file ---------------------------------------------------------------------------------------------


def test_a_standard_file_with_all_its_fields(tmp_path: Path) -> None:
    head = (
        "description: >-\n  Writes letters:\n  short ones\nlicense: MIT\ncompatibility: any\n"
        "allowed-tools: Read Bash(git:*)\n"
        'metadata:\n  author: Eve\n  version: "1.10"\n  tags: post, 信件\n  trigger: write a letter， 写信'
    )
    path = standard(tmp_path, "letters", head, "# Letters\n\n---\nBe kind.")
    assert SkillLoader().load_file(path) == Skill(
        name="letters",
        description="Writes letters: short ones",
        author="Eve",
        version="1.10",
        tags=("post", "信件"),
        system_prompt="# Letters\n\n---\nBe kind.",
        trigger=("write a letter", "写信"),
        allowed_tools=("Read", "Bash"),
        path=path,
    )
    assert SkillLoader().load_file(path.parent) == SkillLoader().load_file(path)


def test_a_single_file_with_all_its_fields(tmp_path: Path) -> None:
    head = (
        "name: 代码审查\ndescription: Reviews code\nauthor: Eve\nversion: 1.10\ntags: [code, review]\n"
        "required_tools:\n  - read_file\n  - grep\ntrigger: [review, 审查]"
    )
    path = single(tmp_path, "review.md", head)
    assert SkillLoader().load_file(path) == Skill(
        name="代码审查",
        description="Reviews code",
        author="Eve",
        version="1.10",
        tags=("code", "review"),
        system_prompt="Do it.",
        required_tools=("read_file", "grep"),
        trigger=("review", "审查"),
        path=path,
    )


@pytest.mark.parametrize("trigger", ["manual", "[manual]", " manual "])
def test_a_manual_trigger_is_no_word(tmp_path: Path, trigger: str) -> None:
    path = single(tmp_path, "a.md", f"name: a\ndescription: b\ntrigger: {trigger}")
    assert SkillLoader().load_file(path).trigger == "manual"


def test_windows_line_ends_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    path = standard(tmp_path, "letters", body="one\ntwo")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert SkillLoader().load_file(path).system_prompt == "one\ntwo"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("description: x", "1: `name` is missing or no text"),
        ("name: a\ndescription:", "3: `description` is missing or no text"),
        ("name: a\nversion: [1]\ndescription: x", "3: `version` must be text"),
        (f"name: {'a' * 65}\ndescription: x", "2: `name` is longer than 64 characters"),
        (f"name: a\ndescription: {'x' * 1025}", "3: `description` is longer than 1024 characters"),
        (
            f"name: a\ndescription: x\ncompatibility: {'x' * 501}",
            "4: `compatibility` is longer than 500 characters",
        ),
        (
            "name: a\ndescription: x\ntags: {a: b}",
            "4: `tags` must be a list of words, or words separated by commas",
        ),
        ("name: a\ndescription: x\nmetadata: [a]", "4: `metadata` must map names to texts"),
        ("name: a\ndescription: x\nmetadata:\n  a: [b]", "4: `metadata` must map names to texts"),
        ('name: "a\\nb"\ndescription: x', "2: `name` must be one line of printable characters"),
        (
            "name: a\ndescription: use it: now",
            "3: the front matter is not YAML: mapping values are not allowed",
        ),
        ("name: a\ndescription: x\n'name': b", "4: the key `name` stands there twice"),
        ("name: a\ndescription: x\nmetadata:\n  b: c\n  b: d", "6: the key `b` stands there twice"),
        ("name: a\ndescription: x\ntags: [{b: c, b: d}]", "4: the key `b` stands there twice"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, head: str, expected: str) -> None:
    path = single(tmp_path, "a.md", head)
    assert reason(tmp_path).startswith(expected)
    with pytest.raises(SkillError) as caught:
        SkillLoader().load_file(path)
    assert str(caught.value).startswith(f"{path}:{expected}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"# just text\n", "1: the file does not begin with front matter"),
        (b"---\nname: a\n", "1: the front matter has no closing line"),
        (b"---\nname: a\ndescription: b\n---\n \n", "1: there are no instructions below the front matter"),
        (b"---\nname: a\ndescription: \xff\n---\nx", "3: it is not UTF-8"),
        (b"---\nname: a\ndescription: b\n---\n" + b"x" * 300_000, "1: it is larger than"),
    ],
)
def test_a_wrong_file_is_named_and_the_others_load(tmp_path: Path, content: bytes, expected: str) -> None:
    standard(tmp_path, "good")
    (tmp_path / "bad.md").write_bytes(content)
    assert reason(tmp_path).startswith(expected)
    assert list(SkillLoader().load([tmp_path]).skills) == ["good"]


@pytest.mark.parametrize("name", ["Letters", "a--b", "-a", "a-", "a_b", "写信", "a b"])
def test_a_standard_name_has_small_letters_and_single_hyphens(tmp_path: Path, name: str) -> None:
    standard(tmp_path, name)
    assert reason(tmp_path).startswith("2: `name` must be small letters")


def test_a_standard_name_is_that_of_its_directory(tmp_path: Path) -> None:
    standard(tmp_path, "letters", directory="post")
    assert reason(tmp_path) == "2: `name` must be that of its directory, `post`, not `letters`"


def test_what_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "loop.md").symlink_to("loop.md")
    (tmp_path / "directory.md").mkdir()
    loaded = SkillLoader().load([tmp_path, tmp_path / "absent"])
    assert [finding.path.name for finding in loaded.findings] == ["directory.md", "loop.md"]
    assert all(finding.reason.startswith("it cannot be read") for finding in loaded.findings)
    [finding] = SkillLoader().load([standard(tmp_path, "a") / "not-a-directory"]).findings
    assert "cannot be read" in finding.reason


# --- several directories ----------------------------------------------------------------------------------


def test_the_earlier_directory_counts_and_a_broken_override_does_not(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        standard(tmp_path / "bundled", name, body="bundled")
    standard(tmp_path / "user", "a", body="user")
    standard(tmp_path / "user", "b", head="description:")
    loaded = SkillLoader().load([tmp_path / "user", tmp_path / "bundled"])
    assert {name: skill.system_prompt for name, skill in loaded.skills.items()} == {
        "a": "user",
        "b": "bundled",
        "c": "bundled",
    }
    assert [finding.path.parent.name for finding in loaded.findings] == ["b"]


def test_two_files_of_one_name_in_a_directory_are_a_finding(tmp_path: Path) -> None:
    first = single(tmp_path, "a.md", "name: same\ndescription: x")
    second = standard(tmp_path, "same")
    [finding] = SkillLoader().load([tmp_path]).findings
    assert (finding.path, finding.reason) == (second, f"the name `same` is taken by {first}")


def test_hidden_and_other_files_are_passed_over(tmp_path: Path) -> None:
    standard(tmp_path, "a", directory=".git")
    (tmp_path / ".hidden.md").write_text("x", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    loaded = SkillLoader().load([tmp_path])
    assert (loaded.skills, loaded.findings) == ({}, [])


# --- the manager ------------------------------------------------------------------------------------------


def test_changes_on_disk_show_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = SkillManager([tmp_path / "skills"])
    assert manager.list() == []
    path = standard(tmp_path / "skills", "a", body="one")
    assert manager.get("a") is None
    assert manager.reload_if_changed() is True
    assert manager.reload_if_changed() is False
    standard(tmp_path / "skills", "a", body="two!")
    manager.reload_if_changed()
    skill = manager.get("a")
    assert skill is not None
    assert skill.system_prompt == "two!"
    with caplog.at_level(logging.WARNING):
        path.write_text("broken", encoding="utf-8")
        assert manager.reload_if_changed()
        standard(tmp_path / "skills", "b")
        assert manager.reload_if_changed()
    assert [s.name for s in manager.list()] == ["b"]
    assert [finding.path for finding in manager.findings] == [path]
    assert caplog.messages == [f"skill file: {manager.findings[0]}"]
    path.unlink()
    assert manager.reload_if_changed()
    assert manager.findings == ()


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    path = standard(tmp_path, "a", body="one")
    manager = SkillManager([tmp_path])
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"two\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    standard(tmp_path, "b")
    assert manager.reload_if_changed()
    assert [skill.system_prompt for skill in manager.list()] == ["one", "Do it."]


def skill(name: str, description: str = "x", **fields: object) -> Skill:
    return Skill.model_validate(
        {"name": name, "description": description, "system_prompt": f"body of {name}", **fields}
    )


def manager_of(*skills: Skill) -> SkillManager:
    manager = SkillManager(())
    for each in skills:
        manager.register(each)
    return manager


def test_a_registered_skill_goes_before_one_on_disk_and_stays(tmp_path: Path) -> None:
    standard(tmp_path, "a")
    manager = SkillManager([tmp_path])
    manager.register(skill("a"))
    standard(tmp_path, "b")
    manager.reload_if_changed()
    assert [each.system_prompt for each in manager.list()] == ["body of a", "Do it."]
    with pytest.raises(SkillError, match="registered already"):
        manager.register(skill("a"))


def test_activation_belongs_to_the_caller() -> None:
    manager = manager_of(skill("a"), skill("b"))
    active = manager.activate(manager.activate([], "a"), "b")
    assert active == {"a", "b"}
    assert manager.deactivate(active, "a") == {"b"}
    assert manager.deactivate(active, "unknown") == {"a", "b"}
    with pytest.raises(SkillError, match="no skill `c`; there are: a, b"):
        manager.activate(active, "c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write the Log!", [("words", "trigger `log`")]),
        ("login and blog", []),
        ("帮我写一封信吧", [("chinese", "trigger `写一封信`")]),
        ("用git提交", [("tagged", "tag `Git`")]),
        ("翻译这篇法语文章", [("described", "description shares `文章`, `法语`, `翻译`")]),
        ("translate this article", [("described", "description shares `articl`, `translat`")]),
        ("an article", []),
        ("手动", []),
        ("", []),
    ],
)
def test_a_text_suggests_skills_and_says_why(text: str, expected: list[tuple[str, str]]) -> None:
    manager = manager_of(
        skill("words", trigger=("log",)),
        skill("chinese", trigger=("写一封信",)),
        skill("tagged", tags=("Git",)),
        skill("described", "Translates articles. 把文章翻译成英语或法语。"),
        skill("by-hand", "手动 write log translate article", trigger="manual"),
    )
    assert [(found.name, why) for found, why in manager.match(text)] == expected


def test_triggers_come_before_tags_and_descriptions() -> None:
    manager = manager_of(
        skill("a", "write short letters"), skill("b", tags=("letters",)), skill("c", trigger=("letters",))
    )
    assert [found.name for found, _ in manager.match("write short letters")] == ["c", "b", "a"]


def test_the_prompt_names_all_and_shows_only_active_ones() -> None:
    manager = manager_of(skill("a", "does\n  this"), skill("b", "does that"))
    prompt = manager.prompt(["b", "gone"], token_limit=500)
    assert "- a: does this\n- b: does that" in prompt
    assert '<skill name="b">\nbody of b\n</skill>' in prompt
    assert "body of a" not in prompt


def test_no_skills_are_no_prompt() -> None:
    assert manager_of().prompt(token_limit=500) == ""


def test_what_does_not_fit_is_named_and_then_counted() -> None:
    manager = manager_of(*(skill(f"skill-{n}", "a long description " * 10) for n in range(10, 40)))
    assert "- skill-10: a long" in manager.prompt(token_limit=2000)
    some = manager.prompt(token_limit=200)
    assert "- skill-10\n" in some or "- skill-10: a long" in some
    few = manager.prompt(token_limit=100)
    assert "more are not listed.)" in few
    assert manager.prompt(["skill-39"], token_limit=5).startswith('<skill name="skill-39">')


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=20), st.text(max_size=200)), max_size=12),
    st.integers(0, 400),
)
def test_the_list_keeps_its_limit(entries: list[tuple[str, str]], limit: int) -> None:
    manager = manager_of(*(skill(name, description) for name, description in dict(entries).items()))
    assert estimate_tokens(manager.prompt(token_limit=limit)) <= limit


# --- the tool and the bundled skills ----------------------------------------------------------------------


async def test_the_model_reads_a_skill_by_its_name(tmp_path: Path) -> None:
    manager = SkillManager([tmp_path])
    tools = ToolRegistry(skill_tools(manager))
    missing = await tools.execute("load_skill", {"name": "a"})
    assert (missing.ok, "The skills are: none" in missing.content) == (False, True)
    standard(tmp_path, "a", "description: x\nrequired_tools: grep, read_file", body="# Steps")
    result = await tools.execute("load_skill", {"name": "a"})
    assert result.content == "# Steps\n\nIt counts on these tools: grep, read_file."
    assert result.data == {"name": "a", "required_tools": ["grep", "read_file"], "files": []}
    assert {tool.risk for tool in tools} == {"read"}


async def test_files_beside_a_skill_are_read_by_the_names_that_load_skill_gives(tmp_path: Path) -> None:
    root = standard(tmp_path / "skills", "a").parent
    (root / "references").mkdir()
    (root / "references" / "接口.md").write_text("the API", encoding="utf-8")
    (root / ".hidden").write_text("no", encoding="utf-8")
    (root / "picture.bin").write_bytes(b"\xff\xfe\x00")
    (root / "large.txt").write_bytes(b"x" * (257 * 1024))
    tools = ToolRegistry(skill_tools(SkillManager([tmp_path / "skills"])))
    loaded = await tools.execute("load_skill", {"name": "a"})
    assert loaded.data["files"] == ["large.txt", "picture.bin", "references/接口.md"]
    assert "references/接口.md" in loaded.content
    found = await tools.execute("read_skill_file", {"name": "a", "path": "references/接口.md"})
    assert found.content == "the API"
    for path, why in [
        ("picture.bin", "cannot be read as text"),
        ("large.txt", "larger"),
        (".hidden", "no file"),
        ("SKILL.md", "no file"),
        ("references", "no file"),
    ]:
        result = await tools.execute("read_skill_file", {"name": "a", "path": path})
        assert not result.ok and why in result.content
    for number in range(60):
        (root / "references" / f"z{number}.md").write_text(f"note {number}", encoding="utf-8")
    assert "and 13 more." in (await tools.execute("load_skill", {"name": "a"})).content
    last = await tools.execute("read_skill_file", {"name": "a", "path": "references/z59.md"})
    assert last.content == "note 59"


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
@pytest.mark.parametrize(
    "path", ["../secret.txt", "{root}/secret.txt", "link.txt", "out/secret.txt", "a\x00b", "x" * 5000]
)
async def test_no_file_outside_a_skill_is_read(tmp_path: Path, path: str) -> None:
    root = standard(tmp_path / "skills", "a").parent
    (tmp_path / "outside").mkdir()
    for secret in (tmp_path / "skills" / "secret.txt", tmp_path / "outside" / "secret.txt"):
        secret.write_text("secret", encoding="utf-8")
    (root / "link.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (root / "out").symlink_to(tmp_path / "outside")
    tools = ToolRegistry(skill_tools(SkillManager([tmp_path / "skills"])))
    wanted = path.replace("{root}", str(tmp_path / "skills"))
    result = await tools.execute("read_skill_file", {"name": "a", "path": wanted})
    assert not result.ok and "secret" not in result.content.replace(wanted, "")


# --- what a skill needs, and what it is content with ------------------------------------------------------


def gated(root: Path, head: str, **more: Any) -> SkillManager:
    standard(root, "a", f"description: x\nmetadata:\n  trigger: hello\n  {head}")
    return SkillManager([root], **more)


@pytest.mark.parametrize(
    ("head", "lacks"),
    [
        ("required_tools: send_mail", "there is no tool `send_mail`"),
        ("required_programs: no-such-program-here", "the program `no-such-program-here`"),
        ("required_env: MAIL_KEY", "`MAIL_KEY`, which the skill requires, is not set"),
    ],
)
async def test_a_skill_that_lacks_something_is_found_with_its_line_and_never_offered(
    tmp_path: Path, head: str, lacks: str
) -> None:
    manager = gated(tmp_path, head, tools=lambda: {"other"})
    [finding] = manager.findings
    assert lacks in finding.reason and finding.line == 6
    assert manager.prompt({"a"}, token_limit=500) == ""
    assert manager.match("hello") == [] and lacks in manager.rows()[0]["missing"]
    lost = manager.rows(active=["gone"])[0]
    assert (lost["name"], lost["active"]) == ("gone", True) and "switched off" in lost["missing"]
    with pytest.raises(SkillError, match="cannot be used"):
        manager.activate((), "a")
    result = await ToolRegistry(skill_tools(manager)).execute("load_skill", {"name": "a"})
    assert not result.ok and lacks in result.content


def test_a_skill_whose_needs_are_met_is_offered(tmp_path: Path) -> None:
    needs = "required_tools: send_mail\n  required_programs: sh\n  required_env: MAIL_KEY"
    manager = gated(tmp_path, needs, tools=lambda: {"send_mail"}, env={"MAIL_KEY": "x"})
    assert manager.findings == () and manager.activate((), "a") == {"a"}


def test_a_tool_that_comes_later_lets_its_skill_in(tmp_path: Path) -> None:
    tools: set[str] = set()
    manager = gated(tmp_path, "required_tools: send_mail", tools=lambda: tools)
    assert manager.match("hello") == []
    tools.add("send_mail")
    assert [skill.name for skill, _ in manager.match("hello")] == ["a"] and manager.findings == ()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("calculator datetime", {"calculator", "datetime"}),
        ("calculator(1+*), datetime", {"calculator", "datetime"}),
        ("Read Bash(git:*)", None),  # made for another host: it narrows nothing here
        ("Read calculator", {"calculator"}),
    ],
)
def test_an_active_skill_narrows_the_tools_to_those_that_it_names(
    tmp_path: Path, names: str, expected: set[str] | None
) -> None:
    standard(tmp_path, "a", f"description: x\nallowed-tools: {names}")
    manager = SkillManager([tmp_path], tools=lambda: {"calculator", "datetime", "http_request"})
    assert manager.tools_for(()) is None
    found = manager.tools_for({"a"})
    always = {"load_skill", "read_skill_file"}
    assert (None if found is None else set(found)) == (None if expected is None else expected | always)


def test_a_second_active_skill_keeps_the_tools_that_it_requires(tmp_path: Path) -> None:
    standard(tmp_path, "a", "description: x\nallowed-tools: calculator")
    standard(tmp_path, "b", "description: x\nrequired_tools: datetime")
    manager = SkillManager([tmp_path], tools=lambda: {"calculator", "datetime", "http_request"})
    found = manager.tools_for({"a", "b"})
    assert found is not None and set(found) == {"calculator", "datetime", "load_skill", "read_skill_file"}


def test_a_skill_that_breaks_or_loses_its_tools_widens_nothing(tmp_path: Path) -> None:
    standard(tmp_path, "a", "description: x\nallowed-tools: calculator dice")
    known = {"calculator", "datetime", "dice"}
    manager = SkillManager([tmp_path], tools=lambda: known)
    before, told = manager.narrowing({"a"})
    assert set(before or ()) == {"calculator", "dice", "load_skill", "read_skill_file"} and told == ""
    known -= {"calculator", "dice"}
    allowed, told = manager.narrowing({"a"}, before or ())
    assert set(allowed or ()) == {"load_skill", "read_skill_file"} and "are gone: calculator, dice." in told
    standard(tmp_path, "a", "description: [", body="longer")
    assert manager.reload_if_changed()
    allowed, told = manager.narrowing({"a"}, before or ())
    assert allowed == before and told.startswith("The active skill a cannot be read any more")
    assert manager.narrowing((), before or ()) == (None, "")


def test_a_manual_skill_is_not_listed_to_the_model_but_can_be_active() -> None:
    manager = manager_of(skill("by-hand", trigger="manual"), skill("other"))
    assert "by-hand" not in manager.prompt(token_limit=500)
    assert '<skill name="by-hand">' in manager.prompt({"by-hand"}, token_limit=500)


def test_a_message_that_holds_a_trigger_is_hinted_at_and_one_that_shares_words_is_not() -> None:
    manager = manager_of(skill("a", "writes letters to people"))
    assert manager.hint("please write letters to the people") == ""
    manager = manager_of(Skill(name="a", description="x", system_prompt="y", trigger=("letter",)))
    assert "`a`" in manager.hint("a letter, please") and manager.hint("a letter, please", {"a"}) == ""


# --- shapes that people write -----------------------------------------------------------------------------

REAL: list[tuple[str, str, str | None]] = [
    ("folded", "name: folded\ndescription: >\n  One line\n  and another.\n", None),
    ("literal", "name: literal\ndescription: |\n  - one\n  - two\n", None),
    ("stripped", "name: stripped\ndescription: >-\n\n  After a blank line.\n", None),
    ("quoted", "name: \"quoted\"\ndescription: 'It''s: fine'\n", None),
    ("colon", "name: colon\ndescription: Use when: always\n", "mapping"),
    ("hash", "name: hash\ndescription: C# code # and a comment\n", None),
    ("flow", 'name: flow\ndescription: x\nmetadata: {author: Eve, version: "2"}\n', None),
    ("nested", "name: nested\ndescription: x\nmetadata:\n  openclaw:\n    emoji: x\n", "metadata"),
    ("number", "name: number\ndescription: x\nmetadata:\n  version: 1.0\n", None),
    ("dated", "name: dated\ndescription: x\nversion: 2026-01-01\n", None),
    ("yes-no", "name: yes-no\ndescription: yes\nmetadata:\n  internal: no\n", None),
    ("tools-text", "name: tools-text\ndescription: x\nallowed-tools: Read Write Bash(npm run *)\n", None),
    ("tools-list", "name: tools-list\ndescription: x\nallowed-tools:\n  - Read\n  - Grep\n", None),
    ("tools-map", "name: tools-map\ndescription: x\nallowed-tools:\n  Read: all\n", "allowed-tools"),
    ("extra", "name: extra\ndescription: x\nmodel: sonnet\ndisable-model-invocation: true\n", None),
    ("long", "name: long\ndescription: " + "x" * 1024 + "\n", None),
    ("longer", "name: longer\ndescription: " + "x" * 1025 + "\n", "description"),
    ("chinese", "name: chinese\ndescription: 写周报：把记录整理成周报。\n", None),
    ("emoji", "name: emoji\ndescription: 🚀 ship it\n", None),
    ("tabbed", "name: tabbed\ndescription: x\nmetadata:\n\tauthor: Eve\n", "tab"),
    ("anchor", "name: &n anchor\ndescription: *n\n", None),
    ("twice", "name: twice\ndescription: one\ndescription: two\n", "twice"),
    ("listed", "name: listed\ndescription:\n  - one\n  - two\n", "description"),
    ("empty", "name: empty\ndescription:\n", "description"),
    ("Upper", "name: Upper\ndescription: x\n", "name"),
    ("under_score", "name: under_score\ndescription: x\n", "name"),
    ("other", "name: another\ndescription: x\n", "name"),
    ("compat", "name: compat\ndescription: x\ncompatibility: " + "y" * 501 + "\n", "compatibility"),
    ("both", "name: both\ndescription: x\ntrigger: [manual, x1]\n", "`trigger`"),
    ("mixed", "name: mixed\r\ndescription: x\r\n---\r\n# Steps\r\n", None),
    ("licence", "name: licence\ndescription: x\nlicense:\n  - MIT\n", "license"),
]


def test_a_file_in_small_letters_is_told(tmp_path: Path) -> None:
    (standard(tmp_path, "a").rename(tmp_path / "a" / "skill.md")).touch()
    manager = SkillManager([tmp_path])
    assert [finding.reason for finding in manager.findings] == [
        "its file has to be called `SKILL.md`, in capitals"
    ]
    assert not manager.list()


@pytest.mark.parametrize(("directory", "head", "refused"), REAL, ids=[row[0] for row in REAL])
def test_a_skill_as_people_write_them_loads_or_is_refused_for_the_right_reason(
    tmp_path: Path, directory: str, head: str, refused: str | None
) -> None:
    path = tmp_path / directory / "SKILL.md"
    path.parent.mkdir()
    path.write_text(f"---\n{head}---\n\n# Body\n\nDo it.\n", encoding="utf-8", newline="")
    loaded = SkillLoader().load([tmp_path])
    if refused is None:
        assert loaded.findings == [] and list(loaded.skills) == [directory]
    else:
        [finding] = loaded.findings
        assert loaded.skills == {} and refused in finding.reason.lower()
        assert finding.line >= 1 and str(finding).startswith(f"{path}:")


# --- the bundled skills -----------------------------------------------------------------------------------


def test_the_bundled_skills_are_sound_and_are_suggested() -> None:
    manager = SkillManager()
    assert manager.findings == ()
    names = {"customer-service", "daily-summary", "meeting-notes", "skill-writer", "web-research"}
    assert {each.name for each in manager.list()} == names
    assert all(each.path is not None and each.path.is_relative_to(BUNDLED) for each in manager.list())
    for text, name in [
        ("帮我写一下今天的日报", "daily-summary"),
        ("write my weekly report", "daily-summary"),
        ("我想新建技能", "skill-writer"),
        ("how do I write a skill?", "skill-writer"),
        ("我的订单 4471 到哪了？", "customer-service"),
        ("where is my parcel", "customer-service"),
        ("整理一下会议纪要", "meeting-notes"),
        ("上网查一下这个说法", "web-research"),
    ]:
        assert [found.name for found, _ in manager.match(text)] == [name]


@pytest.mark.parametrize(
    ("order_id", "expected"),
    [
        ("4471", "订单 4471：已发货，顺丰速运，2 天后送达。"),
        (" #4471 ", "订单 4471：已发货，顺丰速运，2 天后送达。"),
        ("4472", "订单 4472：处理中。"),
        ("9999", "no order `9999`"),
    ],
)
async def test_the_sample_orders(order_id: str, expected: str) -> None:
    result = await ToolRegistry([get_order_status]).execute("get_order_status", {"order_id": order_id})
    assert expected in result.content and result.ok is ("no order" not in expected)


# --- the command ------------------------------------------------------------------------------------------


def test_skills_are_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    standard(tmp_path / "skills", "mine", "description: Mine.", body="# My steps")
    standard(tmp_path / "skills", "bad", "description:")
    common = ["--data-dir", str(tmp_path)]
    assert main(["skills", "list", "--json", *common]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "mine" in {row["name"] for row in found["skills"]}
    assert len(found["findings"]) == 1 and "bad/SKILL.md:3:" in found["findings"][0]
    assert main(["skills", "list", *common]) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["skills", "show", "mine", *common]) == 0
    assert capsys.readouterr().out.endswith("# My steps\n")
    assert main(["skills", "show", "gone", *common]) == 1
    assert "There is no skill `gone`" in capsys.readouterr().err


def test_validate_prints_every_finding_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = standard(tmp_path, "fine")
    wrong = standard(tmp_path, "wrong", "description:")
    for path in (sound, sound.parent):
        assert main(["skills", "validate", str(path)]) == 0
        assert "`fine` is sound" in capsys.readouterr().out
    for path in (wrong, wrong.parent):
        assert main(["skills", "validate", str(path)]) == 1
        assert capsys.readouterr().out.startswith(f"{wrong}:3:")
    assert main(["skills", "validate", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{wrong}:3:" in out and "1 sound, 1 wrong" in out
    assert main(["skills", "validate", str(tmp_path / "gone.md")]) == 1


def test_a_required_tool_that_is_not_there_is_named_by_list_and_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = 'description: "D\\x07oes it."\nrequired_tools: calculator, schedule, mcp__x__y, nosuch'
    path = single(tmp_path / "skills", "mine.md", f"name: mine\n{head}")
    common = ["--data-dir", str(tmp_path)]
    for target in (path, path.parent):
        assert main(["skills", "validate", str(target), *common]) == 1
        out = capsys.readouterr().out
        assert (
            f"{path}:4: there is no tool `nosuch`, which the skill requires" in out
            and "`schedule`" not in out
        )
    assert main(["skills", "list", *common]) == 0
    out = capsys.readouterr().out
    assert "not offered: there is no tool `nosuch`, which the skill requires\n" in out and "\x07" not in out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_in_the_place_of_a_skill_is_a_finding_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.md")
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "SKILL.md")
    standard(tmp_path, "sound")
    loaded = SkillLoader().load([tmp_path])
    assert list(loaded.skills) == ["sound"]
    assert [finding.reason for finding in loaded.findings] == ["it cannot be read: it is no regular file"] * 2
