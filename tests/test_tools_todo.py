"""The `todo` tool: a plan that is shown, kept for its session and readable as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from miniclaw.tools import ToolContext, ToolRegistry, ToolResult
from miniclaw.tools.builtins import todo_tool
from miniclaw.tools.builtins.todo_tool import DIRECTORY

registry = ToolRegistry([todo_tool()])
STEPS = [
    {"text": "买票", "status": "done"},
    {"text": "book  a\nroom", "status": "in_progress"},
    {"text": "pack"},
]


async def todo(workspace: Path, session_id: str = "ses_1", **arguments: Any) -> ToolResult:
    context = ToolContext(user_id="ann", scope="ann", session_id=session_id, turn_id="t", workspace=workspace)
    return await registry.execute("todo", arguments, context)


async def test_a_plan_is_shown_kept_for_its_session_and_a_file_to_read(tmp_path: Path) -> None:
    assert (await todo(tmp_path)).content == "There is no plan."
    shown = "- [x] 买票\n- [~] book a room\n- [ ] pack\n1 of 3 done."
    assert (await todo(tmp_path, steps=STEPS)).content == shown
    again = await todo(tmp_path)
    assert again.content == shown
    assert [step["status"] for step in again.data] == ["done", "in_progress", "pending"]
    assert (await todo(tmp_path, "ses_2")).content == "There is no plan."
    plan = (tmp_path / DIRECTORY / "ses_1.md").read_text(encoding="utf-8")
    assert plan == shown.rpartition("1 of")[0]
    assert (await todo(tmp_path, steps=[])).content == "There is no plan."


@pytest.mark.parametrize(
    "steps",
    [
        [{"text": " "}],
        [{"text": "x" * 301}],
        [{"text": "x", "status": "maybe"}],
        [{"text": "x"}] * 51,
        "x",
        [{}],
    ],
)
async def test_a_plan_that_is_none_is_refused_and_changes_nothing(tmp_path: Path, steps: Any) -> None:
    await todo(tmp_path, steps=STEPS)
    assert "Invalid arguments: `steps" in (await todo(tmp_path, steps=steps)).content
    assert "1 of 3 done" in (await todo(tmp_path)).content


async def test_writing_a_plan_twice_is_as_good_as_once() -> None:
    tool = registry.find("todo")
    assert tool is not None
    assert (tool.risk, tool.idempotent) == ("write", True)
