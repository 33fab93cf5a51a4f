"""Automatic memory: after a turn the model proposes what is worth keeping. Off unless the operator wants it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Final

from miniclaw.agent.budget import Budget, DayBudget
from miniclaw.agent.compactor import ask_model
from miniclaw.agent.core import Core
from miniclaw.agent.progress import Progress
from miniclaw.agent.proposals import MemoryProposals
from miniclaw.errors import MiniClawError
from miniclaw.session.models import Session, Turn

__all__ = ["AutomaticMemory"]

logger = logging.getLogger(__name__)

AT_ONCE: Final = 2
SAID_CHARS: Final = 6_000
"""What is shown of the user's words, and of the answer, at most."""
MOST_WAITING: Final = 50
"""Turns that wait to be looked at; of more, nothing is proposed."""


class AutomaticMemory:
    """Looks at finished turns in the background, a few at a time; what it is not done with at the end is dropped."""

    def __init__(self, core: Core) -> None:
        self._c = core
        self._proposals = MemoryProposals(core)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Whose turn each looks at."""

    def look_at(self, turn: Turn, session: Session, progress: Progress, answer: str) -> None:
        """Begin to look at a turn that has ended, unless nothing is kept unasked."""
        if not self._proposals.are_wanted(turn.scope) or len(self._tasks) >= MOST_WAITING:
            return
        task = asyncio.get_running_loop().create_task(self._look_at(turn, session, progress, answer))
        self._tasks[task] = turn.user_id
        task.add_done_callback(self._tasks.pop)

    async def close(self, user_id: str | None = None) -> None:
        """Drop what is not done, of one user or of all."""
        tasks = [task for task, user in self._tasks.items() if user_id in (None, user)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look_at(self, turn: Turn, session: Session, progress: Progress, answer: str) -> None:
        settings = self._c.settings
        day = DayBudget(self._c.usage, turn.user_id, settings.limits)
        own = replace(progress, budget=Budget(settings.agent, settings.prices, day=day))
        exchange = f"user: {turn.text[:SAID_CHARS]}\nassistant: {answer[:SAID_CHARS]}"
        window = self._c.window.size(session.metadata.get("model") or self._c.provider.info.name)
        ask = partial(ask_model, self._c, turn, session, own)
        try:
            async with self._turns:
                try:
                    await self._proposals.ask_for(
                        turn.scope, turn.text[:SAID_CHARS], exchange, ask, window=window
                    )
                finally:
                    if not self._c.identities.is_gone(turn.user_id):
                        await self._c.usage.store(turn.user_id, own.budget.by_model.values())
        except MiniClawError as error:
            logger.warning("turn %s: nothing is proposed to be remembered: %s", turn.turn_id, error)
