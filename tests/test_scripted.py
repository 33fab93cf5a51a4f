"""The provider that says what it was told to: other tests lean on it."""

from __future__ import annotations

import asyncio

import pytest

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import ModelError

HELLO: list[Message] = [{"role": "user", "content": "hello"}]


async def test_lines_are_said_in_order_whole_or_in_pieces() -> None:
    provider = ScriptedProvider([LLMResponse(text="abcdef"), LLMResponse(text="ghi")], piece=4)
    chunks = [chunk async for chunk in provider.stream(HELLO)]
    assert [chunk.text for chunk in chunks] == ["abcd", "ef", ""]
    assert chunks[-1].response == LLMResponse(text="abcdef")
    assert (await provider.chat(HELLO)).text == "ghi"


async def test_a_line_may_be_an_error_or_a_function_that_waits() -> None:
    go = asyncio.Event()

    async def wait(messages: list[Message]) -> LLMResponse:
        await go.wait()
        return LLMResponse(text=messages[-1]["content"])

    provider = ScriptedProvider([ModelError("model_auth", "no"), wait])
    with pytest.raises(ModelError, match="no"):
        await provider.chat(HELLO)
    answer = asyncio.create_task(provider.chat(HELLO))
    await asyncio.sleep(0)
    assert not answer.done()
    go.set()
    assert (await answer).text == "hello"


async def test_a_script_that_has_ended_is_a_model_error() -> None:
    with pytest.raises(ModelError) as raised:
        await ScriptedProvider([]).chat(HELLO)
    assert raised.value.code == "model_error"


async def test_requests_are_kept_as_they_were_when_they_came() -> None:
    provider = ScriptedProvider([LLMResponse(text="x")] * 2)
    messages: list[Message] = [dict(HELLO[0])]
    await provider.chat(messages)
    messages[0]["content"] = "changed"
    messages.append({"role": "assistant", "content": "x"})
    await provider.chat(messages)
    assert provider.requests == [HELLO, messages]


async def test_another_model_shares_script_and_requests() -> None:
    provider = ScriptedProvider([LLMResponse(text="x")])
    other = provider.with_model("other")
    assert (await other.models(), await provider.models()) == (["other"], ["scripted"])
    await other.chat(HELLO)
    assert provider.requests == [HELLO]
    assert (other.info.name, other.info.demo) == ("other", False)
    await other.close()
    await other.close()
