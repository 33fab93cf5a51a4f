"""What a model proposes to keep of what was said, and what of it is taken."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from miniclaw.agent.core import Core
from miniclaw.agent.providers import Ask
from miniclaw.memory.models import Category, MemoryRecord, MemoryType, is_group
from miniclaw.memory.sensitive import is_secret, is_sensitive
from miniclaw.memory.tokens import cut_to_tokens, estimate_tokens
from miniclaw.text import tokenize

__all__ = ["INSTRUCTIONS", "MOST", "MemoryProposals"]

logger = logging.getLogger(__name__)

MOST: Final = 3
"""Proposals of a turn that are taken."""
SHOWN: Final = 8
"""Records that the model is shown, the nearest."""
QUERY_CHARS: Final = 6_000
"""Of what was said, those at its end by which known records are looked for."""
REQUEST_SHARE: Final = 0.85
"""The part of the window that the request may take; the rest is the answer's."""
KNOWN_SHARE: Final = 0.1
"""The part of the window that known records may take together, each as much as its number allows."""
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


class MemoryProposals:
    """Asks what is worth keeping, and keeps it, or has it wait for the user's yes, as the operator wants."""

    def __init__(self, core: Core) -> None:
        self._memory = core.memory
        self._identities = core.identities
        self._mode = core.settings.memory.automatic

    def are_wanted(self, scope: str) -> bool:
        """Whether anything is kept unasked: not while this is off, and never in a group."""
        return self._mode != "off" and not is_group(scope)

    async def ask_for(self, scope: str, said: str, exchange: str, ask: Ask, *, window: int) -> None:
        """Have the model look at an exchange, and keep of its proposals what can be kept.

        Args:
            scope: whose memory it is.
            said: the user's own words in it, all of them.
            exchange: it as the model is shown it; of one that is too long for the window, the beginning.
            ask: asks the model, within limits.
            window: tokens of the model's window.

        Raises:
            MiniClawError: the model gave nothing, or the memory cannot be had.
        """
        known = [found.record for found in await self._memory.search(scope, said[-QUERY_CHARS:], SHOWN)]
        response = await ask("memory", _request(exchange, known, window))
        for proposal in await asyncio.to_thread(_proposals, response.text, said, known):
            await self._keep(scope, proposal, known)

    async def _keep(self, scope: str, proposal: _Proposal, known: Sequence[MemoryRecord]) -> None:
        memory = self._memory
        if self._identities.is_gone(scope):  # while the model thought
            return
        old = next((record for record in known if record.memory_id == proposal.replaces), None)
        # What the user said themselves, or keeps as sensitive, no model takes the place of.
        is_free = old is None or (old.source == "agent" and old.category != "sensitive")
        words = f"{proposal.content} {proposal.context}"
        is_sure = self._mode == "on" and is_free and not is_sensitive(words)
        record = await memory.save(
            scope,
            proposal.content,
            context=proposal.context,
            memory_type=proposal.memory_type,
            category=proposal.category,
            source="agent",
            status="active" if is_sure else "proposed",
        )
        logger.info("%s is %s unasked", record.memory_id, "saved" if is_sure else "proposed")
        if old is not None and is_sure and record.memory_id != old.memory_id:
            # Not if a person changed it while the model thought.
            await memory.supersede(
                scope, old.memory_id, by=record.memory_id, expected_updated_at=old.updated_at
            )


def _request(exchange: str, known: Sequence[MemoryRecord], window: int) -> list[dict[str, Any]]:
    most = int(window * KNOWN_SHARE)
    lines = [line for record in known if (line := cut_to_tokens(record.line, most // SHOWN))]
    head = "\n".join(["Known already:", *(lines or ["(nothing)"]), "", "The exchange:\n"])
    left = int(window * REQUEST_SHARE) - estimate_tokens(INSTRUCTIONS) - estimate_tokens(head)
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": head + cut_to_tokens(exchange, max(left, 0))},
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
