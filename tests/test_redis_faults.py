"""Redis goes away and comes back; nodes die in the middle of what they do for the outside."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis.asyncio as aioredis

from miniclaw.agent.patience import refuse_at_once
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.cli import main
from miniclaw.errors import StaleFence, StorageError, StorageUnavailable
from miniclaw.redis.backend import RedisBackend
from miniclaw.redis.desk import RedisLedger
from miniclaw.redis.link import RedisLink
from miniclaw.redis.outbox import RedisOutbox
from miniclaw.schedules import Schedule
from miniclaw.session.models import Usage
from miniclaw.session.outbox import Delivery
from tests.support.agent import GUARD, DictatedProvider, eventually, send
from tests.support.claw import TOKEN, port_of, running_claw
from tests.support.client import raw_client
from tests.support.core import FakeClock
from tests.support.receiver import SECRET, Receiver, receiving, signed_headers
from tests.support.redis import (
    free_port,
    fresh_prefix,
    needs_redis,
    open_link,
    own_server,
    sentinel_of,
    shared_server,
)
from tests.test_outbox import HERE, delivery
from tests.test_redis import echo, ended, node, queue_of, said_in, take_no_work

pytestmark = needs_redis


async def test_while_redis_is_away_messages_are_refused_and_work_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    model = DictatedProvider()
    with own_server(tmp_path) as redis:
        given: dict[str, Any] = {"redis.url": redis.url, "redis.prefix": fresh_prefix(), "redis.lease": 5.0}
        async with running_claw(tmp_path / "a", model, web=True, arguments=given) as claw:
            assert claw.web is not None
            base = f"http://127.0.0.1:{claw.web.port}"
            running, waiting = await send(claw), await send(claw, msg_id="m2")
            await eventually(lambda: len(model.requests) == 2)
            async with raw_client(port_of(claw), TOKEN) as client:
                await client.command("resume", {"session_id": running.session_id})
                await asyncio.to_thread(redis.stop)
                here = await client.receipt(await client.send("text", {"text": "into my session"}))
                assert here["code"] == "storage_unavailable"
                assert (await client.command("sessions"))["code"] == "storage_unavailable"
            refused = await send(claw, msg_id="m3")
            assert (refused.status, refused.code) == ("unavailable", "storage_unavailable")
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
                said = {"model": "miniclaw", "messages": [{"role": "user", "content": "hi"}]}
                for path, body in (("/v1/chat/completions", said), ("/api/sessions", None)):
                    method = "POST" if body else "GET"
                    async with (
                        asyncio.timeout(GUARD),
                        http.request(method, base + path, json=body) as response,
                    ):
                        assert response.status == 503
                async with http.get(f"{base}/readyz") as response:
                    assert response.status == 503
                    assert (await response.json())["error"]["code"] == "storage_unavailable"
                model.end("said in the dark")
                model.end("said in the dark")
                await asyncio.to_thread(redis.start)
                for receipt in (running, waiting):
                    assert (await ended(claw, receipt.turn_id))["data"]["text"] == "said in the dark"
                    assert await said_in(claw, receipt.session_id) == ["go", "said in the dark"]
                async with http.get(f"{base}/readyz") as response:
                    assert response.status == 200
            again = await send(claw, msg_id="m3")
            assert again.status == "accepted"
            model.end("as before")
            assert (await ended(claw, again.turn_id))["data"]["text"] == "as before"


async def test_a_full_redis_keeps_a_finished_answer_and_can_be_emptied(tmp_path: Path) -> None:
    model = DictatedProvider()
    with own_server(tmp_path) as redis:
        async with node(tmp_path / "a", "p", model, url=redis.url) as claw:
            other = await send(claw, msg_id="m0")
            await eventually(lambda: model.requests)
            model.end("before")
            await ended(claw, other.turn_id)
            running = await send(claw)
            await eventually(lambda: len(model.requests) == 2)
            await asyncio.to_thread(redis.ask, "CONFIG SET maxmemory 1")
            refused = await send(claw, msg_id="m3")
            assert (refused.status, refused.code) == ("unavailable", "storage_unavailable")
            with pytest.raises(StorageUnavailable, match="takes no writes"):
                await claw._backend.check()
            model.end("said when it was full")
            assert (await ended(claw, running.turn_id))["data"]["text"] == "said when it was full"
            assert await claw.sessions.delete(other.session_id or "")
            await asyncio.to_thread(redis.ask, "CONFIG SET maxmemory 0")
            again = await send(claw, msg_id="m3")
            await eventually(lambda: len(model.requests) == 3)
            model.end("as before")
            assert (await ended(claw, again.turn_id))["data"]["text"] == "as before"


async def test_what_nobody_waits_for_a_receipt_of_waits_for_redis_whoever_began_it(tmp_path: Path) -> None:
    with own_server(tmp_path) as redis:
        async with open_link("p", url=redis.url) as link:
            await asyncio.to_thread(redis.stop)
            refuse_at_once()  # as in a request
            with pytest.raises(StorageUnavailable):
                await link.run("GET", "p1")
            told = link.run("GET", "p1", waits=True)
            refuse_at_once(False)  # its receipt is given
            after = link.run("GET", "p2")
            await asyncio.to_thread(redis.start)
            assert (await told, await after) == (None, None)


async def test_a_call_that_a_full_or_demoted_redis_refuses_waits_and_is_made(tmp_path: Path) -> None:
    with own_server(tmp_path) as redis:
        async with open_link("p", url=redis.url) as link:
            connection = link._connection
            for refuse, take in (
                ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
                ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
            ):
                await asyncio.to_thread(redis.ask, refuse)
                with pytest.raises(StorageUnavailable):
                    await link.call("started", "turn", "call", "", waits=False)
                waiting = link.call("started", "turn", "call", "")
                await asyncio.to_thread(redis.ask, take)
                await waiting
            assert link._connection is not connection, "the address may lead to another server by now"


async def test_a_redis_that_comes_back_empty_lets_the_owner_in_and_knows_what_is_configured(
    tmp_path: Path,
) -> None:
    timer = {"text": "look", "every": "1h", "user": "bob"}
    given: dict[str, Any] = {"timers": {"look": timer}, "channels.generic.user": "monitor"}
    with own_server(tmp_path) as redis:
        async with node(tmp_path / "a", "p", url=redis.url, **given) as claw:
            server = aioredis.from_url(redis.url)
            async with server:
                await server.flushall()
                await server.client_kill_filter(_type="pubsub")
                await eventually(lambda: server.hexists("{p}:timers", claw.timers.list("bob")[0].timer_id))
            async with raw_client(port_of(claw)) as owner:
                await owner.command("ping")
            assert claw.identities.user_of_token(claw.token) == "owner" and claw.identities.exists("monitor")
            assert (await claw.reply("one")).text == "echo: one"


async def test_functions_that_redis_has_lost_are_loaded_again(tmp_path: Path) -> None:
    async with node(tmp_path, fresh_prefix()) as claw:
        backend = claw._backend
        assert isinstance(backend, RedisBackend)
        await backend.link.run("FUNCTION", "FLUSH")
        assert (await claw.reply("one")).text == "echo: one"


async def test_a_node_that_stops_gives_its_turn_to_another_one(tmp_path: Path) -> None:
    prefix, slow = fresh_prefix(), DictatedProvider()
    long: dict[str, Any] = {"redis.lease": 600.0, "limits.drain_seconds": 0.05}
    async with node(tmp_path / "a", prefix, slow, **long) as a:
        receipt = await send(a)
        await eventually(lambda: slow.requests)
    async with node(tmp_path / "b", prefix, **long) as b:
        assert (await ended(b, receipt.turn_id))["data"]["text"] == "echo: go"
        turn = await b.turns.find(receipt.turn_id or "")
        assert turn is not None and (turn.attempt, turn.tries) == (2, 1), "a stop of ours is no try"


async def test_one_of_two_nodes_delivers_an_answer_and_what_a_dead_one_left_is_marked(tmp_path: Path) -> None:
    prefix = fresh_prefix()
    receiver = Receiver()
    async with receiving(receiver) as port:
        given: dict[str, Any] = {
            "redis.url": shared_server().url,
            "redis.prefix": prefix,
            "redis.lease": 0.6,
            "channels.generic.secret": SECRET,
            "channels.generic.user": "monitor",
            "channels.generic.reply_hosts": (f"127.0.0.1:{port}",),
        }
        provider = ScriptedProvider([echo] * 9)
        async with (
            running_claw(tmp_path / "a", provider, web=True, arguments=given) as a,
            running_claw(tmp_path / "b", provider, web=True, arguments=given) as b,
            aiohttp.ClientSession() as http,
        ):
            for number, claw in enumerate((a, b, a)):
                assert claw.web is not None
                body = {"text": str(number), "session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
                raw = json.dumps(body).encode()
                where = f"http://127.0.0.1:{claw.web.port}/webhooks/in"
                headers = signed_headers(raw, message_id=f"m{number}")
                async with http.post(where, data=raw, headers=headers) as response:
                    assert response.status == 202
            await receiver.wait(3)
            assert [taken["text"] for taken in receiver.taken] == ["echo: 0", "echo: 1", "echo: 2"]
            assert len(set(receiver.tried)) == len(receiver.tried) == 3


async def test_a_conversation_is_delivered_to_by_one_node_until_its_lease_ends(tmp_path: Path) -> None:
    prefix = fresh_prefix()
    async with node(tmp_path / "a", prefix) as a, node(tmp_path / "b", prefix) as b:
        row = delivery()
        await a.outbox.notice([row])
        assert await a.outbox.next_of(*HERE) == row
        await a.outbox.begin(row)
        assert await b.outbox.next_of(*HERE) is None
        assert isinstance(a.outbox, RedisOutbox)
        a.outbox._held.clear()  # it shows no life any more
        taken: list[Delivery] = []

        async def found() -> bool:
            taken.extend(filter(None, [await b.outbox.next_of(*HERE)]))
            return bool(taken)

        await eventually(found)
        assert (taken[0].state, taken[0].uncertain, taken[0].attempts) == ("sending", True, 1)
        with pytest.raises(StaleFence):
            await a.outbox.sent(row, "late")
        await b.outbox.sent(taken[0], "handle")
        with pytest.raises(StaleFence):
            await a.outbox.begin(row)


async def test_a_timer_that_is_due_on_all_nodes_runs_once(tmp_path: Path) -> None:
    prefix, clock = fresh_prefix(), FakeClock()
    given: dict[str, Any] = {"redis.url": shared_server().url, "redis.prefix": prefix, "redis.lease": 0.6}
    provider = ScriptedProvider([echo] * 9)
    async with (
        running_claw(tmp_path / "a", provider, web=True, arguments=given, clock=clock) as a,
        running_claw(tmp_path / "b", provider, web=True, arguments=given, clock=clock) as b,
    ):
        hourly = Schedule("every", "1h", "UTC")
        timer = await a.timers.add("owner", "owner", hourly, "stand up", missed="once", message={})
        await eventually(lambda: [t.timer_id for t in b.timers.list("owner")] == [timer.timer_id])
        for run in (1, 2):
            clock.advance(3600)
            a.timers.wake()
            b.timers.wake()

            async def has_run(run: int = run) -> bool:
                sessions = await a.sessions.list("owner")
                return bool(sessions) and len(await said_in(a, sessions[0].session_id)) == 2 * run

            await eventually(has_run)
            await eventually(lambda: a.timers.is_idle and b.timers.is_idle)
        (session,) = await b.sessions.list("owner")
        assert len(await said_in(b, session.session_id)) == 4
        assert await a.timers.cancel(timer.timer_id, "owner", "owner")
        await eventually(lambda: b.timers.list("owner") == [])


def test_doctor_says_what_a_redis_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with own_server(tmp_path) as redis:
        command = ["doctor", "--json", "--data-dir", str(tmp_path / "data")]
        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MINICLAW_REDIS_URL", redis.url)
            patch.setenv("OPENAI_API_KEY", "")
            worse = ("CONFIG SET appendonly no", "CONFIG SET maxmemory-policy allkeys-lru")
            for commands in ((), worse, ("ACL SETUSER default -info",)):
                redis.ask(*commands)
                main(command)
                rows = json.loads(capsys.readouterr().out)
                found.append([row["state"] for row in rows if row["name"] == "redis"])
            redis.stop()
            main(command)
            rows = json.loads(capsys.readouterr().out)
    assert [states[:3] for states in found[:2]] == [["ok", "ok", "ok"], ["ok", "warning", "failed"]]
    assert found[2][0] == "warning" and "failed" not in found[2]
    (away,) = [row for row in rows if row["name"] == "redis"]
    assert away["state"] == "failed" and "MINICLAW_REDIS_URL" in away["mend"]


def test_the_terminal_talks_in_redis_and_the_sessions_there_are_listed_found_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--data-dir", str(tmp_path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLAW_REDIS_URL", shared_server().url)
        patch.setenv("MINICLAW_REDIS__PREFIX", fresh_prefix())
        patch.setenv("OPENAI_API_KEY", "")
        assert main(["chat", "--once", "红色的车 37*43", *there]) == 0
        capsys.readouterr()
        for words in (["list"], ["search", "红色"]):
            assert main(["sessions", *words, *there]) == 0
            session_id, _, rest = capsys.readouterr().out.partition(" ")
            assert session_id.startswith("ses_") and "红色的车 37*43" in rest
        assert main(["sessions", "export", session_id, *there]) == 0
        assert "1591" in capsys.readouterr().out
    assert not (tmp_path / "miniclaw.db").exists()


# --- ways to a Redis --------------------------------------------------------------------------------------


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    made, key = directory / "redis.crt", directory / "redis.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    return made, key


async def answers_at(directory: Path, url: str) -> bool:
    async with running_claw(
        directory, ScriptedProvider([echo]), arguments={"redis.url": url, "redis.prefix": "p"}
    ) as claw:
        return (await claw.reply("hello")).text == "echo: hello"


async def test_a_user_who_may_touch_nothing_but_the_prefix_does_and_a_wrong_password_is_one_sentence(
    tmp_path: Path,
) -> None:
    with own_server(tmp_path) as redis:
        docs = (Path(__file__).parent.parent / "docs/scale.md").read_text(encoding="utf-8")
        rule = next(part for part in docs.split("`") if part.startswith("ACL SETUSER"))
        rule = rule.replace("miniclaw", "p").replace("SETUSER p", "SETUSER claw").replace(">密码", ">s%3A/x")
        redis.ask(rule, "ACL SETUSER default off")
        here = f"127.0.0.1:{redis.port}"
        assert await answers_at(tmp_path / "a", f"redis://claw:s%253A%2Fx@{here}/0")
        with pytest.raises(StorageError, match=r"cannot be reached: .*password.* See MINICLAW_REDIS_URL\."):
            await answers_at(tmp_path / "b", f"redis://claw:wrong@{here}/0")


async def test_a_redis_behind_tls_is_spoken_to_when_its_certificate_is_trusted(tmp_path: Path) -> None:
    made, key = certificate(tmp_path)
    port = free_port()
    given = ("--tls-port", str(port), "--tls-cert-file", str(made), "--tls-key-file", str(key))
    with own_server(tmp_path, *given, "--tls-auth-clients", "no"):
        url = f"rediss://127.0.0.1:{port}/0"
        assert await answers_at(tmp_path / "a", f"{url}?ssl_ca_certs={made}")
        with pytest.raises(StorageError, match="certificate"):
            await answers_at(tmp_path / "b", url)


async def test_a_sentinel_says_where_the_master_is_that_wants_a_password(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with own_server(tmp_path) as redis, sentinel_of(redis.port, "team", tmp_path / "s") as port:
        redis.ask("ACL SETUSER claw on >s:/x ~{p}:* &{p}:* +@all")
        assert await answers_at(tmp_path / "a", f"redis+sentinel://claw:s%3A%2Fx@127.0.0.1:{port}/team/0")
        with pytest.raises(StorageError, match="No master found for 'other'"):
            await answers_at(tmp_path / "b", f"redis+sentinel://127.0.0.1:{port}/other/0")


async def test_a_sentinel_behind_tls_that_wants_a_password_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    made, key = certificate(tmp_path)
    tls = {"tls-cert-file": made, "tls-key-file": key, "tls-ca-cert-file": made, "tls-auth-clients": "no"}
    port, asked = free_port(), free_port()
    given = [word for name, value in {"tls-port": port, **tls}.items() for word in (f"--{name}", str(value))]
    lines = {**tls, "tls-port": asked, "tls-replication": "yes", "requirepass": "own"}
    more = [f"{name} {value}" for name, value in lines.items()]
    with own_server(tmp_path, *given), sentinel_of(port, "team", tmp_path / "s", *more) as plain:
        query = f"ssl_ca_certs={made}&sentinel_password=own"
        assert await answers_at(tmp_path / "a", f"rediss+sentinel://127.0.0.1:{asked}/team/0?{query}")
        there = f"rediss+sentinel://127.0.0.1:{plain}/team?{query}&sentinel_ssl=no"
        assert await answers_at(tmp_path / "b", there)


# --- the day of a user ------------------------------------------------------------------------------------


async def test_what_a_user_used_on_one_node_is_used_up_on_all(tmp_path: Path) -> None:
    prefix = fresh_prefix()
    used = Usage(model="m", input_tokens=900, output_tokens=100, calls=1)
    first, second = (ScriptedProvider([LLMResponse(text="hi", usage=used)] * 2) for _ in range(2))
    day: dict[str, Any] = {"limits.user_tokens_per_day": 500}
    async with (
        node(tmp_path / "a", prefix, first, **day) as a,
        node(tmp_path / "b", prefix, second, **day) as b,
    ):
        take_no_work(b)
        assert (await ended(a, (await send(a)).turn_id))["name"] == "turn.finished"
        take_no_work(a)
        queue_of(b).start()
        refused = await ended(b, (await send(b)).turn_id)
        assert (refused["name"], refused["data"]["stopped_by"]) == ("turn.finished", "tokens")
        assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_what_is_used_while_redis_hangs_is_counted_once(tmp_path: Path) -> None:
    with own_server(tmp_path) as redis:
        link = RedisLink(redis.url, prefix="p", timeout=0.2, patience=60.0)
        await link.open()
        redis.send_signal(signal.SIGSTOP)
        ledger = RedisLedger(link, {}, clock=time.time)
        used = Usage(model="m", input_tokens=7, calls=1)
        ledger.spend("ann", used)
        storing = asyncio.create_task(ledger.store("ann", [used]))
        await eventually(lambda: not link.is_up)
        redis.send_signal(signal.SIGCONT)
        await storing
        await ledger.look("ann")
        assert [(row["calls"], row["input_tokens"]) for row in await ledger.rows("ann")] == [(1, 7)]
        assert [(row.calls, row.input_tokens) for row in ledger.today("ann")] == [(1, 7)]
        await link.close()


class Hole:
    """Passes bytes on to a Redis, until what is open falls silent: nothing answered, nothing closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._age = 0
        self._mute = 0
        self._passing: set[asyncio.Task[Any] | None] = set()

    async def close(self) -> None:
        """End all that is passed on."""
        passing = [task for task in self._passing if task is not None]
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    def swallow(self, mute: int) -> None:
        """From now on only new connections work, and of those not the first `mute`."""
        self._age += 1
        self._mute = mute

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._passing.add(asyncio.current_task())  # nothing else holds a connection on which nothing comes
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._mute, age = max(0, self._mute - 1), -1 if self._mute else self._age
        ways = (self._pass_on(reader, back, age), self._pass_on(there, writer, age))
        try:
            await asyncio.gather(*ways)
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or the test is over
        finally:
            writer.close()
            back.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, age: int) -> None:
        while data := await reader.read(65536):
            if age == self._age:
                writer.write(data)
                await writer.drain()


async def test_a_busy_node_notices_that_the_connection_of_its_live_events_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.redis.relay.LIFE_SECONDS", 0.2)
    prefix, got = fresh_prefix(), list[object]()
    quick: dict[str, Any] = {"redis.timeout": 1.0}
    hole = Hole(int(shared_server().url.rpartition(":")[2].partition("/")[0]))
    async with await asyncio.start_server(hole, "127.0.0.1") as proxy:
        url = f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with (
            node(tmp_path / "a", prefix) as there,
            node(tmp_path / "b", prefix, url=url, **quick) as here,
        ):
            bus = here.bus
            bus.subscribe("user.owner", lambda topic, frame: got.append(frame))

            def is_told(news: str) -> bool:
                """Whether it arrives, while somebody is always opening a session."""
                bus.subscribe(f"session.{time.monotonic():.1f}", lambda topic, event: None).close()
                there.bus.publish("user.owner", news)
                return news in got

            await eventually(lambda: is_told("before"))
            hole.swallow(3)
            await eventually(lambda: is_told("behind"))
            assert got[-1] == "behind"
        await hole.close()
