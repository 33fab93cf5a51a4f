"""Ends the servers of a miniclaw that died without ending them; a program of its own, for POSIX only.

Its standard input is the only thing that ties it to its owner: `+PID` and `-PID` say which process groups
belong to it, and the end says that the owner is gone, however that came about.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Final

GRACE: Final = 0.5
"""Seconds that a server may take to end by itself, since its own input has ended as well."""


def main() -> None:
    """Note what belongs to the owner until it is gone; then end that."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    time.sleep(GRACE if groups else 0)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
