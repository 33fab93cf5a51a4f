"""The ReAct loop: ask the model, run the tools it asks for, until it answers or a limit is reached.

Knows neither sessions nor channels: what it says goes out as events, what it learns goes into a
`Transcript`, and whether a call may run is the `ToolGate`'s to say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from miniclaw import failpoints
from miniclaw.agent.budget import Budget, Stop
from miniclaw.agent.calls import CallRunner, ReadsOnly, ToolFinished, ToolGate, ToolStarted, Transcript
from miniclaw.agent.config import AgentConfig
from miniclaw.agent.model_call import ModelCall
from miniclaw.agent.providers import LLMChunk, LLMProvider, LLMResponse, Message
from miniclaw.agent.trace import TurnTrace
from miniclaw.errors import ModelError
from miniclaw.session.models import Usage
from miniclaw.tools.base import ToolBox
from miniclaw.tools.context import ToolContext

__all__ = [
    "AgentEvent",
    "AgentRuntime",
    "Finished",
    "ToolFinished",
    "ToolGate",
    "ToolStarted",
    "Transcript",
]


@dataclass(frozen=True, slots=True)
class Finished:
    """The turn's answer; not in the transcript yet, since its end is committed with it."""

    response: LLMResponse
    stop: Stop | None = None
    """The limit that ended the turn instead."""


AgentEvent = LLMChunk | ToolStarted | ToolFinished | Finished


class AgentRuntime:
    """Runs turns with one model and one configuration."""

    def __init__(self, provider: LLMProvider, config: AgentConfig) -> None:
        self.provider = provider
        self.config = config

    async def run(
        self,
        transcript: Transcript,
        toolbox: ToolBox,
        gate: ToolGate | None = None,
        *,
        context: ToolContext | None = None,
        model: str | None = None,
        budget: Budget | None = None,
        trace: TurnTrace | None = None,
    ) -> AsyncIterator[AgentEvent]:
        """Go on from where the transcript stands until the answer; the last event is `Finished`.

        Without a gate only reads run; without a budget the configuration limits it; a trace is optional.

        Raises:
            ModelError: the model gave no usable answer.
        """
        provider = self.provider.with_model(model) if model else self.provider
        budget, trace = budget or Budget(self.config), trace or TurnTrace()
        calls = CallRunner(transcript, toolbox, gate or ReadsOnly(), context, budget, trace)
        tools = toolbox.get_openai_tools() or None
        while True:
            async for event in calls.run():
                yield event
            if (stop := calls.stop or await budget.admit(provider.info.name)) is not None:
                yield Finished(LLMResponse(), stop)
                return
            failpoints.hit("before-model")
            response = None
            async for chunk in _ask(provider, transcript, tools, budget, trace, calls):
                if chunk.response is None:
                    yield chunk
                else:
                    response = chunk.response
            if response is not None and await calls.take(response):
                yield Finished(replace(response, warning="\n".join(calls.warnings)))
                return


async def _ask(
    provider: LLMProvider,
    transcript: Transcript,
    tools: list[Message] | None,
    budget: Budget,
    trace: TurnTrace,
    calls: CallRunner,
) -> AsyncIterator[LLMChunk]:
    """One answer; asked for again when the history was too long and can be shorter. A limit may end it: `calls.stop`."""
    may_shrink = True
    while True:
        offered = transcript.offer(tools) if tools else None
        messages = transcript.messages()
        try:
            with ModelCall(budget, trace, provider.info.name, messages) as call:
                async with aclosing(call.hear(provider.stream(messages, offered))) as chunks:
                    async for chunk in chunks:
                        yield chunk
            calls.stop = call.stop
            used = call.response.usage if call.response is not None else Usage()
            if used.input_tokens and used.model in {"", provider.info.name}:  # another one counts otherwise
                transcript.told(used.input_tokens)
            return
        except ModelError as error:
            may_shrink = may_shrink and error.code == "context_overflow" and not call.size
            if not (may_shrink and transcript.shrink(error.limit, error.requested, error.model)):
                raise
            may_shrink = False
