"""Many at once, and the same again: what broke other gateways in the field must hold here.

Each test names the public report that is its reason.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import aiohttp

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.config import load_settings
from tests.support.agent import eventually, log_of, outcome, send
from tests.support.claw import TOKEN, running_claw
from tests.support.core import FakeClock
from tests.support.model import FakeModel, Reply, echo, last_user
from tests.support.receiver import SECRET
from tests.test_field_reports import AUTH, answer, api, asking, hang, raw, users
from tests.test_webhook_generic import hooked, post

# --- at the same time -------------------------------------------------------------------------------------


async def test_messages_of_one_session_on_all_ways_in_at_once_run_one_at_a_time_and_all_are_kept(
    tmp_path: Path,
) -> None:
    """Two turns at once lost or overwrote history or a reply.

    AstrBotDevs/AstrBot#3599, AstrBotDevs/AstrBot#9671, NousResearch/hermes-agent#2086, openclaw/openclaw#94678.
    """
    go = asyncio.Event()

    async def script(messages: list[Message], number: int) -> Reply:
        await go.wait()
        return echo(messages, number)

    hook = {"channels.generic.secret": SECRET, "channels.generic.user": "owner"}
    async with FakeModel(script) as model, asking(tmp_path, model, hook, web=True) as claw:

        async def by_hook(text: str) -> str:
            async with aiohttp.ClientSession() as http:
                url = api(claw, "").replace("/api/", "/webhooks/in")
                ids = (await post(http, url, {"text": text, "session": "ops"}, message_id=text))[1]
            return str((await outcome(claw, ids["turn_id"]))["data"]["text"])

        first = asyncio.create_task(by_hook("first"))
        await eventually(lambda: model.requests)
        [session] = await claw.sessions.list("owner")
        session_id = session.session_id
        texts = [f"{way} {number}" for number in range(3) for way in ("socket", "http", "library", "hook")]

        async def by_socket(text: str) -> str:
            async with raw(claw) as client:
                return str((await client.say(text, session_id=session_id))["data"]["text"])

        async def by_http(text: str) -> str:
            body = {"text": text, "session_id": session_id}
            async with (
                aiohttp.ClientSession(headers=AUTH) as http,
                http.post(api(claw, "messages?wait=20"), json=body) as response,
            ):
                return str((await response.json())["text"])

        async def by_library(text: str) -> str:
            events = [event async for event in claw.ask(text, session_id=session_id)]
            return str(events[-1]["data"]["text"])

        ways = itertools.cycle((by_socket, by_http, by_library, by_hook))
        asked = asyncio.gather(first, *(way(text) for way, text in zip(ways, texts, strict=False)))
        await eventually(lambda: claw.mailbox.load == {"running": 1, "waiting": len(texts)})
        assert len(model.requests) == 1
        go.set()
        answers = await asked
        texts.insert(0, "first")
        assert answers == [f"echo: {text}" for text in texts]
        said = [entry.message["content"] for entry in await log_of(claw, session_id)]
    assert sorted(said[::2]) == sorted(texts)
    assert said[1::2] == [f"echo: {text}" for text in said[::2]]


def spoken_of(frames: list[Any]) -> set[int]:
    """The sockets whose texts are in there."""
    return set(map(int, re.findall(r"<(\d+)\.", json.dumps(frames))))


async def test_of_many_sockets_with_many_messages_at_once_none_is_told_what_was_said_to_another(
    tmp_path: Path,
) -> None:
    """langbot-app/LangBot#2286: replies came out of other conversations' sockets."""
    async with FakeModel() as model, asking(tmp_path, model) as claw:
        tokens = [TOKEN, await claw.identities.add("ann"), await claw.identities.add("bob")]

        async def talk(number: int) -> None:
            async with raw(claw, tokens[number % len(tokens)]) as client:
                session_id = (await client.command("new"))["session_id"]
                said = [f"<{number}.{again}>" for again in range(4)]
                for text in said:
                    await client.send("text", {"text": text, "session_id": session_id})
                ended = [await client.end() for _ in said]
                assert [end["data"]["text"] for end in ended] == [f"echo: {text}" for text in said]
                others = [f for f in client.frames if f["payload"].get("name") != "session.updated"]
                assert spoken_of(others) == {number}
                # The titles of a user's other sessions are for the list of sessions.
                assert {one % len(tokens) for one in spoken_of(client.frames)} == {number % len(tokens)}

        await asyncio.gather(*(talk(number) for number in range(9)))
    assert len(model.requests) == 36
    assert all(len(spoken_of(users(request["messages"]))) == 1 for request in model.requests)


async def test_messages_beyond_the_queue_are_refused_aloud_and_taken_in_order_when_they_come_again(
    tmp_path: Path,
) -> None:
    """HKUDS/nanobot#4036: what came while the queue was full overtook others or was lost."""
    go = asyncio.Event()

    async def script(messages: list[Message], number: int) -> Reply:
        await go.wait()
        return echo(messages, number)

    few = {"limits.waiting_per_session": 2}
    async with FakeModel(script) as model, asking(tmp_path, model, few) as claw, raw(claw) as client:
        session_id = (await client.command("new"))["session_id"]

        async def put(number: int) -> dict[str, Any]:
            payload = {"text": str(number), "session_id": session_id}
            return await client.receipt(await client.send("text", payload, msg_id=f"m{number}"))

        taken = [await put(0)]
        await eventually(lambda: model.requests)
        receipts = [await put(number) for number in range(1, 6)]
        assert [receipt.get("code") for receipt in receipts] == [None, None, *["session_busy"] * 3]
        go.set()
        for receipt in (*taken, *receipts[:2]):
            await client.end(receipt["turn_id"])
        again = [await put(number) for number in range(3, 5)]
        for receipt in again:
            await client.end(receipt["turn_id"])
        page = await client.command("history", {"session_id": session_id})
    assert users(page["messages"]) == list("01234")
    assert len(model.requests) == 5


async def test_a_message_at_any_moment_around_an_end_is_answered_exactly_once(tmp_path: Path) -> None:
    """NousResearch/hermes-agent#2487: between the final answer and the end it was dropped or answered twice."""
    provider = ScriptedProvider([])
    async with running_claw(tmp_path, provider) as claw:
        for moment in range(40):
            answered = asyncio.Event()

            async def final(messages: list[Message], answered: asyncio.Event = answered) -> LLMResponse:
                answered.set()
                return LLMResponse(text="final")

            provider._script[:] = [final, answer]
            provider.requests.clear()
            first = await send(claw, "first")
            await answered.wait()
            for _ in range(moment):
                await asyncio.sleep(0)
            second = await send(claw, "second", session_id=first.session_id)
            assert (await outcome(claw, second.turn_id))["data"]["text"] == "echo: second"
            said = [entry.message["content"] for entry in await log_of(claw, first.session_id)]
            assert said == ["first", "final", "second", "echo: second"], f"{moment} ticks after the answer"
            assert len(provider.requests) == 2


async def test_a_session_deleted_under_a_running_turn_gives_a_clear_error_or_a_new_session(
    tmp_path: Path,
) -> None:
    """NousResearch/hermes-agent#99106: its slot stayed taken and all further messages were dropped silently."""
    asked = asyncio.Event()

    async def never(messages: list[Message]) -> LLMResponse:
        asked.set()
        return await hang(messages)

    stop = {"limits.drain_seconds": 0}
    async with hooked(tmp_path, [never, answer, answer], **stop) as (claw, http, url):
        body = {"text": "first", "session": "ops"}
        first = (await post(http, url, body))[1]
        await asyncio.wait_for(asked.wait(), 20)
        await claw.sessions.delete(first["session_id"])
        status, second = await post(http, url, {**body, "text": "second"}, message_id="m2")
        assert status == 202 and second["session_id"] != first["session_id"]
        assert (await outcome(claw, second["turn_id"]))["data"]["text"] == "echo: second"
        async with raw(claw, await claw.identities.new_token("monitor")) as client:
            payload = {"text": "third", "session_id": first["session_id"]}
            assert (await client.receipt(await client.send("text", payload)))["code"] == "session_not_found"
            assert (await client.say("fourth"))["data"]["text"] == "echo: fourth"


async def test_a_session_that_is_deleted_while_it_changes_does_not_come_back(tmp_path: Path) -> None:
    """The same report, seen from the other side: what storage forgot, a slot in memory must not write again."""
    async with running_claw(tmp_path, ScriptedProvider([])) as claw, raw(claw) as first, raw(claw) as second:
        for ticks in range(12):
            session_id = (await first.command("new"))["session_id"]
            changing = asyncio.create_task(
                second.command("rename", {"session_id": session_id, "title": "again"})
            )
            for _ in range(ticks):
                await asyncio.sleep(0)
            await first.command("delete", {"session_id": session_id})
            assert (await changing).get("code") in (None, "session_not_found")
            assert (await first.command("sessions"))["sessions"] == [], f"{ticks} ticks"


# --- several people, the same message again ---------------------------------------------------------------


async def test_what_one_user_told_is_never_in_the_prompt_the_lists_or_the_reach_of_another(
    tmp_path: Path,
) -> None:
    """HKUDS/nanobot#3100, HKUDS/nanobot#2836: memories of several chats were mixed."""

    def script(messages: list[Message], number: int) -> Reply:
        text = last_user(messages)
        if messages[-1]["role"] == "user" and text.startswith("my name is"):
            return {"calls": [("memory_save", {"content": f"the user says: {text}"})]}
        return {"text": str(messages[0]["content"]).partition("<memories>")[2]}

    async with FakeModel(script) as model, asking(tmp_path, model) as claw:
        names = {"ann": "Annabel", "bob": "Robert"}
        tokens = {user: await claw.identities.add(user) for user in names}
        memories: dict[str, str] = {}
        for user, name in names.items():
            async with raw(claw, tokens[user]) as client:
                await client.say(f"my name is {name}")
                (memory,) = (await client.command("memories"))["memories"]
                memories[user] = memory["memory_id"]
        for user, other in (("ann", "bob"), ("bob", "ann")):
            async with raw(claw, tokens[user]) as client:
                told = (await client.say("what is my name?"))["data"]["text"]
                assert names[user] in told and names[other] not in told
                refused = await client.command("forget", {"memory_id": memories[other]})
                assert refused["code"] == "not_found"


async def test_an_event_that_comes_again_much_later_or_after_restarts_is_answered_once(
    tmp_path: Path,
) -> None:
    """Keys in memory, or for a minute only, had events answered again.

    whatwewant/chatgpt-for-chatbot-feishu#27, HengWoo/tele-claude-bot#24, openclaw/openclaw#83521,
    openclaw/openclaw#19226.
    """
    clock, provider = FakeClock(), ScriptedProvider([answer])
    arguments = {
        "gateway.port": None,
        "web.port": 0,
        "gateway.token": TOKEN,
        "model.probe_local": False,
        "channels.generic.secret": SECRET,
        "channels.generic.user": "monitor",
    }
    loaded = load_settings(env={}, data_dir=str(tmp_path), arguments=arguments)
    answers = []
    for later in (0, 61, 300, 7 * 3600, 16 * 3600):
        async with MiniClaw(loaded, provider=provider, clock=clock) as claw, aiohttp.ClientSession() as http:
            clock.advance(later)
            await claw.turns.forget_old()
            assert claw.web is not None
            url = f"http://127.0.0.1:{claw.web.port}/webhooks/in"
            body = {"text": "once", "session": "ops"}
            repeats = (post(http, url, body, message_id="ev", at=clock.now) for _ in range(3))
            answers += await asyncio.gather(*repeats)
            await outcome(claw, answers[0][1]["turn_id"])
    assert answers == [(202, answers[0][1])] * 15
    assert len(provider.requests) == 1
