"""How servers say that a conversation is too long for their model, and what limit they name. No I/O."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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
    r"(?:prompt(?!_cache)|\binput(?! should)|request length|(?<!system )messages?|context|conversation|(?<!_)tokens|token (?:count|limit|length)"
    "|输入|上下文|提示词|消息|对话)"
)
_EXCESS: Final = (
    r"(?:exceed|overflow|too (?:long|large|many)|(?:longer|is greater) than|more than (?!one)|\w\W{0,2}>=? ?\(?\w|超|过长|太长"
    r"|(?:must|should|can ?not|can't) (?:be |have )?(?:less|fewer|shorter|at most(?! one)|<|exceed))"
)
_WORDS: Final = re.compile(
    rf"{_SUBJECT}.{{0,80}}?{_EXCESS}|{_EXCESS}.{{0,60}}?{_SUBJECT}|reduce the length|range of input length"
    r"|maximum (?:context|prompt|model|sequence) length|context (?:length|window|size|shift)|longer than the maximum model"
)
"""How servers say that a conversation is too long."""
_ANSWER: Final = re.compile("max_(?:completion_|output_)?tokens")
_NO_ROOM: Final = re.compile(rf"{_ANSWER.pattern} must be at least 1,? (?:but )?got -\d")
"""vLLM: what the history leaves for the answer."""
_PROMPT: Final = re.compile(r"prompt|\binput(?! should)|message|context|total")
_OTHER: Final = re.compile(
    r"\b(?:string|array|list|tools?|names?|id|image|audio|file) (?:is |are |was |should |must |has )?(?:too|have|be|exceed)"
    r"|json schema|schema for|function_declarations|in context=\(|expected an? (?:string|array)|deadline|too many (?:images|documents|files|tools)"
)
"""Something else that is too long."""
_RATE: Final = re.compile(
    r"per (?:min|sec|hour|day)|rate.?limit|quota|throttl|\b(?:qps|rpm|tpm)\b|too many requests|频率|次数"
)
_NUMBER: Final = r"(?<![-.\w])(?!2013\))(\d{3,9})(?![-.]?\w)"
"""Of tokens; 2013 in brackets is MiniMax's code of a refused request."""
_LIMIT: Final = re.compile(
    r"(?:max(?!_(?:new_|completion_|output_)?tokens)|limit|context|window|range|n_ctx|(?:less|fewer|is greater) than|at most"
    r"|exceed|[<>]=?|超过|超出|最大|上限)\w*\W*"
    rf"(?:(?!by\b|requested|resulted|given|received|contains|passed|got|your?\b)\w+\W+){{0,9}}?{_NUMBER}"
    rf"|{_NUMBER} (?:tokens? )?(?:max|limit|or less)"
)
"""A number that words make a limit; the last one is the surest."""
_SUM: Final = re.compile(r"(\d{1,9})\)? ?\+ ?[\w\s]{0,20}?[(=]?(\d{1,9})\)? ?(?:>|\)|超过)")
"""The history, and the longest answer that may follow."""
_TOTAL: Final = re.compile(
    rf"(?:total of|requested:?) (?:a total of )?(?:about |at least )?{_NUMBER}(?! (?:output|completion))"
)
_PROMPT_PART: Final = re.compile(
    rf"(?:has|contains|passed|resulted in) (?:about |at least )?{_NUMBER}"
    r"|(\d{1,9}) \W?(?:inputs?|prompt)\W? tokens|upper bound for (\d{1,9})|输入 ?(\d{3,9})"
    r"|(?<!maximum )(?<!max )(?:prompt|inputs?|request)(?:_tokens)?\b"
    rf"(?:[ (]+(?!and\b|or\b|than\b|exceed|max|limit|should|must)[a-z_]+){{0,4}}?[ :(=]{{1,3}}{_NUMBER}"
)
"""What the history alone has."""
_ANSWER_PART: Final = re.compile(
    rf"{_NUMBER} (?:tokens )?(?:in|for) (?:the|your) (?:completion|output)"
    rf"|{_NUMBER} (?:output tokens|completion tokens|\W?max_(?:new_|completion_|output_)?tokens)"
    rf"|max(?:_(?:new_|completion_|output_)?tokens| output)\W{{1,3}}{_NUMBER}"
)
"""What was set aside for the answer."""
_NO_COUNT: Final = re.compile(r"\d+ characters|resulting in a maximum input length of \d+")
"""Numbers that are neither the window nor what was sent."""

_ONE_STRING: Final = re.compile(
    r"\b(?:call_)?id\b|\bname\b|description|\btools\b|\buser\b|metadata|cache_key"
)
"""What else has a longest string (`string_above_max_length`): its size says nothing of the window."""

LOOKED_AT: Final = 600
"""Characters of a sentence in which the words are looked for."""
_BRACKETS: Final = re.compile(r"<([^<>]*)>")
"""Of DashScope (`<400>`) and Moonshot (`<At path …>`): no comparison."""
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")


class _Sizes(NamedTuple):
    """Tokens, as far as a sentence tells them."""

    limit: int | None = None
    prompt: int | None = None
    answer: int | None = None
    total: int | None = None

    @property
    def sent(self) -> int | None:
        """All that was asked for."""
        return self.total if self.prompt is None else self.total or self.prompt + (self.answer or 0)

    def history(self, answer: int) -> int | None:
        """What the history has where the longest answer is `answer`."""
        is_sum = self.prompt is None and self.total is not None and self.total > answer
        return (self.total or 0) - answer if is_sum else self.prompt


def overflow_in(report: Report, status: int) -> ModelError | None:
    """The overflow that a report tells of, if it does."""
    message, found = _plain(report), _sizes(report)
    limit, sent = found.limit, found.sent
    if status == 429 or _RATE.search(message):  # a rate, unless this request alone is above it
        is_overflow = bool(limit and sent and sent > limit and "token" in message)
    else:
        is_about_answer = _ANSWER.search(message) and not _PROMPT.search(message)
        is_worded = _WORDS.search(message) and not is_about_answer and not _OTHER.search(message)
        # What was sent is below the limit where the length of the answer that was asked for is what is too long.
        is_short = limit and sent and sent < limit
        is_overflow = status in {200, 400, 413, 422, 500} and (
            bool(is_worded and not is_short or _NO_ROOM.search(message))
            or report.has(_CODES)
            and not _ONE_STRING.search(report.words)
        )
    if not is_overflow and status != 413:
        return None
    history = found.history(found.answer or 0)
    is_answer = limit and found.answer and history is not None and history < limit
    text = _WITH_ANSWER if is_answer else TOO_LONG
    return ModelError("context_overflow", text, kind="context_overflow", limit=limit, requested=sent)


def room_for_answer(report: Report, asked: int) -> int | None:
    """The longest answer to ask for instead where `asked`, more than half of what the model takes, is too long.

    Half of that, or what the history leaves, but no less than a quarter: then the history is what is too long.
    """
    found = _sizes(report)
    answer, limit = found.answer or asked, found.limit
    history = found.history(answer)
    if not limit or history is None or not 2 * answer > limit > history:
        return None
    most = max(limit // 4, min(limit // 2, limit - history))
    return most if most < asked else None


def _plain(report: Report) -> str:
    return _THOUSANDS.sub("", _BRACKETS.sub(r"(\1)", report.message[:LOOKED_AT])).lower()


def _sizes(report: Report) -> _Sizes:
    """What a report names; of a sentence without words for it, its largest number above the limit is the total."""
    message = _plain(report)
    if "string" in message or ("character" in message and "token" not in message):
        return _Sizes(report.limit, report.sent)
    message = _NO_COUNT.sub("", message)
    limit = report.limit or _number(next(reversed(list(_LIMIT.finditer(message))), None))
    if (parts := _SUM.search(message)) is not None:
        return _Sizes(limit, int(parts[1]), int(parts[2]))
    answer, total = _number(_ANSWER_PART.search(message)), _number(_TOTAL.search(message))
    prompt = report.sent if report.sent is not None else _number(_PROMPT_PART.search(message))
    if prompt is None and total is None and limit:
        total = max((int(n) for n in re.findall(_NUMBER, message) if int(n) > limit), default=None)
    return _Sizes(limit, prompt, answer, total)


def _number(found: re.Match[str] | None) -> int | None:
    return int(next(filter(None, found.groups()))) if found else None
