"""Who may run a `write` tool: rules first, then a question to the person, stored before it is asked."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from miniclaw.agent.patience import until_stored
from miniclaw.agent.policy import Verdict, verdict_of
from miniclaw.agent.providers import ToolCall
from miniclaw.agent.question import Approval, Decision, State, digest_of, filled
from miniclaw.config import ApprovalSettings, Clock
from miniclaw.db import Database
from miniclaw.errors import ProtocolError
from miniclaw.gateway.events import TurnFeed
from miniclaw.gateway.protocol import new_id
from miniclaw.session.models import Turn
from miniclaw.tools.base import Risk, Tool

__all__ = ["Approval", "ApprovalDesk", "Decision", "State", "digest_of"]

logger = logging.getLogger(__name__)

_STATES: Final[dict[str, State]] = {"deny": "denied", "unattended": "unattended"}

_MAY_ANSWER: Final = (
    "(user_id = ? OR (? AND session_id IN (SELECT session_id FROM sessions WHERE user_id GLOB 'grp_*')))"
)
_COLUMNS: Final = (
    "approval_id, short_id, turn_id, session_id, user_id, call_id, tool, arguments, state, expires_at"
)


class ApprovalDesk:
    """Stores questions and answers, and wakes the turns that wait for them.

    The first answer wins; without one within `approval.timeout` seconds the call is denied. After a
    restart the same question is asked again under the same id.
    """

    def __init__(
        self,
        database: Database,
        settings: ApprovalSettings,
        *,
        is_admin: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._db = database
        self._settings = settings
        self._is_admin = is_admin
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[tuple[State, str]]] = {}
        self._summaries: dict[str, str] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def rule(self, turn: Turn, tool: Tool, arguments: Mapping[str, Any], risk: Risk) -> Verdict:
        """What the rules say of a call for this user and session; first the operator's, then the user's."""
        said = verdict_of(self._settings, tool, arguments, risk, turn.user_id)
        if said is not None or risk == "read":
            return said or "allow"
        if tool.asks_always:
            return "ask"
        return "allow" if await self._has_rule(turn, tool.name) else "ask"

    def is_attended(self, turn: Turn) -> bool:
        """Whether somebody sees a question of this turn."""
        until = turn.message.get("asks_until")
        return bool(turn.message.get("asks", True)) and (until is None or self._clock() < until)

    async def ask(
        self,
        turn: Turn,
        call: ToolCall,
        feed: TurnFeed,
        summary: str,
        *,
        goes_on: Callable[[], bool],
        changes: Sequence[str] = (),
    ) -> Approval:
        """Commit the question, show it with what the tool says of the call, and wait for the answer.

        `approval.requested` tells the `changes` that a file would see, as lines of a difference, where there are any.
        `approval.resolved` tells the state as `decision`; of an approval also the `scope`: `once`, `session`, `always`.
        When the call is given up while its turn `goes_on`, the question is closed, and may be asked anew; else it stays.
        """
        try:
            approval = await until_stored(lambda: self._open(turn, call, summary))
            return await self._answer(approval, feed, summary, changes)
        except asyncio.CancelledError:
            if goes_on():
                closing = asyncio.get_running_loop().create_task(self._give_up(turn, call, feed, summary))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                await asyncio.shield(closing)  # a second cancel ends the wait alone
            raise

    async def _give_up(self, turn: Turn, call: ToolCall, feed: TurnFeed, summary: str) -> None:
        # It may be stored or not: the same is opened once.
        approval = await until_stored(lambda: self._open(turn, call, summary))
        state = await until_stored(lambda: self._expire(approval.approval_id, given_up=True))
        self._summaries.pop(approval.approval_id, None)
        feed.emit("approval.resolved", {"approval_id": approval.approval_id, "decision": state})

    async def _answer(
        self, approval: Approval, feed: TurnFeed, summary: str, changes: Sequence[str]
    ) -> Approval:
        if approval.state != "asked":
            return approval
        self._summaries[approval.approval_id] = summary  # for one that is asked again after a restart
        waiter = self._waiting.setdefault(approval.approval_id, asyncio.get_running_loop().create_future())
        more: dict[str, Any] = {"again": True} if approval.again else {}
        scope = ""
        if changes:
            more["changes"] = list(changes)
        feed.emit("approval.requested", {**approval.to_dict(), **more})
        try:
            # The clock may be set back.
            left = min(approval.expires_at - self._clock(), self._settings.timeout)
            async with asyncio.timeout(max(0.0, left)):
                state, scope = await asyncio.shield(waiter)
        except TimeoutError:
            state = await until_stored(lambda: self._expire(approval.approval_id))
        finally:
            self._waiting.pop(approval.approval_id, None)
            self._summaries.pop(approval.approval_id, None)
        told = {"scope": scope or "once"} if state == "approved" else {}
        feed.emit("approval.resolved", {"approval_id": approval.approval_id, "decision": state, **told})
        if state == "approved" and approval.form is not None:
            approval = replace(
                approval, arguments=await until_stored(lambda: self._arguments(approval.approval_id))
            )
        return replace(approval, state=state)

    async def decide(
        self,
        reference: str,
        user_id: str,
        decision: Decision,
        session_id: str | None = None,
        answer: str | Mapping[str, Any] = "",
    ) -> Approval:
        """Answer a question by its id or short id, or the only one of a session; the first answer wins.

        `answer` is what a form is filled in with: see `channel.forms.fill`.

        Raises:
            ProtocolError: there is no such question that is open and this user's to answer, or the answer does not fit.
        """
        found = [
            one
            for one in await self.open_for(user_id)
            if (reference in (one.approval_id, one.short_id) if reference else one.session_id == session_id)
        ]
        if not reference and len(found) > 1:
            ids = ", ".join(one.short_id for one in found)
            raise ProtocolError("bad_arguments", f"There are several open questions; name one: {ids}.")
        reference, completed = found[0].approval_id if found else reference, ""
        state = _STATES.get(decision, "approved")
        if found and state == "approved":
            completed = filled(found[0], answer)
        approval = await self._decide(reference, user_id, decision, state, completed)
        if approval is None:
            raise ProtocolError(
                "approval_not_found",
                "There is no such open question; it may be answered, or its time is over.",
            )
        self.wake(approval.approval_id, state, decision)
        logger.info("approval %s of %s: %s", approval.approval_id, approval.tool, decision)
        return approval

    async def _has_rule(self, turn: Turn, tool: str) -> bool:
        query = "SELECT 1 FROM approval_rules WHERE user_id = ? AND session_id IN ('', ?) AND tool = ?"
        return bool(self._db.read(query, (turn.user_id, turn.session_id, tool)))

    async def _decide(
        self, reference: str, user_id: str, decision: Decision, state: State, completed: str
    ) -> Approval | None:
        """Store the answer to a question that is open, in time and this user's, and its rule.

        `completed` are its arguments with what was filled in, if they are others now.
        """
        moment = self._clock()  # not later: an answer may have to wait for storage

        def operation(connection: sqlite3.Connection) -> Approval | None:
            query = f"SELECT {_COLUMNS} FROM approvals WHERE state = 'asked' AND ? IN (approval_id, short_id)"
            rows = connection.execute(
                f"{query} AND expires_at > ? AND {_MAY_ANSWER}", (reference, moment, *self._who(user_id))
            ).fetchall()
            if not rows:
                return None
            approval = _approval(rows[0])
            statement = "UPDATE approvals SET state = ?, arguments = iif(?2 = '', arguments, ?2) WHERE approval_id = ?"
            connection.execute(statement, (state, completed, approval.approval_id))
            if decision in ("session", "always"):
                session_id = approval.session_id if decision == "session" else ""
                rule = (approval.user_id, session_id, approval.tool)
                connection.execute("INSERT INTO approval_rules VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rule)
            return approval

        return await self._db.write(operation)

    async def _arguments(self, approval_id: str) -> dict[str, Any]:
        rows = self._db.read("SELECT arguments FROM approvals WHERE approval_id = ?", (approval_id,))
        found: dict[str, Any] = json.loads(rows[0][0]) if rows else {}
        return found

    async def open_for(self, user_id: str) -> list[Approval]:
        """The questions that this user may answer: their own, and an admin those of groups."""
        rows = self._db.read(
            f"SELECT {_COLUMNS} FROM approvals WHERE state = 'asked' AND {_MAY_ANSWER} "
            "ORDER BY created_at LIMIT 100",
            self._who(user_id),
        )
        return [_approval(row, self._summaries.get(row[0], "")) for row in rows]

    def _who(self, user_id: str) -> tuple[str, bool]:
        return user_id, self._is_admin(user_id)

    async def _open(self, turn: Turn, call: ToolCall, summary: str) -> Approval:
        digest = digest_of(call, summary)
        moment = self._clock()
        expires_at = moment + self._settings.timeout

        def operation(connection: sqlite3.Connection) -> Approval:
            query = (
                f"SELECT {_COLUMNS} FROM approvals WHERE turn_id = ? "
                "AND digest = ? AND (call_id = ? OR state IN ('denied', 'unattended', 'expired'))"
            )
            row = connection.execute(query, (turn.turn_id, digest, call.id)).fetchone()
            if row is not None:
                return replace(_approval(row, summary), again=True)
            approval_id = new_id("apr")
            values = (
                *(approval_id, approval_id[-6:], turn.turn_id, turn.session_id, turn.user_id, call.id),
                *(call.name, json.dumps(call.arguments, ensure_ascii=False), "asked", expires_at),
            )
            connection.execute(
                f"INSERT INTO approvals ({_COLUMNS}, digest, created_at) VALUES ({', '.join('?' * 12)})",
                (*values, digest, moment),
            )
            self._summaries[approval_id] = summary  # whoever sees the row sees what it is about
            return _approval(values, summary)

        return await self._db.write(operation)

    async def _expire(self, approval_id: str, *, given_up: bool = False) -> State:
        """Commit that nobody answered in time, or not before the call was given up; returns the answer that won."""

        def operation(connection: sqlite3.Connection) -> State:
            connection.execute(
                "UPDATE approvals SET state = 'expired', digest = iif(?, '', digest) "
                "WHERE approval_id = ? AND state = 'asked'",
                (given_up, approval_id),
            )
            query = "SELECT state FROM approvals WHERE approval_id = ?"
            winner: State = connection.execute(query, (approval_id,)).fetchone()[0]
            return winner

        return await self._db.write(operation)

    def wake(self, approval_id: str, state: State, scope: str) -> None:
        """A question was answered, here or by another process; an empty `scope` is `once`."""
        waiter = self._waiting.get(approval_id)
        if waiter is not None and not waiter.done():
            waiter.set_result((state, scope))


def _approval(row: Any, summary: str = "") -> Approval:
    return Approval(
        approval_id=row[0],
        short_id=row[1],
        turn_id=row[2],
        session_id=row[3],
        user_id=row[4],
        call_id=row[5],
        tool=row[6],
        arguments=json.loads(row[7]),
        state=row[8],
        expires_at=row[9],
        summary=summary,
    )
