"""加：没有人点名，也能猜到要翻哪本。

触发词总有想不到的说法。`guess(manager, text)` 按“和说明有多少相同的两个字”来猜：
把话和每个技能的 `description` 都切成两个字一段（`退款的` → `退款`、`款的`），相同的段最多的那个技能，至少两段才算；
`manual` 的不猜，一样多的按名字取前一个，一个都够不上就是 `None`。
"""

from __future__ import annotations

from day6_skills import Skill, SkillManager


def guess(manager: SkillManager, text: str) -> Skill | None:
    return None
