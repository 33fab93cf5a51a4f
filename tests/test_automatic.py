"""Automatic memory: what a model proposes after a turn, what of it is taken, and how a person decides."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.proposals import INSTRUCTIONS, MOST
from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.errors import ModelError
from miniclaw.session.history import message_tokens
from miniclaw.session.models import Usage
from tests.support.agent import eventually, outcome, say
from tests.support.claw import port_of, running_claw
from tests.support.client import raw_client
from tests.test_limits import command

HOME = {"content": "The user lives in Hangzhou by the lake.", "context": "small talk"}


class Proposes:
    """A model that answers "yes" and, asked what to remember, gives what it was told to."""

    def __init__(self, proposed: object) -> None:
        self.proposed = proposed
        self.asked: list[list[Message]] = []
        self.seen: list[list[Message]] = []

    def provider(self) -> ScriptedProvider:
        return ScriptedProvider([self._answer] * 50)

    async def _answer(self, messages: list[Message]) -> LLMResponse:
        if messages[0]["content"] != INSTRUCTIONS:
            self.seen.append(messages)
            return LLMResponse(
                text="yes", usage=Usage(model="scripted", input_tokens=10, output_tokens=1, calls=1)
            )
        self.asked.append(messages)
        if isinstance(self.proposed, ModelError):
            raise self.proposed
        text = self.proposed if isinstance(self.proposed, str) else f"Here: {json.dumps(self.proposed)}"
        return LLMResponse(text=text, usage=Usage(model="scripted", input_tokens=7, output_tokens=2, calls=1))


def mode(name: str) -> dict[str, Any]:
    return {"memory.automatic": name}


async def looked_at(claw: MiniClaw) -> None:
    await eventually(lambda: not claw.runner._automatic._tasks)


async def test_a_fact_in_the_users_own_words_is_saved_and_known_in_a_new_session(tmp_path: Path) -> None:
    model = Proposes([HOME])
    async with running_claw(tmp_path, model.provider(), arguments=mode("on")) as claw:
        await say(claw, "I live in Hangzhou, by the lake.")
        await looked_at(claw)
        (record,) = await claw.memory.list("owner")
        assert (record.content, record.source, record.status) == (HOME["content"], "agent", "active")
        await say(claw, "Where do I live, in Hangzhou?")
        await looked_at(claw)
        (row,) = await claw.commands._c.usage.rows("owner")
    assert HOME["content"] in model.seen[-1][0]["content"]
    assert record.memory_id in model.asked[1][1]["content"], "it was not shown what is known"
    assert (row["calls"], row["input_tokens"]) == (4, 34)


async def test_a_user_who_is_wiped_while_the_model_thinks_what_to_remember_is_not_remembered(
    tmp_path: Path,
) -> None:
    asked, wiped = asyncio.Event(), asyncio.Event()

    async def answer(messages: list[Message]) -> LLMResponse:
        if messages[0]["content"] == INSTRUCTIONS:
            asked.set()
            await wiped.wait()
        text = json.dumps([HOME]) if asked.is_set() else "yes"
        return LLMResponse(text=text, usage=Usage(model="scripted", input_tokens=10, calls=1))

    provider = ScriptedProvider([answer] * 2)
    async with running_claw(tmp_path, provider, arguments=mode("on")) as claw:
        async with raw_client(port_of(claw)) as owner:
            token = (await owner.command("users", {"action": "add", "user_id": "bob"}))["token"]
            async with raw_client(port_of(claw), token) as bob:
                await bob.say("I live in Hangzhou, by the lake.")
                await asked.wait()
                await owner.command("users", {"action": "remove", "user_id": "bob", "wipe": True})
        wiped.set()
        await looked_at(claw)
        assert await claw.memory.list("bob") == []
        assert await claw.commands._c.usage.rows("bob") == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"Hangzhou" in path.read_bytes()] == []


@pytest.mark.parametrize("name", ["off", "ask"])
async def test_unless_it_is_on_nothing_is_remembered_without_the_users_yes(tmp_path: Path, name: str) -> None:
    model = Proposes([HOME])
    async with running_claw(tmp_path, model.provider(), arguments=mode(name)) as claw:
        await say(claw, "I live in Hangzhou, by the lake.")
        await looked_at(claw)
        assert await claw.memory.search("owner", "Hangzhou lake") == []
        assert len(model.asked) == (name == "ask")
        if name == "off":
            return
        (record,) = await claw.memory.list("owner")
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as client:
            listed = await client.command("memories")
            assert listed["memories"][0]["status"] == "proposed"
            await client.command("remember", {"content": record.memory_id})
        (found,) = await claw.memory.search("owner", "Hangzhou lake")
        assert found.record.memory_id == record.memory_id


@pytest.mark.parametrize(
    "proposed",
    [
        [{**HOME, "content": "The user is a doctor of medicine from Oslo."}],
        [{**HOME, "category": "sensitive"}],
        [{**HOME, "content": "x"}, {"no": "content"}, 5, None],
        [{**HOME, "content": "Hangzhou " * 100}],
        "nothing to remember",
        "[[[[",
        "[" * 100_000,
        {"content": HOME["content"]},
        ModelError("model_error", "It broke."),
    ],
    ids=[
        "not said",
        "sensitive",
        "no proposals",
        "long",
        "no list",
        "broken",
        "deep",
        "no list either",
        "error",
    ],
)
async def test_what_cannot_be_taken_changes_nothing_and_harms_no_turn(
    tmp_path: Path, proposed: object
) -> None:
    model = Proposes(proposed)
    async with running_claw(tmp_path, model.provider(), arguments=mode("on")) as claw:
        assert await say(claw, "I live in Hangzhou, by the lake.") == "yes"
        await looked_at(claw)
        assert await claw.memory.list("owner", include_inactive=True) == []
        assert len(model.asked) == 1
        assert await say(claw, "And?") == "yes"


async def test_what_is_known_is_not_saved_again_and_what_changed_is_kept_beside_the_new(
    tmp_path: Path,
) -> None:
    model = Proposes([HOME])
    async with running_claw(tmp_path, model.provider(), arguments=mode("on")) as claw:
        known = await claw.memory.save(
            "owner", "The user lives in Hangzhou by the West Lake.", source="agent"
        )
        await say(claw, "I live in Hangzhou by the lake.")
        await looked_at(claw)
        assert [record.memory_id for record in await claw.memory.list("owner")] == [known.memory_id]
        model.proposed = [
            {"content": "The user lives in Chengdu now.", "replaces": known.memory_id},
            {"content": "The user moved from Hangzhou to Chengdu.", "replaces": "mem_invented"},
        ]
        await say(claw, "I moved from Hangzhou, I live in Chengdu now.")
        await looked_at(claw)
        records = {r.content: r for r in await claw.memory.list("owner", include_inactive=True)}
    old = records["The user lives in Hangzhou by the West Lake."]
    assert (old.status, old.superseded_by) == (
        "superseded",
        records["The user lives in Chengdu now."].memory_id,
    )
    assert records["The user moved from Hangzhou to Chengdu."].status == "active"


async def test_of_one_turn_only_a_few_are_taken(tmp_path: Path) -> None:
    rows = [{"content": f"The user likes lake number {n}."} for n in range(20)]
    async with running_claw(tmp_path, Proposes(rows).provider(), arguments=mode("on")) as claw:
        await say(claw, "I like each lake, number by number.")
        await looked_at(claw)
        assert len(await claw.memory.list("owner")) == MOST


@pytest.mark.parametrize("category", ["fact", "sensitive"])
async def test_what_the_user_keeps_themselves_is_not_replaced_unasked(tmp_path: Path, category: Any) -> None:
    model = Proposes([])
    async with running_claw(tmp_path, model.provider(), arguments=mode("on")) as claw:
        known = await claw.memory.save("owner", "The user lives in Hangzhou by the lake.", category=category)
        model.proposed = [{"content": "The user lives in Chengdu now.", "replaces": known.memory_id}]
        await say(claw, "I live in Chengdu now, not in Hangzhou by the lake.")
        await looked_at(claw)
        old, new = await claw.memory.list("owner")
    assert (old.memory_id, old.status) == (known.memory_id, "active")
    assert (new.content, new.status) == ("The user lives in Chengdu now.", "proposed")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("用户的身份证号是 330106199001011234", ["proposed"]),
        ("用户得了乙肝", ["proposed"]),
        ("The card of the user is 4111 1111 1111 1111", ["proposed"]),
        ("The user is allergic to penicillin", ["proposed"]),
        ("用户的银行卡密码是 778899", []),
        ("The api key of the user is sk-abcdefghijklmnop", []),
        ("用户的猫叫豆豆，订单号 4111 1111 1111 1112", ["active"]),
    ],
)
async def test_numbers_secrets_and_health_are_seen_by_the_program_itself(
    tmp_path: Path, said: str, expected: list[str]
) -> None:
    async with running_claw(tmp_path, Proposes([{"content": said}]).provider(), arguments=mode("on")) as claw:
        await say(claw, said)
        await looked_at(claw)
        assert [record.status for record in await claw.memory.list("owner")] == expected


@pytest.mark.parametrize("proposed", [[HOME], ModelError("model_error", "It broke.")], ids=["fact", "error"])
async def test_what_goes_into_a_summary_is_offered_to_the_memory_first(
    tmp_path: Path, proposed: object
) -> None:
    model = Proposes(proposed)
    async with running_claw(tmp_path, model.provider(), arguments=mode("off")) as claw:
        session_id = (await claw.sessions.get_or_create("owner", "library")).session_id
        await say(claw, "I live in Hangzhou, by the lake.", session_id=session_id)
        await say(claw, "How deep is it?", session_id=session_id)
        assert model.asked == []
    async with running_claw(tmp_path, model.provider(), arguments=mode("on")) as claw:
        queued = await claw.router.route(command("compact", session_id))
        done = await outcome(claw, queued.turn_id)
        saved = [record.content for record in await claw.memory.list("owner")]
    assert done["data"]["result"]["summary"] == "yes", done
    assert (
        "user: I live in Hangzhou, by the lake.\nassistant: yes\nuser: How deep"
        in model.asked[0][1]["content"]
    )
    assert saved == ([] if isinstance(proposed, ModelError) else [HOME["content"]])


async def test_what_is_known_and_said_at_length_is_cut_to_the_window_of_the_model_that_proposes(
    tmp_path: Path,
) -> None:
    model = Proposes([HOME])
    small = mode("ask") | {"context.max_tokens": 4096}
    async with running_claw(tmp_path, model.provider(), arguments=small) as claw:
        for number in range(4):
            await claw.memory.save(
                "owner", f"Plan {number} of Hangzhou: " + f"the lake in month {number}. " * 600
            )
        await say(claw, "I live in Hangzhou, by the lake. " + "西湖很深。" * 1000)
        await looked_at(claw)
        proposed = [record for record in await claw.memory.list("owner") if record.status == "proposed"]
    (request,) = model.asked
    assert sum(map(message_tokens, request)) <= 0.87 * 4096
    assert "Plan 0" in request[1]["content"] and "user: I live in Hangzhou" in request[1]["content"]
    assert [record.content for record in proposed] == [HOME["content"]]
