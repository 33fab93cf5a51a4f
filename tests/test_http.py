"""The HTTP side as a stranger, a browser and a program see it."""

from __future__ import annotations

import asyncio
import io
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from miniclaw import db
from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.errors import ConfigError, ModelError
from tests.support.claw import TOKEN, running_claw
from tests.support.model import last_user

AUTH = {"Authorization": f"Bearer {TOKEN}"}


async def echo(messages: list[Message]) -> LLMResponse:
    return LLMResponse(text=f"echo: **{last_user(messages)}**")


@asynccontextmanager
async def web(
    tmp_path: Path, script: list[Any] | None = None, **arguments: Any
) -> AsyncIterator[tuple[MiniClaw, aiohttp.ClientSession, str]]:
    """A gateway with its HTTP side, a client without cookies, and the base URL."""
    given = {name.replace("__", "."): value for name, value in arguments.items()}
    async with running_claw(tmp_path, ScriptedProvider(script or []), web=True, arguments=given) as claw:
        assert claw.web is not None
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            yield claw, http, f"http://127.0.0.1:{claw.web.port}"


async def login(http: aiohttp.ClientSession, base: str) -> dict[str, str]:
    """The cookie header that a browser would send from now on."""
    async with http.get(f"{base}/?token={TOKEN}", allow_redirects=False) as response:
        assert response.status == 303
        cookie = response.cookies[f"miniclaw_{base.rpartition(':')[2]}"]
        assert cookie["httponly"] and cookie["samesite"] == "Strict"
        assert TOKEN not in cookie.value
        return {"Cookie": f"{cookie.key}={cookie.value}"}


async def test_every_route_but_the_open_ones_answers_401_without_a_token(tmp_path: Path) -> None:
    """The list is read from the application, so a new route cannot be forgotten."""
    metadata = "/.well-known/oauth-protected-resource"
    is_open = {"/", "/static/{path}", "/healthz", "/readyz", metadata, metadata + "/mcp"}
    async with web(tmp_path) as (claw, http, base):
        assert claw.web is not None
        app = claw.web._server._app
        routes = [r for r in app.router.routes() if r.resource is not None]
        paths = [(r.method.replace("*", "POST"), r.resource.canonical) for r in routes if r.resource]
        assert len(paths) > 15
        for method, path in paths:
            async with http.request(
                method, base + path.replace("{id}", "x").replace("{path}", "x")
            ) as response:
                assert (response.status == 401) == (path not in is_open), (method, path, response.status)
                if path not in is_open and method != "HEAD":
                    assert (await response.json())["error"]["code"] == "unauthorized"


async def test_a_wrong_token_and_a_token_in_the_query_of_a_plain_request_are_refused(tmp_path: Path) -> None:
    async with web(tmp_path) as (_, http, base):
        for url, headers in (
            (f"{base}/api/status", {"Authorization": "Bearer wrong"}),
            (f"{base}/api/status", {"Authorization": f"Basic {TOKEN}"}),
            (f"{base}/api/status?token={TOKEN}", {}),
            (f"{base}/?token=wrong", {}),
        ):
            async with http.get(url, headers=headers, allow_redirects=False) as response:
                assert response.status == 401, url


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/api/status", {"Host": "evil.example"}, 421),
        ("GET", "/", {"Host": "evil.example"}, 421),
        ("GET", "/api/status", {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/messages", {"Origin": "http://127.0.0.1:1", "Content-Type": "text/plain"}, 403),
        ("POST", "/api/messages", {"Content-Type": "application/json"}, 403),
        ("POST", "/api/messages", {"Content-Type": "text/plain"}, 403),
        ("DELETE", "/api/memories/mem_x", {}, 403),
        ("GET", "/ws", {"Upgrade": "websocket", "Connection": "Upgrade"}, 403),
        (
            "GET",
            "/ws",
            {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": "http://evil.example"},
            403,
        ),
    ],
)
async def test_a_browsers_cookie_is_no_use_to_another_page(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async with web(tmp_path) as (claw, http, base):
        cookie = await login(http, base)
        data = '{"text":"do it"}' if method == "POST" else None
        async with http.request(method, base + path, headers={**cookie, **headers}, data=data) as response:
            assert response.status == status
        assert await claw.sessions.list() == []


async def test_a_text_plain_post_with_our_own_origin_is_refused_too(tmp_path: Path) -> None:
    async with web(tmp_path) as (_, http, base):
        headers = {**await login(http, base), "Origin": base, "Content-Type": "text/plain"}
        async with http.post(f"{base}/api/messages", headers=headers, data='{"text":"x"}') as response:
            assert response.status == 403


async def test_our_own_page_may_post_and_open_its_socket_with_the_cookie(tmp_path: Path) -> None:
    async with web(tmp_path, [echo]) as (_, http, base):
        headers = {**await login(http, base), "Origin": base}
        async with http.get(f"{base}/api/status", headers=headers) as response:
            assert (await response.json())["user_id"] == "owner"
        async with http.post(
            f"{base}/api/messages?wait=20", headers=headers, json={"text": "hi"}
        ) as response:
            assert (await response.json())["text"] == "echo: **hi**"
        async with http.ws_connect(f"{base.replace('http', 'ws')}/ws", headers=headers) as ws:
            await ws.send_json({"msg_id": "1", "msg_type": "command", "payload": {"name": "ping"}})
            assert (await ws.receive_json(timeout=20))["payload"]["data"]["result"]["pong"] is True


async def test_a_page_of_another_user_than_the_cookies_is_told_so_and_neither_reads_nor_writes(
    tmp_path: Path,
) -> None:
    async with web(tmp_path) as (claw, http, base):
        browser = {**await login(http, base), "Origin": base}
        for name, status in (("bob", 409), ("owner", 201)):
            headers = {**browser, "X-Miniclaw-User": name}
            async with http.post(
                f"{base}/api/memories", headers=headers, json={"content": "mine"}
            ) as response:
                assert response.status == status
            async with http.get(f"{base}/api/memories/export?user={name}", headers=browser) as response:
                assert response.status == (409 if name == "bob" else 200)
                assert response.status == 200 or (await response.json())["error"]["code"] == "other_user"
        assert len(await claw.memory.list("owner")) == 1


async def test_a_login_cookie_survives_a_restart_and_a_stranger_cookie_does_not_count(tmp_path: Path) -> None:
    async with web(tmp_path) as (claw, http, base):
        assert claw.web is not None
        port = claw.web.port
        cookie = await login(http, base)
    async with web(tmp_path, web__port=port) as (_, http, base):
        async with http.get(f"{base}/api/status", headers=cookie) as response:
            assert response.status == 200
        async with http.get(f"{base}/api/status", headers={"Cookie": f"miniclaw_{port}=x"}) as response:
            assert response.status == 401


async def test_a_message_without_wait_is_202_with_its_ids_and_the_answer_is_in_the_session(
    tmp_path: Path,
) -> None:
    async with web(tmp_path, [echo]) as (_, http, base):
        async with http.post(
            f"{base}/api/messages", headers=AUTH, json={"text": "hi", "msg_id": "m1"}
        ) as response:
            assert response.status == 202
            ids = await response.json()
        assert set(ids) == {"msg_id", "session_id", "turn_id"} and ids["msg_id"] == "m1"
        async with http.post(
            f"{base}/api/messages?wait=20", headers=AUTH, json={"text": "hi", "msg_id": "m1"}
        ) as response:
            again = await response.json()
        assert {**ids, "text": "echo: **hi**"}.items() <= again.items()
        url = f"{base}/api/sessions/{ids['session_id']}/messages?html=1"
        async with http.get(url, headers=AUTH) as response:
            page = await response.json()
        assert [m["content"] for m in page["messages"]] == ["hi", "echo: **hi**"]
        assert "<strong>hi</strong>" in page["messages"][1]["html"]
        assert page["more"] is False


async def test_a_wait_that_runs_out_is_202_and_the_turn_goes_on(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(messages: list[Message]) -> LLMResponse:
        await go.wait()
        return LLMResponse(text="late")

    async with web(tmp_path, [slow]) as (_, http, base):
        body = {"text": "hi", "msg_id": "m"}
        async with http.post(f"{base}/api/messages?wait=0.05", headers=AUTH, json=body) as response:
            assert response.status == 202
        go.set()
        async with http.post(f"{base}/api/messages?wait=20", headers=AUTH, json=body) as response:
            assert (response.status, (await response.json())["text"]) == (200, "late")


async def test_a_failed_turn_is_200_with_the_error_in_the_body(tmp_path: Path) -> None:
    async with web(tmp_path) as (_, http, base):
        async with http.post(f"{base}/api/messages?wait=20", headers=AUTH, json={"text": "x"}) as response:
            body = await response.json()
    assert (response.status, body["error"]["code"]) == (200, "model_error")


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        ("{", 400, "bad_json"),
        ("[]", 400, "bad_message"),
        ('{"text":""}', 400, "bad_message"),
        ('{"text":"x","more":1}', 400, "bad_message"),
        ('{"text":"\\u0000"}', 400, "bad_message"),
        ('{"text":"x","session_id":"ses_none"}', 404, "session_not_found"),
        ('{"text":"x","attachments":[{"id":"upl_1"}]}', 404, "not_found"),
        ('{"text":"' + "x" * 1_100_000 + '"}', 413, "too_large"),
    ],
)
async def test_a_bad_body_gets_its_status_and_code_and_changes_nothing(
    tmp_path: Path, data: str, status: int, code: str
) -> None:
    async with web(tmp_path) as (claw, http, base):
        headers = {**AUTH, "Content-Type": "application/json"}
        body = io.BytesIO(data.encode())
        async with http.post(f"{base}/api/messages", headers=headers, data=body) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)
        assert await claw.sessions.list() == []


async def test_another_users_session_memory_and_turn_are_404(tmp_path: Path) -> None:
    async with web(tmp_path, [echo]) as (claw, http, base):
        await claw.identities.ensure("alice")
        record = await claw.memory.save("alice", "Alice's secret")
        session = await claw.sessions.get_or_create("alice", "web")
        for method, path in (
            ("GET", f"/api/sessions/{session.session_id}/messages"),
            ("GET", f"/api/memories/{record.memory_id}"),
            ("DELETE", f"/api/memories/{record.memory_id}"),
            ("POST", "/api/turns/turn_none/cancel"),
        ):
            async with http.request(method, base + path, headers=AUTH) as response:
                assert response.status == 404, path
        async with http.get(f"{base}/api/memories", headers=AUTH) as response:
            assert (await response.json())["memories"] == []
        body = {"text": "x", "session_id": session.session_id}
        async with http.post(f"{base}/api/messages", headers=AUTH, json=body) as response:
            assert response.status == 404


async def test_memories_can_be_added_read_searched_and_deleted(tmp_path: Path) -> None:
    async with web(tmp_path) as (_, http, base):
        body = {"content": "我住在杭州", "context": "闲聊"}
        async with http.post(f"{base}/api/memories", headers=AUTH, json=body) as response:
            assert response.status == 201
            memory_id = (await response.json())["memory_id"]
        for path in ("/api/memories", "/api/memories?query=杭州"):
            async with http.get(base + path, headers=AUTH) as response:
                assert [m["content"] for m in (await response.json())["memories"]] == ["我住在杭州"]
        async with http.get(f"{base}/api/memories/{memory_id}", headers=AUTH) as response:
            assert (await response.json())["context"] == "闲聊"
        moved = {"content": "我住在上海", "supersedes": memory_id}
        async with http.post(f"{base}/api/memories", headers=AUTH, json=moved) as response:
            new_id = (await response.json())["memory_id"]
        async with http.get(f"{base}/api/memories/{memory_id}", headers=AUTH) as response:
            old = await response.json()
            assert (old["status"], old["superseded_by"]) == ("superseded", new_id)
        nothing = {"content": "x", "supersedes": "mem_none"}
        async with http.post(f"{base}/api/memories", headers=AUTH, json=nothing) as response:
            assert response.status == 404
        async with http.post(f"{base}/api/memories/{new_id}/confirm", headers=AUTH, json={}) as response:
            assert response.status == 200
        async with http.get(f"{base}/api/memories", headers=AUTH) as response:
            assert [m["memory_id"] for m in (await response.json())["memories"]] == [new_id]
        async with http.delete(f"{base}/api/memories/{memory_id}", headers=AUTH) as response:
            assert response.status == 200
        async with http.get(f"{base}/api/memories/..%2f..%2fx", headers=AUTH) as response:
            assert response.status == 400


async def test_lists_show_tools_skills_usage_and_deliveries(tmp_path: Path) -> None:
    async with web(tmp_path, [echo]) as (_, http, base):
        async with http.post(f"{base}/api/messages?wait=20", headers=AUTH, json={"text": "hi"}):
            pass
        found = {}
        for name in ("tools", "skills", "usage", "deliveries", "approvals", "sessions"):
            async with http.get(f"{base}/api/{name}", headers=AUTH) as response:
                found[name] = (await response.json())[name]
    assert {tool["name"]: tool["risk"] for tool in found["tools"]}["calculator"] == "read"
    assert found["skills"] and found["deliveries"] == [] and found["approvals"] == []
    assert found["sessions"][0]["title"] == "hi"


async def test_a_question_is_listed_and_answered_over_http(tmp_path: Path) -> None:
    call = LLMResponse(tool_calls=(ToolCall.of("c", "memory_delete", {"memory_id": "mem_none"}),))
    async with web(tmp_path, [call, echo]) as (_, http, base):
        async with http.post(f"{base}/api/messages", headers=AUTH, json={"text": "go", "msg_id": "m"}):
            pass
        waiting: list[dict[str, Any]] = []
        async with asyncio.timeout(20):
            while not waiting:
                async with http.get(f"{base}/api/approvals", headers=AUTH) as response:
                    waiting = (await response.json())["approvals"]
        url = f"{base}/api/approvals/{waiting[0]['approval_id']}"
        for wrong in ("maybe", "unattended"):
            async with http.post(url, headers=AUTH, json={"decision": wrong}) as response:
                assert response.status == 400
        async with http.post(url, headers=AUTH, json={"decision": "deny"}) as response:
            assert response.status == 200
        async with http.post(url, headers=AUTH, json={"decision": "once"}) as response:
            assert response.status == 404, "the first answer wins"
        body = {"text": "go", "msg_id": "m"}
        async with http.post(f"{base}/api/messages?wait=20", headers=AUTH, json=body) as response:
            assert (await response.json())["tools"][0]["ok"] is False


async def test_a_running_turn_is_cancelled_over_http_and_a_second_time_is_no_error(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def hang(messages: list[Message]) -> LLMResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with web(tmp_path, [hang]) as (_, http, base):
        body = {"text": "go", "msg_id": "m"}
        async with http.post(f"{base}/api/messages", headers=AUTH, json=body) as response:
            turn_id = (await response.json())["turn_id"]
        await asyncio.wait_for(started.wait(), 20)
        for expected in (True, False):
            async with http.post(f"{base}/api/turns/{turn_id}/cancel", headers=AUTH) as response:
                assert (await response.json())["cancelled"] is expected
            async with http.post(f"{base}/api/messages?wait=20", headers=AUTH, json=body) as response:
                assert (await response.json())["state"] == "cancelled"


async def test_the_page_and_its_files_carry_a_strict_policy_and_no_path_leads_outside(tmp_path: Path) -> None:
    """AstrBotDevs/AstrBot#1675, openclaw/openclaw#112139: `../` once or twice encoded led to the file with the keys."""
    async with web(tmp_path) as (_, http, base):
        async with http.get(f"{base}/") as response:
            policy = response.headers["Content-Security-Policy"]
            assert "script-src 'self'" in policy and "unsafe" not in policy
        for path in (
            "..%2f..%2fconfig.py",
            "%2e%2e%2fwebchat.py",
            "..%252fwebchat.py",
            "%252e%252e%252fwebchat.py",
            "nothing.js",
            "%00",
            "a%2Fb",
        ):
            async with http.get(URL(f"{base}/static/{path}", encoded=True)) as response:
                assert response.status == 404, path
        async with http.get(f"{base}/nowhere", headers=AUTH) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
        async with http.put(f"{base}/api/status", headers=AUTH) as response:
            assert response.status == 405


async def test_liveness_and_readiness_are_open(tmp_path: Path) -> None:
    async with web(tmp_path) as (claw, http, base):
        async with http.get(f"{base}/healthz") as response:
            assert response.status == 200
        async with http.get(f"{base}/readyz") as response:
            assert response.status == 200
        await claw.mailbox.stop(0)
        async with http.get(f"{base}/readyz") as response:
            assert response.status == 503
        async with http.post(f"{base}/api/messages", headers=AUTH, json={"text": "x"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "draining")
            assert response.headers["Retry-After"]


async def test_readiness_tells_how_the_model_and_the_platforms_fared(tmp_path: Path) -> None:
    async def fail(messages: list[Message]) -> LLMResponse:
        raise ModelError("model_auth", "The key is not valid.", kind="auth")

    async with web(tmp_path, [fail, LLMResponse(text="fine")]) as (claw, http, base):
        claw.bus.publish("system.delivery", ("slack", "failed"))
        seen = []
        for _ in range(2):
            async with http.post(
                f"{base}/api/messages?wait=20", headers=AUTH, json={"text": "x"}
            ) as response:
                assert response.status == 200
            async with http.get(f"{base}/readyz") as response:
                assert response.status == 200
                seen.append(await response.json())
        assert [row["model"] for row in seen] == ["model_auth", "ok"]
        assert seen[0]["storage"] == "ok" and seen[0]["channels"] == {"slack": "failed"}


async def test_who_cannot_store_a_message_is_not_ready_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 0)
    async with web(tmp_path) as (_, http, base):

        async def ready() -> tuple[int, str]:
            async with http.get(f"{base}/readyz") as response:
                return response.status, (await response.json()).get("error", {}).get("message", "")

        with sqlite3.connect(tmp_path / "miniclaw.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await ready() == (503, "The database did not take a write: database is locked.")
            other.execute("ROLLBACK")
        other.close()
        assert await ready() == (200, "")
        monkeypatch.setattr(db, "FULL_DISK_BYTES", 1 << 60)
        status, reason = await ready()
        assert status == 503 and reason.startswith("The disk of the data directory is full (")
        async with http.get(f"{base}/healthz") as response:
            assert response.status == 200, "a restart would not help"


async def test_a_taken_port_that_was_asked_for_is_an_error_and_the_default_moves_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another --port"):
            async with web(tmp_path, web__port=port):
                pass
        with pytest.raises(ConfigError, match="choose another --gateway-port"):
            async with web(tmp_path, gateway__port=port):
                pass
    async with web(tmp_path) as (_, http, base), http.get(f"{base}/healthz") as response:
        assert response.status == 200, "a failed start gave the data directory back"


async def test_html_readers_get_blocks_and_the_final_html(tmp_path: Path) -> None:
    text = "# Title\n\nFirst *paragraph*.\n\nSecond one."
    script = [LLMResponse(text=text), LLMResponse(text="plain")]
    async with web(tmp_path, script) as (_, http, base):
        names: list[str] = []
        html = []
        async with http.ws_connect(f"{base.replace('http', 'ws')}/ws?html=1", headers=AUTH) as ws:
            await ws.send_json({"msg_id": "1", "msg_type": "text", "payload": {"text": "go"}})
            async with asyncio.timeout(20):
                while "turn.finished" not in names:
                    payload = (await ws.receive_json())["payload"]
                    names.append(payload.get("name", "error"))
                    if names[-1] == "text.block":
                        html.append(payload["data"])
            assert [block["index"] for block in html] == [0, 1, 2]
            assert "<h1>" in html[0]["html"] and "<em>paragraph</em>" in html[1]["html"]
            assert payload["data"]["html"] == "".join(block["html"] for block in html)


async def test_a_typed_command_in_the_web_chat_is_carried_out_and_a_double_slash_escapes(
    tmp_path: Path,
) -> None:
    async with web(tmp_path, [echo]) as (_, http, base):
        async with http.ws_connect(f"{base.replace('http', 'ws')}/ws", headers=AUTH) as ws:
            await ws.send_json(
                {"msg_id": "1", "msg_type": "text", "payload": {"text": "/remember I like tea"}}
            )
            result = (await ws.receive_json(timeout=20))["payload"]["data"]
            assert result["name"] == "remember" and result["result"]["memory_id"].startswith("mem_")
            await ws.send_json({"msg_id": "2", "msg_type": "text", "payload": {"text": "//help"}})
            payload: dict[str, Any] = {}
            while payload.get("name") != "turn.finished":
                payload = (await ws.receive_json(timeout=20))["payload"]
            assert payload["data"]["text"] == "echo: **/help**"
