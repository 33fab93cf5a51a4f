"""Sessions and their logs as lists for people: the same for commands and the HTTP API."""

from __future__ import annotations

from typing import Any, Final

from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import format_time
from miniclaw.session.export import entry_row
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Session

__all__ = ["MAX_PAGE", "message_page", "session_row"]

MAX_PAGE: Final = 1000
"""Messages of one page at most."""


def session_row(session: Session, phase: str) -> dict[str, Any]:
    """A session as a list shows it."""
    return {
        "session_id": session.session_id,
        "title": session.title,
        "channel": session.channel,
        "phase": phase,
        "created_at": format_time(session.created_at),
        "updated_at": format_time(session.updated_at),
        "unread": str(session.metadata.get("seen", "~")) < format_time(session.updated_at),
    }


async def message_page(
    sessions: SessionManager, session_id: str, user_id: str, *, before: int | None, limit: int
) -> dict[str, Any]:
    """A page of the user's session, oldest first, and whether there are more before it.

    Raises:
        ProtocolError: `session_not_found`.
    """
    if await sessions.owned(session_id, user_id) is None:
        raise ProtocolError("session_not_found", "There is no such session.")
    page = await sessions.storage.load(session_id, last=limit, before=before)
    entries = page.messages if page is not None else []
    more = bool(entries) and entries[0].position > 0
    return {"session_id": session_id, "messages": [entry_row(entry) for entry in entries], "more": more}
