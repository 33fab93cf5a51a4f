"""Sessions from their first message to their deletion: by command and over HTTP, each user their own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.exceptions import ConnectionClosed

from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.gateway import session_actions
from miniclaw.session.models import Usage
from miniclaw.skills.models import Skill
from tests.support.agent import outcome, send
from tests.support.claw import TOKEN, port_of, running_claw
from tests.support.client import raw_client
from tests.support.core import told
from tests.support.inside import database_of
from tests.support.model import last_user

AUTH = {"Authorization": f"Bearer {TOKEN}"}


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: {last_user(messages)}")


async def call(http: aiohttp.ClientSession, method: str, url: str, **options: Any) -> tuple[int, Any]:
    async with http.request(method, url, headers=AUTH, **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def test_a_session_is_titled_by_its_first_line_renamed_found_forked_exported_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ScriptedProvider([echo, echo, echo])
    async with running_claw(tmp_path, provider, web=True) as claw:
        assert claw.gateway is not None and claw.web is not None
        base = f"http://127.0.0.1:{claw.web.port}/api/sessions"
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession() as http:
            session_id = (await client.say("龙井茶怎么泡\n第二行"))["session_id"]
            await client.say("and how long?", session_id=session_id)
            rows = (await client.command("sessions"))["sessions"]
            assert [row["title"] for row in rows] == ["龙井茶怎么泡"]

            _, renamed = await call(http, "PATCH", f"{base}/{session_id}", json={"title": "  茶 \n 道 "})
            assert renamed["title"] == "茶 道"
            assert (await client.command("rename", {"title": " "}))["title"] == "龙井茶怎么泡"
            assert (await client.command("rename", {"title": "茶道"}))["title"] == "茶道"
            found = await client.command("sessions", {"query": "茶道"})
            assert [row["session_id"] for row in found["sessions"]] == [session_id] and found["hits"] == []

            for query in ("龙井", "怎么", "HOW LONG"):
                _, found = await call(http, "GET", f"{base}?query={query}")
                assert {hit["session_id"] for hit in found["hits"]} == {session_id}, query
            assert (await client.command("sessions", {"query": "%"}))["hits"] == []

            status, fork = await call(http, "POST", f"{base}/{session_id}/fork", json={"position": 1})
            assert status == 201 and fork["title"] == "茶道"
            assert (await client.command("sessions"))["more"] is False
            monkeypatch.setattr(session_actions, "LISTED", 1)
            listed = await client.command("sessions")
            assert len(listed["sessions"]) == 1 and listed["more"] is True
            await client.say("something else", session_id=fork["session_id"])
            _, page = await call(http, "GET", f"{base}/{fork['session_id']}/messages")
            assert [m["content"] for m in page["messages"]] == [
                "龙井茶怎么泡\n第二行",
                "echo: 龙井茶怎么泡\n第二行",
                "something else",
                "echo: something else",
            ]
            _, old = await call(http, "GET", f"{base}/{session_id}/messages")
            for limit, status, count in (
                ("0", 200, 0),
                ("1", 200, 1),
                ("²", 400, 0),
                ("٣", 400, 0),
                ("-1", 400, 0),
            ):
                code, page = await call(http, "GET", f"{base}/{session_id}/messages?limit={limit}")
                assert (code, len(page.get("messages", []))) == (status, count), limit
            assert len(old["messages"]) == 4, "the forked session is as it was"

            _, exported = await call(http, "GET", f"{base}/{session_id}/export?format=json")
            assert exported["title"] == "茶道" and len(exported["messages"]) == 4
            _, markdown = await call(http, "GET", f"{base}/{session_id}/export")
            assert markdown.startswith("# 茶道\n") and "echo: and how long?" in markdown

            assert await call(http, "DELETE", f"{base}/{session_id}") == (
                200,
                {"session_id": session_id, "deleted": True},
            )
            assert (await call(http, "GET", f"{base}/{session_id}/messages"))[0] == 404
            assert (await client.command("delete", {"session_id": fork["session_id"]}))["deleted"] is True
            assert (await client.command("sessions"))["sessions"] == []
    database = sqlite3.connect(tmp_path / "miniclaw.db")
    tables = ("entries", "turns", "sessions", "approvals", "deliveries")
    counts = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    database.close()
    assert counts == dict.fromkeys(tables, 0)


async def test_a_session_with_a_running_turn_is_not_deleted(tmp_path: Path) -> None:
    wait = LLMResponse(tool_calls=(ToolCall.of("c", "memory_delete", {"memory_id": "mem_a"}),))
    async with running_claw(tmp_path, ScriptedProvider([wait])) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as client:
            receipt = await client.receipt(await client.send("text", {"text": "go"}))
            await client.until(lambda f: f["payload"].get("name") == "approval.requested")
            refused = await client.command("delete", {"session_id": receipt["session_id"]})
            assert refused["code"] == "session_busy"
            await client.command("cancel", {"turn_id": receipt["turn_id"]})
            await client.end(receipt["turn_id"])
            assert (await client.command("delete", {"session_id": receipt["session_id"]}))["deleted"] is True


async def test_a_message_that_races_with_a_delete_is_refused_or_answered(tmp_path: Path) -> None:
    """What was acknowledged is answered, whoever comes first."""
    async with running_claw(tmp_path, ScriptedProvider([echo] * 40)) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as ann, raw_client(claw.gateway.port or 0) as bob:
            accepted = []
            for _ in range(8):
                session_id = (await ann.command("new"))["session_id"]
                erase = {"name": "delete", "args": {"session_id": session_id}}
                (deleted, sent) = await asyncio.gather(
                    ann.send("command", erase), bob.send("text", {"text": "hi", "session_id": session_id})
                )
                receipt = await bob.receipt(sent)
                await ann.receipt(deleted)
                if receipt.get("data", receipt).get("status") == "accepted":
                    accepted.append((await bob.end(receipt["turn_id"]))["name"])
                else:
                    assert receipt["code"] == "session_not_found"
            assert set(accepted) <= {"turn.finished"}


async def test_a_connection_whose_session_is_gone_begins_a_new_one(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo] * 2)) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as client:
            first = (await client.say("one"))["session_id"]
            await claw.sessions.delete(first)
            second = (await client.say("two"))["session_id"]
            assert second != first


async def test_no_text_of_a_deleted_session_or_memory_is_left_in_the_results_of_commands(
    tmp_path: Path,
) -> None:
    word = "XYZZY-4471-plugh"
    async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as client:
            session_id = (await client.say(f"first {word}"))["session_id"]
            await client.command("rename", {"session_id": session_id, "title": f"title {word}"})
            fork = await client.command("fork", {"session_id": session_id})
            saved = [
                (await client.command("remember", {"content": f"{word} {n}"}))["memory_id"] for n in "12"
            ]
            for memory_id in saved:
                await client.command("forget", {"memory_id": memory_id})
            for one in (session_id, fork["session_id"]):
                await client.command("delete", {"session_id": one})
        left = [path for path in tmp_path.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
        assert left == []


async def test_a_session_whose_answer_is_on_its_way_does_not_expire(tmp_path: Path) -> None:
    ttl = {"storage.session_ttl": {"library": 0.001}}
    async with running_claw(tmp_path, ScriptedProvider([echo]), arguments=ttl) as claw:
        end = [event async for event in claw.ask("hello")][-1]
        row = ("k.0", 1, 0, end["turn_id"], "owner", "chat", "", "c", "{}", "t", "pending")
        await database_of(claw).write(
            lambda c: c.execute(
                "INSERT INTO deliveries (key, n, part, turn_id, user_id, channel, account, conversation, target, "
                "text, state, next_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)",
                row,
            )
        )
        assert await claw.sessions.cleanup_expired(claw.mailbox.has_turns) == 0
        await database_of(claw).write(lambda c: c.execute("UPDATE deliveries SET state = 'sent'"))
        assert await claw.sessions.cleanup_expired(claw.mailbox.has_turns) == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "", {"title": "mine"}),
        ("DELETE", "", None),
        ("POST", "/fork", {}),
        ("GET", "/export", None),
        ("GET", "/messages", None),
    ],
)
async def test_another_users_session_is_not_there(tmp_path: Path, method: str, path: str, body: Any) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        assert claw.web is not None
        session = await claw.sessions.get_or_create("alice", "web")
        url = f"http://127.0.0.1:{claw.web.port}/api/sessions/{session.session_id}{path}"
        async with aiohttp.ClientSession() as http:
            assert (await call(http, method, url, json=body))[0] == 404
        assert await claw.sessions.get(session.session_id) is not None


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/fork", {"position": 99}, 400), ("/fork", {"x": 1}, 400), ("/export?format=pdf", None, 400)],
)
async def test_bad_arguments_are_named(tmp_path: Path, path: str, body: Any, status: int) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        assert claw.web is not None
        session = await claw.sessions.get_or_create("owner", "web")
        url = f"http://127.0.0.1:{claw.web.port}/api/sessions/{session.session_id}{path}"
        async with aiohttp.ClientSession() as http:
            method = "POST" if body is not None else "GET"
            assert (await call(http, method, url, json=body))[0] == status


async def test_an_idle_session_past_its_ttl_is_deleted_and_the_next_message_begins_a_new_one(
    tmp_path: Path,
) -> None:
    ttl = {"storage.session_ttl": {"library": 0.001}}
    async with running_claw(tmp_path, ScriptedProvider([echo, echo]), arguments=ttl) as claw:
        events = [event async for event in claw.ask("hello")]
        session_id = events[-1]["session_id"]
        assert await claw.sessions.cleanup_expired(told(lambda busy: True)) == 0
        assert await claw.sessions.cleanup_expired(claw.mailbox.has_turns) == 1
        assert await claw.sessions.get(session_id) is None
        again = [event async for event in claw.ask("hello again")]
        assert again[-1]["session_id"] != session_id


async def test_a_tool_result_full_of_fences_does_not_break_the_exported_markdown(tmp_path: Path) -> None:
    use = LLMResponse(tool_calls=(ToolCall.of("c", "load_skill", {"name": "skill-writer"}),))
    async with running_claw(tmp_path, ScriptedProvider([use, echo])) as claw:
        events = [event async for event in claw.ask("write")]
        session = await claw.sessions.get(events[-1]["session_id"])
        assert session is not None
        from miniclaw.session.export import to_markdown

        session.messages[2].message["content"] = "```\ncode\n```"
        assert "````\n```\ncode\n```\n````" in to_markdown(session)


async def test_nothing_of_a_deleted_session_is_left_in_any_file(tmp_path: Path) -> None:
    word = "XYZZY-4471-plugh"

    def holding() -> list[str]:
        return [
            str(path) for path in tmp_path.rglob("*") if path.is_file() and word.encode() in path.read_bytes()
        ]

    plan = LLMResponse(
        tool_calls=(ToolCall.of("call_1", "todo", {"steps": [{"text": word, "status": "done"}]}),),
        finish="tool_calls",
    )
    async with running_claw(tmp_path, ScriptedProvider([plan, LLMResponse(text=f"done {word}")])) as claw:
        receipt = await send(claw, f"plan {word}")
        await outcome(claw, receipt.turn_id)
        assert holding()
        assert receipt.session_id is not None
        await claw.sessions.delete(receipt.session_id)
        assert holding() == []
    assert holding() == []


async def test_a_delete_that_breaks_off_is_gone_on_with_by_its_repeat_and_by_the_repeat_of_a_wipe(
    tmp_path: Path,
) -> None:
    wipe = {"action": "remove", "user_id": "bob", "wipe": True}
    async with running_claw(tmp_path, ScriptedProvider([echo, echo])) as claw:
        async with raw_client(port_of(claw)) as owner:
            token = (await owner.command("users", {"action": "add", "user_id": "bob"}))["token"]
            async with raw_client(port_of(claw), token) as bob:
                for client, command, args in ((owner, "delete", {}), (bob, "users", wipe)):
                    end = await client.say("XYZZY")
                    args = args or {"session_id": end["session_id"]}
                    in_the_way = tmp_path / "traces" / "2020-01-01" / f"{end['turn_id']}.jsonl"
                    in_the_way.mkdir(parents=True)  # a file that cannot be removed
                    assert (await owner.command(command, args))["code"] == "storage_unavailable"
                    assert (await client.command("sessions"))["sessions"] == [] if client is owner else True
                    in_the_way.rmdir()
                    assert "code" not in await owner.command(command, args)
                    assert database_of(claw).read("SELECT * FROM entries") == []
                    assert database_of(claw).read("SELECT * FROM turns") == []
                with pytest.raises(ConnectionClosed):
                    await bob.command("new")


async def test_what_came_since_one_looked_is_unread_until_seen_and_a_title_is_no_use(tmp_path: Path) -> None:
    provider = ScriptedProvider([echo, echo])
    async with running_claw(tmp_path, provider, web=True) as claw:
        assert claw.gateway is not None and claw.web is not None
        base = f"{claw.web.url}/api/sessions"
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession() as http:
            session_id = (await client.say("one"))["session_id"]

            async def row() -> dict[str, Any]:
                _, found = await call(http, "GET", base)
                (only,) = found["sessions"]
                return dict(only)

            assert (await row())["unread"] is False, "what nobody ever opened in a list is not news"
            await client.command("seen", {"session_id": session_id})
            before = await row()
            await call(http, "PATCH", f"{base}/{session_id}", json={"title": "T"})
            assert await row() == {**before, "title": "T"}
            await client.say("two", session_id=session_id)
            assert (await row())["unread"] is True
            await client.command("seen", {"session_id": session_id})
            assert (await row())["unread"] is False


async def test_a_page_of_the_log_tells_what_each_turn_cost_and_which_memories_it_used(tmp_path: Path) -> None:
    said = LLMResponse(text="龙井。", usage=Usage(input_tokens=7, output_tokens=3))
    async with running_claw(tmp_path, ScriptedProvider([said]), web=True) as claw:
        assert claw.gateway is not None and claw.web is not None
        saved = await claw.memory.save("owner", "我爱喝龙井茶")
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession() as http:
            session_id = (await client.say("我爱喝什么茶"))["session_id"]
            url = f"{claw.web.url}/api/sessions/{session_id}/messages?html=1"
            _, page = await call(http, "GET", url)
    user, answer = page["messages"]
    assert "usage" not in user and answer["usage"]["input_tokens"] == 7
    assert [memory["memory_id"] for memory in answer["used_memories"]] == [saved.memory_id]


async def test_skills_tell_what_is_on_in_a_session_and_why_its_last_message_suggests_one(
    tmp_path: Path,
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([echo]), web=True) as claw:
        assert claw.gateway is not None and claw.web is not None
        claw.skills.register(
            Skill(name="tea-art", description="Brews.", trigger=("龙井",), system_prompt="x")
        )
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession() as http:
            session_id = (await client.say("龙井怎么泡"))["session_id"]
            await client.command("skills", {"session_id": session_id, "activate": "tea-art"})
            for query, expected in (
                ("", (False, "")),
                (f"?session_id={session_id}", (True, "trigger `龙井`")),
            ):
                _, found = await call(http, "GET", f"{claw.web.url}/api/skills{query}")
                (row,) = [row for row in found["skills"] if row["name"] == "tea-art"]
                assert (row["active"], row["match"]) == expected
            _, models = await call(http, "GET", f"{claw.web.url}/api/models?session_id={session_id}")
            assert models["model"] == "scripted"
            status, _ = await call(http, "GET", f"{claw.web.url}/api/skills?session_id=ses_none")
            assert status == 404
