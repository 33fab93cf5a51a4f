"""A file that is there whole or not at all, however many write it at once."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from miniclaw.rundir import try_lock

__all__ = ["is_part_of", "whole_file"]

ATTEMPTS: Final = 5
_PART: Final = re.compile(r"(\.[a-z0-9_]{8})?\.part")
"""What is behind a file's name while it is written; that of older versions had no word of its own."""


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Write a file with these permissions, which takes the place of `path` when the block ends without an error.

    It is on the disk by then. What writers that were killed left beside it is removed.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    _sweep(path)
    file, temporary = _begin(path)
    try:
        with file:
            yield file
            file.flush()
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            if os.name != "nt":  # where an open file cannot be renamed
                temporary.replace(path)
        if os.name == "nt":
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_part_of(path: Path, other: Path) -> bool:
    """Whether `other` is where `path` is being written."""
    is_beside = other.parent == path.parent and other.name.startswith(path.name)
    return is_beside and _PART.fullmatch(other.name.removeprefix(path.name)) is not None


def _begin(path: Path) -> tuple[IO[bytes], Path]:
    """A locked file; one that another's sweep took before it was locked is none."""
    attempts = 0
    while True:
        attempts += 1
        descriptor, name = tempfile.mkstemp(prefix=path.name + ".", suffix=".part", dir=path.parent)
        file = open(descriptor, "wb")
        is_ours = try_lock(file) or attempts > ATTEMPTS  # some network drives know no locks
        if is_ours and os.path.lexists(name):
            return file, Path(name)
        file.close()
        Path(name).unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    for left in [one for one in path.parent.iterdir() if is_part_of(path, one) and not one.is_symlink()]:
        with contextlib.suppress(OSError), left.open("r+b") as file:
            if try_lock(file):  # else somebody still writes it
                left.unlink()
