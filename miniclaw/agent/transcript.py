"""A turn's transcript inside its session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from miniclaw.agent.patience import until_stored
from miniclaw.agent.providers import Message, ToolCall
from miniclaw.agent.stream import parse_call
from miniclaw.config import Clock
from miniclaw.memory.short_term import ShortTermMemory
from miniclaw.memory.squeeze import CUT
from miniclaw.session.manager import SessionManager
from miniclaw.session.models import Entry, Session, Turn

__all__ = ["SessionTranscript", "fingerprint", "parse_raw_call", "pending_calls", "settled_calls"]


class SessionTranscript:
    """The `Transcript` of a stored session: each step is one entry, numbered within its turn."""

    def __init__(
        self,
        session: Session,
        turn: Turn,
        *,
        sessions: SessionManager,
        window: ShortTermMemory,
        system: str,
        model: str,
        now: str,
        tools: Sequence[Message] | None,
        clock: Clock,
        images: Mapping[str, str],
    ) -> None:
        self._session = session
        self._turn_id = turn.turn_id
        self._sessions = sessions
        self._window = window
        self._system = system
        self._model = model
        self._models = {model, now or model}
        self._tools = tools
        self._clock = clock
        self._images = images
        steps = session.steps_of(turn.turn_id)
        self._steps = steps
        self._next = max((entry.step for entry in steps), default=-1) + 1
        self._order = asyncio.Lock()
        self._estimate = 0
        self._all = list(tools or ())
        self.is_cut = False
        """Whether the user's own text was too long to be sent whole."""

    @property
    def schemas(self) -> int:
        """What the tools cost that are sent beside it, in tokens."""
        return self._window.cost_of(self._tools)

    @property
    def _fitted(self) -> str:
        """The model with the smallest window of those that are known to be asked in this turn."""
        return min(self._models, key=self._window.size)

    def messages(self) -> list[Message]:
        """System prompt and the legal history that fits the window, with its latest images."""
        found, self._estimate = self._window.measured(
            self._system, self._session.history(), model=self._fitted, tools=self._tools
        )
        # Only a turn that is sent alone has its text cut, and then it comes first.
        self.is_cut = len(found) > 1 and str(found[1].get("content")).endswith(CUT)
        return [self._seen(message) if "images" in message else message for message in found]

    def _seen(self, message: Message) -> Message:
        """A message with its images as content parts, as Chat Completions takes them."""
        urls = [url for one in message["images"] if (url := self._images.get(one["path"]))]
        if not urls:
            return {"role": "user", "content": message["content"]}
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return {"role": "user", "content": [{"type": "text", "text": message["content"]}, *parts]}

    def pending(self) -> list[ToolCall]:
        """Calls without a result at the end of what an earlier attempt stored."""
        return pending_calls(self._steps)

    def settled(self) -> list[tuple[ToolCall, str]]:
        """Calls of that message whose results an earlier attempt stored."""
        return settled_calls(self._steps)

    def told(self, counted: int) -> None:
        """See `Transcript.told`."""
        self._window.told(self._model, self._estimate, counted)

    def offer(self, tools: list[Message]) -> list[Message]:
        """See `Transcript.offer`."""
        too_many = self._window.too_many(tools, model=self._fitted)
        offered = [tool for tool in tools if tool["function"]["name"] not in too_many] if too_many else tools
        self._all, self._tools = tools, offered
        return offered

    def shrink(self, limit: int | None, requested: int | None = None, model: str = "") -> bool:
        """Let the window of the model that refused be smaller from now on, and what this turn sends fit it."""
        self._models.add(refused := model or self._model)

        def measure() -> int:
            self.offer(self._all)
            self.messages()
            return self._estimate

        return self._window.lower(refused, limit, measure, sent=self._estimate, requested=requested)

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        """Store the next step, as soon as storage takes it, and show it in the loaded session."""
        async with self._order:  # one that waits for storage keeps its place before those that come later
            entry = Entry(self._turn_id, self._next, message, self._clock(), meta)
            if (kept := (meta or {}).pop("kept", None)) is not None:
                entry.passing, entry.message = message, {**message, "content": kept}
            self._next += 1
            await until_stored(lambda: self._sessions.append(self._session, [entry]))


def fingerprint(call: ToolCall) -> tuple[str, str]:
    """The same for calls that ask for the same, however they write it; broken arguments are all the same."""
    if call.arguments is None:
        return call.name, ""
    return call.name, json.dumps(call.arguments, sort_keys=True)


def pending_calls(steps: Sequence[Entry]) -> list[ToolCall]:
    """Calls of the last assistant message that have no result."""
    answered = {entry.message["tool_call_id"] for entry in steps if entry.message["role"] == "tool"}
    for entry in reversed(steps):
        if entry.message["role"] == "assistant":
            calls = map(parse_raw_call, entry.message.get("tool_calls") or ())
            left = [call for call in calls if call.id not in answered]
            return [replace(call, arguments=None) for call in left] if (entry.meta or {}).get("cut") else left
    return []


def settled_calls(steps: Sequence[Entry]) -> list[tuple[ToolCall, str]]:
    """Calls of the last assistant message that have a result, and its text."""
    results = {step.message["tool_call_id"]: step.message for step in steps if step.message["role"] == "tool"}
    asked = [step.message for step in steps if step.message["role"] == "assistant"][-1:]
    calls = [parse_raw_call(raw) for message in asked for raw in message.get("tool_calls") or ()]
    return [(call, str(results[call.id]["content"])) for call in calls if call.id in results]


def parse_raw_call(raw: Message) -> ToolCall:
    """The call that a stored message carries."""
    return parse_call(raw["id"], raw["function"]["name"], raw["function"]["arguments"])
