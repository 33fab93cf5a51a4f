"""运行：pytest exercises/test_3_break.py"""

from pathlib import Path

import pytest

from day6_skills import SkillLoader
from ex_3_break import FILES

HINT = (
    "提示：照着 loader.py 的 `_read` 和 front_matter.py 从上往下看，哪一步会说这句话？前面的步骤都要先过关。"
)


@pytest.mark.parametrize("reason", list(FILES))
def test_the_file_is_bad_in_just_this_way(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "refund" / "SKILL.md"
    path.parent.mkdir()
    path.write_text(FILES[reason], encoding="utf-8")
    loaded = SkillLoader().load([tmp_path])
    assert [finding for finding in loaded.findings if reason in finding.reason], HINT
    assert loaded.skills == {}
