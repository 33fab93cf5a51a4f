"""The gate of one turn, which every tool call passes: policy, question, and the mark that a write has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from miniclaw.agent.approval import Approval, ApprovalDesk
from miniclaw.agent.patience import until_stored
from miniclaw.agent.progress import Pause
from miniclaw.agent.providers import ToolCall
from miniclaw.gateway.events import TurnFeed
from miniclaw.gateway.protocol import new_id, plain_text
from miniclaw.session.history import INTERRUPTED
from miniclaw.session.models import Turn
from miniclaw.session.ports import Turns
from miniclaw.tools.base import DescribesCall, Risk, Tool
from miniclaw.tools.changes import changes_of
from miniclaw.tools.context import ToolContext
from miniclaw.tools.foreign import contained, is_cancelled, tasks_contained

__all__ = ["TurnGate"]

logger = logging.getLogger(__name__)

DENIED: Final = "the user said no to this call; do not try it again in this turn, say what you could not do"
UNATTENDED: Final = (
    "nobody is there to approve this call, so it was denied; the operator can allow the tool with "
    "`--allow {tool}` or `approval.allow` in miniclaw.toml"
)
UNATTENDED_EXACT: Final = (
    "nobody is there to approve this call, so it was denied; the operator can allow exactly this call of "
    "`{tool}` by a rule in `[[approval.rules]]` of miniclaw.toml"
)
DESCRIBE_SECONDS: Final = 5.0
"""How long a tool may take to describe a call."""
SUMMARY_CHARS: Final = 1_000
EXPIRED: Final = "nobody answered the question in time, so the call was denied"


class TurnGate:
    """The `ToolGate` of one turn, made in the task of its attempt: policy, question, and the mark of a begun write.

    Args:
        pause: called with `True` while a person is asked, so that waiting is not the turn's time.
    """

    def __init__(
        self,
        turn: Turn,
        feed: TurnFeed,
        desk: ApprovalDesk,
        turns: Turns,
        *,
        find: Callable[[str], Tool | None],
        pause: Pause,
        fence: int | None,
        context: ToolContext,
    ) -> None:
        self._turn = turn
        self._feed = feed
        self._desk = desk
        self._turns = turns
        self._find = find
        self.pause = pause
        self._fence = fence
        self._context = context
        self._asking = asyncio.Lock()
        attempt = asyncio.current_task()
        self._goes_on = lambda: attempt is not None and not attempt.cancelling()

    async def admit(self, call: ToolCall, risk: Risk) -> str | None:
        """A call passes by rule or by a person's yes; a write is marked as begun, and passes once."""
        tool = self._find(call.name)
        if risk == "forbidden" or tool is None:
            return f"`{call.name}` may not be used here"
        if risk == "read":
            return await self._refusal(tool, call, risk)
        if (
            self._turn.attempt > 1
            and not tool.idempotent
            and await until_stored(partial(self._turns.was_started, self._turn.turn_id, call.id))
        ):
            return INTERRUPTED
        refusal = await self._refusal(tool, call, risk)
        if refusal is None and not tool.idempotent:
            mark = partial(self._turns.mark_started, self._turn.turn_id, call.id, fence=self._fence)
            await until_stored(mark)
        return refusal

    async def _refusal(self, tool: Tool, call: ToolCall, risk: Risk) -> str | None:
        rule = await until_stored(partial(self._desk.rule, self._turn, tool, call.arguments or {}, risk))
        if rule != "ask":
            return None if rule == "allow" else f"the operator does not allow `{tool.name}`"
        unattended = (UNATTENDED_EXACT if tool.asks_always else UNATTENDED).format(tool=tool.name)
        if not self._desk.is_attended(self._turn):
            return unattended
        place = self._context.workspace
        changes = await asyncio.to_thread(changes_of, tool.name, call.arguments or {}, place)
        shown = [*map(plain_text, changes)]
        state = (await self._ask(call, partial(self._describe, tool, call), shown)).state
        if state == "approved":
            return None
        if state == "unattended":
            return unattended
        return EXPIRED if state == "expired" else DENIED

    async def confirm(self, about: str, shown: dict[str, Any], summary: str) -> tuple[str, dict[str, Any]]:
        """What the person says to what a tool asks in the middle of a call: see `ToolContext.confirm`."""
        if not self._desk.is_attended(self._turn):
            return "unattended", {}

        async def said() -> str:
            return plain_text(summary)[:SUMMARY_CHARS]

        answered = await self._ask(ToolCall.of(new_id("ask"), about, shown), said)
        return answered.state, answered.arguments.get("content", {})

    async def _ask(
        self, call: ToolCall, describe: Callable[[], Awaitable[str]], changes: Sequence[str] = ()
    ) -> Approval:
        async with self._asking:  # a person answers one question after another
            self.pause(True)
            try:
                summary = await describe()
                return await self._desk.ask(
                    self._turn, call, self._feed, summary, goes_on=self._goes_on, changes=changes
                )
            finally:
                self.pause(False)

    async def _describe(self, tool: Tool, call: ToolCall) -> str:
        if not isinstance(tool, DescribesCall):
            return ""
        try:
            async with asyncio.timeout(DESCRIBE_SECONDS):
                with tasks_contained():
                    text = await contained(tool.describe(call.arguments or {}, self._context))
        except BaseException as error:  # boundary: a question is asked even if the tool cannot describe it
            if is_cancelled(error):
                raise
            logger.exception("a call of %s cannot be described", tool.name)
            return ""
        return plain_text(text)[:SUMMARY_CHARS] if isinstance(text, str) else ""
