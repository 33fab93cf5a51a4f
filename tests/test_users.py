"""Users and their tokens: by command line, by command, and what each may see."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.db import Database
from tests.support.agent import eventually
from tests.support.claw import TOKEN, running_claw, server_process
from tests.support.client import raw_client
from tests.support.inside import database_of


def run(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `miniclaw users …` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "miniclaw", "users", *arguments, "--data-dir", str(data_dir)],
        env={
            **os.environ,
            "MINICLAW_MODEL__PROBE_LOCAL": "false",
            "OPENAI_API_KEY": "",
            "OPENAI_BASE_URL": "",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


async def test_users_are_added_listed_linked_and_removed_through_the_running_gateway(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server:
        added = run(tmp_path, "add", "alice")
        token = added.stdout.split("token: ")[1].strip()
        async with raw_client(server.gateway_port, token) as alice:
            assert (await alice.command("new"))["session_id"]
            assert (await alice.command("users"))["code"] == "forbidden"
        again = run(tmp_path, "token", "alice").stdout.split("token: ")[1].strip()
        with pytest.raises(InvalidStatus):
            async with raw_client(server.gateway_port, token):
                pass
        assert "slack:T1:U1" in run(tmp_path, "link", "alice", "slack", "U1", "--account", "T1").stdout
        async with raw_client(server.gateway_port, again) as alice:
            assert len((await alice.command("sessions"))["sessions"]) == 1, "a new token, the same user"
        assert "alice" not in run(tmp_path, "remove", "alice").stdout
        with pytest.raises(InvalidStatus):
            async with raw_client(server.gateway_port, again):
                pass


def test_what_cannot_be_done_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    for arguments, words in (
        (("add", "Bad Name"), "is no user id"),
        (("token", "nobody"), "There is no user"),
        (("remove", "owner"), "MINICLAW_TOKEN"),
        (("add", "owner"), "already"),
    ):
        done = run(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (1, "") and words in done.stderr, arguments


async def test_a_token_stands_nowhere_in_the_database(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as client:
            token = (await client.command("users", {"action": "add", "user_id": "alice"}))["token"]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("miniclaw.db*"))
    assert token.encode() not in stored and TOKEN.encode() not in stored


async def test_a_linked_person_of_a_platform_is_that_user(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        await claw.identities.ensure("alice")
        await claw.identities.link("alice", "slack", "T1", "U1")
        found = await database_of(claw).write(lambda c: claw.identities.user_for(c, "slack", "T1", "U1"))
        stranger = await database_of(claw).write(lambda c: claw.identities.user_for(c, "slack", "T1", "U2"))
        assert found == "alice" and stranger.startswith("u_")


async def test_a_removed_users_name_is_given_again_only_when_it_is_meant(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        assert claw.gateway is not None
        async with raw_client(claw.gateway.port or 0) as owner:
            bob = {"action": "add", "user_id": "bob"}
            token = (await owner.command("users", bob))["token"]
            async with raw_client(claw.gateway.port or 0, token) as client:
                await client.command("new")
            await owner.command("users", {"action": "remove", "user_id": "bob"})
            assert "users add bob --again" in (await owner.command("users", bob))["message"]
            assert (await owner.command("users", {**bob, "again": True}))["token"]


@pytest.mark.parametrize("action", ["token", "remove"])
async def test_a_withdrawn_token_closes_what_it_let_in(tmp_path: Path, action: str) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        assert claw.gateway is not None and claw.gateway.port is not None
        port = claw.gateway.port
        async with raw_client(port) as owner:
            token = (await owner.command("users", {"action": "add", "user_id": "bob"}))["token"]
            async with connect(f"ws://127.0.0.1:{port}/?token={token}", proxy=None) as socket:
                await owner.command("users", {"action": action, "user_id": "bob"})
                with pytest.raises(ConnectionClosed) as closed:
                    async with asyncio.timeout(10):
                        await socket.recv()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
            assert (await owner.command("ping"))["pong"]


async def test_a_cookie_and_a_token_are_no_use_from_the_moment_a_removal_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        assert claw.web is not None
        base, token = f"http://127.0.0.1:{claw.web.port}", await claw.identities.add("bob")
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:

            async def get(path: str, **headers: str) -> tuple[int, str]:
                async with http.get(base + path, headers=headers, allow_redirects=False) as answer:
                    return answer.status, "; ".join(f"{c.key}={c.value}" for c in answer.cookies.values())

            status, cookie = await get(f"/?token={token}")
            assert (status, await get("/api/sessions", Cookie=cookie)) == (303, (200, ""))
            disk, busy, copy = threading.Event(), threading.Event(), Database._run_checkpoint

            def slow_copy(database: Database, kind: str) -> bool:
                busy.set()
                return disk.wait(20) and copy(database, kind)

            monkeypatch.setattr(Database, "_run_checkpoint", slow_copy)
            slow = asyncio.create_task(claw.sessions.scrub())  # as after the delete of a session
            await eventually(busy.is_set)
            removal = asyncio.create_task(claw.identities.remove("bob"))
            late = asyncio.create_task(get(f"/?token={token}"))
            await eventually(lambda: claw.identities.is_gone("bob"))
            assert (await get("/api/sessions", Cookie=cookie))[0] == 401
            assert (await get("/api/sessions", Authorization=f"Bearer {token}"))[0] == 401
            disk.set()
            await asyncio.gather(slow, removal)
            assert await late == (401, "")
            assert (await get("/api/sessions", Cookie=cookie))[0] == 401
