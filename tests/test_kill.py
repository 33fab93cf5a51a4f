"""Faults that really happen: `kill -9`, SIGTERM, the same message many times."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from tests.support.claw import server_process
from tests.support.client import raw_client
from tests.support.model import FakeModel, Reply, last_user


def env_of(model: FakeModel) -> dict[str, str]:
    return {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "fake-chat"}


async def test_a_message_that_was_acknowledged_before_kill_9_is_answered_once_after_restart(
    tmp_path: Path,
) -> None:
    """Invariants 1 and 2: stored before acknowledged, one answer."""
    asked, hold = asyncio.Event(), asyncio.Event()

    def script(messages: list[dict[str, Any]], number: int) -> Reply:
        asked.set()
        return {"text": f"answer to {last_user(messages)}", **({"hold": hold} if number == 1 else {})}

    async with FakeModel(script) as model:
        async with server_process(tmp_path, env=env_of(model)) as server:
            async with raw_client(server.gateway_port) as client:
                msg_id = await client.send("text", {"text": "are you there?"})
                receipt = await client.receipt(msg_id)
            await asyncio.wait_for(asked.wait(), 20)
            await server.kill()
        hold.set()
        async with server_process(tmp_path, env=env_of(model)) as server:
            async with raw_client(server.gateway_port) as client:
                args = {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}
                await client.command("resume", args)
                end = await client.end(receipt["turn_id"])
                assert end["name"] == "turn.finished"
                assert end["data"]["text"] == "answer to are you there?"
                assert end["attempt"] == 2
                page = await client.command("history", {"session_id": receipt["session_id"]})
        assert [(m["role"], m["content"]) for m in page["messages"]] == [
            ("user", "are you there?"),
            ("assistant", "answer to are you there?"),
        ]
        assert model.refused == []


async def test_a_turn_killed_between_call_and_result_goes_on_from_its_last_step(tmp_path: Path) -> None:
    """A read tool runs again; the model is not asked for the step that is stored."""
    second = asyncio.Event()
    hold = asyncio.Event()

    def script(messages: list[dict[str, Any]], number: int) -> Reply:
        if number == 1:
            return {"text": "let me see", "calls": [("calculator", {"expression": "37*43"})]}
        second.set()
        return {"text": f"it is {messages[-1]['content']}", **({"hold": hold} if number == 2 else {})}

    async with FakeModel(script) as model:
        async with server_process(tmp_path, env=env_of(model)) as server:
            async with raw_client(server.gateway_port) as client:
                receipt = await client.receipt(await client.send("text", {"text": "37*43?"}))
            await asyncio.wait_for(second.wait(), 20)
            await server.kill()
        hold.set()
        async with server_process(tmp_path, env=env_of(model)) as server:
            async with raw_client(server.gateway_port) as client:
                args = {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}
                await client.command("resume", args)
                end = await client.end(receipt["turn_id"])
                page = await client.command("history", {"session_id": receipt["session_id"]})
        assert end["data"]["text"] == "it is 1591"
        assert [m["role"] for m in page["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert len(model.requests) == 3
        assert model.refused == []


async def test_the_same_message_twenty_times_at_once_gets_one_answer_and_twenty_receipts_with_one_id(
    tmp_path: Path,
) -> None:
    async with FakeModel() as model, server_process(tmp_path, env=env_of(model)) as server:
        async with raw_client(server.gateway_port) as first:
            session_id = (await first.command("new"))["session_id"]
            payload = {"text": "once", "session_id": session_id}

            async def send() -> dict[str, Any]:
                async with raw_client(server.gateway_port) as client:
                    return await client.receipt(await client.send("text", payload, msg_id="same"))

            receipts = await asyncio.gather(*(send() for _ in range(20)))
            assert len({(r["session_id"], r["turn_id"]) for r in receipts}) == 1
            assert sorted(r["data"]["status"] for r in receipts) == ["accepted"] + ["duplicate"] * 19
            await first.end(receipts[0]["turn_id"])
            page = await first.command("history", {"session_id": session_id})
        assert [m["role"] for m in page["messages"]] == ["user", "assistant"]
        assert len(model.requests) == 1


async def test_sigterm_refuses_new_messages_lets_running_turns_finish_and_exits_0(tmp_path: Path) -> None:
    started, hold = asyncio.Semaphore(0), asyncio.Event()

    def script(messages: list[dict[str, Any]], number: int) -> Reply:
        started.release()
        return {"text": f"answer {last_user(messages)}", "hold": hold}

    async with FakeModel(script) as model, server_process(tmp_path, env=env_of(model)) as server:
        async with raw_client(server.gateway_port) as client:
            turns = []
            for number in range(3):
                session_id = (await client.command("new"))["session_id"]
                msg_id = await client.send("text", {"text": str(number), "session_id": session_id})
                turns.append((await client.receipt(msg_id))["turn_id"])
            for _ in range(3):
                await asyncio.wait_for(started.acquire(), 20)
            server.send_signal(signal.SIGTERM)
            refused: dict[str, Any] = {}
            while refused.get("code") != "draining":
                refused = await client.receipt(await client.send("text", {"text": "too late"}))
            hold.set()
            ends = [await client.until(lambda f: f["payload"].get("name") == "turn.finished") for _ in turns]
            assert sorted(end["payload"]["data"]["text"] for end in ends) == [
                "answer 0",
                "answer 1",
                "answer 2",
            ]
        assert await server.wait() == 0


async def test_turns_that_do_not_finish_before_sigterm_ends_the_process_are_resumed_after_restart(
    tmp_path: Path,
) -> None:
    asked, hold = asyncio.Event(), asyncio.Event()

    def script(messages: list[dict[str, Any]], number: int) -> Reply:
        asked.set()
        return {"text": "late answer", **({"hold": hold} if number == 1 else {})}

    quick = {"MINICLAW_LIMITS__DRAIN_SECONDS": "0.2"}
    async with FakeModel(script) as model:
        async with server_process(tmp_path, env={**env_of(model), **quick}) as server:
            async with raw_client(server.gateway_port) as client:
                receipt = await client.receipt(await client.send("text", {"text": "slow"}))
                await asyncio.wait_for(asked.wait(), 20)
                assert await server.terminate() == 0
        hold.set()
        async with server_process(tmp_path, env=env_of(model)) as server:
            async with raw_client(server.gateway_port) as client:
                args = {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}
                await client.command("resume", args)
                assert (await client.end(receipt["turn_id"]))["data"]["text"] == "late answer"
