"""What was said in a scope's past conversations, found by words.

Kept in memory only and read from the log as it grows: a deleted session leaves nothing here to be found.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from miniclaw.gateway.protocol import format_time
from miniclaw.memory.models import local_day
from miniclaw.memory.ranking import Ranking
from miniclaw.session.search import Fresh, Said

__all__ = ["ConversationHit", "ConversationIndex", "Conversations"]

TEXT_CHARS: Final = 4_000
"""Characters of a message that are searched and kept."""
CLEAR: Final = 0.5
"""The score from which on a message is worth its place in a prompt unasked."""
LINE_CHARS: Final = 400
"""Characters of a message that a line shows."""


class Conversations(Protocol):
    """Where the index learns what was said; the gateway's storage is one."""

    async def said(self, scope: str, marks: Mapping[str, int]) -> Fresh:
        """Every session of the scope, and what was said in each from its position in `marks` on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationHit:
    """A message of a past conversation that fits a query."""

    session_id: str
    position: int
    role: str
    """`user` or `assistant`."""
    text: str
    said_at: str
    score: float
    """About the share of the query's words that it has; 1 is all."""

    @property
    def line(self) -> str:
        """The message on one line as a model reads it: where, when, by whom, and the beginning of it."""
        text = " ".join(self.text.split())
        short = text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"
        return f"[{self.session_id} #{self.position}, {local_day(self.said_at)}, {self.role} said] {short}"


class _Log:
    """One scope's texts; for one thread at a time."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.texts: dict[str, Said] = {}
        self.turn = asyncio.Lock()
        self._names: dict[str, list[str]] = {}
        self._ranking = Ranking()
        self._working = threading.Lock()

    def take(self, fresh: Fresh, most: int) -> None:
        """Bring the index up to date; of more texts than `most` the latest are kept."""
        for session_id in self._names.keys() - fresh.sessions.keys():
            for name in self._names.pop(session_id):
                self._ranking.remove(name)
                self.texts.pop(name, None)
        for said in sorted(fresh.said, key=lambda said: said.at)[-most:]:
            name = f"{said.session_id}:{said.position}"
            if name not in self.texts:
                date = local_day(format_time(said.at))
                self._ranking.put(name, said.text[:TEXT_CHARS], group=said.session_id, date=date)
                self.texts[name] = said
                self._names.setdefault(said.session_id, []).append(name)
        for name in [*self.texts][: max(0, len(self.texts) - most)]:
            self._ranking.remove(name)
            self._names[self.texts.pop(name).session_id].remove(name)
        self.marks = dict(fresh.sessions)

    def search(
        self, fresh: Fresh, most: int, query: str, limit: int, besides: str, today: str
    ) -> list[ConversationHit]:
        # A cancelled caller gives up its turn while its thread is still at work; the next one waits here.
        with self._working:
            self.take(fresh, most)
            found = self._ranking.search(
                query, limit, today=today, accept=lambda name: self.texts[name].session_id != besides
            )
            return [_hit(self.texts[name], score) for name, score in found]


class ConversationIndex:
    """Indexes a scope's conversations when they are first searched, and then what is new.

    Args:
        source: what was said.
        clock: seconds since the epoch.
        most: texts kept of a scope, the latest, and of all scopes together, but for the one in use; the scope
            used longest ago is dropped first.
    """

    def __init__(
        self, source: Conversations, *, clock: Callable[[], float] = time.time, most: int = 20_000
    ) -> None:
        self._source = source
        self._clock = clock
        self._most = most
        self._logs: OrderedDict[str, _Log] = OrderedDict()

    async def search(self, scope: str, query: str, limit: int, *, besides: str = "") -> list[ConversationHit]:
        """The messages of the scope's sessions that fit best, but for those of the session `besides`."""
        log = self._logs.setdefault(scope, _Log())
        self._logs.move_to_end(scope)
        today = local_day(format_time(self._clock()))
        async with log.turn:
            fresh = await self._source.said(scope, log.marks)
            hits = await asyncio.to_thread(log.search, fresh, self._most, query, limit, besides, today)
        while len(self._logs) > 1 and sum(len(log.texts) for log in self._logs.values()) > self._most:
            self._logs.popitem(last=False)
        return hits

    def forget(self, scope: str) -> None:
        """Drop what is kept of a scope."""
        self._logs.pop(scope, None)


def _hit(said: Said, score: float) -> ConversationHit:
    return ConversationHit(
        session_id=said.session_id,
        position=said.position,
        role=said.role,
        text=said.text[:TEXT_CHARS],
        said_at=format_time(said.at),
        score=score,
    )
