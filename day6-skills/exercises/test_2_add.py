"""运行：pytest exercises/test_2_add.py"""

import pytest

from day6_skills import Skill, SkillManager
from ex_2_add import guess

HINT = "提示：`{text[i : i + 2] for i in range(len(text) - 1)}` 是所有的两个字；两个集合的 `&` 就是相同的。"


@pytest.fixture
def manager() -> SkillManager:
    manager = SkillManager()
    for name, description in (("refund", "退款和赔偿的规矩"), ("ship", "怎么寄送，多久送到")):
        manager.register(Skill(name=name, description=description, system_prompt="…"))
    manager.register(Skill(name="tone", description="赔偿的规矩怎么说", system_prompt="…", trigger="manual"))
    return manager


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("你们赔偿的规矩是什么", "refund"),
        ("多久送到我家", "ship"),
        ("在吗", None),
        ("退款", None),
        ("", None),
    ],
)
def test_the_skill_that_shares_most_is_guessed(manager: SkillManager, text: str, name: str | None) -> None:
    found = guess(manager, text)
    assert (found.name if found else None) == name, HINT


def test_without_skills_there_is_nothing_to_guess() -> None:
    assert guess(SkillManager(), "赔偿的规矩") is None
