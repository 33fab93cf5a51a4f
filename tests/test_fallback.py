"""Which model answers when the first cannot."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.config import AgentConfig
from miniclaw.agent.fallback import COOL_DOWN, FallbackProvider
from miniclaw.agent.providers import LLMChunk, LLMResponse, Message
from miniclaw.agent.runtime import AgentRuntime
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.errors import ModelError
from miniclaw.session.history import message_tokens
from miniclaw.session.models import Usage
from miniclaw.tools.registry import ToolRegistry
from tests.support.agent import Zap, outcome, say, zap
from tests.support.claw import running_claw
from tests.test_delegate import delegates
from tests.test_limits import command
from tests.test_runtime import ListTranscript

HELLO: list[Message] = [{"role": "user", "content": "hello"}]


def failure(kind: str = "overloaded", code: str = "model_error", **more: Any) -> ModelError:
    return ModelError(code, f"It is {kind}.", kind=kind, **more)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def models(*scripts: Sequence[Script]) -> tuple[list[ScriptedProvider], FallbackProvider, Clock]:
    clock = Clock()
    providers = [ScriptedProvider(script, model=f"m{n}") for n, script in enumerate(scripts, 1)]
    return providers, FallbackProvider(providers, clock=clock), clock


def answers(*texts: str) -> list[Script]:
    return [LLMResponse(text=text) for text in texts]


async def streamed(provider: FallbackProvider) -> str:
    return "".join([chunk.text async for chunk in provider.stream(HELLO)])


@pytest.mark.parametrize("kind", COOL_DOWN)
async def test_the_next_model_answers_when_one_cannot_and_the_log_says_so(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    providers, fallback, _ = models([failure(kind)], answers("hi"))
    assert await streamed(fallback) == "hi"
    assert [len(each.requests) for each in providers] == [1, 1]
    assert "m1 cannot answer" in caplog.text


@pytest.mark.parametrize("kind", ["context_overflow", "refused", "content_filter", "empty_answer"])
async def test_a_failure_that_another_model_has_as_well_is_raised_at_once(kind: str) -> None:
    providers, fallback, _ = models([failure(kind)], answers("hi"))
    with pytest.raises(ModelError, match=kind):
        await fallback.chat(HELLO)
    assert not providers[1].requests


async def test_a_model_that_failed_is_left_alone_until_its_time_is_over() -> None:
    providers, fallback, clock = models([failure(), *answers("one")], answers("two", "three"))
    assert [(await fallback.chat(HELLO)).text for _ in range(2)] == ["two", "three"]
    assert len(providers[0].requests) == 1
    clock.now += COOL_DOWN["overloaded"]
    assert (await fallback.chat(HELLO)).text == "one"


async def test_a_server_that_says_when_it_is_free_again_is_left_alone_so_long() -> None:
    limited = failure("rate_limited", "model_rate_limited", retry_after=3600)
    providers, fallback, clock = models([limited, *answers("one")], answers("two", "three", "four"))
    texts = []
    for _ in range(3):
        texts.append((await fallback.chat(HELLO)).text)
        clock.now += 1800
    assert (texts, len(providers[0].requests)) == (["two", "three", "one"], 2)


async def test_when_none_can_answer_all_are_named_and_all_are_asked_again() -> None:
    first = failure("quota", "model_quota")
    second = failure("rate_limited", "model_rate_limited", retryable=True, retry_after=9)
    providers, fallback, _ = models([first, *answers("hi")], [second])
    with pytest.raises(ModelError, match=r"It is quota\. Instead: It is rate_limited\.") as raised:
        await fallback.chat(HELLO)
    error = raised.value
    assert (error.code, error.kind, error.retryable, error.retry_after) == ("model_quota", "quota", True, 9)
    assert (await fallback.chat(HELLO)).text == "hi"


class HalfWay(ScriptedProvider):
    """Shows a piece and fails then."""

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> AsyncGenerator[LLMChunk, None]:
        yield LLMChunk("half")
        raise failure("stream_cut", "model_unreachable", retryable=True)


async def test_once_something_was_shown_no_other_model_begins_anew_and_that_is_said() -> None:
    other = ScriptedProvider(answers("whole", "whole"), model="other")
    fallback = FallbackProvider([HalfWay([]), other], clock=Clock())
    shown = ""
    with pytest.raises(ModelError, match="unfinished; no other model was asked") as raised:
        async for chunk in fallback.stream(HELLO):
            shown += chunk.text
    assert (shown, raised.value.code, raised.value.kind) == ("half", "model_unreachable", "stream_cut")
    assert not other.requests
    assert await streamed(fallback) == "whole"  # the next answer comes from the other one
    unshown = FallbackProvider([HalfWay([]), other], clock=Clock())
    assert (await unshown.chat(HELLO)).text == "whole"


async def test_a_model_of_a_session_takes_the_first_place_and_shares_what_is_known() -> None:
    providers, fallback, _ = models([failure(), *answers("one")], answers("two", "three"))
    other = fallback.with_model("m9")
    assert (other.info.name, fallback.info.name) == ("m9", "m1")
    assert (await fallback.chat(HELLO)).text == "two"
    assert (await other.chat(HELLO)).text == "one"  # another model of that server was not left alone
    assert (await fallback.chat(HELLO)).text == "three"
    assert await fallback.models() == ["m1"]


async def test_a_reader_that_leaves_ends_the_stream_of_the_model() -> None:
    ended: list[str] = []

    class Endless(ScriptedProvider):
        async def stream(
            self, messages: Sequence[Message], tools: Sequence[Message] | None = None
        ) -> AsyncGenerator[LLMChunk, None]:
            try:
                while True:
                    yield LLMChunk("more")
            finally:
                ended.append(self.info.name)

    stream = FallbackProvider([Endless([])]).stream(HELLO)
    assert (await anext(stream)).text == "more"
    await stream.aclose()
    assert ended == ["scripted"]


async def test_a_model_that_ends_without_an_answer_was_cut(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(ScriptedProvider):
        async def stream(
            self, messages: Sequence[Message], tools: Sequence[Message] | None = None
        ) -> AsyncGenerator[LLMChunk, None]:
            for _ in ():
                yield LLMChunk()

    with caplog.at_level(logging.WARNING), pytest.raises(ModelError) as raised:
        await FallbackProvider([Silent([])]).chat(HELLO)
    assert raised.value.kind == "stream_cut"


async def test_closing_closes_all() -> None:
    closed: list[str] = []

    class Closing(ScriptedProvider):
        async def close(self) -> None:
            closed.append(self.info.name)

    await FallbackProvider([Closing([], model="a"), Closing([], model="b")]).close()
    assert closed == ["a", "b"]


# --- models with windows of their own ---------------------------------------------------------------------

SMALL = 3000


class TwoWindows:
    """A large model, which may be down, and a small one that calls what it is told to and refuses what is too long."""

    def __init__(self, *calls: LLMResponse) -> None:
        self.is_down, self.refused, self._calls = False, 0, list(calls)
        (self.large, self.small), self.provider, self.clock = models([self._large] * 99, [self._small] * 99)

    async def _large(self, _: list[Message]) -> LLMResponse:
        if self.is_down:
            raise failure()
        return LLMResponse(text="large")

    async def _small(self, messages: list[Message]) -> LLMResponse:
        if (size := sum(map(message_tokens, messages))) > SMALL:
            self.refused += 1
            raise ModelError("context_overflow", "Too long.", limit=SMALL, requested=size)
        return self._calls.pop(0) if self._calls else LLMResponse(text="small")


async def test_what_is_too_long_for_the_next_model_is_cut_for_it_alone_and_the_first_gets_all_again(
    tmp_path: Path,
) -> None:
    two = TwoWindows()
    async with running_claw(tmp_path, two.provider) as claw:
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
        for _ in range(6):
            assert await say(claw, "word " * 900, session_id=session_id) == "large"
        two.is_down = True
        assert await say(claw, "down", session_id=session_id) == "small"
        assert await say(claw, "still down", session_id=session_id) == "small"
        assert two.refused == 1, "its window is known from then on"
        two.is_down, two.clock.now = False, 2000.0
        assert await say(claw, "up", session_id=session_id) == "large"
        assert len(two.large.requests[-1]) == 18 and len(two.small.requests[-1]) < 12
        session = await claw.sessions.get(session_id)
        assert session is not None and "summary" not in session.metadata


@pytest.mark.parametrize("what", ["sub-task", "summary"])
async def test_beside_the_answer_too_the_window_of_the_model_that_refused_is_lowered(
    what: str, tmp_path: Path
) -> None:
    async def long() -> str:
        return "word " * 6000

    two = TwoWindows(*([delegates(), zap("a")] if what == "sub-task" else []))
    arguments = {"approval.allow": ("delegate",)}
    async with running_claw(tmp_path, two.provider, arguments=arguments) as claw:
        claw.registry.register(Zap("read", long))
        window = claw.commands._c.window
        before = window.size("m1")
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
        for _ in range(5 if what == "summary" else 0):
            await say(claw, "word " * 900, session_id=session_id)
        two.is_down = True
        if what == "sub-task":
            assert await say(claw, session_id=session_id) == "small"
        else:
            queued = await claw.router.route(command("compact", session_id))
            assert (await outcome(claw, queued.turn_id))["data"]["ok"]
        assert two.refused >= 1 and window.size("m1") == before and window.size("m2") <= SMALL


async def test_what_another_model_counts_says_nothing_of_the_own_ones_window() -> None:
    class Told(ListTranscript):
        counts: list[int] = []

        def told(self, counted: int) -> None:
            self.counts.append(counted)

    def counted(model: str) -> LLMResponse:
        return LLMResponse(text="Hi", usage=Usage(model=model, input_tokens=7, output_tokens=1))

    _, provider, clock = models([failure(), counted("m1")], [counted("m2")])
    for clock.now in (1000.0, 2000.0):
        async for _ in AgentRuntime(provider, AgentConfig()).run(Told(), ToolRegistry([])):
            pass
    assert Told.counts == [7]
