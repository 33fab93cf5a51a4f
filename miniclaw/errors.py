"""Every exception that miniClaw raises.

MiniClawError
├── ConfigError             the operator must mend a setting, a file or the environment
│   └── DirectoryBusy       another process has the data directory
├── StorageError            what is stored could not be read or written
│   ├── StorageUnavailable  try again later; nothing was changed
│   └── StaleFence          another process owns the session now; this one must stop writing
├── ProtocolError           the peer sent something that we refuse; carries a code of the wire protocol
├── ModelError              the model could not answer; carries a `turn.failed` code
├── ToolError               a tool refused or failed; its text goes back to the model
│   └── ToolTimeout         what a tool asked did not answer in time; a read is tried once more
├── SkillError              a skill file is not usable; carries file and line
├── MemoryStoreError        a memory, its id or its scope was refused, or its file could not be read or written
├── MCPError                a JSON-RPC error of an MCP peer; carries its code
│   └── MCPUnavailable      an MCP server cannot be reached, died or gave no answer
└── DeliveryError           a channel could not send; says whether sending again can help
"""

from __future__ import annotations

import errno
from typing import Any, Final


class MiniClawError(Exception):
    """Root of the tree; its text is one sentence: what is wrong and what to do."""


class ConfigError(MiniClawError):
    """A setting, file or environment variable is wrong; the text says how to mend it."""


class DirectoryBusy(ConfigError):
    """Another process writes the data directory; there can be one at a time."""


class StorageError(MiniClawError):
    """Stored data could not be read or written."""


class StorageUnavailable(StorageError):
    """Storage does not answer now; nothing was changed and trying again may help."""


NOT_NOW: Final = "Storage does not answer; try again in a moment."
"""What a peer is told then, with the code `storage_unavailable`."""


def unavailable(error: Exception) -> StorageUnavailable | None:
    """What to raise for an error that says nothing of what is stored and passes: nothing can be opened, a lock, I/O.

    SQLite's codes: https://www.sqlite.org/rescode.html.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    busy, locked, no_memory, io, full, cannot_open = 5, 6, 7, 10, 13, 14
    is_file = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
    if not is_file and code not in (busy, locked, no_memory, io, full, cannot_open):
        return None
    return StorageUnavailable(
        f"Storage cannot be read just now: {getattr(error, 'strerror', None) or error}."
    )


BAD_DISK: Final = "look at its disk"


def way_out(error: Exception) -> str | None:
    """What mends an error of rights, room or the disk, of which what is stored is not the cause; `None` for any other."""
    code, number = getattr(error, "sqlite_errorcode", 0) & 0xFF, getattr(error, "errno", None)
    perm, io, readonly, full, auth = 3, 10, 8, 13, 23
    if code in (perm, readonly, auth) or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "give this user the right to read and write it"
    if code == full or number in (errno.ENOSPC, errno.EDQUOT):
        return "make room on its disk"
    if code == io or number == errno.EIO:
        return BAD_DISK
    if unavailable(error) is not None:
        return "see that it can be read and written and that nothing else holds it"
    return None


class StaleFence(StorageError):
    """A newer owner holds the session; the write was refused."""


class ProtocolError(MiniClawError):
    """A peer's message was refused.

    Attributes:
        code: one of the wire protocol's error codes, such as `bad_json`.
        reply_to: the `msg_id` of the refused message, where it could be read.
    """

    def __init__(self, code: str, message: str, *, reply_to: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reply_to = reply_to


class ModelError(MiniClawError):
    """The model gave no usable answer.

    Attributes:
        code: the `turn.failed` code, such as `model_auth`.
        kind: the same more finely, such as `overloaded` or `stream_cut`; the code where nothing finer is known.
        limit: the tokens that the model takes, where an overflow named them.
        requested: the tokens that were sent, where an overflow named them.
        retry_after: seconds to wait before another try can succeed, where the server named them.
        retryable: whether the same request may succeed when it is sent again.
        body: what the server reported inside an answer whose status was good, as it came.
        model: whose failure it is, where several can be asked.
    """

    body: object = None
    model: str = ""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        kind: str | None = None,
        limit: int | None = None,
        requested: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind or code
        self.limit = limit
        self.requested = requested
        self.retryable = retryable
        self.retry_after = retry_after


class ToolError(MiniClawError):
    """A tool call was refused or failed; the model reads the text and decides what to do next."""


class OutsideWorkspace(ToolError):
    """A path leads to where the file tools do not reach; another tool may."""


class ToolTimeout(ToolError, TimeoutError):
    """What a tool asked did not answer in time; a call that only reads is tried once more."""


class SkillError(MiniClawError):
    """A skill file cannot be used; the text names the file, the line and the reason."""


class MemoryStoreError(MiniClawError):
    """A memory record, its id or its scope was refused, or its file could not be read or written."""


class MCPError(MiniClawError):
    """A JSON-RPC error of the Model Context Protocol.

    Attributes:
        code: the JSON-RPC error code, such as -32602.
        data: what the error carries beside its message, where its code asks for it.
    """

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class MCPUnavailable(MCPError):
    """An MCP server cannot be reached, died, or gave no answer; another try later may help.

    Attributes:
        status: the HTTP status that said so, where one did.
        needs_login: the operator must log in first; trying again cannot help.
    """

    def __init__(self, message: str, *, status: int | None = None, needs_login: bool = False) -> None:
        super().__init__(-32603, message)
        self.status = status
        self.needs_login = needs_login


class DeliveryError(MiniClawError):
    """A push channel could not send a part of an answer.

    Attributes:
        permanent: sending again cannot help.
        unknown: the platform may have taken it (time-out, cut connection).
        retry_after: seconds the platform asked us to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        permanent: bool = False,
        unknown: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.unknown = unknown
        self.retry_after = retry_after
