"""How log lines look, and the ids of what is being worked on, which JSON lines carry."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["JsonFormatter", "log_ids", "request_id"]

_IDS: ContextVar[dict[str, str] | None] = ContextVar("log_ids", default=None)


@contextlib.contextmanager
def log_ids(**ids: str) -> Iterator[None]:
    """Let each line that is logged inside, also by tasks begun there, carry these ids, but for empty ones, beside those outside."""
    token = _IDS.set({**(_IDS.get() or {}), **{name: value for name, value in ids.items() if value}})
    try:
        yield
    finally:
        _IDS.reset(token)


def request_id() -> str:
    """The id of the HTTP request that is being answered, or nothing."""
    return (_IDS.get() or {}).get("request_id", "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, ids, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **(_IDS.get() or {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
