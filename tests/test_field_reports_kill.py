"""What `kill -9` did to other gateways in the field; each test names the public report that is its reason."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.session.files import FileStorage
from tests.support.claw import TOKEN, ServerProcess, server_process
from tests.support.client import raw_client
from tests.support.model import FakeModel, Message, Reply, illegal, last_user
from tests.support.receiver import SECRET, Receiver, receiving, signed_headers

GUARD = 20.0


def environment(model: FakeModel, **more: str) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "x",
        "OPENAI_MODEL": "fake-chat",
        "GENERIC_WEBHOOK_SECRET": SECRET,
        "MINICLAW_CHANNELS__GENERIC__USER": "monitor",
        "MINICLAW_CHANNELS__GENERIC__REPLY_HOSTS": "127.0.0.1",
        **more,
    }


async def post_signed(server: ServerProcess, body: dict[str, Any], message_id: str) -> int:
    raw = json.dumps(body).encode()
    url, headers = (
        f"http://127.0.0.1:{server.web_port}/webhooks/in",
        signed_headers(raw, message_id=message_id),
    )
    async with aiohttp.ClientSession() as http, http.post(url, data=raw, headers=headers) as response:
        return response.status


async def post_text(server: ServerProcess, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    url, headers = f"http://127.0.0.1:{server.web_port}/api/messages", {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_what_any_way_in_acknowledged_is_answered_after_a_kill_though_nobody_sends_it_again(
    tmp_path: Path,
) -> None:
    """A message that was only in memory, or waited behind another, was gone with the process.

    NousResearch/hermes-agent#27902, NousResearch/hermes-agent#87040, marmot-protocol/mdk#1335.
    """
    hold = asyncio.Event()

    async def script(messages: list[Message], number: int) -> Reply:
        await asyncio.wait_for(hold.wait(), GUARD)
        return {"text": f"answer to {last_user(messages)}"}

    receiver = Receiver()
    async with receiving(receiver) as port, FakeModel(script) as model:
        async with server_process(tmp_path, env=environment(model)) as server:
            async with raw_client(server.gateway_port) as client:
                session_id = (await client.command("new"))["session_id"]
                for number in range(3):
                    payload = {"text": f"socket {number}", "session_id": session_id}
                    receipt = await client.receipt(await client.send("text", payload))
                    assert receipt["name"] == "message.accepted"
                status, by_http = await post_text(server, {"text": "http"})
                assert status == 202
                hook = {"session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
                for number in range(3):
                    assert await post_signed(server, {"text": f"hook {number}", **hook}, f"m{number}") == 202
                await server.kill()
        hold.set()
        async with server_process(tmp_path, env=environment(model)) as server:
            await receiver.wait(3)
            async with raw_client(server.gateway_port) as client:
                said = {}
                for one in (session_id, by_http["session_id"]):
                    last = receipt["turn_id"] if one == session_id else by_http["turn_id"]
                    await client.command("resume", {"session_id": one, "turn_id": last})
                    if not any(f["payload"].get("name") == "turn.finished" for f in client.frames):
                        await client.end(last)
                    client.frames.clear()
                    page = await client.command("history", {"session_id": one})
                    said[one] = [message["content"] for message in page["messages"]]
        assert model.refused == []
    texts = [f"socket {number}" for number in range(3)]
    assert said[session_id] == [line for text in texts for line in (text, f"answer to {text}")]
    assert said[by_http["session_id"]] == ["http", "answer to http"]
    assert [reply["text"] for reply in receiver.taken] == [f"answer to hook {number}" for number in range(3)]
    assert not any(reply.get("possibly_repeated") for reply in receiver.taken)


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_log_cut_by_a_kill_inside_a_tool_is_legal_on_disk_after_the_first_start_and_stays_so(
    tmp_path: Path, kind: str
) -> None:
    """HKUDS/nanobot#4006: strict models refused the orphan; openclaw/openclaw#10310: it was mended in memory only."""
    calls = {
        "read": [("calculator", {"expression": "37*43"})] * 2,
        "write": [("memory_save", {"content": "tea"}), ("memory_save", {"content": "coffee"})],
    }

    def script(messages: list[Message], number: int) -> Reply:
        if messages[-1]["role"] == "user" and last_user(messages) == "go":
            return {"calls": calls[kind]}
        return {"text": f"answer to {last_user(messages)}"}

    async with FakeModel(script) as model:
        killed = environment(model, MINICLAW_TEST_FAIL_AT=f"in-{kind}-tool")
        async with server_process(tmp_path, env=killed) as server:
            async with raw_client(server.gateway_port) as client:
                receipt = await client.receipt(await client.send("text", {"text": "go"}))
                assert await server.wait() == -9
        where = {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}
        for text in ("first start", "second start"):
            async with server_process(tmp_path, env=environment(model)) as server:
                async with raw_client(server.gateway_port) as client:
                    await client.command("resume", where)
                    if not any(f["payload"].get("name") == "turn.finished" for f in client.frames):
                        await client.end(receipt["turn_id"])
                    end = await client.say(text, session_id=receipt["session_id"])
                    assert end["data"]["text"] == f"answer to {text}"
                await server.kill()
            database = sqlite3.connect(tmp_path / "miniclaw.db")
            rows = database.execute("SELECT body FROM entries ORDER BY position").fetchall()
            database.close()
            assert illegal([json.loads(row[0])["message"] for row in rows]) is None
        assert model.refused == []


WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from miniclaw.session.models import Entry, Session
from miniclaw.session.files import FileStorage

async def main():
    storage = FileStorage(Path(sys.argv[1]))
    session = await storage.load("ses_1") or Session(session_id="ses_1", user_id="ann", channel="web")
    for number in itertools.count(len(session.messages)):
        session.metadata["title"] = "title " * (number % 50)
        await storage.save(session)
        await storage.append("ses_1", [Entry(f"t{number}", 0, {"role": "user", "content": "x" * 5000})])
        print(number, flush=True)

asyncio.run(main())
"""


async def test_session_files_that_are_saved_in_a_loop_survive_kills_with_everything_that_was_confirmed(
    tmp_path: Path,
) -> None:
    """HKUDS/nanobot#1027: the file was emptied before it was written, and a crash in between lost the chat."""
    confirmed = -1
    for round_ in range(3):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITER, str(tmp_path)), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(GUARD):
            for _ in range(20 + 7 * round_):
                confirmed = int(await process.stdout.readline())
            process.kill()
            rest = (await process.stdout.read()).decode().split()
            await process.wait()
        confirmed = int(rest[-1]) if rest else confirmed
        session = await FileStorage(tmp_path).load("ses_1")
        assert session is not None and set(str(session.metadata["title"]).split()) <= {"title"}
        steps = [entry.turn_id for entry in session.messages]
        assert steps == [f"t{number}" for number in range(len(steps))]
        assert len(steps) > confirmed
