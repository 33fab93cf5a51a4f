"""A session as a file for people and programs: Markdown and JSON."""

from __future__ import annotations

import json
from typing import Any

from miniclaw.gateway.protocol import format_time
from miniclaw.session.models import Entry, Session

__all__ = ["entry_row", "fenced", "to_json", "to_markdown"]


def entry_row(entry: Entry) -> dict[str, Any]:
    """An entry as lists and exports show it."""
    row: dict[str, Any] = {
        "role": entry.message["role"],
        "content": entry.message.get("content"),
        "turn_id": entry.turn_id,
        "step": entry.step,
        "position": entry.position,
        "at": format_time(entry.at),
    }
    for name in ("tool_calls", "tool_call_id"):
        if name in entry.message:
            row[name] = entry.message[name]
    row |= entry.meta or {}
    if "shown" in row:  # what a person saw, where the model is told more
        row["content"] = row.pop("shown") or None
    return row


def to_json(session: Session) -> str:
    """The whole log, as `GET …/messages` shows it, with what is known of the session."""
    head = {
        "session_id": session.session_id,
        "title": session.title,
        "channel": session.channel,
        "created_at": format_time(session.created_at),
        "updated_at": format_time(session.updated_at),
    }
    rows = [entry_row(entry) for entry in session.messages]
    return json.dumps({**head, "messages": rows}, ensure_ascii=False, indent=2)


def to_markdown(session: Session) -> str:
    """The conversation to read: who said what, and which tools were used."""
    lines = [f"# {session.title or session.session_id}", ""]
    for entry in session.messages:
        message = entry.message
        if message["role"] == "tool":
            lines += [fenced(message.get("content") or ""), ""]
            continue
        lines += [f"## {message['role']} · {format_time(entry.at)}", ""]
        if message.get("content"):
            lines += [message["content"], ""]
        for call in message.get("tool_calls") or ():
            lines += [f"`{call['function']['name']}` {call['function']['arguments']}", ""]
    return "\n".join(lines)


def fenced(text: str) -> str:
    """A text as a code block whose fence no line of the text can close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
