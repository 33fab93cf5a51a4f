"""How servers say that a conversation is too long for their model, and what limit they name. No I/O."""

from __future__ import annotations

import re
from typing import Final

from miniclaw.agent.report import Report, whole_number
from miniclaw.errors import ModelError

__all__ = ["TOO_LONG", "overflow_in"]

TOO_LONG: Final = "The conversation is too long for the model; start a new one."

_CODES: Final = frozenset({
    *("context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "1261"),
    *("context_window_exceeded", "request_too_large"),
})  # fmt: skip
_WORDS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"exceed context limit: (?P<a>\d+) \+ (?P<b>\d+) > (?P<limit>\d+)",
        r"prompt is too long(?::\s*(?P<sent>\d+) tokens? > (?P<limit>\d+))?",
        r"\(length (?P<sent>\d+)\).{0,40}longer than the maximum model length of (?P<limit>\d+)",
        r"maximum (?:context|prompt|model|sequence) length(?: of| is)? (?P<limit>\d+)"
        r"(?:.{0,300}?(?:resulted in|requested|contains|a total of|you passed|has)\s*(?:about )?(?P<sent>\d+))?",
        r"contains (?P<sent>\d{1,12}) tokens.{0,60}?(?:too large|exceed).{0,120}?(?P<limit>\d{1,12}) maximum context",
        r"range of input length should be \[\d+, ?(?P<limit>\d+)\]",
        r"\((?P<sent>\d+) tokens\) exceeds the available context size(?: \((?P<limit>\d+))?",
        r"exceeds? the available context size",
        r"token count (?:\(?(?P<sent>\d+)\)? )?exceeds the maximum number of tokens allowed \(?(?P<limit>\d+)",
        r"prompt \((?P<sent>\d+) tokens\) is too long and exceeds limit of (?P<limit>\d+)",
        r"number of tokens (?:\(input \+ output\) )?\(?(?P<sent>\d+)\)? exceeds? the model'?s limit of (?P<limit>\d+)",
        r"tokens in request more than max tokens allowed:? ?(?P<limit>\d+)?",
        r"total tokens of .{1,40} exceed max message tokens",
        r"(?:输入|上下文|提示词|prompt).{0,12}(?:超过|超出).{0,12}(?:最大)?(?:长度|限制|上下文)(?:.{0,12}?(?P<limit>\d{3,9}) ?tokens?)?",
        r"exceeded model token limit:? ?(?P<limit>\d+)(?: \(requested: (?P<sent>\d+))?",
        r"\((?P<sent>\d+) tokens\) is longer than the model'?s context length \((?P<limit>\d+)",
        r"must (?:be <=|have less than) (?P<limit>\d+).{0,20}given:? (?P<sent>\d+)",
        r"cannot exceed (?P<limit>\d+).{0,20}received (?P<sent>\d+)",
        r"first (?P<sent>\d+) tokens when context the overflows.{0,200}context length of only (?P<limit>\d+)",
        r"tokens? per min.{0,200}limit:? (?P<limit>\d+),(?: used:? \d+,)? requested:? (?P<sent>\d+)",
        r"(?:exceed\w*|longer than|too long for|over) (?:the |this |its )?(?:model'?s? )?(?:max(?:imum)? )?context"
        r"(?: length| window| size)?(?: exceeds? limit)?",
        r"context (?:length|window|size)(?: of this model)? (?:is |was )?(?:exceed|too)",
        r"input is too long|prompt too long|prompt 超长|too many tokens|reduce the length of the (?:messages|prompt|input)",
        r"maximum context|context (?:length|window)",
    )
)
"""How servers say that a conversation is too long; most name the limit."""

LOOKED_AT: Final = 600
"""Characters of a sentence in which the words are looked for."""
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")


def overflow_in(report: Report, status: int) -> ModelError | None:
    """The overflow that a report tells of, if it does."""
    message = _THOUSANDS.sub("", report.message[:LOOKED_AT])
    found = next((match for pattern in _WORDS if (match := pattern.search(message))), None)
    groups = found.groupdict() if found else {}
    limit, sent = (
        report.limit or whole_number(groups.get("limit")),
        report.sent or whole_number(groups.get("sent")),
    )
    if groups.get("a"):
        sent = int(groups["a"]) + int(groups["b"])
    if status == 429 or "per min" in report.message:  # a rate, unless this request alone is above it
        is_overflow = bool(limit and sent and sent > limit)
    else:
        is_known = found is not None or report.has(_CODES)
        # What was sent is below the limit where the length of the answer that was asked for is what is too long.
        is_overflow = (
            status in {200, 400, 413, 422, 500} and is_known and not (limit and sent and sent < limit)
        )
    if not is_overflow and status != 413:
        return None
    return ModelError("context_overflow", TOO_LONG, kind="context_overflow", limit=limit, requested=sent)
