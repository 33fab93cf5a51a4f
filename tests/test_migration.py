"""A database of each past version, as that version left it when it was killed, comes up to date and goes on."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.schema import SCHEMA, SCHEMA_VERSION
from tests.support.agent import log_of, outcome, question, say
from tests.support.claw import running_claw

DUMPS = Path(__file__).parent / "data" / "schemas"
"""`<schema>.sql`: what the last commit of each schema wrote in one conversation: a turn that is finished, one that
waits for a permission, one behind it, and from schema 3 on a timer. Before SCHEMA_VERSION rises, add such a dump."""
SOON = 1_796_080_000.0
"""Minutes after they were written: the permission may still be given, the timer is not due."""
TOOL = '''
from miniclaw.tools import tool

@tool(risk="write")
def note_down(text: str) -> str:
    """Write a note."""
    return f"noted {text}"
'''


def shape(connection: sqlite3.Connection) -> dict[str, object]:
    """Each table with its columns, and each index with its own."""
    rows = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return {
        name: sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({name})"))
        if kind == "table"
        else [row[2] for row in connection.execute(f"PRAGMA index_info({name})")]
        for kind, name in rows
    }


def test_there_is_a_database_of_each_past_version() -> None:
    assert {int(path.stem) for path in DUMPS.glob("*.sql")} == set(range(1, SCHEMA_VERSION)), DUMPS


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
async def test_a_database_of_a_past_version_is_kept_and_its_conversation_goes_on(
    version: int, tmp_path: Path
) -> None:
    path = tmp_path / "miniclaw.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.executescript((DUMPS / f"{version}.sql").read_text(encoding="utf-8"))
        before = list(old.iterdump())
        turns = old.execute("SELECT turn_id, session_id, state FROM turns ORDER BY n").fetchall()
    assert [state for _, _, state in turns] == ["finished", "running", "waiting"]
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "note_down.py").write_text(TOOL, encoding="utf-8")
    model = ScriptedProvider([LLMResponse(text=text) for text in ("It is noted.", "Ann.", "Yes.")])
    async with running_claw(tmp_path, model, clock=lambda: SOON) as claw:
        asked = await question(claw)
        assert (asked.tool, asked.turn_id) == ("note_down", turns[1][0])
        await claw.desk.decide(asked.approval_id, "owner", "once")
        ends = [await outcome(claw, turn_id) for turn_id, _, _ in turns]
        assert [end["data"]["text"] for end in ends] == ["Hello Ann, I keep that.", "It is noted.", "Ann."]
        assert await say(claw, "Do you still know?", session_id=turns[0][1]) == "Yes."
        log = await log_of(claw, turns[0][1])
        assert [timer.text for timer in claw.timers.list("owner")] == ["Say good morning."] * (version >= 3)
    assert "noted buy tea" in str(log) and "My name is Ann." in str(model.requests[-1])
    with contextlib.closing(sqlite3.connect(f"{path}.schema{version}")) as kept:
        assert list(kept.iterdump()) == before
        assert kept.execute("PRAGMA user_version").fetchone() == (version,)
    with (
        contextlib.closing(sqlite3.connect(path)) as now,
        contextlib.closing(sqlite3.connect(":memory:")) as new,
    ):
        new.executescript(SCHEMA)
        assert shape(now) == shape(new)
        assert now.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
