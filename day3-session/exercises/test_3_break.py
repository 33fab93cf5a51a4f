"""运行：pytest exercises/test_3_break.py"""

import asyncio

from day3_session import Entry, InMemoryStorage, Session
from ex_3_break import NaiveStorage, lose


async def test_one_of_two_is_lost() -> None:
    storage = NaiveStorage()
    await lose(storage)
    assert len(storage.log) == 1, "提示：asyncio.gather 让两个 append 都先读完，再各写各的。"


async def test_appending_loses_nothing() -> None:
    storage = InMemoryStorage()
    await storage.save(Session(session_id="ses_1", user_id="alice", channel="web"))
    entries = [Entry(f"t{number}", 0, {"role": "user", "content": str(number)}) for number in range(2)]
    await asyncio.gather(*(storage.append("ses_1", [one]) for one in entries))
    found = await storage.load("ses_1")
    assert found is not None and len(found.messages) == 2
