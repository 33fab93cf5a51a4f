"""What the tests of turns in a whole gateway share: ways to say something and to wait for what comes of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from miniclaw.agent.approval import Approval
from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.gateway.protocol import Receipt, new_id
from miniclaw.session.models import Entry
from miniclaw.tools.base import Risk, Tool, ToolResult
from tests.support.core import text_message
from tests.support.inside import mailbox_of

GUARD = 20.0


class Zap(Tool):
    """A tool that does what the test says and keeps what it was called with."""

    name = "zap"
    description = "zaps"
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "additionalProperties": False,
    }

    def __init__(
        self, risk: Risk = "write", body: Callable[[], Any] | None = None, name: str = "zap"
    ) -> None:
        self.name = name
        self.risk = risk
        self._body = body
        self.ran: list[str | None] = []

    async def execute(self, *, at: str | None = None, **_: Any) -> ToolResult:
        self.ran.append(at)
        return ToolResult(content=str(await self._body()) if self._body else f"zapped {at}")


def zap(at: str, *, call_id: str = "c1", name: str = "zap") -> LLMResponse:
    """An answer of the model that calls it."""
    return LLMResponse(tool_calls=(ToolCall.of(call_id, name, {"at": at}),), finish="tool_calls")


class DictatedProvider(ScriptedProvider):
    """A model that answers word by word as a test dictates it."""

    def __init__(self) -> None:
        super().__init__([])
        self._words: asyncio.Queue[str | LLMResponse] = asyncio.Queue()

    def say(self, text: str) -> None:
        """Stream a piece of text."""
        self._words.put_nowait(text)

    def end(self, text: str = "") -> None:
        """End the answer, after a last piece of text."""
        self.say(text)
        self._words.put_nowait(LLMResponse())

    def call(self, name: str, **arguments: Any) -> None:
        """End the answer with a tool call."""
        call = ToolCall.of(f"call_{len(self.requests)}", name, arguments)
        self._words.put_nowait(LLMResponse(tool_calls=(call,), finish="tool_calls"))

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncIterator[LLMChunk]:
        self.requests.append([dict(message) for message in messages])
        text = ""
        while isinstance(word := await self._words.get(), str):
            text += word
            yield LLMChunk(word)
        yield LLMChunk(response=replace(word, text=text))


async def eventually(claim: Callable[[], object]) -> None:
    """Wait until something is true, or what it waits for."""
    async with asyncio.timeout(GUARD):
        while not (await found if inspect.isawaitable(found := claim()) else found):
            await asyncio.sleep(0.005)


async def is_asking(claw: MiniClaw, session_id: str) -> bool:
    """Whether the session's turn waits for a person."""
    return await claw.commands.sessions.phase(session_id) == "waiting_approval"


async def send(claw: MiniClaw, text: str = "go", *, user_id: str | None = "owner", **more: Any) -> Receipt:
    """Hand a message in as a channel does; the channel `library` goes on after a restart."""
    given = {"channel": "library", "msg_id": new_id("msg"), **more}
    return await claw.router.route(text_message(text, user_id=user_id, **given))


async def outcome(claw: MiniClaw, turn_id: str | None) -> dict[str, Any]:
    """How a turn ended, as soon as it has and its run is over."""
    assert turn_id is not None
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        turn = claw.turns.get(turn_id)
        found.update((turn.outcome if turn else None) or {})
        return bool(found) and turn_id not in {
            running.turn_id for running in mailbox_of(claw)._current.values()
        }

    await eventually(has_ended)
    return found


async def say(claw: MiniClaw, text: str = "go", **more: Any) -> str:
    """Say something and get the answer's text."""
    receipt = await send(claw, text, **more)
    ended = await outcome(claw, receipt.turn_id)
    assert ended["name"] == "turn.finished", ended
    return str(ended["data"]["text"])


async def question(claw: MiniClaw, user_id: str = "owner", *, but: str = "") -> Approval:
    """The question that a user is asked, other than the one with the id `but`."""

    async def found() -> list[Approval]:
        return [a for a in await claw.desk.open_for(user_id) if a.approval_id != but]

    await eventually(found)
    (only,) = await found()
    return only


async def log_of(claw: MiniClaw, session_id: str | None) -> list[Entry]:
    """The stored log, which the loaded one must equal."""
    assert session_id is not None
    stored = await claw.sessions.storage.load(session_id)
    loaded = await claw.sessions.get(session_id)
    assert stored is not None and loaded is not None
    assert loaded.messages == stored.messages
    return stored.messages


def result_in(messages: list[dict[str, Any]]) -> str:
    """What the model was told of its last call."""
    return next(str(m["content"]) for m in reversed(messages) if m["role"] == "tool")
