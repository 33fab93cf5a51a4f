"""Our index for the outside harness of memory retrieval (`MODULE:FACTORY`)."""

from __future__ import annotations

from typing import Any

from miniclaw.memory.ranking import Ranking


class Backend:
    """`add(user, records)` and `search(user, query, limit) -> ids`."""

    def __init__(self) -> None:
        self._users: dict[str, Ranking] = {}

    def add(self, user: str, records: list[Any]) -> None:
        ranking = self._users.setdefault(user, Ranking())
        for record in records:
            ranking.put(
                record.id, record.text, group=record.session, speaker=record.speaker, date=record.date
            )

    def search(self, user: str, query: str, limit: int) -> list[str]:
        return [name for name, _ in self._users[user].search(query, limit)]


def backend() -> Backend:
    """What the harness calls."""
    return Backend()
