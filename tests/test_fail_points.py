"""The server is killed at each named place of a message's way: one answer, the write at most once."""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw import archive, failpoints
from tests.support.agent import eventually
from tests.support.claw import ServerProcess, server_process
from tests.support.client import raw_client
from tests.support.model import FakeModel, Message, Reply
from tests.support.receiver import SECRET, Receiver, receiving, signed_headers

UNKNOWN_OUTCOME = {"after-sending", "after-sent"}
"""Where it cannot be known whether the platform has the answer: it may come again, marked."""


def environment(model: FakeModel, port: int) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "x",
        "OPENAI_MODEL": "fake-chat",
        "GENERIC_WEBHOOK_SECRET": SECRET,
        "MINICLAW_CHANNELS__GENERIC__USER": "monitor",
        "MINICLAW_CHANNELS__GENERIC__REPLY_HOSTS": "127.0.0.1",
        "MINICLAW_TOOLS__HTTP_ALLOW": f"127.0.0.1:{port}",
        "MINICLAW_APPROVAL__ALLOW": "http_request",
        "MINICLAW_DELIVERY__RETRY_BASE": "0.01",
    }


def script_for(port: int) -> Any:
    """Read, write, answer; which step comes next is read off the history, as a model would."""

    def script(messages: list[Message], number: int) -> Reply:
        results = [m for m in messages if m["role"] == "tool"]
        if not results:
            return {"text": "first I count", "calls": [("calculator", {"expression": "37*43"})]}
        if len(results) == 1:
            arguments = {"url": f"http://127.0.0.1:{port}/write", "method": "POST", "body": "x"}
            return {"calls": [("http_request", arguments)]}
        return {"text": f"{results[0]['content']}; {results[1]['content']}"}

    return script


async def deliver(server: ServerProcess, port: int) -> bool:
    """Send the webhook as its platform would; whether it was acknowledged."""
    body = json.dumps(
        {"text": "go", "session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
    ).encode()
    url = f"http://127.0.0.1:{server.web_port}/webhooks/in"
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, data=body, headers=signed_headers(body)) as reply,
        ):
            if reply.status == 503:  # a busy machine; the platform comes again
                return await deliver(server, port)
            assert reply.status == 202
            return True
    except aiohttp.ClientConnectionError:
        return False


@pytest.mark.parametrize("name", failpoints.NAMES)
async def test_killed_there_the_message_is_answered_once_and_the_write_runs_at_most_once(
    name: str, tmp_path: Path
) -> None:
    receiver = Receiver()
    async with receiving(receiver) as port, FakeModel(script_for(port)) as model:
        env = environment(model, port)
        async with server_process(tmp_path, env={**env, "MINICLAW_TEST_FAIL_AT": name}) as server:
            acknowledged = await deliver(server, port)
            assert await server.wait() == -9, "the server did not come to the fail point"
            assert acknowledged or name == "after-accept"
        async with server_process(tmp_path, env=env) as server:
            assert await deliver(server, port), "the platform's retry is acknowledged"
            await receiver.wait(1 if name != "after-sent" else 2)
            async with raw_client(server.gateway_port) as client:
                await client.command("ping")
        expected = "1591; "
        texts = [reply["text"] for reply in receiver.taken]
        assert all(text.startswith(expected) for text in texts)
        unmarked = [reply for reply in receiver.taken if not reply.get("possibly_repeated")]
        assert len(unmarked) <= 1 and len(set(receiver.tried)) == 1
        assert len(texts) == (2 if name == "after-sent" else 1)
        assert name in UNKNOWN_OUTCOME or len(unmarked) == 1
        assert receiver.writes <= 1
        if name == "in-write-tool":
            assert "not known whether it happened" in texts[0]
        else:
            assert receiver.writes == 1
        assert model.refused == [], "the model was sent an illegal history"


async def test_a_turn_that_ran_while_the_backup_was_made_writes_and_answers_no_second_time(
    tmp_path: Path,
) -> None:
    receiver, data, file = Receiver(), tmp_path / "data", tmp_path / "b.tar.gz"
    asked, go_on = asyncio.Event(), asyncio.Event()
    async with receiving(receiver) as port:
        script = script_for(port)

        def held(messages: list[Message], number: int) -> Reply:
            asked.set()
            return {**script(messages, number), "hold": go_on} if number == 1 else script(messages, number)

        async with FakeModel(held) as model:
            env = environment(model, port)
            async with server_process(data, env=env) as server:
                assert await deliver(server, port)
                await asyncio.wait_for(asked.wait(), 20)
                await asyncio.to_thread(archive.back_up, data, file)
                go_on.set()
                await receiver.wait(1)
            await asyncio.to_thread(archive.restore, data, file)
            async with server_process(data, env=env) as server:
                await receiver.wait(1)
                async with raw_client(server.gateway_port) as client:
                    await client.command("ping")
    assert receiver.writes == 1
    first, second = receiver.taken
    assert not first.get("possibly_repeated") and second["possibly_repeated"]
    assert "send it again" in second["text"] and len(set(receiver.tried)) == 1


async def test_a_turn_that_comes_while_no_file_can_be_opened_waits_and_is_answered(tmp_path: Path) -> None:
    async with FakeModel(lambda messages, number: {"text": "here"}) as model:
        env = environment(model, 1)
        data, log = tmp_path / "data", tmp_path / "log"
        async with server_process(data, env=env) as server, raw_client(server.gateway_port) as client:
            session_id = (await client.say("first"))["session_id"]
        database = sqlite3.connect(data / "miniclaw.db")
        said = json.dumps({"message": {"role": "user", "content": "x"}, "at": 1})
        many = [(session_id, 100 + n, f"t{n}", 0, said) for n in range(300)]
        database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", many)
        database.commit()
        database.close()
        env["MINICLAW_LOG__FILE"] = str(log)
        async with server_process(data, env=env) as server, raw_client(server.gateway_port) as client:
            await client.say("warm")
            for named in ({}, {"session_id": session_id}):  # a memory to be read, a long log to be read
                log.write_text("", encoding="utf-8")
                resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, 4096))
                receipt = await client.receipt(await client.send("text", {"text": "are you there", **named}))
                await eventually(lambda: "trying again" in log.read_text(encoding="utf-8"))
                resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4096, 4096))
                assert (await client.end(receipt["turn_id"]))["name"] == "turn.finished"
    assert model.refused == []


def test_an_unknown_fail_point_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no fail point"):
        failpoints.arm("nowhere")
