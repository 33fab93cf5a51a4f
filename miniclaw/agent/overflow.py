"""How servers say that a conversation is too long for their model, and what limit they name. No I/O."""

from __future__ import annotations

import re
from typing import Final

from miniclaw.agent.report import Report
from miniclaw.errors import ModelError

__all__ = ["TOO_LONG", "overflow_in", "room_for_answer"]

TOO_LONG: Final = "The conversation is too long for the model; start a new one."
_WITH_ANSWER: Final = (
    "The conversation and the longest answer that may follow are together too long for the model; start a new one, or "
    "lower agent.max_tokens."
)

_CODES: Final = frozenset({
    *("context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "1261"),
    *("context_window_exceeded", "contextwindowexceedederror", "request_too_large"),
})  # fmt: skip
_SUBJECT: Final = (
    r"(?:prompt|\binput(?! should)|(?<!system )messages?|context|conversation|(?<!_)tokens|token (?:count|limit|length)"
    "|输入|上下文|提示词|消息|对话)"
)
_EXCESS: Final = (
    r"(?:exceed|overflow|too (?:long|large|many)|longer than|more than (?!one)|>|超|过长|太长"
    r"|(?:must|should|can ?not|can't) (?:be |have )?(?:less|fewer|shorter|at most|<|exceed))"
)
_WORDS: Final = re.compile(
    rf"{_SUBJECT}.{{0,80}}?{_EXCESS}|{_EXCESS}.{{0,60}}?{_SUBJECT}|reduce the length|range of input length"
    r"|maximum (?:context|prompt|model|sequence) length|context (?:length|window|size|shift)|longer than the maximum model"
)
"""How servers say that a conversation is too long."""
_ANSWER: Final = re.compile("max_(?:completion_|output_)?tokens")
_PROMPT: Final = re.compile(r"prompt|\binput(?! should)|message|context|total")
_OTHER: Final = re.compile(
    r"\b(?:string|array|list|tools?|names?|id|image|audio|file) (?:is |are |was |should |must |has )?(?:too|have|be|exceed)"
    r"|expected an? (?:string|array)|deadline"
)
"""Something else that is too long."""
_RATE: Final = re.compile(
    r"per (?:min|sec|hour|day)|rate.?limit|quota|throttl|\b(?:qps|rpm|tpm)\b|too many requests|频率|次数"
)
_NUMBER: Final = r"(?<![-.\w])(?!2013\))(\d{3,9})(?![-.]?\w)"
"""Of tokens; 2013 in brackets is MiniMax's code of a refused request."""
_LIMIT: Final = re.compile(
    r"(?:max(?!_(?:new_|completion_|output_)?tokens)|limit|context|window|range|n_ctx|less than|fewer than|at most"
    r"|exceed|[<>]=?|超过|超出|最大|上限)\w*\W*"
    rf"(?:(?!by\b|requested|resulted|given|received|contains|passed|got|your?\b)\w+\W+){{0,9}}?{_NUMBER}"
    rf"|{_NUMBER} (?:tokens? )?(?:max|limit|or less)"
)
"""A number that words make a limit; the last one is the surest."""
_SUM: Final = re.compile(r"(\d{1,9})\)? ?\+ ?[\w\s]{0,20}?\(?(\d{1,9})\)? ?>")
_SENT: Final = re.compile(rf"(?:requested:?|has|contains|passed|resulted in) (?:about )?{_NUMBER}")
_ANSWER_PART: Final = re.compile(
    rf"{_NUMBER} (?:tokens )?(?:in|for) (?:the|your) (?:completion|output)"
    r"|\d\)? ?\+ ?(?:[a-z_]{0,30} ?[=(])?(\d{1,9})\)? ?(?:>|\))"
)
"""What of that was set aside for the answer."""

LOOKED_AT: Final = 600
"""Characters of a sentence in which the words are looked for."""
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")


def overflow_in(report: Report, status: int) -> ModelError | None:
    """The overflow that a report tells of, if it does."""
    message = _plain(report)
    limit, sent = _numbers(message)
    limit, sent = report.limit or limit, report.sent or sent
    if status == 429 or _RATE.search(message):  # a rate, unless this request alone is above it
        is_overflow = bool(limit and sent and sent > limit and "token" in message)
    else:
        is_about_answer = _ANSWER.search(message) and not _PROMPT.search(message)
        is_worded = _WORDS.search(message) and not is_about_answer and not _OTHER.search(message)
        # What was sent is below the limit where the length of the answer that was asked for is what is too long.
        is_short = limit and sent and sent < limit
        is_overflow = (
            status in {200, 400, 413, 422, 500} and not is_short and bool(is_worded or report.has(_CODES))
        )
    if not is_overflow and status != 413:
        return None
    answer = _answer_in(message)
    text = _WITH_ANSWER if limit and sent and answer and sent - answer < limit else TOO_LONG
    return ModelError("context_overflow", text, kind="context_overflow", limit=limit, requested=sent)


def room_for_answer(report: Report, asked: int) -> int | None:
    """The longest answer to ask for instead where `asked`, more than half of what the model takes, is too long.

    Half of that, or what the history leaves, but no less than a quarter: then the history is what is too long.
    """
    message = _plain(report)
    (limit, sent), answer = _numbers(message), _answer_in(message)
    if not limit or not sent or not 2 * answer > limit > sent - answer:
        return None
    most = max(limit // 4, min(limit // 2, limit - (sent - answer)))
    return most if most < asked else None


def _answer_in(message: str) -> int:
    found = _ANSWER_PART.search(message)
    return int(found[1] or found[2]) if found else 0


def _plain(report: Report) -> str:
    return _THOUSANDS.sub("", report.message[:LOOKED_AT]).lower()


def _numbers(message: str) -> tuple[int | None, int | None]:
    """The limit that a sentence names, and what was sent: what it says of that, or its largest number above the limit."""
    if "string" in message or "character" in message:
        return None, None
    limit = next((int(found[1] or found[2]) for found in reversed(list(_LIMIT.finditer(message)))), None)
    if (parts := _SUM.search(message)) is not None:
        return limit, int(parts[1]) + int(parts[2])
    if (sent := _SENT.search(message)) is not None:
        return limit, int(sent[1])
    return limit, max(
        (int(n) for n in re.findall(_NUMBER, message) if limit and int(n) > limit), default=None
    )
