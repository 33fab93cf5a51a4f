"""Whether this machine's clock is right, as far as a server's `Date` tells: signatures of platforms depend on it."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["seconds_off"]

TIMEOUT: Final = 5.0


def seconds_off(url: str) -> float | None:
    """Seconds by which our clock is ahead of the server's; `None` when it does not tell."""
    request = urllib.request.Request(url, headers={"User-Agent": "miniclaw"})
    began = time.time()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            told = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        told = error.headers.get("Date")
        error.close()
    except (OSError, ValueError):
        return None
    try:
        theirs = parsedate_to_datetime(told or "").timestamp()
    except (TypeError, ValueError):
        return None
    return (began + time.time()) / 2 - theirs
