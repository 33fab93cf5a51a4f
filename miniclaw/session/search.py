"""Finding words in a user's own conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from miniclaw.db import Database
from miniclaw.session.sqlite import read_metadata

__all__ = ["Fresh", "Hit", "SQLiteSearch", "Said", "SearchesText", "excerpt"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message that a user or the assistant wrote."""

    session_id: str
    position: int
    role: str
    text: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """What became of conversations since somebody looked."""

    sessions: dict[str, int]
    """Every session, with the position behind its last entry."""
    said: list[Said]


class SearchesText(Protocol):
    """What a back end that can search offers beyond `SessionStorage`."""

    async def search(self, user_id: str, text: str, *, limit: int = 20) -> list[Hit]:
        """Messages of the user's sessions that hold `text`, the latest session first.

        The letters a to z match in either case; two Chinese characters are enough.
        """
        ...


class SQLiteSearch:
    """Reads the log itself, in a thread: there is no index that could be out of date or keep a deleted text."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def search(self, user_id: str, text: str, *, limit: int = 20) -> list[Hit]:
        """See `SearchesText.search`."""
        if "\0" in text:  # SQLite would read no further, and no message holds one
            return []
        pattern = "%" + re.sub(r"([%_!])", r"!\1", text[:LONGEST]) + "%"
        content = "CASE WHEN json_valid(e.body) THEN json_extract(e.body, '$.message.content') END"
        rows = await self._db.read_many(
            f"SELECT e.session_id, s.metadata, e.position, {content} AS content "
            "FROM sessions s JOIN entries e USING (session_id) WHERE s.user_id = ? "
            "AND typeof(content) = 'text' AND content LIKE ? ESCAPE '!' ORDER BY s.updated_at DESC, e.position DESC LIMIT ?",
            (user_id, pattern, limit),
        )
        return [
            Hit(
                session_id=row[0],
                title=str(read_metadata(row[0], row[1]).get("title") or ""),
                position=row[2],
                excerpt=excerpt(row[3], text),
            )
            for row in rows
        ]

    async def said(self, scope: str, marks: Mapping[str, int]) -> Fresh:
        """The sessions that belong to `scope`, and what was said in each from its position in `marks` on."""
        ends = "(SELECT MAX(e.position) + 1 FROM entries e WHERE e.session_id = s.session_id)"
        rows = await self._db.read_many(
            f"SELECT s.session_id, COALESCE({ends}, 0) FROM sessions s WHERE s.user_id = ?", (scope,)
        )
        sessions = dict(rows)
        new = [[name, marks.get(name, 0), end] for name, end in rows if marks.get(name, 0) < end]
        if not new:
            return Fresh(sessions=sessions, said=[])
        texts = await self._db.read_many(
            "SELECT e.session_id, e.position, json_extract(e.body, '$.message.role') AS role, "
            "json_extract(e.body, '$.message.content') AS content, json_extract(e.body, '$.at') "
            "FROM json_each(?) n CROSS JOIN entries e ON e.session_id = json_extract(n.value, '$[0]') "
            "AND e.position >= json_extract(n.value, '$[1]') AND e.position < json_extract(n.value, '$[2]') "
            "WHERE json_valid(e.body) AND role IN ('user', 'assistant') "
            "AND json_type(e.body, '$.message.content') = 'text' AND content <> ''",
            (json.dumps(new),),
        )
        names = ("session_id", "position", "role", "text")
        said = [Said(**dict(zip(names, row, strict=False)), at=float(row[4] or 0)) for row in texts]
        return Fresh(sessions=sessions, said=said)


def excerpt(content: str, text: str) -> str:
    """The text with what stands around it, on one line."""
    found = max(0, content.lower().find(text.lower()))
    start = max(0, found - EXCERPT // 3)
    piece = " ".join(content[start : start + EXCERPT].split())
    return ("…" if start else "") + piece + ("…" if start + EXCERPT < len(content) else "")
