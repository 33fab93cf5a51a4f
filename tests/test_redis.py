"""One gateway of many processes: what is kept in Redis, and what one node does for another."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis.asyncio

from miniclaw.agent.proposals import INSTRUCTIONS
from miniclaw.agent.providers import LLMProvider, LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.errors import ProtocolError, StaleFence
from miniclaw.redis.backend import RedisBackend
from miniclaw.redis.queue import RedisMailbox
from miniclaw.session.models import Entry, Usage
from tests.support.agent import DictatedProvider, Zap, eventually, question, result_in, send, zap
from tests.support.claw import TOKEN, port_of, running_claw
from tests.support.client import RawClient, raw_client
from tests.support.redis import fresh_prefix, needs_redis, shared_server
from tests.test_approval import AsksForm, AsksTwice
from tests.test_automatic import HOME, looked_at, mode
from tests.test_memory_control import endless, texts_below, wiped
from tests.test_openai_endpoint import entered_by_nobody
from tests.test_outbox import HERE, delivery, sent_in_order
from tests.test_uploads import Person

pytestmark = needs_redis


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {messages[-1]['content']}")


@asynccontextmanager
async def node(
    directory: Path,
    prefix: str,
    provider: LLMProvider | None = None,
    *,
    url: str = "",
    web: bool = False,
    **more: Any,
) -> AsyncIterator[MiniClaw]:
    """One of the gateways on a prefix; its lease is short."""
    given = {"redis.url": url or shared_server().url, "redis.prefix": prefix, "redis.lease": 0.6, **more}
    provider = provider or ScriptedProvider([echo] * 50)
    async with running_claw(directory, provider, web=web, arguments=given) as claw:
        yield claw


def queue_of(claw: MiniClaw) -> RedisMailbox:
    assert isinstance(claw.mailbox, RedisMailbox)
    return claw.mailbox


def take_no_work(claw: MiniClaw) -> None:
    """Let it be the place where people are connected, and nothing else."""
    for task in queue_of(claw)._tasks:
        task.cancel()


async def ended(claw: MiniClaw, turn_id: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def has_ended() -> bool:
        turn = await claw.turns.find(turn_id or "")
        found.update((turn.outcome if turn else None) or {})
        return bool(found)

    await eventually(has_ended)
    return found


async def said_in(claw: MiniClaw, session_id: str | None) -> list[str]:
    session = await claw.sessions.get(session_id or "")
    assert session is not None
    return [str(entry.message["content"]) for entry in session.messages]


# --- one node ---------------------------------------------------------------------------------------------


async def kept_with(prefix: str, word: str) -> int:
    """How many keys of the server hold the word, by name or in what they are."""
    server, found = redis.asyncio.from_url(shared_server().url), 0
    async with server:
        await server.config_set("rdbcompression", "no")
        async for key in server.scan_iter(f"*{prefix}*", count=500):
            found += word.encode() in key + (await server.dump(key) or b"")
    return found


async def test_a_user_is_wiped_with_everything_that_is_kept_of_them(tmp_path: Path) -> None:
    word, prefix = "Zarniwoop-4242", fresh_prefix()
    model = ScriptedProvider([LLMResponse(text=f"noted {word}"), endless])
    async with node(tmp_path, prefix, model, web=True) as claw:
        await wiped(claw, word, left=partial(kept_with, prefix, word))
    assert (await kept_with(prefix, word), texts_below(tmp_path, word)) == (0, [])


async def families(prefix: str, *, lasting: bool = False) -> set[str]:
    """The keys as the table of docs/scale.md names them, those that never end alone."""
    async with redis.asyncio.from_url(shared_server().url, decode_responses=True) as server:
        names = [key async for key in server.scan_iter(f"{{{prefix}}}:*", count=500)]
        names = [name for name in names if not lasting or await server.ttl(name) == -1]
    return {re.sub(r":.*", ":", name.removeprefix(f"{{{prefix}}}:")) for name in names}


async def test_nothing_private_stays_of_a_deleted_session_or_a_wiped_user_and_the_docs_name_every_key(
    tmp_path: Path,
) -> None:
    word, prefix = "Vogon-4711", fresh_prefix()
    model = ScriptedProvider([zap("a"), LLMResponse(text=word, usage=Usage(model="m", calls=1))])
    async with node(tmp_path, prefix, model) as claw, raw_client(port_of(claw)) as owner:
        claw.registry.register(Zap("write"))
        receipt = await send(claw, word)
        await claw.desk.decide((await question(claw)).short_id, "owner", "session")
        await ended(claw, receipt.turn_id)
        of_turn = delivery(key="answer", turn_id=receipt.turn_id, user_id="owner", text=word)
        note = delivery(n=0, key="note", turn_id="", account=word, conversation="C2")
        await claw.outbox.notice([of_turn, note])
        seen = await families(prefix)
        for place in (HERE, ("slack", word, "C2")):
            assert len(await sent_in_order(claw.outbox, place)) == 1
        await claw.identities.pairing_code("slack", "T1", "U1")
        await claw.identities.ensure("ann")
        await claw._backend.check()
        seen |= await families(prefix)
        assert await claw.outbox.has("answer") and await claw.outbox.has("note")
        await owner.command("delete", {"session_id": receipt.session_id})
        assert not await claw.outbox.has("answer")
        await claw.identities.wipe("ann")
        assert await kept_with(prefix, word) == 0
        assert await families(prefix, lasting=True) <= {
            "users",
            "n",
            "waiting",
            "ready",
            "us:",
            "usd:",
            "probe",
        }
        seen |= await families(prefix)
    table = (Path(__file__).parent.parent / "docs/scale.md").read_text(encoding="utf-8").partition("## 键")[2]
    assert seen <= set(re.findall(r"`([a-z-]+:?)(?:<.*?>)?`", table))


async def test_what_another_node_thinks_of_remembering_of_a_user_who_is_wiped_is_not_kept(
    tmp_path: Path,
) -> None:
    asked, wiped_by = asyncio.Event(), asyncio.Event()

    async def answer(messages: list[Message]) -> LLMResponse:
        if messages[0]["content"] == INSTRUCTIONS:
            asked.set()
            await wiped_by.wait()
        return LLMResponse(text=json.dumps([HOME]), usage=Usage(model="m", calls=1))

    prefix, more = fresh_prefix(), mode("on")
    async with (
        node(tmp_path / "a", prefix, **more) as a,
        node(tmp_path / "b", prefix, ScriptedProvider([answer] * 2), **more) as b,
        raw_client(port_of(a)) as owner,
    ):
        take_no_work(a)
        token = (await owner.command("users", {"action": "add", "user_id": "bob"}))["token"]
        await eventually(lambda: b.identities.user_of_token(token))
        async with raw_client(port_of(b), token) as bob:
            await bob.say("I live in Hangzhou, by the lake.")
            await asked.wait()
            await owner.command("users", {"action": "remove", "user_id": "bob", "wipe": True})
        await eventually(lambda: b.identities.is_gone("bob"))
        wiped_by.set()
        await looked_at(b)
        assert await b.memory.list("bob") == []
        assert await b.commands._c.usage.rows("bob") == []


async def test_nobody_else_enters_the_session_of_one_answer(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with node(tmp_path, fresh_prefix(), model, web=True) as claw:
        await entered_by_nobody(claw, model)


async def test_a_message_is_answered_by_way_of_redis_and_the_session_is_there(tmp_path: Path) -> None:
    prefix = fresh_prefix()
    async with node(tmp_path, prefix) as claw:
        events = [event async for event in claw.ask("one")]
        assert (events[0]["name"], events[-1]["name"]) == ("turn.started", "turn.finished")
        session_id = events[0]["session_id"]
        assert (await claw.reply("two", session_id=session_id)).text == "echo: two"
    async with node(tmp_path, prefix) as claw:
        assert await said_in(claw, session_id) == ["one", "echo: one", "two", "echo: two"]
        assert not (tmp_path / "miniclaw.db").exists()


async def test_the_bounds_hold_for_all_gateways_together_and_a_refused_message_leaves_nothing(
    tmp_path: Path,
) -> None:
    few: dict[str, Any] = {"limits.waiting": 3, "limits.waiting_per_session": 2}
    prefix, model = fresh_prefix(), DictatedProvider()
    async with (
        node(tmp_path / "a", prefix, model, **few) as a,
        node(tmp_path / "b", prefix, model, **few) as b,
    ):
        first = await send(a)
        await eventually(lambda: model.requests)
        for claw in (a, b):
            assert (await send(claw, session_id=first.session_id)).status == "accepted"
        busy = await send(b, msg_id="again", session_id=first.session_id)
        assert (busy.status, busy.code) == ("busy", "session_busy")
        take_no_work(a)
        take_no_work(b)
        assert (await send(a)).status == "accepted"
        assert (await send(b)).code == "overloaded"
        assert len(await a.sessions.list()) == 2


# --- two nodes --------------------------------------------------------------------------------------------


async def until_event(client: RawClient, name: str) -> dict[str, Any]:
    payload: dict[str, Any] = (await client.until(lambda f: f["payload"].get("name") == name))["payload"]
    return payload


async def test_a_socket_sees_a_turn_that_another_node_runs_and_goes_on_without_a_gap_on_a_third(
    tmp_path: Path,
) -> None:
    prefix, model = fresh_prefix(), DictatedProvider()
    async with AsyncExitStack() as stack:
        claws = [await stack.enter_async_context(node(tmp_path / n, prefix, model)) for n in "bac"]
        worker, a, c = claws
        take_no_work(a)
        take_no_work(c)
        async with raw_client(port_of(a)) as client:
            await client.send("text", {"text": "go"})
            started = await until_event(client, "turn.started")
            model.say("one ")
            first = await until_event(client, "text.delta")
            assert first["data"] == {"text": "one "}
            await client.send("text", {"text": "later"})
            queued = await until_event(client, "turn.queued")
            assert queued["data"] == {"position": 1, "text": "later", "attachments": []}
            waiting = (await client.command("resume", {"session_id": started["session_id"]}))["waiting"]
            assert waiting == [{"turn_id": queued["turn_id"], **queued["data"]}]
            await client.command("cancel", {"turn_id": queued["turn_id"]})
        model.say("two ")
        await eventually(lambda: (feed := worker.live.get(started["session_id"])) and feed.text == "one two ")
        async with raw_client(port_of(c)) as client:
            place = {name: started[name] for name in ("session_id", "turn_id", "attempt")}
            await client.send("command", {"name": "resume", "args": {**place, "after_seq": first["seq"]}})
            second = await until_event(client, "text.delta")
            assert (second["seq"], second["data"]) == (first["seq"] + 1, {"text": "two "})
            model.end("three")
            third = await until_event(client, "text.delta")
            end = await until_event(client, "turn.finished")
            assert [third["seq"], end["seq"]] == [first["seq"] + 2, first["seq"] + 3]
            assert end["data"]["text"] == "one two three"
            await client.send("command", {"name": "resume", "args": {**place, "after_seq": first["seq"]}})
            assert (await until_event(client, "turn.finished"))["data"]["text"] == "one two three"


async def test_a_file_uploaded_at_one_node_goes_with_a_message_to_another_and_to_its_owner_alone(
    tmp_path: Path,
) -> None:
    prefix, now = fresh_prefix(), [1_800_000_000.0]
    given = {"redis.url": shared_server().url, "redis.prefix": prefix}
    first, second = (
        running_claw(tmp_path, ScriptedProvider([echo] * 9), web=True, arguments=given, clock=lambda: now[0])
        for _ in "ab"
    )
    async with first as a, second as b, aiohttp.ClientSession() as http:
        take_no_work(a)
        assert a.web is not None and b.web is not None and a.uploads is not None
        await a.identities.ensure("bob")
        here, there, other = (
            Person(http, f"http://127.0.0.1:{port}", token)
            for port, token in (
                (a.web.port, TOKEN),
                (b.web.port, TOKEN),
                (a.web.port, await a.identities.new_token("bob")),
            )
        )
        status, told = await here.upload("红色的车".encode("gb18030"), "车.txt")
        assert status == 201
        _, unsent = await here.upload("不要".encode(), "b.txt")
        assert (await other.say("mine", told["id"]))[1]["error"]["code"] == "not_found"
        assert "红色的车" in (await there.say("什么车", told["id"]))[1]["text"]
        now[0] += 24 * 3600.0 + 1
        assert (await there.say("late", unsent["id"]))[1]["error"]["code"] == "not_found"
        for claw in (a, b):
            assert claw.uploads is not None
            await claw.uploads.forget_unsent()
        kept = sorted(path.name for path in (tmp_path / "users/owner/workspace/uploads").iterdir())
        assert kept == ["车.txt", "车.txt.txt"]
        assert (await here.say("again", told["id"]))[0] == 200


async def test_an_end_that_nobody_could_be_told_of_is_found_by_those_who_wait_for_it(tmp_path: Path) -> None:
    prefix, model = fresh_prefix(), DictatedProvider()
    async with node(tmp_path / "b", prefix, model) as worker, node(tmp_path / "a", prefix, model) as a:
        take_no_work(a)
        assert isinstance(worker._backend, RedisBackend) and worker._backend._relay is not None
        async with raw_client(port_of(a)) as waits, raw_client(port_of(a)) as comes_late:
            await waits.send("text", {"text": "go"})
            started = await until_event(waits, "turn.started")
            model.say("one")
            await until_event(waits, "text.delta")
            await worker._backend._relay.stop()  # as if it had died between the end and the telling of it
            model.end()
            await ended(a, started["turn_id"])
            place = {name: started[name] for name in ("session_id", "turn_id")}
            await comes_late.send("command", {"name": "resume", "args": place})
            for client in (waits, comes_late):
                assert (await until_event(client, "turn.finished"))["data"]["text"] == "one"


async def test_the_same_message_on_two_nodes_at_once_is_one_turn(tmp_path: Path) -> None:
    prefix = fresh_prefix()
    async with node(tmp_path / "a", prefix) as a, node(tmp_path / "b", prefix) as b:
        receipts = await asyncio.gather(*(send(claw, msg_id="m1") for claw in (a, b) * 5))
        assert sorted(r.status for r in receipts) == ["accepted"] + ["duplicate"] * 9
        assert len({(r.session_id, r.turn_id) for r in receipts}) == 1
        await ended(b, receipts[0].turn_id)
        assert await said_in(b, receipts[0].session_id) == ["go", "echo: go"]


async def test_a_holder_that_was_away_past_its_lease_is_refused_and_its_successor_answers_once(
    tmp_path: Path,
) -> None:
    prefix, slow = fresh_prefix(), DictatedProvider()
    async with node(tmp_path / "old", prefix, slow) as old, node(tmp_path / "new", prefix) as new:
        take_no_work(new)
        receipt = await send(old)
        await eventually(lambda: slow.requests)
        for task in queue_of(old)._tasks:  # it shows no life any more, but its turn goes on
            if task is not queue_of(old)._held[receipt.session_id or ""].task:
                task.cancel()
        queue_of(new).start()
        assert (await ended(new, receipt.turn_id))["data"]["text"] == "echo: go"
        session = await old.sessions.get(receipt.session_id or "")
        assert session is not None
        with pytest.raises(StaleFence):
            await old.sessions.append(session, [Entry("t", 0, {"role": "user", "content": "late"})])
        slow.end("too late")
        await eventually(lambda: not queue_of(old)._held)
        assert await said_in(new, receipt.session_id) == ["go", "echo: go"]
        turn = await new.turns.find(receipt.turn_id or "")
        assert turn is not None and (turn.attempt, turn.tries) == (2, 2)


async def test_a_cancel_and_a_yes_reach_the_node_that_runs_the_turn(tmp_path: Path) -> None:
    prefix, model, tool = fresh_prefix(), DictatedProvider(), Zap()
    async with node(tmp_path / "a", prefix, model) as a, node(tmp_path / "b", prefix, model) as b:
        take_no_work(a)
        b.registry.register(tool)
        receipt = await send(a)
        await eventually(lambda: model.requests)
        assert await a.commands.cancel(receipt.turn_id or "", "owner")
        assert (await ended(a, receipt.turn_id))["name"] == "turn.cancelled"
        receipt = await send(a, session_id=receipt.session_id)
        await eventually(lambda: len(model.requests) == 2)
        model.call("zap", at="a")
        asked = await question(a)
        assert tool.ran == []
        await a.desk.decide(asked.short_id, "owner", "once")
        await eventually(lambda: len(model.requests) == 3)
        model.end("done")
        assert (await ended(a, receipt.turn_id))["data"]["text"] == "done"
        assert len(tool.ran) == 1


async def test_what_is_filled_in_on_one_node_reaches_the_turn_on_another(tmp_path: Path) -> None:
    prefix, provider = fresh_prefix(), ScriptedProvider([zap("a"), LLMResponse(text="done")])
    async with node(tmp_path / "a", prefix, provider) as a, node(tmp_path / "b", prefix, provider) as b:
        take_no_work(a)
        b.registry.register(AsksForm("read"))
        receipt = await send(a)
        asked = await question(a)
        with pytest.raises(ProtocolError, match="whole number"):
            await a.desk.decide(asked.short_id, "owner", "once", answer="many")
        await a.desk.decide(asked.short_id, "owner", "once", answer="7")
        await ended(a, receipt.turn_id)
        assert result_in(provider.requests[1]) == "('approved', {'age': 7})"


async def test_a_cancelled_turn_ends_though_its_canceller_died_before_it_could_end_it(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with node(tmp_path, fresh_prefix(), model) as claw:
        running = await send(claw)
        await eventually(lambda: model.requests)
        queued = await send(claw, msg_id="m2", session_id=running.session_id)
        turn_id, session_id = str(queued.turn_id), str(queued.session_id)
        assert await claw.turns.request_cancel(turn_id)
        link = queue_of(claw)._link
        for _ in ("the answer of Redis is lost", "so it is asked again"):
            assert await link.call("take_out", turn_id, session_id, "mark") == 1
        assert await link.run("LLEN", f"{link.prefix}q:{session_id}") == 1
        model.end("done")
        assert (await ended(claw, turn_id))["name"] == "turn.cancelled"
        assert await link.run("GET", f"{link.prefix}waiting") == "0"


async def test_a_question_that_its_call_gives_up_is_closed_on_all_nodes_and_may_be_asked_anew(
    tmp_path: Path,
) -> None:
    let, provider = asyncio.Event(), ScriptedProvider([zap("a"), LLMResponse(text="done")])
    async with node(tmp_path / "a", fresh_prefix(), provider) as claw:
        claw.registry.register(AsksTwice(let.wait))
        receipt = await send(claw)
        first = await question(claw)
        let.set()
        second = await question(claw, but=first.approval_id)
        assert await claw.desk.open_for("owner") == [second]
        await claw.desk.decide(second.short_id, "owner", "once")
        await ended(claw, receipt.turn_id)
        assert result_in(provider.requests[1]) == "True approved"


async def test_a_user_of_one_node_is_one_of_all_and_is_shut_out_everywhere(tmp_path: Path) -> None:
    prefix = fresh_prefix()
    async with node(tmp_path / "a", prefix) as a, node(tmp_path / "b", prefix) as b:
        token = await a.identities.add("ann")
        await eventually(lambda: b.identities.user_of_token(token) == "ann")
        async with raw_client(port_of(b), token) as client, raw_client(port_of(a)) as admin:
            await client.command("ping")
            await admin.command("users", {"action": "remove", "user_id": "ann"})
            await asyncio.wait_for(client.socket.wait_closed(), 10)
            assert client.socket.close_code == 1008
        await eventually(lambda: b.identities.user_of_token(token) is None)
