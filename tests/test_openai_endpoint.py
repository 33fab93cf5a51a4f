"""The OpenAI-compatible endpoint, as OpenAI's own library sees it over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from miniclaw.agent.providers import LLMProvider, LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.openai_shapes import SESSION_HEADER
from miniclaw.errors import ModelError
from tests.support.agent import GUARD, DictatedProvider, Zap, eventually, zap
from tests.support.claw import TOKEN, port_of, running_claw
from tests.support.client import raw_client
from tests.support.inside import database_of
from tests.support.model import last_user

ASK = [{"role": "user", "content": "go"}]


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


@asynccontextmanager
async def endpoint(
    tmp_path: Path, provider: LLMProvider, token: str = TOKEN
) -> AsyncIterator[tuple[MiniClaw, Any]]:
    """A gateway and a client of it, which does not try again."""
    async with running_claw(tmp_path, provider, web=True) as claw:
        assert claw.web is not None
        base = f"http://127.0.0.1:{claw.web.port}/v1"
        async with openai.AsyncOpenAI(api_key=token, base_url=base, max_retries=0) as client:
            yield claw, client


async def streamed(client: Any, **more: Any) -> tuple[str, list[Any]]:
    """The text of a streamed answer, and its chunks."""
    stream = await client.chat.completions.create(model="any", **{"messages": ASK, **more}, stream=True)
    chunks = [chunk async for chunk in stream]
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks


async def test_the_answer_comes_in_one_piece_with_its_usage_and_leaves_no_session(tmp_path: Path) -> None:
    async with endpoint(tmp_path, ScriptedProvider([echo])) as (claw, client):
        answer = await client.chat.completions.create(model="gpt-4o", messages=ASK, temperature=0.3)
        (choice,) = answer.choices
        assert (choice.message.content, choice.message.role, choice.finish_reason) == (
            "echo: go",
            "assistant",
            "stop",
        )
        assert (answer.object, answer.model) == ("chat.completion", "miniclaw")
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        await eventually(lambda: not claw.sessions._loaded)
        assert await claw.sessions.list() == []
        assert [model.id async for model in client.models.list()] == ["miniclaw"]


async def test_a_stream_shows_the_text_before_and_behind_a_tool_and_ends_with_the_usage(
    tmp_path: Path,
) -> None:
    model = DictatedProvider()
    async with endpoint(tmp_path, model) as (claw, client):
        claw.registry.register(Zap("read"))
        for word in ("let me ", "see"):
            model.say(word)
        model.call("zap", at="moon")
        model.end("it is **there**")
        text, chunks = await streamed(client, stream_options={"include_usage": True})
        assert text == "let me see\n\nit is **there**"
        assert len(chunks) > 4 and chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None and chunks[-1].choices == []
        assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_a_throw_away_conversation_begins_with_the_earlier_messages(tmp_path: Path) -> None:
    """Only the last user message is said now; a system prompt of the client's does not replace ours."""
    model = ScriptedProvider([echo])
    async with endpoint(tmp_path, model) as (_, client):
        messages = [
            {"role": "system", "content": "talk like a cat"},
            {"role": "user", "content": [{"type": "text", "text": "I am Ann"}]},
            {"role": "assistant", "content": "hello Ann"},
            {"role": "user", "content": "who am I?"},
        ]
        text, _ = await streamed(client, messages=messages)
        assert text == "echo: who am I?"
    ((system, *seen),) = model.requests
    assert "cat" not in str(system["content"])
    assert [(m["role"], m["content"]) for m in seen] == [
        ("user", "talk like a cat"),
        ("user", "I am Ann"),
        ("assistant", "hello Ann"),
        ("user", "who am I?"),
    ]


async def test_a_session_goes_on_by_user_and_by_header_and_takes_the_last_message_only(
    tmp_path: Path,
) -> None:
    model = ScriptedProvider([echo, echo, echo])
    async with endpoint(tmp_path, model) as (claw, client):
        create = client.chat.completions.with_raw_response.create
        first = await create(model="m", messages=ASK, user="desk")
        ids = {"X-Session-Id": first.headers["X-Session-Id"]}
        again = [{"role": role, "content": text} for role, text in (("user", "no"), ("user", "two"))]
        again.append({"role": "assistant", "content": "begun"})
        await create(model="m", messages=again, user="desk")
        text, _ = await streamed(
            client, messages=[{"role": "user", "content": "three"}], user="other", extra_headers=ids
        )
        assert text == "echo: three"
        assert [session.session_id for session in await claw.sessions.list()] == [*ids.values()]
    said = [m["content"] for m in model.requests[-1] if m["role"] == "user"]
    assert said == ["go", "two", "three"]


async def test_users_are_told_apart_by_token(tmp_path: Path) -> None:
    async with endpoint(tmp_path, ScriptedProvider([echo, echo])) as (claw, client):
        ann = client.with_options(api_key=await claw.identities.add("ann"))
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASK, user="desk")
        headers = {"X-Session-Id": raw.headers["X-Session-Id"]}
        with pytest.raises(openai.NotFoundError, match="no such session"):
            await ann.chat.completions.create(model="m", messages=ASK, extra_headers=headers)
        await ann.chat.completions.create(model="m", messages=ASK, user="desk")
        assert {session.user_id for session in await claw.sessions.list()} == {"owner", "ann"}
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()


async def test_fifty_clients_at_once_get_their_own_answers(tmp_path: Path) -> None:
    async with endpoint(tmp_path, ScriptedProvider([echo] * 50)) as (claw, client):

        async def ask(number: int) -> str:
            messages = [{"role": "user", "content": f"number {number}"}]
            thread = {"user": f"thread-{number}"} if number % 2 else {}
            if number % 5:
                return (await streamed(client, messages=messages, **thread))[0]
            answer = await client.chat.completions.create(model="m", messages=messages, **thread)
            return str(answer.choices[0].message.content)

        answers = await asyncio.gather(*map(ask, range(50)))
        assert answers == [f"echo: number {number}" for number in range(50)]
        assert len(await claw.sessions.list()) == 25


@pytest.mark.parametrize("thread", [{"user": "desk"}, {}])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_cancels_the_turn(
    tmp_path: Path, is_streamed: bool, thread: dict[str, str]
) -> None:
    model = DictatedProvider()
    async with endpoint(tmp_path, model) as (claw, client):
        model.say("one")
        asking = client.chat.completions.create(model="m", messages=ASK, stream=is_streamed, **thread)
        if is_streamed:
            stream = await asking
            await anext(aiter(stream))
            await stream.close()
        else:
            task = asyncio.ensure_future(asking)
            await eventually(lambda: model.requests)
            task.cancel()
        await eventually(lambda: claw.mailbox.load == {"running": 0, "waiting": 0})
        if thread:
            assert database_of(claw).read("SELECT state FROM turns") == [("cancelled",)]
        else:
            await eventually(lambda: database_of(claw).read("SELECT * FROM sessions") == [])


async def test_a_stream_shows_signs_of_life_while_the_model_thinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.channel.openai_endpoint.ALIVE_SECONDS", 0.01)
    model = DictatedProvider()
    async with endpoint(tmp_path, model) as (_, client), aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        body = {"messages": ASK, "stream": True}
        async with http.post(f"{client.base_url}chat/completions", json=body, headers=headers) as response:
            while await response.content.readline() != b": keep-alive\n":
                pass
            model.end("now")
            assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_nobody_is_asked_and_a_text_is_never_a_command(tmp_path: Path) -> None:
    async def told(messages: list[Message]) -> LLMResponse:
        return LLMResponse(text=str(messages[-1]["content"]))

    tool = Zap("write")
    async with endpoint(tmp_path, ScriptedProvider([echo, zap("moon"), told])) as (claw, client):
        claw.registry.register(tool)
        text, _ = await streamed(client, messages=[{"role": "user", "content": "/clear"}])
        assert text == "echo: /clear"
        text, _ = await streamed(client)
        assert "nobody is there to approve" in text and tool.ran == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "message of the user"),
        ({"messages": [{"role": "user", "content": " "}]}, "message of the user"),
        ({"messages": ASK, "n": 2}, "`n`"),
        ({"messages": ASK, "user": "x" * 300}, "`user`"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}
                ]
            },
            "text only",
        ),
    ],
)
async def test_what_cannot_be_answered_is_refused_and_nothing_is_kept(
    tmp_path: Path, body: dict[str, Any], words: str
) -> None:
    async with endpoint(tmp_path, ScriptedProvider([])) as (claw, client):
        with pytest.raises(openai.BadRequestError, match=words):
            await client.chat.completions.create(model="m", **body)
        assert await claw.sessions.storage.list() == []


async def test_a_turn_that_fails_is_an_error_which_is_not_tried_again(tmp_path: Path) -> None:
    failures = [ModelError("model_auth", "The key is wrong."), ModelError("model_auth", "The key is wrong.")]
    async with endpoint(tmp_path, ScriptedProvider(failures)) as (_, client):
        with pytest.raises(openai.InternalServerError, match="The key is wrong") as caught:
            await client.with_options(max_retries=3).chat.completions.create(model="m", messages=ASK)
        assert caught.value.status_code == 502
        with pytest.raises(openai.APIError, match="The key is wrong"):
            await streamed(client)


async def test_a_list_of_chats_is_told_of_sessions_that_stay_only(tmp_path: Path) -> None:
    async with endpoint(tmp_path, ScriptedProvider([echo, echo])) as (claw, client):
        async with raw_client(port_of(claw)) as page:
            await streamed(client)
            await streamed(client, user="desk")
            await page.command("ping")
        (kept,) = await claw.sessions.list()
        told = [f["payload"] for f in page.frames if f["payload"].get("name") == "session.updated"]
        assert told and {one["session_id"] for one in told} == {kept.session_id}


async def test_throw_away_sessions_of_a_process_that_was_killed_are_removed_by_the_next(
    tmp_path: Path,
) -> None:
    async with endpoint(tmp_path, ScriptedProvider([])) as (claw, _):
        await claw.sessions.get_or_create("owner", "openai", passing="msg_1")
        kept = await claw.sessions.get_or_create("owner", "openai", conversation="c", thread="desk")
    async with endpoint(tmp_path, ScriptedProvider([])) as (claw, _):
        assert [one.session_id for one in await claw.sessions.storage.list()] == [kept.session_id]


async def entered_by_nobody(claw: MiniClaw, model: DictatedProvider) -> None:
    """Ask for one answer, and let others try to get into its session meanwhile."""
    assert claw.web is not None
    base = f"http://127.0.0.1:{claw.web.port}/v1"
    async with (
        openai.AsyncOpenAI(api_key=TOKEN, base_url=base, max_retries=0) as client,
        raw_client(port_of(claw)) as other,
    ):
        talk: Any = client.chat.completions
        asked = asyncio.create_task(talk.create(model="m", messages=ASK))
        await eventually(lambda: model.requests)
        (session,) = await claw.sessions.storage.list()
        named = {"session_id": session.session_id}
        assert (await other.command("sessions"))["sessions"] == []
        for name in ("resume", "history", "fork", "delete", "clear"):
            assert (await other.command(name, named))["code"] == "session_not_found", name
        said = await other.receipt(await other.send("text", {"text": "me too", **named}))
        assert said["code"] == "session_not_found"
        with pytest.raises(openai.NotFoundError):
            header = {SESSION_HEADER: session.session_id}
            await talk.create(model="m", messages=ASK, extra_headers=header)
        model.end("yes")
        assert (await asked).choices[0].message.content == "yes"
    assert await claw.sessions.storage.list() == []


async def test_nobody_else_enters_the_session_of_one_answer(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with running_claw(tmp_path, model, web=True) as claw:
        await entered_by_nobody(claw, model)


async def test_a_stream_ends_before_what_it_leaves_is_cleaned_up(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with running_claw(tmp_path, model, web=True) as claw, aiohttp.ClientSession() as http:
        assert claw.web is not None
        url, body = f"http://127.0.0.1:{claw.web.port}/v1/chat/completions", {"messages": ASK, "stream": True}
        asked = http.post(url, json=body, headers={"Authorization": f"Bearer {TOKEN}"})
        model.say("yes")
        async with asked as answer, asyncio.timeout(GUARD):
            (session,) = await claw.sessions.storage.list()
            async with claw.sessions._one_at_a_time(session.session_id):  # as a disk that does not answer
                model.end()
                assert (await answer.text()).endswith("data: [DONE]\n\n")
