"""Which model answers when the first cannot."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from miniclaw.agent.fallback import COOL_DOWN, FallbackProvider
from miniclaw.agent.providers import LLMChunk, LLMResponse, Message
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.errors import ModelError

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
