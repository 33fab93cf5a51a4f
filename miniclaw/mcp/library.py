"""The user's sessions and memories as MCP resources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol

from miniclaw.errors import MemoryStoreError
from miniclaw.gateway.protocol import format_time
from miniclaw.mcp.call import Call
from miniclaw.mcp.offers import Object

if TYPE_CHECKING:  # a server answers before it needs them
    from miniclaw.memory.models import MemoryRecord
    from miniclaw.session.models import Session

__all__ = ["SESSIONS", "Library", "ReadsMemories", "ReadsSessions"]

SESSIONS: Final = "miniclaw://sessions/"
"""What the URI of a session begins with; its id follows."""
MEMORIES: Final = "miniclaw://memories/"
LISTED: Final = 200
"""The latest sessions that are listed; all of them can be read."""
TEMPLATES: Final[list[Object]] = [
    {
        "uriTemplate": SESSIONS + "{session_id}",
        "name": "session",
        "title": "Session",
        "description": "A conversation with the agent.",
        "mimeType": "text/markdown",
    },
    {
        "uriTemplate": MEMORIES + "{memory_id}",
        "name": "memory",
        "title": "Memory",
        "description": "Something that the agent remembers of the user.",
        "mimeType": "text/markdown",
    },
]


class ReadsSessions(Protocol):
    """Where sessions are kept."""

    async def list(self, user_id: str | None = None) -> list[Session]:
        """The user's sessions without their logs, the latest first."""
        ...

    async def load(self, session_id: str) -> Session | None:
        """One with its log."""
        ...


class ReadsMemories(Protocol):
    """Where memories are kept."""

    async def list(self, scope: str) -> list[MemoryRecord]:
        """The scope's memories, oldest first."""
        ...

    async def get(self, scope: str, memory_id: str) -> MemoryRecord | None:
        """One of them; raises `MemoryStoreError` when the id cannot be one."""
        ...


class Library:
    """Offers what belongs to the user who asks, and nothing of anybody else.

    Args:
        sessions: opens the sessions for reading.
        memories: the memories.
    """

    def __init__(
        self,
        sessions: Callable[[], AbstractAsyncContextManager[ReadsSessions]],
        memories: Callable[[], ReadsMemories],
    ) -> None:
        self._sessions = sessions
        self._memories = memories

    async def list_resources(self, call: Call) -> Sequence[Object]:
        """The latest sessions and all memories."""
        async with self._sessions() as sessions:
            latest = (await sessions.list(call.user))[:LISTED]
        memories = await self._memories().list(call.user)
        return [
            *(
                {
                    "uri": SESSIONS + one.session_id,
                    "name": one.session_id,
                    "title": one.title or one.session_id,
                    "mimeType": "text/markdown",
                    "annotations": {"lastModified": format_time(one.updated_at)},
                }
                for one in latest
            ),
            *(
                {
                    "uri": MEMORIES + one.memory_id,
                    "name": one.memory_id,
                    "title": _marked(one, " ".join(one.content.split())[:80], " "),
                    "mimeType": "text/markdown",
                }
                for one in memories
            ),
        ]

    async def list_templates(self, call: Call) -> Sequence[Object]:
        """One of each kind."""
        return TEMPLATES

    async def read_resource(self, uri: str, call: Call) -> Sequence[Object] | None:
        """A session as a conversation to read, a memory as its text."""
        if uri.startswith(SESSIONS):
            from miniclaw.session.export import to_markdown

            async with self._sessions() as sessions:
                session = await sessions.load(uri.removeprefix(SESSIONS))
            text = to_markdown(session) if session is not None and session.user_id == call.user else None
        elif uri.startswith(MEMORIES):
            text = await self._memory(uri.removeprefix(MEMORIES), call.user)
        else:
            return None
        return None if text is None else [{"uri": uri, "mimeType": "text/markdown", "text": text}]

    async def complete(
        self, ref: Object, name: str, value: str, context: Mapping[str, str], call: Call
    ) -> Sequence[str] | None:
        """Ids that begin like `value`, and those of what is called something with it."""
        template = ref.get("uri")
        if template == SESSIONS + "{session_id}" and name == "session_id":
            async with self._sessions() as sessions:
                found = await sessions.list(call.user)
            return _fitting(((one.session_id, one.title or "") for one in found), value)
        if template == MEMORIES + "{memory_id}" and name == "memory_id":
            memories = await self._memories().list(call.user)
            return _fitting(((one.memory_id, one.content) for one in memories), value)
        return None

    async def _memory(self, memory_id: str, user: str) -> str | None:
        try:
            record = await self._memories().get(user, memory_id)
        except MemoryStoreError:
            return None
        if record is None or (record.expires_at or "9") <= format_time(time.time()):
            return None
        text = record.content + (f"\n\n{record.context}" if record.context else "")
        return _marked(record, text, "\n\n")


def _marked(record: MemoryRecord, text: str, between: str) -> str:
    return f"[{', '.join(record.marks)}]{between}{text}" if record.marks else text


def _fitting(rows: Iterable[tuple[str, str]], value: str) -> list[str]:
    wanted = value.casefold()
    return [found for found, about in rows if found.startswith(value) or wanted in about.casefold()]
