"""The page before many gateways: it is connected to one, the turn runs on another, and then its own one dies."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import address
from tests.support.redis import fresh_prefix, needs_redis, shared_server
from tests.test_redis import node, take_no_work

if TYPE_CHECKING:
    from tests.support.browser import Chromium, DictatedProvider

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session"), needs_redis]

GUARD = 30.0


async def serve(directory: str, prefix: str, url: str) -> None:
    """A node to which people connect and that runs nothing, until it is killed."""
    async with node(Path(directory), prefix, url=url, web=True) as claw:
        take_no_work(claw)
        assert claw.web is not None
        print(claw.web.port, flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def mortal_node(*given: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Such a node as a process of its own, and its port."""
    code = (
        "import asyncio, sys; from tests.test_browser_nodes import serve; asyncio.run(serve(*sys.argv[1:]))"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *given), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(GUARD):
            yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Balancer:
    """Carries each connection to the port that is the right one when it opens."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Balancer]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pour(reader, there_writer), _pour(there_reader, writer))


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_a_page_whose_node_is_killed_goes_on_at_another_in_the_turn_of_a_third(
    tmp_path: Path, chromium: Chromium, dictated: DictatedProvider
) -> None:
    prefix, url = fresh_prefix(), shared_server().url
    async with (
        node(tmp_path / "b", prefix, dictated),
        node(tmp_path / "c", prefix, web=True) as c,
        mortal_node(str(tmp_path / "a"), prefix, url) as (a, port),
        Balancer(port).listening() as balancer,
    ):
        take_no_work(c)
        assert c.web is not None and c.web.port is not None
        at = address(c).replace(f":{c.web.port}", f":{balancer.port}")
        async with chromium.tab(at, excuse="lost") as tab:
            await tab.send("数三下")
            dictated.say("一，")
            await expect(tab.answer.locator(".open")).to_have_text("一，")
            a.kill()
            balancer.target = c.web.port
            dictated.say("二，")
            await expect(tab.answer.locator(".open")).to_have_text("一，二，")
            dictated.end("三。")
            await tab.ended(1)
            assert await tab.prose() == "一，二，三。"
            await expect(tab.turns.locator(".bubble")).to_have_text(["数三下"])
            await tab.page.reload()
            await tab.ended(1)
            assert await tab.prose() == "一，二，三。"
    assert len(dictated.requests) == 1
