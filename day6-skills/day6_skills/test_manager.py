"""管理员：找得到、翻得开、说得少、收得起。"""

import logging
from pathlib import Path
from typing import Any

import pytest

from day6_skills import Skill, SkillError, SkillManager
from day6_skills.manager import HEADER


def skill(name: str, **more: Any) -> Skill:
    return Skill(**{"name": name, "description": f"about {name}", "system_prompt": f"how to {name}", **more})


@pytest.fixture
def manager() -> SkillManager:
    manager = SkillManager(tools=lambda: ["refund", "calculator", "datetime"])
    manager.register(skill("refund", trigger=("退款",), tags=("售后",), required_tools=("refund",)))
    manager.register(skill("sums", trigger=("log",), allowed_tools=("calculator", "elsewhere")))
    manager.register(skill("tone", trigger="manual", tags=("口气",)))
    manager.register(skill("ship", trigger=("发货",), required_tools=("send_parcel",)))
    return manager


def names(manager: SkillManager, text: str) -> list[str]:
    return [f"{one.name}: {reason}" for one, reason in manager.match(text)]


def test_a_trigger_is_surer_than_a_tag(manager: SkillManager) -> None:
    manager.register(skill("after", tags=("退款",)))
    assert names(manager, "我要退款") == ["refund: trigger `退款`", "after: tag `退款`"]
    assert names(manager, "售后在吗") == ["refund: tag `售后`"]


def test_latin_words_match_whole_and_in_any_case(manager: SkillManager) -> None:
    assert names(manager, "看看 LOG 文件") == ["sums: trigger `log`"]
    assert names(manager, "怎么login") == []


def test_a_manual_skill_and_one_that_lacks_a_tool_are_never_suggested(manager: SkillManager) -> None:
    assert names(manager, "换个口气，给我发货") == []
    ship = manager.get("ship")
    assert ship is not None and "no tool `send_parcel`" in manager.missing(ship)


def test_what_is_active_is_the_caller_s_to_keep(manager: SkillManager) -> None:
    active = manager.activate(frozenset(), "refund")
    assert manager.activate(active, "tone") == {"refund", "tone"} and active == {"refund"}
    assert manager.deactivate(active, "refund") == frozenset() == manager.deactivate((), "x")
    for name, reason in (("nothing", "There is no skill"), ("ship", "cannot be used")):
        with pytest.raises(SkillError, match=reason):
            manager.activate(active, name)


def test_an_active_skill_narrows_the_tools_to_those_that_are_enough(manager: SkillManager) -> None:
    assert manager.tools_for(()) is None and manager.tools_for({"refund"}) is None
    assert manager.tools_for({"sums"}) == frozenset({"calculator", "load_skill"})
    assert manager.tools_for({"sums", "refund", "gone"}) == frozenset({"calculator", "refund", "load_skill"})


def test_names_of_tools_that_are_not_here_narrow_nothing_and_are_told(
    manager: SkillManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.register(skill("foreign", allowed_tools=("calculater",)))
    assert manager.tools_for({"foreign"}) is None
    assert "no tool called calculater" in caplog.text


def test_a_manager_that_does_not_know_the_tools_believes_the_skills() -> None:
    manager = SkillManager()
    manager.register(skill("sums", allowed_tools=("calculator",), required_tools=("refund",)))
    assert manager.activate((), "sums") == {"sums"}
    assert manager.tools_for({"sums"}) == frozenset({"calculator", "refund", "load_skill"})


def test_the_prompt_lists_all_and_shows_only_what_is_active(manager: SkillManager) -> None:
    prompt = manager.prompt({"refund", "gone"}, token_limit=1000)
    assert prompt.startswith(HEADER) and "- sums: about sums" in prompt and "- ship" not in prompt
    assert '<skill name="refund">\nhow to refund\n</skill>' in prompt and "how to sums" not in prompt


def test_the_list_keeps_within_its_limit(manager: SkillManager) -> None:
    line = len("- refund: about refund") + 1
    assert manager.prompt(token_limit=len(HEADER) + line).splitlines()[1:] == ["- refund: about refund"]
    assert manager.prompt(token_limit=10) == ""
    assert SkillManager().prompt(token_limit=1000) == ""


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.md"
    path.write_text("---\nname: a\ndescription: x\n---\n一", encoding="utf-8")
    manager = SkillManager([tmp_path])
    manager.register(skill("b"))
    assert not manager.reload_if_changed()
    path.write_text("---\nname: a\ndescription: x\n---\n一二三", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        (tmp_path / "bad.md").write_text("bad", encoding="utf-8")
        assert manager.reload_if_changed()
    changed = manager.get("a")
    assert changed is not None and changed.system_prompt == "一二三"
    assert [one.name for one in manager.list()] == ["a", "b"]
    assert len(manager.findings) == 1 and "bad.md:1:" in caplog.text


def test_a_registered_skill_goes_before_a_file_and_only_once(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nname: a\ndescription: x\n---\n文件", encoding="utf-8")
    manager = SkillManager([tmp_path])
    manager.register(skill("a"))
    found = manager.get("a")
    assert found is not None and found.system_prompt == "how to a"
    with pytest.raises(SkillError, match="registered already"):
        manager.register(skill("a"))
