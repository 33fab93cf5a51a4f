"""Named places at which a test can have the process killed, to prove what survives.

Nothing is armed unless `arm` is called, which only `serve` does, and only when the environment of a test
asks for it; an unarmed place costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["NAMES", "arm", "hit"]

NAMES: Final = (
    "after-accept",
    "before-model",
    "mid-stream",
    "after-calls",
    "in-read-tool",
    "in-write-tool",
    "after-result",
    "before-end",
    "after-sending",
    "after-sent",
)
"""In the order in which a message passes them."""

_armed: str | None = None


def arm(name: str | None) -> None:
    """Kill this process with SIGKILL when it comes to `name`; `None` disarms.

    Raises:
        ValueError: there is no such place.
    """
    global _armed
    if name is not None and name not in NAMES:
        raise ValueError(f"there is no fail point {name!r}; there are: {', '.join(NAMES)}")
    _armed = name


def hit(name: str) -> None:
    """The process has come to `name`."""
    if _armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
