"""How a channel words the question whether a tool may run; `question` is the data of `approval.requested`."""

from __future__ import annotations

import re
from typing import Any, Final

from miniclaw.channel.forms import needed_in

__all__ = ["question_markdown", "question_text"]

ABOUT_CHARS: Final = 500
"""Of what a question is about."""
ASKED_CHARS: Final = 3000
"""Of the same where there are buttons."""
FIELDS_CHARS: Final = 200
"""Of the names of what is to be filled in."""

_FENCE = re.compile(r"`(?=``)")
"""What would end a block of code before its end."""


def question_text(question: dict[str, Any]) -> str:
    """A question for channels without buttons; short enough for a message of any of them.

    In no dialect it takes more than four bytes a character, since it is code, and ends with the commands.
    """
    return f"需要确认 / please confirm: {_quoted(question, ABOUT_CHARS)}\n\n{_commands(question, '/')}"


def question_markdown(question: dict[str, Any], *, sign: str = "") -> str:
    """A question for channels that show Markdown above buttons.

    Args:
        question: see above.
        sign: what commands begin with there, which can be typed as well; empty = the question is answered.
    """
    asked = f"**需要确认 / please confirm**\n{_quoted(question, ASKED_CHARS)}"
    return f"{asked}\n\n{_commands(question, sign)}" if sign else asked


def _commands(question: dict[str, Any], sign: str) -> str:
    short = str(question.get("short_id") or question["approval_id"])
    fields = "".join(f" {name}=…" for name in needed_in(question))[:FIELDS_CHARS]
    return f"{sign}approve {short}{fields}  ·  {sign}deny {short}"


def _quoted(question: dict[str, Any], limit: int) -> str:
    """The tool, and what it is about as code, so that all of it is seen.

    How much is left out is said: nobody is to agree to what was hidden.
    """
    about = str(question.get("summary") or question["arguments"])
    left_out = len(about) - limit
    shown, rest = (
        _FENCE.sub("`\u200b", about[:limit]),
        f"\n… (+{left_out} characters)" if left_out > 0 else "",
    )
    return f"`{question['tool']}`\n```\n{shown}\n```{rest}"
