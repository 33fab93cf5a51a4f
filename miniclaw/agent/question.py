"""A question to a person as it is stored: what may run, or what a tool asks in the middle of a call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from miniclaw.agent.providers import ToolCall
from miniclaw.agent.transcript import fingerprint
from miniclaw.channel.forms import fill
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import format_time
from miniclaw.text import TURNING

__all__ = ["Approval", "Decision", "State", "digest_of", "filled"]

Decision = Literal["once", "session", "always", "deny", "unattended"]
State = Literal["asked", "approved", "denied", "unattended", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question to a person."""

    approval_id: str
    short_id: str
    turn_id: str
    session_id: str
    user_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    state: State
    expires_at: float
    summary: str = ""
    """What the tool says of the call, where it can."""
    again: bool = False
    """An earlier attempt asked it, so that the person may see it already."""

    @property
    def form(self) -> dict[str, Any] | None:
        """What a person can fill in, where a tool asks for that in the middle of a call."""
        return self.arguments.get("form") if self.call_id.startswith("ask_") else None

    def to_dict(self) -> dict[str, Any]:
        """As events and lists show it."""
        return {
            "approval_id": self.approval_id,
            "short_id": self.short_id,
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "call_id": self.call_id,
            "tool": self.tool,
            "arguments": self.arguments,
            "summary": self.summary.translate(TURNING),
            "expires_at": format_time(self.expires_at),
        }


def filled(question: Approval, answer: str | Mapping[str, Any]) -> str:
    """The question's arguments with the answer, as JSON; empty where nothing is asked for but yes."""
    if question.form is not None:
        content = fill(question.form, answer)
        return json.dumps({**question.arguments, "content": content}, ensure_ascii=False)
    if answer:
        raise ProtocolError(
            "bad_arguments", "This question is answered by yes (once, session, always) or no alone."
        )
    return ""


def digest_of(call: ToolCall, summary: str) -> str:
    """By which a question is known again; what a tool asks in the middle of a call (`ask_…`) is its words too."""
    parts = (*fingerprint(call), summary) if call.id.startswith("ask_") else fingerprint(call)
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).hexdigest()
