"""What a command came to, as a text for chats; pages and programs get the data instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["command_text", "memory_rows"]

LISTED: Final = 20
"""Rows of a list in one reply."""

ROW: Final = 120
"""Characters of a memory in a row."""
_TYPES: Final = {"semantic": "语义记忆", "episodic": "情景记忆", "procedural": "程序记忆"}
_SENTENCES: Final = {
    "new": "好，新的会话开始了。/ A new session has begun.",
    "clear": "之前的对话已不再给模型看。/ The model no longer sees the conversation so far.",
    "seen": "OK",
    "forget": "已忘记。/ Forgotten: {memory_id}",
    "approve": "已同意。/ Approved.",
    "deny": "已拒绝。/ Denied.",
    "rename": "会话已改名：{title}",
    "delete": "会话已删除。/ Deleted: {session_id}",
    "compact": "已压缩 {messages} 条消息。/ {messages} messages were summarised.",
    "ping": "pong {time}",
    "about": "miniclaw {version} · {user_id} · {model} · workspace: {workspace} · memory: {memory} ({memories})",
}
_LISTS: Final = {
    "sessions": ("sessions", "{session_id}  {title} ({updated_at:.16})"),
    "tools": ("tools", "{name}: {description}"),
    "help": ("commands", "/{name}: {about}"),
    "mcp": ("servers", "{name}: {state} {version} {error}"),
    "history": ("messages", "{role}: {content}"),
    "users": ("users", "{user_id} ({role})"),
    "trace": ("records", "{kind} {name}{model}: {input_tokens} + {output_tokens}, {ms} ms"),
    "timers": ("timers", "{timer_id}  {schedule} → {next_local}: {text}"),
}


def command_text(name: str, result: dict[str, Any], *, most: int = LISTED) -> str:
    """A short text of a command's result; of a list `most` rows."""
    match name:
        case "cancel":
            return (
                "已停止。/ Stopped."
                if result.get("cancelled")
                else "没有正在进行的回答。/ Nothing is running."
            )
        case "model":
            return "\n".join([f"model: {result['model']}", *(f"- {one}" for one in result["models"][:most])])
        case "stats":
            names = {"turn": "回合 / turn", "session": "会话 / session"}
            here = [
                f"{shown}: {_used(row)}" for name, shown in names.items() for row in result.get(name) or ()
            ]
            return _lines(
                [*here, *(f"{row['day']}  {row['model']}: {_used(row)}" for row in result["usage"])]
            )
        case "skills":
            rows = [f"{'● ' * row['active']}{row['name']}: {row['description']}" for row in result["skills"]]
            return _lines(rows, most)
        case "memories" if "cleared" in result:
            return f"已清空 {result['cleared']} 条记忆。/ {result['cleared']} memories were removed."
        case "memories":
            return _lines([*_problems(result), *memory_rows(result["memories"])])
        case "remember":
            close = [f"相近的记忆 / close to it: {row}" for row in memory_rows(result.get("similar") or [])]
            return "\n".join([f"记住了。/ Remembered: {result['memory_id']}", *close])
        case "resume" | "fork":
            return f"会话 / session: {result.get('title') or result['session_id']}"
    if sentence := _SENTENCES.get(name):
        return sentence.format_map(_Given(result))
    key, row = _LISTS.get(name, ("", ""))
    rows = [row.format_map(_Given(one)) for one in result.get(key) or ()]
    rows += _problems(result)
    return _lines(rows, most) if key else "OK"


def memory_rows(memories: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line a memory: number, type, content, context and id; what is sensitive is marked."""
    rows = []
    for number, memory in enumerate(memories, 1):
        kind = f"{memory['memory_type']} / {_TYPES[memory['memory_type']]}"
        mark = " · sensitive / 敏感" if memory.get("category") == "sensitive" else ""
        if memory.get("status") == "proposed":
            mark += f" · proposed / 待确认: /remember {memory['memory_id']}"
        text = " ".join(f"{memory['content']} | {memory.get('context') or '-'}".split())
        short = text if len(text) <= ROW else text[: ROW - 1] + "…"
        rows.append(f"{number}. [{kind}{mark}] {short} ({memory['memory_id']}, {memory['updated_at'][:10]})")
    return rows


def _problems(result: Mapping[str, Any]) -> list[str]:
    return ["⚠ {source}: {error}".format_map(_Given(one)) for one in result.get("problems") or ()]


def _used(row: Mapping[str, Any]) -> str:
    cost = row["cost"]
    money = f"${cost:.4f}" if isinstance(cost, int | float) else "费用未知 / cost unknown"
    return (
        f"{row['input_tokens']} + {row['output_tokens']}, {row['calls']} 次 / calls,"
        f" {row['ms'] / 1000:.1f} s, {money}"
    )


def _lines(rows: list[str], most: int = LISTED) -> str:
    short = [" ".join(row.split())[:200] for row in rows[:most]]
    more = [f"… +{len(rows) - most}"] if len(rows) > most else []
    return "\n".join([*short, *more]) or "（空）/ (nothing)"


class _Given(dict[str, Any]):
    """Values for a sentence; one that is not there is left out."""

    def __missing__(self, key: str) -> str:
        return ""
