"""加：给会话写导出。

`export(session)` 返回 Markdown：第一行 `# <标题>`（`metadata["title"]`，没有就用会话编号），空一行，
之后每条一行 `**我**：…`（role 是 user）或 `**小店**：…`（role 是 assistant）；别的 role 不导出。
"""

from __future__ import annotations

from day3_session import Session


def export(session: Session) -> str:
    return ""
