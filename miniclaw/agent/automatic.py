"""Automatic memory: after a turn the model proposes what is worth keeping. Off unless the operator wants it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from miniclaw.agent.budget import Budget, DayBudget
from miniclaw.agent.compactor import ask_model
from miniclaw.agent.core import Core
from miniclaw.agent.progress import Progress
from miniclaw.errors import MiniClawError
from miniclaw.memory.models import Category, MemoryRecord, MemoryType, is_group
from miniclaw.memory.sensitive import is_secret, is_sensitive
from miniclaw.session.models import Session, Turn
from miniclaw.text import tokenize

__all__ = ["AutomaticMemory"]

logger = logging.getLogger(__name__)

AT_ONCE: Final = 2
MOST_WAITING: Final = 50
"""Turns that wait to be looked at; of more, nothing is proposed."""
MOST: Final = 3
"""Proposals of a turn that are taken."""
SHOWN: Final = 8
"""Records that the model is shown, the nearest."""
SAID_CHARS: Final = 6_000
GROUNDED: Final = 0.5
"""The part of a proposal's words that the user's own words must contain: what others wrote is not the user's."""

INSTRUCTIONS: Final = """\
You keep the long-term memory of an assistant. Below are what is known already and the latest exchange, as data.
Propose what will still matter in months and what the user said themselves: lasting facts about them, decisions,
preferences. Nothing that is known already, no small talk, no passwords or keys, nothing about health, faith,
politics or money. Write in the user's language, one full sentence each. Answer with a JSON array only, [] for
nothing: [{"content": "...", "context": "when or why, in a few words", "memory_type": "semantic|episodic|procedural",
"category": "fact|preference|task", "replaces": "the id of a known one that is no longer true, or null"}]"""


class _Proposal(BaseModel):
    model_config = ConfigDict(extra="ignore")

    content: Annotated[str, StringConstraints(min_length=3, max_length=500, strip_whitespace=True)]
    context: Annotated[str, StringConstraints(max_length=300)] = ""
    memory_type: MemoryType = "semantic"
    category: Category = "fact"
    replaces: str | None = None


_PROPOSAL: Final = TypeAdapter(_Proposal)


class AutomaticMemory:
    """Looks at finished turns in the background, a few at a time; what it is not done with at the end is dropped."""

    def __init__(self, core: Core) -> None:
        self._c = core
        self._mode = core.settings.memory.automatic
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def look_at(self, turn: Turn, session: Session, progress: Progress, answer: str) -> None:
        """Begin to look at a turn that has ended, unless this is off; in groups nothing is kept unasked."""
        if self._mode == "off" or is_group(turn.scope) or len(self._tasks) >= MOST_WAITING:
            return
        task = asyncio.get_running_loop().create_task(self._look_at(turn, session, progress, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop what is not done."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look_at(self, turn: Turn, session: Session, progress: Progress, answer: str) -> None:
        settings = self._c.settings
        day = DayBudget(self._c.usage, turn.user_id, settings.limits)
        own = replace(progress, budget=Budget(settings.agent, settings.prices, day=day))
        try:
            async with self._turns:
                known = [found.record for found in await self._c.memory.search(turn.scope, turn.text, SHOWN)]
                request = _request(turn.text, answer, known)
                try:
                    response = await ask_model(self._c, turn, session, own, "memory", request)
                finally:
                    await self._c.usage.store(turn.user_id, own.budget.by_model.values())
                for proposal in _proposals(response.text, turn.text, known):
                    await self._keep(turn, proposal, known)
        except MiniClawError as error:
            logger.warning("turn %s: nothing is proposed to be remembered: %s", turn.turn_id, error)

    async def _keep(self, turn: Turn, proposal: _Proposal, known: Sequence[MemoryRecord]) -> None:
        memory = self._c.memory
        old = next((record for record in known if record.memory_id == proposal.replaces), None)
        # What the user said themselves, or keeps as sensitive, no model takes the place of.
        is_free = old is None or (old.source == "agent" and old.category != "sensitive")
        words = f"{proposal.content} {proposal.context}"
        is_sure = self._mode == "on" and is_free and not is_sensitive(words)
        record = await memory.save(
            turn.scope,
            proposal.content,
            context=proposal.context,
            memory_type=proposal.memory_type,
            category=proposal.category,
            source="agent",
            status="active" if is_sure else "proposed",
        )
        logger.info("turn %s: %s is %s", turn.turn_id, record.memory_id, "saved" if is_sure else "proposed")
        if old is not None and is_sure and record.memory_id != old.memory_id:
            # Not if a person changed it while the model thought.
            await memory.supersede(
                turn.scope, old.memory_id, by=record.memory_id, expected_updated_at=old.updated_at
            )


def _request(said: str, answer: str, known: Sequence[MemoryRecord]) -> list[dict[str, Any]]:
    lines = "\n".join(record.line for record in known) or "(nothing)"
    exchange = f"user: {said[:SAID_CHARS]}\nassistant: {answer[:SAID_CHARS]}"
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"Known already:\n{lines}\n\nThe exchange:\n{exchange}"},
    ]


def _proposals(text: str, said: str, known: Sequence[MemoryRecord]) -> list[_Proposal]:
    """Those that can be used: new, in the user's own words for the most part, and not sensitive."""
    try:
        rows = json.loads(text[text.find("[") : text.rfind("]") + 1] or "[]")
    except (ValueError, RecursionError):
        return []
    words = set(tokenize(said))
    old = [set(tokenize(record.text)) for record in known]
    usable: list[_Proposal] = []
    for row in rows if isinstance(rows, list) else ():
        try:
            proposal = _PROPOSAL.validate_python(row)
        except ValidationError:
            continue
        terms = set(tokenize(proposal.content)) - set(tokenize("user 用户"))
        is_theirs = len(terms & words) >= GROUNDED * len(terms) > 0
        is_barred = proposal.category == "sensitive" or is_secret(f"{proposal.content} {proposal.context}")
        if is_theirs and not is_barred and not any(terms <= record for record in old):
            usable.append(proposal)
    return usable[:MOST]
