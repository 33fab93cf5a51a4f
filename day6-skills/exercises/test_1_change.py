"""运行：pytest exercises/test_1_change.py"""

from pathlib import Path

import pytest

from day6_skills import SkillManager
from ex_1_change import SKILL

HINT = "提示：`trigger` 里的每个词都会被拿去话里找；拉丁字母的词不分大小写，但要整个出现。"


@pytest.fixture
def manager(tmp_path: Path) -> SkillManager:
    (tmp_path / "refund.md").write_text(SKILL, encoding="utf-8")
    return SkillManager([tmp_path], tools=lambda: ["get_order_status", "refund", "datetime"])


@pytest.mark.parametrize(
    ("text", "opens"), [("这个 discount 怎么算", False), ("Return 一下", True), ("我要退款", True)]
)
def test_the_skill_opens_when_it_should(manager: SkillManager, text: str, opens: bool) -> None:
    assert bool(manager.match(text)) is opens, HINT


def test_only_its_tools_are_there(manager: SkillManager) -> None:
    tools = manager.tools_for({"refund"})
    assert tools is not None and "datetime" not in tools and "refund" in tools, "提示：`allowed_tools`。"
