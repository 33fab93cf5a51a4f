"""加：给会话写导出（答案）。"""

from __future__ import annotations

from day3_session import Session

NAMES = {"user": "我", "assistant": "小店"}


def export(session: Session) -> str:
    lines = [f"# {session.metadata.get('title') or session.session_id}", ""]
    for entry in session.messages:
        name = NAMES.get(str(entry.message["role"]))
        if name is not None:
            lines.append(f"**{name}**：{entry.message['content']}")
    return "\n".join(lines) + "\n"
