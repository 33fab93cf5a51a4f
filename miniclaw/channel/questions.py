"""How a channel words the question whether a tool may run; `question` is the data of `approval.requested`."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["question_markdown", "question_text"]

ABOUT_CHARS: Final = 500
"""Of what a question is about."""
ASKED_CHARS: Final = 3000
"""Of the same where there are buttons."""


def question_text(question: dict[str, Any]) -> str:
    """A question for channels without buttons; short enough for a message of any of them."""
    short = str(question.get("short_id") or question["approval_id"])
    about = question.get("summary") or f"{question['tool']} {question['arguments']}"
    shown = "".join(_cut(about, ABOUT_CHARS))
    return f"需要确认 / please confirm: {shown}\n\n/approve {short}  ·  /deny {short}"


def question_markdown(question: dict[str, Any]) -> str:
    """A question for channels that show Markdown above buttons."""
    summary = str(question.get("summary") or "")
    shown, rest = _cut(summary or str(question["arguments"]), ASKED_CHARS)
    what = shown if summary else f"`{question['tool']}`\n```\n{shown}\n```\n"
    return f"**需要确认 / please confirm**\n{what}{rest}".rstrip()


def _cut(text: str, limit: int) -> tuple[str, str]:
    """The beginning of a text, and how much of it is left out: nobody is to agree to what was hidden."""
    rest = len(text) - limit
    return (text[:limit], f"… (+{rest} characters)") if rest > 0 else (text, "")
