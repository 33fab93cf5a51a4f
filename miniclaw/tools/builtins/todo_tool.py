"""The `todo` tool: the plan of a session, which the user can watch and read as a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from miniclaw.errors import ToolError
from miniclaw.gateway.protocol import plain_text
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.function import tool
from miniclaw.tools.workspace import Workspace

__all__ = ["todo_tool"]

DIRECTORY: Final = ".plans"
_KEPT: Final = 200
"""Plans kept in a workspace; the oldest go first."""
_MARKS: Final = {"pending": " ", "in_progress": "~", "done": "x"}
_STATES: Final = {mark: state for state, mark in _MARKS.items()}


class Step(BaseModel):
    """One step of a plan."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    text: str = Field(min_length=1, max_length=300)
    status: Literal["pending", "in_progress", "done"] = "pending"


def todo_tool(open_workspace: Callable[[Path], Workspace] = Workspace) -> Tool:
    """The tool; plans are check lists in Markdown, a file a session."""

    @tool(idempotent=True)
    def todo(
        context: ToolContext,
        steps: Annotated[
            list[Step] | None,
            Field(max_length=50, description="the whole plan, in order; left out = only show it"),
        ] = None,
    ) -> ToolResult:
        """Keep the plan of a task with several steps. Write it before you begin, and after each step again."""
        workspace, path = open_workspace(context.workspace), f"{DIRECTORY}/{context.session_id}.md"
        if steps is None:
            steps = _read(workspace, path)
        else:
            workspace.write(path, _written(steps).encode())
            workspace.keep_newest(DIRECTORY, _KEPT)
        done = sum(step.status == "done" for step in steps)
        content = f"{_written(steps)}{done} of {len(steps)} done." if steps else "There is no plan."
        return ToolResult(content=content, data=[step.model_dump() for step in steps])

    return todo


def _written(steps: list[Step]) -> str:
    return "".join(f"- [{_MARKS[step.status]}] {' '.join(plain_text(step.text).split())}\n" for step in steps)


def _read(workspace: Workspace, path: str) -> list[Step]:
    try:
        text = workspace.read(path).decode("utf-8", "replace")
    except ToolError:  # none was written
        return []
    found = re.findall(r"^- \[([ ~x])\] (.{1,300})$", text, re.MULTILINE)
    return [Step.model_validate({"text": line, "status": _STATES[mark]}) for mark, line in found]
