"""Logging in at an MCP server: what is asked, what is checked, what is kept."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import pytest
from aiohttp import web

from miniclaw.errors import MCPUnavailable
from miniclaw.mcp.client import MCPClient
from miniclaw.mcp.client.http import HttpLink
from miniclaw.mcp.client.oauth import OAuth, OAuthClient
from miniclaw.mcp.client.oauth_metadata import Challenge, fetch_json
from miniclaw.mcp.client.tokens import BrowserConsent, KeptTokens
from tests.support.mcp_servers import serve_http, text_of, until


class World:
    """A server with its authorization server, on one origin."""

    def __init__(self) -> None:
        self.origin = ""
        self.metadata: dict[str, Any] = {}
        self.answer: dict[str, str] = {}
        self.needs = {"tools/call": "write"}
        self.expires_in = 3600
        self.granted: dict[str, set[str]] = {}
        self.seen: list[str] = []
        self.registered: list[dict[str, Any]] = []
        self.asked: list[dict[str, str]] = []
        self.forms: list[dict[str, str]] = []
        self.broken: dict[str, tuple[int, str]] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        if request.path in self.broken:
            status, text = self.broken[request.path]
            return web.Response(status=status, text=text, content_type="application/json")
        match request.path:
            case "/.well-known/oauth-protected-resource/mcp":
                return web.json_response(
                    {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
                )
            case "/.well-known/oauth-authorization-server":
                return web.json_response(self._metadata())
            case "/register":
                self.registered.append(await request.json())
                return web.json_response(
                    {"client_id": f"c{len(self.registered)}", "client_secret": "s"}, status=201
                )
            case "/token":
                return await self._token(request)
            case "/mcp":
                return await self._mcp(request)
        return web.Response(status=404)

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
            **self.metadata,
        }

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] != "fresh":
                return web.json_response({"error": "invalid_grant"}, status=400)
        else:
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            asked = self.asked[-1]
            assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        token = f"t{len(self.forms)}"
        self.granted[token] = set(self.asked[-1].get("scope", "").split()) if self.asked else {"write"}
        more = {"refresh_token": "fresh", "expires_in": self.expires_in}
        return web.json_response({"access_token": token, "token_type": "Bearer", **more})

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        message = await request.json() if request.method == "POST" else {}
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        place = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
        if token not in self.granted:
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer scope="read", {place}'})
        wanted = self.needs.get(message.get("method", ""))
        if wanted is not None and wanted not in self.granted[token]:
            challenge = f'Bearer error="insufficient_scope", scope="{wanted}", {place}'
            return web.Response(status=403, headers={"WWW-Authenticate": challenge})
        if request.method != "POST" or "id" not in message:
            return web.Response(status=405 if request.method != "POST" else 202)
        result = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
            "tools/call": {"content": [{"type": "text", "text": "ok"}]},
            "tools/list": {"tools": []},
        }.get(message["method"])
        if result is None:
            return web.Response(status=404)
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    redirect_uri = "http://127.0.0.1:8977/callback"

    async def ask(self, url: str) -> str:
        """The user agrees."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.asked.append(asked)
        return f"{self.redirect_uri}?{urlencode({'code': 'x', 'state': asked['state'], **self.answer})}"

    def client(self, kept: Any, *, is_there: bool = True, **client: str) -> MCPClient:
        url = f"{self.origin}/mcp"
        consent = self if is_there else None
        alone = kept.alone if isinstance(kept, KeptTokens) else nullcontext
        auth = OAuth(url, kept=kept, consent=consent, client=OAuthClient(**client), alone=alone)
        return MCPClient(lambda: HttpLink(url, authorizer=auth), start_seconds=20.0)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    one = World()
    async with serve_http(one.handle) as origin:
        one.origin = origin
        yield one


async def test_a_login_is_made_kept_in_a_private_file_widened_when_asked_and_renewed(tmp_path: Path) -> None:
    path = tmp_path / "mcp-tokens.json"
    async with world() as here:
        url = f"{here.origin}/mcp"
        async with here.client(KeptTokens(path, url)) as client:
            assert text_of(await client.call_tool("say")) == "ok"
        assert [asked["scope"] for asked in here.asked] == ["read", "read write"]
        assert all(asked["resource"] == url for asked in here.asked + here.forms)
        assert len(here.registered) == 1 and here.registered[0]["application_type"] == "native"
        assert here.forms[0]["client_secret"] == "s"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

        async with here.client(KeptTokens(path, url), is_there=False) as client:  # another process, later
            assert text_of(await client.call_tool("say")) == "ok"
            here.granted.clear()  # withdrawn there: renewed without the user
            assert text_of(await client.call_tool("say")) == "ok"
            kept = KeptTokens(path, url)
            kept["tokens"] = {**kept["tokens"], "renew_at": 0}
            assert text_of(await client.call_tool("say")) == "ok"
        assert [form["grant_type"] for form in here.forms[2:]] == ["refresh_token", "refresh_token"]
        assert len(here.asked) == 2


async def test_without_a_user_the_operator_is_told_what_to_do_and_a_spent_renewal_is_forgotten() -> None:
    async with world() as here:
        kept: dict[str, Any] = {}
        with pytest.raises(MCPUnavailable, match="wants a login") as told:
            async with here.client(kept, is_there=False):
                raise AssertionError
        assert told.value.needs_login and here.asked == []
        kept |= {
            "issuer": here.origin,
            "client": {"client_id": "c"},
            "tokens": {"access_token": "old", "refresh_token": "spent"},
        }
        with pytest.raises(MCPUnavailable, match="wants a login"):
            async with here.client(kept, is_there=False):
                raise AssertionError
        assert "tokens" not in kept and here.forms[-1]["refresh_token"] == "spent"


def known(here: World, path: Path) -> KeptTokens:
    """What an earlier login kept; its token has ended."""
    kept = KeptTokens(path, f"{here.origin}/mcp")
    kept["issuer"] = here.origin
    kept["client"] = {"client_id": "c", "redirect_uri": here.redirect_uri}
    kept["tokens"] = {"access_token": "old", "refresh_token": "fresh", "renew_at": 0}
    return kept


@pytest.mark.parametrize("renew_at", [0, 2**40])
async def test_a_renewal_that_finds_nobody_or_a_server_out_of_order_is_tried_again_and_no_login(
    renew_at: int, tmp_path: Path
) -> None:
    about = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
    async with world() as here:
        kept = known(here, tmp_path / "mcp-tokens.json")
        kept["tokens"] = before = {**kept["tokens"], "renew_at": renew_at}
        for broken, metadata in (
            ({}, {"token_endpoint": "http://127.0.0.1:9/token"}),
            ({"/token": (503, '{"error": "invalid_grant"}')}, {}),
            ({"/token": (429, "{}")}, {}),
            ({"/token": (400, '{"error": "temporarily_unavailable"}')}, {}),
            ({"/token": (403, "<html>a proxy's")}, {}),
            ({about[0]: (502, "")}, {}),
            ({about[1]: (503, "{}")}, {}),
        ):
            here.broken, here.metadata = broken, metadata
            with pytest.raises(MCPUnavailable) as told:
                async with here.client(kept, is_there=False):
                    raise AssertionError
            assert not told.value.needs_login and kept["tokens"] == before
        here.broken, here.metadata = {}, {}
        async with here.client(kept, is_there=False) as client:
            assert text_of(await client.call_tool("say")) == "ok"
        assert not here.asked


@pytest.mark.parametrize(
    ("status", "error", "left"),
    [
        (400, "invalid_grant", {"issuer", "client"}),
        (401, "invalid_client", {"issuer"}),
        (400, "unauthorized_client", {"issuer"}),
        (200, "bad_refresh_token", {"issuer", "client", "tokens"}),
    ],
)
async def test_what_the_authorization_server_itself_refuses_wants_a_login(
    status: int, error: str, left: set[str], tmp_path: Path
) -> None:
    async with world() as here:
        kept = known(here, tmp_path / "mcp-tokens.json")
        here.broken = {"/token": (status, f'{{"error": "{error}"}}')}
        with pytest.raises(MCPUnavailable, match="wants a login") as told:
            async with here.client(kept, is_there=False):
                raise AssertionError
        assert told.value.needs_login and set(kept) == left


async def test_of_two_at_once_one_renews_and_a_renewal_that_nobody_waits_for_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "mcp-tokens.json"
    async with world() as here:
        mine, going, go = known(here, path), asyncio.Event(), asyncio.Event()
        real = here._token

        async def slow(request: web.Request) -> web.Response:
            assert KeptTokens(path, f"{here.origin}/mcp")["tokens"]["refresh_token"] == "fresh"
            await request.read()
            going.set()
            await go.wait()
            return await real(request)

        here._token = slow  # type: ignore[method-assign]
        both = [KeptTokens(path, f"{here.origin}/mcp") for _ in range(2)]
        first, second = (OAuth(f"{here.origin}/mcp", kept=one, alone=one.alone) for one in both)
        given_up = asyncio.ensure_future(first.token())
        await going.wait()
        given_up.cancel()
        others = [asyncio.ensure_future(one.token()) for one in (first, second)]
        await until(lambda: here.seen.count("/.well-known/oauth-authorization-server") == 3)
        go.set()
        assert await asyncio.gather(*others) == ["t1", "t1"] and len(here.forms) == 1
        assert given_up.cancelled()

        mine["tokens"] = {**mine["tokens"], "renew_at": 0}
        later = {"access_token": "of a login", "refresh_token": "newer"}

        async def logged_in(request: web.Request) -> web.Response:
            mine["tokens"] = later
            return web.json_response({"error": "invalid_grant"}, status=400)

        here._token = logged_in  # type: ignore[method-assign]
        assert await first.token() == "of a login" and mine["tokens"] == later


async def test_a_scope_that_is_never_given_is_asked_for_once() -> None:
    async with world() as here:
        here.needs = {"tools/call": "never"}
        async with here.client({}) as client:
            here.granted = {token: {"read"} for token in here.granted}
            real = here.ask

            async def less(url: str) -> str:
                answer = await real(url)
                here.asked[-1]["scope"] = "read"
                return answer

            here.ask = less  # type: ignore[method-assign]
            with pytest.raises(MCPUnavailable, match="status 403"):
                await client.call_tool("say")
        assert len(here.asked) == 2


@pytest.mark.parametrize(
    ("metadata", "answer", "reason"),
    [
        ({"issuer": "https://evil.test"}, {}, "nothing is sent"),
        ({"code_challenge_methods_supported": ["plain"]}, {}, "PKCE"),
        ({"code_challenge_methods_supported": 5}, {}, "PKCE"),
        ({"token_endpoint": "http://evil.test/token"}, {}, "not https"),
        ({"token_endpoint": "http://[::1"}, {}, "no address"),
        ({}, {"state": "forged"}, "not to ours"),
        ({}, {"iss": "https://evil.test"}, "is not of"),
        ({"authorization_response_iss_parameter_supported": True}, {}, "is not of"),
        ({}, {"code": "", "error": "access_denied"}, "access_denied"),
        ({"registration_endpoint": ""}, {}, "oauth.clientId"),
    ],
)
async def test_a_login_that_is_not_safe_is_not_made(
    metadata: dict[str, Any], answer: dict[str, str], reason: str
) -> None:
    async with world() as here:
        here.metadata, here.answer = metadata, answer
        with pytest.raises(MCPUnavailable, match=reason):
            async with here.client({}):
                raise AssertionError
        assert not here.forms


async def test_what_the_operator_registered_or_published_is_used(tmp_path: Path) -> None:
    async with world() as here:
        async with here.client({}, client_id="mine", client_secret="hush"):
            assert here.asked[-1]["client_id"] == "mine" and here.forms[-1]["client_secret"] == "hush"
        here.metadata = {"client_id_metadata_document_supported": True}
        async with here.client({}, metadata_url="https://me.test/c.json"):
            assert here.asked[-1]["client_id"] == "https://me.test/c.json"
        assert not here.registered


async def test_what_one_login_server_gave_is_not_sent_to_another() -> None:
    async with world() as here, world() as there:
        kept = {
            "issuer": there.origin,
            "client": {"client_id": "theirs", "redirect_uri": here.redirect_uri},
            "tokens": {"access_token": "theirs"},
        }
        async with here.client(kept):
            assert kept["issuer"] == here.origin and here.asked[-1]["client_id"] == "c1"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Bearer realm="a, b", scope="x y", error=invalid_token', Challenge("", "x y", "invalid_token")),
        ('bearer resource_metadata="https://a/b?c=\\"d\\""', Challenge('https://a/b?c="d"')),
        ("Basic realm=x", Challenge()),
    ],
)
def test_a_challenge_is_read(header: str, expected: Challenge) -> None:
    assert Challenge.read([header]) == expected


async def test_secrets_go_over_tls_or_stay_here() -> None:
    for url in ("http://10.0.0.1/token", "ftp://localhost/x", "http://localhost.evil.test/"):
        with pytest.raises(MCPUnavailable, match="not https"):
            await fetch_json(url, form={"secret": "x"})


@pytest.mark.parametrize(
    ("token", "life", "renewals"),
    [
        ("good", 20, 0),
        ("good", 0, 0),
        ("good", -5, 0),
        ("good", "x", 0),
        (["a"], 9, None),
        ("a\r\nb", 9, None),
    ],
)
async def test_a_fresh_token_is_used_and_one_that_is_none_is_told(
    token: Any, life: Any, renewals: int | None
) -> None:
    async with world() as here:

        async def given(request: web.Request) -> web.Response:
            here.forms.append({})
            here.granted["good"] = {"read", "write"}
            return web.json_response({"access_token": token, "refresh_token": "fresh", "expires_in": life})

        here._token = given  # type: ignore[method-assign]
        with pytest.raises(MCPUnavailable, match="gave no token") if renewals is None else nullcontext():
            async with here.client({}) as client:
                assert text_of(await client.call_tool("say")) == "ok"
                assert len(here.forms) == 1


async def test_each_place_of_a_login_is_checked_and_one_out_there_leads_to_none_in_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return {"127.0.0.1": ["127.0.0.1"], "in.test": ["10.0.0.1"]}.get(host, ["8.8.8.8"])

    monkeypatch.setattr("miniclaw.tools.builtins.addresses.system_resolver", resolve)
    moved: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        moved.append(request.path)
        target = request.query.get("to") or f"/{len(moved)}"
        return web.Response(status=302, headers={"Location": target})

    async with serve_http(handle) as origin:
        assert await fetch_json(origin) is None and len(moved) == 4
        for target, reason in (("http://10.0.0.1/", "not https"), ("http://[::1", "no address|cannot be")):
            with pytest.raises(MCPUnavailable, match=reason):
                await fetch_json(f"{origin}/?{urlencode({'to': target})}")
        for inside in (origin, "https://in.test/meta"):
            with pytest.raises(MCPUnavailable, match="private network"):
                await fetch_json(inside, asker="https://out.test/mcp")
    assert len(moved) == 6


async def test_the_browser_comes_back_to_a_port_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    task = asyncio.ensure_future(BrowserConsent(lambda url: None).ask("https://a.test/authorize"))
    await until(lambda: opened)
    async with aiohttp.ClientSession() as session:
        async with session.get("http://127.0.0.1:8977/favicon.ico") as response:
            assert response.status == 404
        async with session.get("http://127.0.0.1:8977/callback?code=1&state=2") as response:
            assert "close this page" in await response.text()
    assert await task == "http://127.0.0.1:8977/callback?code=1&state=2"


def test_many_that_write_the_file_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "mcp-tokens.json"

    def write(number: int) -> None:
        kept = KeptTokens(path, f"https://{number % 2}.test")
        for turn in range(10):
            kept[f"{number} {turn}"] = turn

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [len(KeptTokens(path, f"https://{number}.test")) for number in range(2)] == [20, 20]


def test_an_older_file_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "mcp-tokens.json"
    path.write_text("rubbish", encoding="utf-8")
    os.chmod(path, 0o644)
    kept = KeptTokens(path, "https://a.test")
    assert not kept and (tmp_path / "mcp-tokens.broken").read_text(encoding="utf-8") == "rubbish"
    kept["tokens"] = {"access_token": "t"}
    assert dict(KeptTokens(path, "https://a.test")) == {"tokens": {"access_token": "t"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and not KeptTokens(path, "https://b.test")
