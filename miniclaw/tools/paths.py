"""What a path in a workspace may be called."""

from __future__ import annotations

import os
import re
from typing import Final

from miniclaw.errors import OutsideWorkspace, ToolError

__all__ = ["MAX_DEPTH", "read_path"]

MAX_PATH: Final = 1_000
MAX_DEPTH: Final = 32
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\..*)?", re.IGNORECASE)
_NEVER_IN_NAMES: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_NEW_NAMES: Final = re.compile(r'[<>:"|?*]')


def read_path(path: str, *, is_new: bool = True) -> tuple[str, ...]:
    r"""The names that a relative path consists of; `/` and `\` both divide them.

    Raises:
        ToolError: the path leads out of the workspace, or, where it `is_new`, has a name that some system
            cannot keep. What another program has put there may be called as this system allows.
    """
    is_new |= os.name == "nt"
    text = path.replace("\\", "/")
    shown = repr(path[:80])
    if text.startswith(("/", "~")) or (is_new and re.match("[A-Za-z]:", text)):
        raise OutsideWorkspace(
            f"The path {shown} is not relative. Paths begin in the workspace, such as `a/b.md`."
        )
    names = tuple(name for name in text.split("/") if name not in ("", "."))
    if ".." in names:
        raise ToolError(f"The path {shown} leads upwards; `..` is not allowed.")
    if len(text) > MAX_PATH or len(names) > MAX_DEPTH:
        raise ToolError(f"The path {shown} is too long.")
    for name in names:
        is_odd = _NOT_IN_NEW_NAMES.search(name) or name[-1] in ". " or _DEVICE.fullmatch(name)
        if _NEVER_IN_NAMES.search(name) or (is_new and is_odd):
            raise ToolError(f"{name[:80]!r} cannot be the name of a file. Choose a plain name.")
        if is_new and len(name.encode()) > 255 - 16:  # a new file has a longer name while it is written
            raise ToolError(f"The name {name[:40]!r}… is too long.")
    return names
