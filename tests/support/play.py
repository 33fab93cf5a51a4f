"""A turn of the real runtime, with the real provider, against a transcript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miniclaw.agent.config import AgentConfig
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMChunk, LLMResponse, Message, ToolCall
from miniclaw.agent.runtime import AgentRuntime, Finished
from miniclaw.agent.transcript import pending_calls, settled_calls
from miniclaw.errors import ModelError
from miniclaw.session.history import legal
from miniclaw.session.models import Entry
from miniclaw.tools.base import Risk, Tool, ToolResult
from miniclaw.tools.context import ToolContext
from tests.support.replay import Case, ReplayServer

GUARD = 20.0

WEATHER = {
    "role": "assistant",
    "content": "",
    "tool_calls": [ToolCall.of("call_a", "get_weather", {}).to_openai()],
}
ODD = {**WEATHER, "tool_calls": [ToolCall.of("call_a", "get.the weather", {}).to_openai()]}
RESULT = {"role": "tool", "tool_call_id": "call_a", "content": "18C"}
USER, SYSTEM = {"role": "user", "content": "go"}, {"role": "system", "content": "be good"}
SIGNED = {"by": "another", "calls": [{"extra_content": {"x": 1}}], "details": [{"type": "x"}]}
SEALED = {"by": "", "items": [{"type": "reasoning", "id": "rs_1", "summary": []}, "call"]}
HISTORIES: Mapping[str, list[Message]] = {
    "assistant_tool_call_then_tool": [SYSTEM, USER, WEATHER, RESULT],
    "assistant_tool_call_then_tool_with_reasoning": [
        SYSTEM,
        USER,
        {**WEATHER, "reasoning_content": "hm"},
        RESULT,
    ],
    "orphan_tool_after_trim": [SYSTEM, RESULT, USER],
    "interrupted_tool_call": [SYSTEM, USER, WEATHER, USER],
    "system_in_the_middle": [SYSTEM, USER, {"role": "assistant", "content": "x"}, SYSTEM, USER],
    "two_user_messages": [SYSTEM, USER, USER],
    "no_content": [SYSTEM, USER, {**WEATHER, "content": None}, RESULT],
    "missing_content": [SYSTEM, USER, {k: v for k, v in WEATHER.items() if k != "content"}, RESULT],
    "odd_name": [SYSTEM, USER, ODD, RESULT],
    "developer": [{**SYSTEM, "role": "developer"}, USER],
    "thoughtless": [SYSTEM, USER, {"role": "assistant", "content": "x"}, USER, WEATHER, RESULT],
    "signed_by_another": [SYSTEM, USER, {**WEATHER, "provider_data": SIGNED}, RESULT],
    "responses_function_call_round": [SYSTEM, USER, {**WEATHER, "provider_data": SEALED}, RESULT],
}


SCHEMA = {
    "$defs": {"x": {"type": "object", "properties": {"x": {"type": ["integer", "null"], "default": 1}}}},
    "type": "object",
    "title": "T",
    "properties": {
        "city": {"anyOf": [{"type": "null"}, {"type": "string", "format": "city"}], "description": "where"},
        "default": {"$ref": "#/$defs/x"},
        "kind": {"const": "a"},
        "many": {"type": "array", "items": {"$ref": "#/$defs/x"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}


class Box:
    """Tools of any name, which all say `done`; counts what ran."""

    def __init__(self, names: Sequence[str], *, strict: bool, rich: bool) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self._tools = {name: _Named(name) for name in names}
        schema = SCHEMA if rich else {"type": "object", "properties": {"city": {"type": "string"}}}
        self._listed: list[dict[str, Any]] = [
            {"type": "function", "function": {"name": name, "description": "x", "parameters": schema}}
            for name in names
        ]
        if strict:
            for tool in self._listed:
                tool["function"]["strict"] = True

    def get_openai_tools(self) -> list[dict[str, Any]]:
        return self._listed

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    async def execute(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        self.ran.append((name, dict(arguments)))
        return ToolResult(content="done")


class _Named(Tool):
    description = "x"
    parameters: dict[str, Any] = {"type": "object"}
    risk: Risk = "write"

    def __init__(self, name: str) -> None:
        self.name = name

    async def execute(self, **_: Any) -> ToolResult:
        raise NotImplementedError


class Steps:
    """The transcript of a turn that goes on from a history."""

    def __init__(self, history: Sequence[Message]) -> None:
        self.steps = list(history)

    def messages(self) -> list[Message]:
        return legal(self.steps)

    def settled(self) -> list[tuple[ToolCall, str]]:
        return settled_calls([Entry("t", number, step) for number, step in enumerate(self.steps)])

    def pending(self) -> list[ToolCall]:
        return pending_calls([Entry("t", number, step) for number, step in enumerate(self.steps)])

    def told(self, counted: int) -> None: ...

    def offer(self, tools: list[Message]) -> list[Message]:
        return tools

    def shrink(self, limit: int | None, requested: int | None = None, model: str = "") -> bool:
        return False

    async def append(self, message: Message, meta: dict[str, Any] | None = None) -> None:
        self.steps.append(message)


class AllowAll:
    async def admit(self, call: ToolCall, risk: Risk) -> str | None:
        return None


class Recorder(OpenAIProvider):
    """The real provider, with what it said."""

    @classmethod
    def of(cls, server: ReplayServer, case: Case, **options: Any) -> Recorder:
        send = case["request_expectations"].get("send")
        provider = cls(
            "fake", api_key="k", base_url=server.url, api=case["api"], **_still(options), parameters=send
        )
        provider.responses = []
        return provider

    responses: list[LLMResponse]

    async def _heard(self, chunks: AsyncGenerator[LLMChunk, None]) -> AsyncGenerator[LLMChunk, None]:
        async for chunk in chunks:
            if chunk.response is not None:
                self.responses.append(chunk.response)
            yield chunk

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        return self._heard(super().stream(messages, tools))


def _still(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that make every wait take no time."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    return {"sleep": sleep, "jitter": lambda: 0.0, "clock": lambda: 1.8e9, **options}


@dataclass
class Played:
    """What came of a transcript."""

    responses: list[LLMResponse]
    requests: list[dict[str, Any]]
    answered: list[dict[str, Any]]
    ran: list[tuple[str, dict[str, Any]]]
    steps: list[Message]
    error: ModelError | None = None
    end: Finished | None = None
    text: str = ""
    reasoning: str = ""


async def play(case: Case, mode: str = "stream", *, turns: int = 1, **options: Any) -> Played:
    """Run a turn against the transcript, or the same one again; what is returned is what came of the first."""
    rules, expected = case["request_expectations"], case["expected"]
    named = [call["name"] for call in expected.get("tool_calls", ())]
    names = dict.fromkeys(["get_weather", "write_file", *rules.get("tools", ()), *named])
    box = Box(list(names), strict="tool_strict_true" in str(rules), rich="schema" in rules)
    question = {**USER, "content": "x" * rules.get("min_prompt_chars", 2)}
    steps = Steps(HISTORIES[rules["history"]] if "history" in rules else [SYSTEM, question])
    server = ReplayServer(case, whole=mode == "one piece", cut=7 if mode == "in odd pieces" else 0)
    async with server, asyncio.timeout(GUARD):
        provider = Recorder.of(server, case, **options)
        played = Played(provider.responses, server.requests, server.answered, box.ran, steps.steps)
        runtime = AgentRuntime(provider, AgentConfig())
        try:
            async for happened in runtime.run(steps, box, AllowAll()):
                if isinstance(happened, LLMChunk) and not played.responses:
                    played.text += happened.text
                    played.reasoning += happened.reasoning
                elif isinstance(happened, Finished):
                    played.end = happened
            for _ in range(turns - 1):
                _ = [each async for each in runtime.run(steps, box, AllowAll())]
        except ModelError as error:
            played.error = error
        finally:
            await provider.close()
    return played
