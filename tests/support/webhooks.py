"""A gateway as an app of a platform whose API is a stand-in, and whoever writes there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp

from miniclaw.agent.providers import LLMChunk, LLMProvider, LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.standins.base import Event, Standin
from miniclaw.config import Clock
from tests.support.agent import eventually
from tests.support.claw import running_claw
from tests.support.inside import database_of
from tests.support.model import last_user

DATA = Path(__file__).parents[1] / "data" / "webhooks"

S = TypeVar("S", bound=Standin)


def vectors_of(platform: str) -> list[dict[str, Any]]:
    """Signatures and ciphertexts that the platform's own SDK made."""
    found = json.loads((DATA / "known_vectors.json").read_text(encoding="utf-8"))[platform]
    return list(found)


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


async def for_ever(messages: list[Message]) -> LLMResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def call(name: str, **arguments: Any) -> LLMResponse:
    """An answer of the model that calls a tool."""
    return LLMResponse(tool_calls=(ToolCall.of("call_1", name, arguments),), finish="tool_calls")


class Typing(ScriptedProvider):
    """A model that goes on only when the platform was told of what it has said, for its first pieces.

    Args:
        waits: how many pieces it waits for.
        methods: what tells of a text; empty = every call.
        piece: the characters of a piece.
    """

    def __init__(
        self,
        script: list[Any],
        standin: Standin,
        *,
        waits: int,
        methods: Sequence[str] = (),
        piece: int = 30,
    ) -> None:
        super().__init__(script, piece=piece)
        self._standin = standin
        self._waits = waits
        self._methods = methods

    def _were_more_than(self, calls: int) -> bool:
        return self._told() > calls

    def _told(self) -> int:
        return sum(not self._methods or name in self._methods for name, _ in self._standin.calls)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        async for chunk in super().stream(messages, tools):
            calls = self._told()
            yield chunk
            self._waits -= 1
            if chunk.text and self._waits >= 0:
                await self._standin.until(partial(self._were_more_than, calls))


class Site(Generic[S]):
    """One account of a platform: its gateway, its API, and the way to post what people say.

    Attributes:
        path: below `/webhooks/`.
    """

    def __init__(self, claw: MiniClaw, standin: S, http: aiohttp.ClientSession, path: str) -> None:
        self.claw = claw
        self.standin = standin
        self.path = path
        self._http = http
        self._number = 0

    async def deliver(self, sent: Event, path: str = "") -> tuple[int, str]:
        """Post what the platform has signed; status and body of the answer."""
        assert self.claw.web is not None
        url = f"http://127.0.0.1:{self.claw.web.port}/webhooks/{path or self.path}"
        async with self._http.post(url, data=sent.body, headers=sent.headers, params=sent.query) as response:
            return response.status, await response.text()

    async def answers(self, turns: int = 1) -> list[str]:
        """What people see when so many turns have ended and everything was delivered."""
        ended = "SELECT COUNT(*) FROM turns WHERE outcome IS NOT NULL"
        left = "SELECT 1 FROM deliveries WHERE state NOT IN ('sent', 'dead')"
        await eventually(
            lambda: (
                database_of(self.claw).read(ended)[0][0] >= turns and not database_of(self.claw).read(left)
            )
        )
        return [one.text for one in self.standin.shown]

    async def pair(self) -> None:
        """Let the operator pair with the code that a stranger, and nobody else, was shown."""
        await self.standin.until(lambda: self.standin.shown)
        [text] = await self.answers(0)
        await self.claw.identities.pair("owner", text.split()[-1])

    def turns(self) -> int:
        """How many turns there are."""
        return int(database_of(self.claw).read("SELECT COUNT(*) FROM turns")[0][0])


@asynccontextmanager
async def platform_claw(
    tmp_path: Path,
    platform: str,
    account: Mapping[str, Any],
    provider: LLMProvider | None,
    *,
    name: str = "",
    clock: Clock = time.time,
    more: Mapping[str, Any] | None = None,
) -> AsyncIterator[tuple[MiniClaw, aiohttp.ClientSession]]:
    """A gateway with one account of a platform, and a client.

    Args:
        account: its settings; one with a dot in its name is a setting of the gateway.
        name: of a further account.
        more: settings of the gateway.
    """
    own = {key: value for key, value in account.items() if "." not in key}
    given = {"accounts": {name: own}} if name else own
    arguments = {
        **{f"channels.{platform}.{key}": value for key, value in given.items()},
        "delivery.retry_base": 0.01,
        "delivery.timeout": 5.0,
        "limits.drain_seconds": 0.1,
        **{key: value for key, value in account.items() if "." in key},
        **(more or {}),
    }
    async with (
        running_claw(tmp_path, provider, web=True, arguments=arguments, clock=clock) as claw,
        aiohttp.ClientSession() as http,
    ):
        yield claw, http
