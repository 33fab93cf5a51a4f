"""What people can do with what is remembered of them: by command, by HTTP, by command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from websockets.exceptions import ConnectionClosed

from miniclaw.agent.command_text import command_text
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.cli import main
from miniclaw.gateway.command_table import read_command
from miniclaw.mcp.call import Call
from miniclaw.mcp.library import Library
from miniclaw.memory import LongTermMemory
from miniclaw.session.models import Session, Usage
from miniclaw.tools import ToolContext
from tests.support.agent import outcome, send
from tests.support.claw import TOKEN, running_claw
from tests.support.client import raw_client
from tests.support.model import illegal

AUTH = {"Authorization": f"Bearer {TOKEN}"}


def texts_below(root: Path, word: str) -> list[str]:
    """Files that hold the word, whatever they are."""
    return [
        str(path) for path in root.rglob("*") if path.is_file() and word.encode("utf-8") in path.read_bytes()
    ]


def row(**fields: Any) -> dict[str, Any]:
    given = {"memory_id": "mem_a", "memory_type": "semantic", "content": "住在杭州", "context": "闲聊"}
    return {**given, "updated_at": "2026-01-02T00:00:00.000Z", **fields}


def test_memories_are_listed_with_number_type_context_and_id() -> None:
    shown = command_text("memories", {"memories": [row(), row(context="", category="sensitive")]})
    assert shown.splitlines() == [
        "1. [semantic / 语义记忆] 住在杭州 | 闲聊 (mem_a, 2026-01-02)",
        "2. [semantic / 语义记忆 · sensitive / 敏感] 住在杭州 | - (mem_a, 2026-01-02)",
    ]
    long = command_text("memories", {"memories": [row(content="x\n" * 500)]})
    assert long.count("\n") == 0 and "(mem_a" in long, "a long memory keeps its id"
    assert "（空）" in command_text("memories", {"memories": []})


def test_what_is_close_is_told_to_who_remembers() -> None:
    told = command_text("remember", {"memory_id": "mem_b", "similar": [row()]})
    assert "mem_b" in told and "住在杭州" in told and "2026-01-02" in told


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("/memories", {}),
        ("/memories clear", {"action": "clear"}),
        ("/memories clear sky", {"query": "clear sky"}),
    ],
)
def test_only_the_word_alone_clears(text: str, args: dict[str, Any]) -> None:
    command = read_command(text)
    assert command is not None and command.args == args


async def test_commands_list_show_repeats_and_clear_ones_own(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        await claw.identities.ensure("bob")
        await claw.memory.save("bob", "zanzibar is of bob")
        async with raw_client((claw.gateway and claw.gateway.port) or 0) as client:
            first = await client.command("remember", {"content": "I live in xanadu"})
            again = await client.command("remember", {"content": "I live in Bonn"})
            assert [one["memory_id"] for one in again["similar"]] == [first["memory_id"]]
            assert len((await client.command("memories"))["memories"]) == 2
            [found] = (await client.command("memories", {"query": "xanadu"}))["memories"]
            assert found["memory_id"] == first["memory_id"]
            assert await client.command("memories", {"action": "clear"}) == {"cleared": 2}
            assert (await client.command("memories"))["memories"] == []
        assert len(await claw.memory.list("bob")) == 1


async def test_everything_of_a_user_is_exported_imported_and_wiped_by_http(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        assert claw.web is not None
        await claw.memory.save("bob", "zanzibar is of bob")
        url = f"http://127.0.0.1:{claw.web.port}/api/memories"
        async with aiohttp.ClientSession(headers=AUTH) as http:

            async def call(method: str, path: str = "", body: Any = None) -> tuple[int, Any]:
                async with http.request(method, url + path, json=body) as response:
                    return response.status, await response.json()

            body = {"content": "I live in xanadu", "category": "preference", "key": "home"}
            status, saved = await call("POST", "", body)
            assert (status, saved["key"], saved["similar"]) == (201, "home", [])
            changed = {"content": "I live in xanadu, still", "expected_updated_at": saved["updated_at"]}
            status, record = await call("PATCH", f"/{saved['memory_id']}", changed)
            assert (status, record["content"]) == (200, "I live in xanadu, still")
            stale = {"content": "no", "expected_updated_at": "2020-01-01T00:00:00.000Z"}
            assert (await call("PATCH", f"/{saved['memory_id']}", stale))[0] == 400
            assert (await call("PATCH", "/mem_none", {"content": "no"}))[0] == 404
            _, exported = await call("GET", "/export")
            assert [one["content"] for one in exported["memories"]] == ["I live in xanadu, still"]
            assert await call("DELETE") == (200, {"cleared": 1})
            assert texts_below(tmp_path, "xanadu") == []
            assert texts_below(tmp_path, "zanzibar") != []
            assert await call("POST", "/import", exported) == (200, {"imported": 1})
            assert (await call("GET", "/export"))[1] == exported


async def test_nobody_reads_anothers_memory_with_the_file_tools(tmp_path: Path) -> None:
    """Field report HKUDS/nanobot 2836: a file shared by all chats leaked private facts."""
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        record = await claw.memory.save("alice", "xanadu")
        turn = ToolContext(
            user_id="bob",
            scope="bob",
            session_id="s",
            turn_id="t",
            workspace=tmp_path / "users" / "bob" / "workspace",
        )
        path = tmp_path / "users" / "alice" / "memory" / f"{record.memory_id}.md"
        for given in (str(path), f"../../alice/memory/{record.memory_id}.md"):
            result = await claw.registry.execute("read_file", {"path": given}, turn)
            assert not result.ok and "xanadu" not in result.content


def test_the_command_line_adds_finds_changes_moves_and_wipes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def claw(*arguments: str, code: int = 0) -> str:
        assert main(["memory", *arguments, "--data-dir", str(tmp_path)]) == code
        return capsys.readouterr().out

    added = json.loads(claw("add", "I", "live", "in", "xanadu", "--context", "once", "--json"))[0]
    assert (added["content"], added["context"], added["source"]) == ("I live in xanadu", "once", "user")
    told = claw("add", "I live in Bonn", "--type", "episodic", "--category", "sensitive")
    assert (
        "[episodic / 情景记忆 · sensitive / 敏感] I live in Bonn | -" in told and added["memory_id"] in told
    )
    assert "xanadu" in claw("list") and "1. [semantic" in claw("search", "xanadu")
    assert claw("show", added["memory_id"]).startswith("---\ncontext: once\n")
    assert json.loads(claw("show", added["memory_id"], "--json")) == added
    assert "in Xian" in claw("edit", added["memory_id"], "--content", "I live in Xian")
    claw("delete", added["memory_id"])
    for action in ("show", "delete"):
        claw(action, added["memory_id"], code=1)
    assert texts_below(tmp_path, "xanadu") == texts_below(tmp_path, "Xian") == []
    file = tmp_path.parent / f"{tmp_path.name}.json"
    claw("export", str(file))
    assert json.loads(claw("export")) == json.loads(file.read_text(encoding="utf-8"))
    assert claw("import", str(file), "--user-id", "bob") == "1\n"
    assert claw("clear", "--yes") == "1\n"
    assert claw("list") == "（空）/ (nothing)\n"
    assert "Bonn" in claw("list", "--all", "--user-id", "bob")
    file.write_text('{"memories": 5}', encoding="utf-8")
    claw("import", str(file), code=1)
    file.write_text("{", encoding="utf-8")
    claw("import", str(file), code=1)
    claw("list", "--user-id", "../bob", code=1)


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("", 1), ("y", 0)])
def test_the_command_line_asks_before_it_wipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    main(["memory", "add", "tea", "--data-dir", str(tmp_path)])
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert main(["memory", "clear", "--data-dir", str(tmp_path)]) == left
    assert len(list((tmp_path / "users" / "owner" / "memory").iterdir())) == left


async def test_what_the_command_line_saves_is_found_by_who_has_the_files_open(
    tmp_path: Path,
) -> None:
    memory = LongTermMemory(tmp_path)
    assert await memory.search("owner", "tea") == []
    await asyncio.to_thread(main, ["memory", "add", "green tea", "--data-dir", str(tmp_path)])
    assert [hit.record.content for hit in await memory.search("owner", "tea")] == ["green tea"]


async def test_what_is_forgotten_stands_in_no_trace_and_no_end_of_a_turn(tmp_path: Path) -> None:
    secret = "Kwijibo-7731"
    found = ToolCall.of("c1", "memory_search", {"query": f"locker {secret}"})
    script = [LLMResponse(tool_calls=(found,)), LLMResponse(text="It is with you.")]
    async with running_claw(tmp_path, ScriptedProvider(script), web=True) as claw:
        saved = await claw.memory.save("owner", f"The user's locker code is {secret}")
        assert claw.gateway is not None and claw.web is not None
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession(headers=AUTH) as http:
            receipt = await client.receipt(await client.send("text", {"text": "what is my locker code?"}))
            end = await client.end(receipt["turn_id"])
            assert end["data"]["used_memories"][0]["content"].endswith(secret), "shown while it is there"
            url = f"http://127.0.0.1:{claw.web.port}/api/sessions/{receipt['session_id']}"

            async def shown() -> Any:
                async with http.get(f"{url}/messages?html=1") as answer:
                    return (await answer.json())["messages"][-1]["used_memories"]

            assert (await shown())[0]["content"].endswith(secret), "and when the page is loaded again"
            await claw.memory.clear("owner")
            assert await shown() == [
                {"memory_id": saved.memory_id, "content": saved.memory_id, "category": "fact"}
            ]
            async with http.delete(url) as answer:
                assert answer.status == 200
        await claw.traces.close()
    assert texts_below(tmp_path, secret) == []


async def test_what_a_memory_tool_found_is_seen_in_its_turn_and_stands_in_no_log_when_it_is_forgotten(
    tmp_path: Path,
) -> None:
    secret, seen = "Kwijibo-7731", []

    def sees(reply: LLMResponse) -> Any:
        async def answer(messages: list[Message]) -> LLMResponse:
            assert illegal(messages) is None
            seen.append([m["content"] for m in messages if m["role"] == "tool"])
            return reply

        return answer

    search = ToolCall.of("c1", "memory_search", {"query": "bicycle lock"})
    save = ToolCall.of("c2", "memory_save", {"content": "The number of the bicycle lock is new."})
    script = [
        LLMResponse(tool_calls=(search,)),
        LLMResponse(tool_calls=(save,)),
        LLMResponse(text="It is set."),
    ]
    provider = ScriptedProvider([sees(reply) for reply in (*script, LLMResponse(text="Hello."))])
    async with running_claw(tmp_path, provider, web=True) as claw:
        saved = await claw.memory.save("owner", f"The number of the bicycle lock is {secret}.")
        assert claw.gateway is not None and claw.web is not None
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession(headers=AUTH) as http:
            receipt = await client.receipt(await client.send("text", {"text": "look it up"}))
            await client.end(receipt["turn_id"])
            await claw.memory.delete("owner", saved.memory_id)
            await client.end((await client.receipt(await client.send("text", {"text": "hi"})))["turn_id"])
            url = f"http://127.0.0.1:{claw.web.port}/api/sessions/{receipt['session_id']}/messages"
            async with http.get(url) as answer:
                rows = (await answer.json())["messages"]
        await claw.traces.close()
    assert secret in seen[1][0] and secret in seen[2][0] and secret in seen[2][1], "the turn itself reads it"
    results = [row["content"] for row in rows if row["role"] == "tool"]
    assert results == seen[3], "the next turn reads what the log keeps"
    assert f"Found: {saved.memory_id}." in results[0] and f"Close to it: {saved.memory_id}." in results[1]
    assert texts_below(tmp_path, secret) == []


@pytest.mark.parametrize("said", ["look", "delegate"])
async def test_the_closing_words_of_a_limit_quote_no_memory(tmp_path: Path, said: str) -> None:
    secret = "Kwijibo-7731"

    async def searches(messages: list[Message]) -> LLMResponse:
        if messages[-1]["content"] == "delegate":
            return LLMResponse(tool_calls=(ToolCall.of("d1", "delegate", {"task": "look it up"}),))
        return LLMResponse(tool_calls=(ToolCall.of("c1", "memory_search", {"query": "bicycle lock"}),))

    arguments = {"agent.max_iterations": 1 if said == "look" else 4, "approval.allow": ("delegate",)}
    async with running_claw(tmp_path, ScriptedProvider([searches] * 9), arguments=arguments) as claw:
        saved = await claw.memory.save("owner", f"The number of the bicycle lock is {secret}.")
        end = (await outcome(claw, (await send(claw, said)).turn_id))["data"]
        assert end["stopped_by"] == "iterations" and f"Found: {saved.memory_id}." in end["text"]
        await claw.memory.delete("owner", saved.memory_id)
        await claw.traces.close()
    assert texts_below(tmp_path, secret) == []


async def endless(messages: list[Message]) -> LLMResponse:
    """What a model says that is asked again."""
    await asyncio.Event().wait()
    raise AssertionError


async def wiped(claw: MiniClaw, word: str, *, left: Callable[[], Awaitable[int]]) -> None:
    """Let a user leave a word in all places, `left` of which count it, and wipe them."""
    assert claw.gateway is not None and claw.web is not None
    port, base = claw.gateway.port or 0, f"http://127.0.0.1:{claw.web.port}"
    async with raw_client(port) as owner:
        users = {"action": "add", "user_id": "bob"}
        token = (await owner.command("users", users))["token"]
        async with raw_client(port, token) as bob:
            receipt = await bob.receipt(await bob.send("text", {"text": f"remember {word}"}))
            await bob.end(receipt["turn_id"])
            await bob.command("remember", {"content": f"It is {word}"})
            headers = {"Authorization": f"Bearer {token}"}
            form = aiohttp.FormData()
            form.add_field("file", word.encode(), filename=f"{word}.txt", content_type="text/plain")
            async with aiohttp.ClientSession(headers=headers) as http:
                async with http.post(f"{base}/api/uploads", data=form) as answer:
                    assert answer.status in (200, 201), await answer.text()
            assert await left() >= 3
            for text in ("one that runs", "one that waits"):
                said = {"text": f"{text}: {word}", "session_id": receipt["session_id"]}
                await bob.receipt(await bob.send("text", said))
            told = await owner.command("users", {"action": "remove", "user_id": "bob", "wipe": True})
            with pytest.raises(ConnectionClosed):
                await bob.command("new")
        assert (await send(claw, user_id="bob")).code == "forbidden", "what was on its way comes too late"
        assert [user["user_id"] for user in told["users"]] == ["owner"]
        assert (await owner.command("users", users))["token"], "nothing of a former bob is left"
        await owner.command("users", {"action": "remove", "user_id": "bob"})
        again = await owner.command("users", {"action": "remove", "user_id": "bob", "wipe": True})
        assert again["users"], "one that was removed before can be wiped too"
        assert "code" in await owner.command("users", {"action": "remove", "user_id": "owner", "wipe": True})


async def test_a_user_is_wiped_with_everything_that_is_kept_of_them(tmp_path: Path) -> None:
    word = "Zarniwoop-4242"

    async def left() -> int:
        return len(texts_below(tmp_path, word))

    noted = LLMResponse(text=f"noted {word}", usage=Usage(model="m", calls=1))
    async with running_claw(tmp_path, ScriptedProvider([noted, endless]), web=True) as claw:
        await wiped(claw, word, left=left)
    assert texts_below(tmp_path, word) == [] and not (tmp_path / "users/bob").exists()


async def test_mcp_resources_say_what_is_sensitive_proposed_or_not_the_users_words(tmp_path: Path) -> None:
    class NoSessions:
        async def list(self, user_id: str | None = None) -> list[Session]:
            return []

        async def load(self, session_id: str) -> Session | None:
            return None

    memory, caller = LongTermMemory(tmp_path), cast(Call, SimpleNamespace(user="ann"))
    library = Library(lambda: nullcontext(NoSessions()), lambda: memory)
    ill = await memory.save("ann", "ill since May", category="sensitive")
    tea = await memory.save("ann", "likes tea", status="proposed", source="agent")
    web = await memory.save("ann", "prices rise", source="tool")
    own = await memory.save("ann", "has a cat")
    over = await memory.save("ann", "was away", expires_at="2020-01-01", memory_id="mem_over")

    async def told(memory_id: str) -> str | None:
        found = await library.read_resource(f"miniclaw://memories/{memory_id}", caller)
        return str(found[0]["text"]) if found else None

    titles = {one["name"]: one["title"] for one in await library.list_resources(caller)}
    for record, marks in (
        (ill, "[sensitive]"),
        (tea, "[proposed, noted by the assistant]"),
        (web, "[from a tool, not the user]"),
    ):
        assert titles[record.memory_id] == f"{marks} {record.content}"
        assert await told(record.memory_id) == f"{marks}\n\n{record.content}"
    assert titles[own.memory_id] == await told(own.memory_id) == "has a cat"
    assert over.memory_id not in titles and await told(over.memory_id) is None


async def test_files_by_hand_are_read_as_they_are_meant_and_the_others_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "users/owner/memory"
    directory.mkdir(parents=True)
    head = "---\nexpires_at: {}\ncategory: {}\nstatus: {}\nmemory_type: Episodic\n---\n{}\n"
    (directory / "mem_null.md").write_text(
        head.format("null", "Fact", "Active", "null zebra"), encoding="utf-8"
    )
    (directory / "mem_tilde.md").write_text(
        head.format("~", "TASK", "active", "tilde zebra"), encoding="utf-8"
    )
    (directory / "mem_plain.md").write_text("plain zebra\n\nsecond line\n", encoding="utf-8")
    (directory / "mem_wide.md").write_text("wide zebra\n", encoding="utf-16")
    (directory / "mem_gbk.md").write_bytes("斑马 zebra".encode("gbk"))
    (directory / "mem_bad.md").write_text("---\ncategory: gossip\n---\nzebra\n", encoding="utf-8")
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        hits = await claw.memory.search("owner", "zebra", 10)
        assert {(hit.record.memory_id, hit.record.memory_type, hit.record.category) for hit in hits} == {
            ("mem_null", "episodic", "fact"),
            ("mem_tilde", "episodic", "task"),
            ("mem_plain", "semantic", "fact"),
            ("mem_wide", "semantic", "fact"),
        }
        assert claw.gateway is not None and claw.web is not None
        async with raw_client(claw.gateway.port or 0) as client, aiohttp.ClientSession(headers=AUTH) as http:
            listed = await client.command("memories")
            async with http.get(f"http://127.0.0.1:{claw.web.port}/api/memories") as answer:
                shown = await answer.json()
    for problems in (listed["problems"], shown["problems"]):
        reasons = {one["source"]: one["error"] for one in problems}
        assert reasons.keys() == {"mem_gbk.md", "mem_bad.md"}
        assert "UTF-8" in reasons["mem_gbk.md"] and "`category`" in reasons["mem_bad.md"]
    assert "⚠ mem_bad.md: " in command_text("memories", listed)
    assert await asyncio.to_thread(main, ["memory", "list", "--data-dir", str(tmp_path)]) == 0
    assert "mem_gbk.md" in capsys.readouterr().err
