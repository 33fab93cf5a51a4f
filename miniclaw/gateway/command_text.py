"""What a command came to, as a text for chats; pages and programs get the data instead."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["command_text"]

LISTED: Final = 20
"""Rows of a list in one reply."""

_SENTENCES: Final = {
    "new": "好，新的会话开始了。/ A new session has begun.",
    "clear": "之前的对话已不再给模型看。/ The model no longer sees the conversation so far.",
    "seen": "OK",
    "remember": "记住了。/ Remembered: {memory_id}",
    "forget": "已忘记。/ Forgotten: {memory_id}",
    "approve": "已同意。/ Approved.",
    "deny": "已拒绝。/ Denied.",
    "rename": "会话已改名：{title}",
    "delete": "会话已删除。/ Deleted: {session_id}",
    "compact": "已压缩 {messages} 条消息。/ {messages} messages were summarised.",
    "ping": "pong {time}",
}
_LISTS: Final = {
    "sessions": ("sessions", "{session_id}  {title}"),
    "tools": ("tools", "{name}: {description}"),
    "memories": ("memories", "{memory_id}  {content}"),
    "help": ("commands", "/{name}: {about}"),
    "stats": ("usage", "{day}  {model}: {input_tokens} + {output_tokens}"),
    "history": ("messages", "{role}: {content}"),
    "users": ("users", "{user_id} ({role})"),
}


def command_text(name: str, result: dict[str, Any]) -> str:
    """A short text of a command's result."""
    match name:
        case "cancel":
            return (
                "已停止。/ Stopped."
                if result.get("cancelled")
                else "没有正在进行的回答。/ Nothing is running."
            )
        case "model":
            return "\n".join(
                [f"model: {result['model']}", *(f"- {one}" for one in result["models"][:LISTED])]
            )
        case "skills":
            return _lines([f"{'● ' if row['active'] else ''}{row['name']}" for row in result["skills"]])
        case "resume" | "fork":
            return f"会话 / session: {result.get('title') or result['session_id']}"
    if sentence := _SENTENCES.get(name):
        return sentence.format_map(_Given(result))
    key, row = _LISTS.get(name, ("", ""))
    return _lines([row.format_map(_Given(one)) for one in result.get(key) or ()]) if key else "OK"


def _lines(rows: list[str]) -> str:
    short = [" ".join(row.split())[:200] for row in rows[:LISTED]]
    more = [f"… +{len(rows) - LISTED}"] if len(rows) > LISTED else []
    return "\n".join([*short, *more]) or "（空）/ (nothing)"


class _Given(dict[str, Any]):
    """Values for a sentence; one that is not there is left out."""

    def __missing__(self, key: str) -> str:
        return ""
