"""Past conversations as memory: what is found, whose, and what is forgotten with a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from miniclaw.db import Database
from miniclaw.memory import LongTermMemory, memory_tools
from miniclaw.memory.conversations import ConversationHit, ConversationIndex
from miniclaw.session.models import Entry, Session
from miniclaw.session.search import Fresh, SQLiteSearch
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.tools import ToolContext, ToolRegistry

MARCH = 1_772_323_200.0
"""1 March 2026."""
DAY = 86_400.0


class Source:
    """The real search, with a count of what it handed out."""

    def __init__(self, search: SQLiteSearch) -> None:
        self._search = search
        self.texts = 0

    async def said(self, scope: str, marks: Mapping[str, int]) -> Fresh:
        fresh = await self._search.said(scope, marks)
        self.texts += len(fresh.said)
        return fresh


class Talk:
    """Sessions in a real database, and the index over them."""

    def __init__(self, database: Database, **options: int) -> None:
        self.storage = SQLiteStorage(database)
        self.source = Source(SQLiteSearch(database))
        self.index = ConversationIndex(self.source, clock=lambda: MARCH + 30 * DAY, **options)
        self._steps = 0

    async def say(self, scope: str, session_id: str, *texts: str, role: str = "user", at: float = 0) -> None:
        if await self.storage.load(session_id) is None:
            await self.storage.save(Session(session_id=session_id, user_id=scope, channel="cli"))
        for text in texts:
            self._steps += 1
            message = {"role": role, "content": text}
            await self.storage.append(session_id, [Entry("t", self._steps, message, MARCH + at)])

    async def found(self, scope: str, query: str, *, besides: str = "") -> list[str]:
        return [hit.text for hit in await self.index.search(scope, query, 10, besides=besides)]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "miniclaw.db")
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def talk(database: Database) -> Talk:
    return Talk(database)


async def test_what_was_said_is_found_with_where_and_when(talk: Talk) -> None:
    await talk.say("alice", "s1", "My bike is green")
    await talk.say("alice", "s1", "A green bike, noted", role="assistant", at=60)
    await talk.say("alice", "s2", "It rains")
    user, assistant = await talk.index.search("alice", "green bike", 5)
    assert {user.role, assistant.role} == {"user", "assistant"}
    [first] = [hit for hit in (user, assistant) if hit.role == "user"]
    assert first.line == "[s1 #0, 2026-03-01, user said] My bike is green"
    assert 0 < first.score


async def test_a_day_that_is_named_is_found(talk: Talk) -> None:
    await talk.say("alice", "s1", "We met Tom")
    await talk.say("alice", "s2", "We met Ann", at=10 * DAY)
    assert (await talk.found("alice", "whom did we meet on 11 March?"))[0] == "We met Ann"
    assert (await talk.found("alice", "whom did we meet 30 days ago?"))[0] == "We met Tom"


async def test_only_new_messages_are_read_and_they_are_found(talk: Talk) -> None:
    await talk.say("alice", "s1", "one tea", "two teas")
    assert len(await talk.found("alice", "tea")) == 2
    await talk.say("alice", "s1", "three teas")
    await talk.say("alice", "s2", "four teas")
    assert len(await talk.found("alice", "tea")) == 4
    assert len(await talk.found("alice", "tea")) == 4
    assert talk.source.texts == 4


async def test_a_deleted_session_is_forgotten(talk: Talk) -> None:
    await talk.say("alice", "s1", "one tea", "two teas")
    await talk.say("alice", "s2", "tea again")
    assert len(await talk.found("alice", "tea")) == 3
    await talk.storage.delete("s1")
    assert await talk.found("alice", "tea") == ["tea again"]


async def test_users_and_groups_find_their_own_sessions_only(talk: Talk) -> None:
    for scope in ("alice", "alic", "grp_a"):
        await talk.say(scope, f"ses_{scope}", f"the secret of {scope}")
    for scope in ("alice", "alic", "grp_a"):
        assert await talk.found(scope, "secret") == [f"the secret of {scope}"]
    assert await talk.found("bob", "secret") == []


async def test_the_current_session_and_what_tools_returned_are_left_out(talk: Talk) -> None:
    await talk.say("alice", "now", "tea now")
    await talk.say("alice", "past", "tea then")
    await talk.say("alice", "past", "tea of a page", role="tool")
    assert await talk.found("alice", "tea", besides="now") == ["tea then"]


async def test_the_latest_texts_are_kept_and_scopes_used_long_ago_are_dropped(database: Database) -> None:
    talk = Talk(database, most=3)
    await talk.say("alice", "s1", "tea 0", "tea 1")
    await talk.say("alice", "s2", "tea 2", "tea 3", at=60)
    assert sorted(await talk.found("alice", "tea")) == ["tea 1", "tea 2", "tea 3"]
    await talk.say("alice", "s2", "tea 4", at=90)
    assert sorted(await talk.found("alice", "tea")) == ["tea 2", "tea 3", "tea 4"]
    await talk.say("bob", "s3", "tea 5")
    before = talk.source.texts
    assert await talk.found("bob", "tea") == ["tea 5"]
    assert sorted(await talk.found("alice", "tea")) == ["tea 2", "tea 3", "tea 4"]
    assert talk.source.texts - before == 1 + 5, "alice had been dropped and was read anew"


async def test_searches_at_the_same_time_and_cancelled_ones_leave_the_index_whole(talk: Talk) -> None:
    await talk.say("alice", "s1", *(f"tea {number}" for number in range(20)))
    tasks = [asyncio.create_task(talk.found("alice", "tea")) for _ in range(8)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(found, list) and len(found) == 10 for found in results[1:])
    assert len(await talk.index.search("alice", "tea", 50)) == 20


async def test_records_come_first_and_messages_need_a_clear_score(tmp_path: Path, talk: Talk) -> None:
    memory = LongTermMemory(tmp_path, conversations=talk.index)
    record = await memory.save("alice", "The bike is black")
    for number in range(10):
        await talk.say("alice", "s1", f"talk about number {number}")
    await talk.say("alice", "s2", "The green bike in the garage")
    await talk.say("alice", "s3", "a bike lane closed since June")
    found = await memory.recall("alice", "green bike garage")
    assert getattr(found[0], "record", None) == record
    hits = [one for one in found if isinstance(one, ConversationHit)]
    assert len(hits) == 2
    clear = await memory.recall("alice", "green bike garage", clear=0.8)
    assert [hit.text for hit in clear if isinstance(hit, ConversationHit)] == ["The green bike in the garage"]


async def test_the_search_tool_tells_both_kinds_apart(tmp_path: Path, talk: Talk) -> None:
    memory = LongTermMemory(tmp_path, conversations=talk.index)
    record = await memory.save("alice", "The bike is black", source="tool")
    await talk.say("alice", "s1", "My bike was green")
    await talk.say("alice", "now", "What colour is my bike?")
    tools = ToolRegistry(memory_tools(memory))
    turn = ToolContext(user_id="alice", scope="alice", session_id="now", turn_id="t", workspace=tmp_path)
    result = await tools.execute("memory_search", {"query": "bike"}, turn)
    first, second = result.content.split("In past conversations:")
    assert record.memory_id in first and "from a tool, not the user" in first
    assert "[s1 #0, 2026-03-01, user said] My bike was green" in second
    assert "What colour" not in second
    assert [sorted({"memory_id", "session_id"} & row.keys()) for row in result.data] == [
        ["memory_id"],
        ["session_id"],
    ]
