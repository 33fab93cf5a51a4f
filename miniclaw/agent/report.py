"""Reads what a model server says of a failure: bodies of many shapes, and how long to wait. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Final

from miniclaw.gateway.protocol import plain_text

__all__ = ["Report", "is_error", "is_report", "read_report", "retry_after", "whole_number"]

_SOON: Final = re.compile(
    r"(?:try again|retry|wait|available) (?:again )?(?:in|after|for)\s*:?\s*((?:[\d.]+ ?(?:ms|[hms]|sec\w*|min\w*|hours?)\s*)+)",
    re.IGNORECASE,
)
_SPAN: Final = re.compile(r"([\d.]+)\s*(ms|s|sec\w*|m|min\w*|h|hours?)(?![a-z])", re.IGNORECASE)
MOST_CHARS: Final = 2_000
"""What is read of a sentence; a server may repeat all that it was sent."""
LONGEST: Final = 1e15
"""Seconds; a longer wait is taken for this one."""
NAME_CHARS: Final = 100
"""What is read of a code, a parameter's name or a time."""
_NOTHING: Final[tuple[object, ...]] = (None, False, "", "null", "none", "0", "ok", "success", [], {})
"""What stands in a field `error` where there is none."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Report:
    """What the body of a refusal says."""

    message: str = ""
    code: str = ""
    type: str = ""
    param: str = ""
    limit: int | None = None
    sent: int | None = None
    delay: float | None = None
    """Seconds to wait, where the body names them."""

    @property
    def words(self) -> str:
        """Code, parameter and sentence together, to look for words in."""
        return f"{self.code} {self.param} {self.message}".lower()

    def has(self, codes: frozenset[str]) -> bool:
        """Whether the code or the type is one of these."""
        return self.code.lower() in codes or self.type.lower() in codes


def is_error(value: object) -> bool:
    """Whether a field `error` tells of one: some servers send it empty."""
    if isinstance(value, dict):
        return any(value.values()) and value.get("code") not in (0, "0", 200, "200")
    return isinstance(value, str | list) and not _is_nothing(value)


def _is_nothing(value: object) -> bool:
    return (value.lower() if isinstance(value, str) else value) in _NOTHING


def is_report(chunk: dict[str, Any]) -> bool:
    """Whether a chunk without an answer is the report of an error, in one of the forms in use."""
    if not _is_nothing(chunk.get("error")) or chunk.get("object") == "error" or chunk.get("detail"):
        return True
    said = any(isinstance(chunk.get(key), str) for key in ("message", "msg", "error_msg"))
    if said and any(isinstance(chunk.get(key), str | int) for key in ("code", "error_code")):
        return True
    base = chunk.get("base_resp")  # MiniMax
    return isinstance(base, dict) and bool(base.get("status_code"))


def read_report(body: object) -> Report:
    """The report in a body of whatever shape."""
    outer: object = body[0] if isinstance(body, list) and body else body
    if not isinstance(outer, dict):
        is_said = isinstance(outer, str) and not outer.lstrip().startswith("<")
        return Report(_text(outer)[:MOST_CHARS] if is_said else "")
    inner = outer.get("error") or outer.get("errors") or outer.get("base_resp") or outer
    inner = inner[0] if isinstance(inner, list) and inner else inner
    fields = inner if isinstance(inner, dict) else outer
    if (upstream := _upstream(fields)) is not None:
        return upstream
    said = (fields.get(key) for key in ("message", "msg", "error_msg", "status_msg"))
    message = next(filter(None, said), inner if isinstance(inner, str) else "")
    param = fields.get("param")
    detail = outer.get("detail")
    if not message and isinstance(detail, list) and detail and isinstance(detail[0], dict):
        place = detail[0].get("loc")
        param = ".".join(str(part) for part in place if part != "body") if isinstance(place, list) else ""
        message = f"{param}: {detail[0].get('msg')}"
    codes = (fields.get(key) for key in ("code", "error_code", "status"))
    code = next((code for code in codes if code is not None), None)
    if fields.get("status_code"):  # MiniMax, whose numbers mean something else elsewhere
        code = f"minimax-{fields['status_code']}"
    return Report(
        _text(message or detail or "")[:MOST_CHARS],
        "" if code is None else _text(code)[:NAME_CHARS],
        _text(fields.get("type") or fields.get("status") or "")[:NAME_CHARS],
        _text(param or "")[:NAME_CHARS],
        limit=whole_number(fields.get("n_ctx")),
        sent=whole_number(fields.get("n_prompt_tokens")),
        delay=_delay_in(fields),
    )


def retry_after(headers: Mapping[str, str], clock: Callable[[], float]) -> float | None:
    """The seconds that a server asks to wait, in any of the headers that are in use."""
    if (ms := _float(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    if value := headers.get("retry-after"):
        if (seconds := _span(value.partition(",")[0] if value[:1].isdigit() else value)) is not None:
            return seconds
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - clock())
        except ValueError:
            pass
    for what in ("requests", "tokens"):
        if headers.get(f"x-ratelimit-remaining-{what}") == "0":
            return _span(headers.get(f"x-ratelimit-reset-{what}", ""))
    moment = _float(headers.get("x-ratelimit-reset"))
    if moment is None or moment < 1e9:
        return moment
    return max(0.0, (moment / 1000 if moment > 1e11 else moment) - clock())


def _upstream(fields: Mapping[str, Any]) -> Report | None:
    """What the provider behind OpenRouter said, which stands in its `metadata`.

    Source: https://openrouter.ai/docs/api-reference/errors
    """
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not raw or "provider returned error" not in str(fields.get("message")).lower():
        return None
    with suppress(ValueError, RecursionError, TypeError):
        raw = json.loads(raw)
    found = read_report(raw)
    code = found.code or _text(fields.get("code") or "")[:NAME_CHARS]
    return replace(found, code=code) if found.message else None


def _delay_in(fields: Mapping[str, Any]) -> float | None:
    """Seconds to wait that a body names, in a detail or in its sentence."""
    details = fields.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
            return _span(detail["retryDelay"])
    found = _SOON.search(str(fields.get("message") or "")[:MOST_CHARS])
    return _span(found[1]) if found else None


def _span(text: str) -> float | None:
    """Seconds of a text such as `1m30s`, `20ms` or `7`."""
    if (seconds := _float(text)) is not None:
        return seconds
    seconds = 0.0
    parts = _SPAN.findall(text[:NAME_CHARS])
    for number, unit in parts:
        if (count := _float(number)) is None:
            return None
        seconds += count * _UNITS["ms" if unit.lower() == "ms" else unit[0].lower()]
    return seconds if parts else None


def _float(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return min(number, LONGEST) if 0 <= number < math.inf else None


def whole_number(value: object) -> int | None:
    """A count above zero, `None` where it is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: object) -> str:
    return plain_text(value if isinstance(value, str) else str(value))
