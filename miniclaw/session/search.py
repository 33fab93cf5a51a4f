"""Finding words in a user's own conversations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from miniclaw.db import Database
from miniclaw.session.sqlite import read_metadata

__all__ = ["Hit", "SQLiteSearch", "SearchesText"]

EXCERPT: Final = 120
"""Characters of a hit's excerpt, about."""
LONGEST: Final = 1000
"""Characters of a text that are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A message that holds the text."""

    session_id: str
    title: str
    position: int
    excerpt: str


class SearchesText(Protocol):
    """What a back end that can search offers beyond `SessionStorage`."""

    async def search(self, user_id: str, text: str, *, limit: int = 20) -> list[Hit]:
        """Messages of the user's sessions that hold `text`, the latest session first.

        Letters of the Latin alphabet match in either case; two Chinese characters are enough.
        """
        ...


class SQLiteSearch:
    """Reads the log itself, in a thread: there is no index that could be out of date or keep a deleted text."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def search(self, user_id: str, text: str, *, limit: int = 20) -> list[Hit]:
        """See `SearchesText.search`."""
        pattern = "%" + re.sub(r"([%_!])", r"!\1", text[:LONGEST]) + "%"
        content = "CASE WHEN json_valid(e.body) THEN json_extract(e.body, '$.message.content') END"
        rows = await self._db.read_many(
            f"SELECT e.session_id, s.metadata, e.position, {content} AS content "
            "FROM sessions s JOIN entries e USING (session_id) WHERE s.user_id = ? "
            "AND content LIKE ? ESCAPE '!' ORDER BY s.updated_at DESC, e.position DESC LIMIT ?",
            (user_id, pattern, limit),
        )
        return [
            Hit(
                session_id=row[0],
                title=str(read_metadata(row[0], row[1]).get("title") or ""),
                position=row[2],
                excerpt=_excerpt(row[3], text),
            )
            for row in rows
        ]


def _excerpt(content: str, text: str) -> str:
    """The text with what stands around it, on one line."""
    found = max(0, content.lower().find(text.lower()))
    start = max(0, found - EXCERPT // 3)
    piece = " ".join(content[start : start + EXCERPT].split())
    return ("…" if start else "") + piece + ("…" if start + EXCERPT < len(content) else "")
