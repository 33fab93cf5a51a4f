"""What a user may do with their own sessions; the same for commands and the HTTP API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from miniclaw.agent.core import Core
from miniclaw.errors import ProtocolError, SkillError
from miniclaw.gateway.events import event_frame
from miniclaw.gateway.pages import session_row
from miniclaw.gateway.protocol import format_time
from miniclaw.session.models import Session, title_of
from miniclaw.session.ports import TurnQueue

__all__ = ["SessionActions"]

MAX_TITLE: Final = 200
LISTED: Final = 500
"""Sessions of one list at most."""


class SessionActions:
    """Each method takes the scope it acts for and finds nothing of anybody else's.

    All raise `ProtocolError` with `session_not_found` for a session that is not the scope's.
    """

    def __init__(self, core: Core, mailbox: TurnQueue) -> None:
        self._c = core
        self._mailbox = mailbox

    async def phase(self, session_id: str) -> str:
        """`idle`, `running` or `waiting_approval`."""
        feed = self._c.live.get(session_id)
        if feed is not None and feed.approval is not None:
            return "waiting_approval"
        return "running" if await self._mailbox.has_turns(session_id) else "idle"

    async def list(self, scope: str, query: str = "") -> dict[str, Any]:
        """The sessions, the latest first, and whether there are `more`.

        With a query those whose title holds it, and as `hits` the messages that do.
        """
        found = await self._c.sessions.list(scope)
        if query:
            found = [one for one in found if query.lower() in one.title.lower()]
        rows = [session_row(s, await self.phase(s.session_id)) for s in found[:LISTED]]
        listed: dict[str, Any] = {"sessions": rows, "more": len(found) > LISTED}
        if query:
            listed["hits"] = [asdict(hit) for hit in await self._c.search.search(scope, query)]
        return listed

    async def whole(self, scope: str, session_id: str) -> Session:
        """The session with its log."""
        if await self._c.sessions.owned(session_id, scope) is not None:
            session = await self._c.sessions.get(session_id)
            if session is not None:
                return session
        raise ProtocolError("session_not_found", "There is no such session.")

    async def rename(self, scope: str, session_id: str, title: str) -> dict[str, Any]:
        """Give it a title; an empty one lets the first message be the title again."""
        session = await self.whole(scope, session_id)
        said = (entry.message.get("content") for entry in session.messages if entry.message["role"] == "user")
        title = " ".join(title.split())[:MAX_TITLE] or title_of(str(next(said, "")))
        await self._c.sessions.update(session, is_use=False, title=title or None)
        return self._tell(scope, session_row(session, await self.phase(session_id)))

    async def seen(self, scope: str, session_id: str) -> dict[str, Any]:
        """Everything in it up to now was read."""
        session = await self.whole(scope, session_id)
        await self._c.sessions.update(session, is_use=False, seen=format_time(session.updated_at))
        self._tell(scope, session_row(session, await self.phase(session_id)))
        return {"session_id": session_id}

    async def fork(self, scope: str, session_id: str, position: int | None) -> dict[str, Any]:
        """A new session that goes on behind one message of this one; behind the last one by default."""
        session = await self.whole(scope, session_id)
        last = session.next_position - 1 if position is None else position
        if not -1 <= last < session.next_position:
            raise ProtocolError("bad_arguments", "`position` must be that of a message of the session.")
        copy = await self._c.sessions.fork(session, last)
        return self._tell(scope, session_row(copy, "idle"))

    async def delete(self, scope: str, session_id: str) -> dict[str, Any]:
        """Remove it with everything in it; not while a turn runs or waits.

        Raises:
            ProtocolError: `session_busy`.
        """
        if not await self._c.sessions.finish_deletes(session_id, scope):
            await self.whole(scope, session_id)
            deleted = await self._c.sessions.delete(session_id, unless="open")
            if not deleted and await self._c.sessions.get(session_id) is not None:
                raise ProtocolError("session_busy", "A turn of this session is running; cancel it first.")
        return self._tell(scope, {"session_id": session_id, "deleted": True})

    def _tell(self, scope: str, row: dict[str, Any]) -> dict[str, Any]:
        """Show all connections of the user what became of a session."""
        frame = event_frame("session.updated", row, target="agent", session_id=row["session_id"])
        self._c.news.follow(f"user.{scope}", row["session_id"], frame)
        return row

    async def skills(self, session: Session | None, activate: str, deactivate: str) -> dict[str, Any]:
        """The skills, after one was switched on or off in a session of the scope.

        Raises:
            ProtocolError: `not_found`: there is no such skill, or it cannot be used.
        """
        self._c.skills.reload_if_changed()
        active = frozenset((session.metadata.get("skills") or ()) if session else ())
        try:
            chosen = self._c.skills.activate(active, activate) if activate else active
        except SkillError as error:
            raise ProtocolError("not_found", f"{error}.") from error
        chosen = self._c.skills.deactivate(chosen, deactivate)
        if session is not None and chosen != active:
            loaded = await self.whole(session.user_id, session.session_id)
            await self._c.sessions.update(loaded, skills=sorted(chosen))
        return {"skills": self._c.skills.rows(chosen)}
