"""The `http_request` tool over real sockets, and that it contacts nothing it should not."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import datetime
import gzip
import importlib
import ipaddress
import json
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from miniclaw.tools import ToolRegistry, ToolResult
from miniclaw.tools.builtins import builtin_tools, http_request_tool
from miniclaw.tools.builtins.addresses import Resolver
from tests.support.source import tree_of

Answer = Callable[[str], bytes]


def answer(
    body: bytes | str = "", *, status: str = "200 OK", type: str | None = "text/plain", **headers: str
) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}", "connection: close"]
    if type is not None:
        lines.append(f"content-type: {type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


@dataclass
class Site:
    """A server that counts connections, keeps requests and answers by path."""

    port: int
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)

    @property
    def head(self) -> str:
        return self.requests[-1].decode().partition("\r\n\r\n")[0].lower()


@contextlib.asynccontextmanager
async def site(
    respond: Answer | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Site]:
    handlers: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.connections += 1
        if task := asyncio.current_task():
            handlers.append(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                here.requests.append(head + await reader.readexactly(size))
                if respond is None:
                    await asyncio.Event().wait()
                else:
                    writer.write(respond(head.split(b" ")[1].decode()))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    here = Site(server.sockets[0].getsockname()[1])
    async with server:
        yield here
    for handler in handlers:
        handler.cancel()
    await asyncio.gather(*handlers, return_exceptions=True)


async def call(url: str, *, tool: dict[str, Any] | None = None, **arguments: Any) -> ToolResult:
    registry = ToolRegistry([http_request_tool(**(tool or {}))])
    return await registry.execute("http_request", {"url": url, **arguments})


async def fetch(here: Site, path: str = "/", **arguments: Any) -> ToolResult:
    allowed = {"allow": frozenset({f"127.0.0.1:{here.port}"})}
    return await call(f"http://127.0.0.1:{here.port}{path}", tool=allowed, **arguments)


def resolver(*answers: list[str]) -> Resolver:
    """Gives one answer after the other, as a name that changes its address does."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        return left.pop(0)

    return resolve


LOOPBACK = [
    "127.0.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.1",
    "127.1",
    "0.0.0.0",
    "0",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "0177.0.0.1",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1%25lo]",
]


@pytest.mark.parametrize("host", LOOPBACK)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_way_to_write_loopback_contacts_it(host: str, method: str) -> None:
    async with site(lambda path: answer("secret")) as here:
        with contextlib.suppress(OSError):  # no IPv6 on this machine
            async with site(lambda path: answer("secret"), host="::1", port=here.port) as sixth:
                result = await call(f"http://{host}:{here.port}/", method=method)
                assert sixth.connections == 0
        result = await call(f"http://{host}:{here.port}/", method=method)
        assert here.connections == 0
    assert not result.ok
    reasons = ("private or reserved address", "was not found", "not a valid URL")
    assert any(reason in result.content for reason in reasons)


@pytest.mark.parametrize("host", LOOPBACK[:8])
async def test_without_the_guard_these_forms_do_reach_loopback(host: str) -> None:
    """Or the test above would show nothing."""
    async with site(lambda path: answer("reached")) as here:
        result = await call(f"http://{host}:{here.port}/", tool={"is_allowed": lambda address: True})
        assert here.connections == 1
    assert "reached" in result.content


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "only complete `http` and `https` URLs"),
        ("ftp://example.com/", "only complete `http` and `https` URLs"),
        ("gopher://127.0.0.1:6379/_x", "only complete `http` and `https` URLs"),
        ("javascript:alert(1)", "only complete `http` and `https` URLs"),
        ("data:text/plain,x", "only complete `http` and `https` URLs"),
        ("//example.com/", "only complete `http` and `https` URLs"),
        ("example.com", "only complete `http` and `https` URLs"),
        ("http:///path", "only complete `http` and `https` URLs"),
        ("", "only complete `http` and `https` URLs"),
        ("http://user:secret@example.com/", "user name or password is refused"),
        ("http://127.0.0.1\\@example.com/", "user name or password is refused"),
        ("http://[::1", "not a valid URL"),
        ("http://exa mple.com\n/", "not a valid URL"),
        ("http://xn--a/", "not a valid URL"),
        ("http://example.com:99999/", "a port below 65536"),
        ("http://example.com:0/", "a port below 65536"),
        ("http://no-such-host.invalid/", "was not found"),
    ],
)
async def test_a_url_that_cannot_be_reached_is_refused_with_the_reason(url: str, reason: str) -> None:
    result = await call(url)
    assert not result.ok
    assert reason in result.content
    assert "secret" not in result.content


async def test_a_redirect_to_a_private_address_is_not_followed() -> None:
    """HKUDS/nanobot#3928: the private host had the request before the check."""
    async with site(lambda path: answer("secret")) as private:
        targets = [
            f"http://127.0.0.1:{private.port}/",
            f"http://2130706433:{private.port}/",
            f"//localhost:{private.port}/",
            f"http://user@127.0.0.1:{private.port}/",
            "http://169.254.169.254/latest/meta-data/",
            "file:///etc/passwd",
            "http://[::1",
        ]
        async with site(lambda path: answer(status="302 Found", location=targets[int(path[1:])])) as public:
            for number in range(len(targets)):
                result = await fetch(public, f"/{number}")
                assert not result.ok
                assert "secret" not in result.content
            assert public.connections == len(targets)
        assert private.connections == 0


CLIENTS = {
    "tools/builtins/guarded_http.py": "judges every address that a model names",
    "tools/builtins/http_request_tool.py": "uses the guarded transport for what a model names",
    "tools/builtins/web_search_tool.py": "the operator's own search service",
    "channel/platforms/client.py": "a platform's API, and addresses on the hosts that its settings name",
    "agent/client.py": "the operator's own model server",
    "memory/embeddings.py": "the operator's own server of embeddings",
    "mcp/client/http.py": "the MCP servers of the operator's own mcp.json",
    "mcp/client/oauth_metadata.py": "where those servers and their login servers say that they are",
    "cli/webhook_command.py": "posts to the gateway on this machine",
    "cli/doctor_clock.py": "the operator's own model server",
    "cli/doctor_webhooks.py": "posts to the operator's own public address",
}
"""Every module that makes an HTTP client, and whose addresses it asks for."""


def test_only_known_modules_make_an_http_client_and_none_follows_redirects_by_itself() -> None:
    """AstrBotDevs/AstrBot#7171: addresses that users name were fetched in several places without a check."""
    package = Path(__file__).parent.parent / "miniclaw"
    names = {"Client", "AsyncClient", "AsyncHTTPTransport", "ModelClient", "ClientSession"}
    names |= {"urlopen", "HTTPConnection", "HTTPSConnection"}
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(tree_of(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            assert "follow_redirects=True" not in ast.unparse(node), path
            if getattr(node.func, "attr", getattr(node.func, "id", "")) in names:
                found.add(path.relative_to(package).as_posix())
    assert found == set(CLIENTS)


async def test_a_name_that_changes_its_address_is_looked_up_once() -> None:
    """HKUDS/nanobot#4611: the address that was judged has to be the one that is connected to."""
    async with site(lambda path: answer("private")) as private:
        async with site(lambda path: answer("public"), host="127.0.0.2", port=private.port):
            result = await call(
                f"http://rebind.test:{private.port}/",
                tool={
                    "resolver": resolver(["127.0.0.2"], ["127.0.0.1"]),
                    "is_allowed": lambda address: address == "127.0.0.2",
                },
            )
        assert "public" in result.content
        assert private.connections == 0


async def test_a_name_is_judged_again_at_each_redirect() -> None:
    async with site(lambda path: answer("private")) as private:
        redirect = answer(status="302 Found", location=f"http://rebind.test:{private.port}/again")
        async with site(lambda path: redirect, host="127.0.0.2", port=private.port) as public:
            result = await call(
                f"http://rebind.test:{private.port}/",
                tool={
                    "resolver": resolver(["127.0.0.2"], ["127.0.0.1"]),
                    "is_allowed": lambda address: address == "127.0.0.2",
                },
            )
            assert public.connections == 1
        assert "`rebind.test` leads to a private" in result.content
        assert private.connections == 0


async def test_what_is_allowed_opens_neither_another_port_nor_another_name() -> None:
    async with site(lambda path: answer("x")) as allowed, site(lambda path: answer("y")) as other:
        tool = {"allow": frozenset({f"127.0.0.1:{allowed.port}"})}
        assert (await call(f"http://127.0.0.1:{allowed.port}/", tool=tool)).ok
        assert not (await call(f"http://localhost:{allowed.port}/", tool=tool)).ok
        assert not (await call(f"http://127.0.0.1:{other.port}/", tool=tool)).ok
        assert (allowed.connections, other.connections) == (1, 0)


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(lambda path: answer("proxied")) as proxy, site(lambda path: answer("direct")) as here:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert "direct" in (await fetch(here)).content
        assert proxy.connections == 0


async def test_the_next_address_is_tried_when_one_takes_no_connection() -> None:
    async with site(lambda path: answer("reached"), host="127.0.0.3") as here:
        tool = {"resolver": resolver(["127.0.0.4", "127.0.0.3"]), "is_allowed": lambda address: True}
        result = await call(f"http://two.test:{here.port}/", tool=tool, method="POST", body="once")
        assert "reached" in result.content
        assert len(here.requests) == 1
        assert f"host: two.test:{here.port}" in here.head


async def test_a_host_that_takes_no_connection_is_a_failed_result() -> None:
    async with site() as gone:
        pass
    result = await fetch(gone)
    assert "GET 127.0.0.1 failed" in result.content


async def test_a_request_carries_method_headers_and_body() -> None:
    async with site(lambda path: answer('{"ok": true}', type="application/json")) as here:
        result = await fetch(
            here, "/a?b=1", method="POST", headers={"X-Key": "k", "Accept": "text/css"}, body={"城": [1]}
        )
        assert here.requests[0].startswith(b"POST /a?b=1 HTTP/1.1\r\n")
        assert "x-key: k\r\naccept" in here.head.replace("content-type: application/json\r\n", "") + "\r\n"
        assert "accept: text/css" in here.head
        assert "user-agent: miniclaw" in here.head
        assert "content-type: application/json" in here.head
        assert json.loads(here.requests[0].partition(b"\r\n\r\n")[2]) == {"城": [1]}
        await fetch(here, method="PUT", body="plain 文", headers={"content-type": "text/x-own"})
        assert here.requests[1].endswith("plain 文".encode())
        assert "content-type: text/x-own" in here.head
    url = f"http://127.0.0.1:{here.port}/a?b=1"
    assert result.content == f'HTTP 200 OK · {url} · application/json\n\n{{"ok": true}}'
    assert result.data == {"status": 200, "url": url, "content_type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "internal"},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"Proxy-Authorization": "x"},
        {"Bad Name": "x"},
        {"": "x"},
        {"X": "a\r\nHost: internal"},
        {"X": "ü"},
    ],
)
async def test_headers_that_change_the_exchange_itself_are_refused(headers: dict[str, str]) -> None:
    async with site(lambda path: answer()) as here:
        result = await fetch(here, headers=headers)
        assert not result.ok
        assert here.connections == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_reading_takes_no_body(method: str) -> None:
    result = await call("http://example.com/", method=method, body="x")
    assert f"{method} takes no body" in result.content


async def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    assert "`method`: Input should be 'GET'" in (await call("http://example.com/", method="TRACE")).content


def test_only_get_and_head_are_reading() -> None:
    tool = http_request_tool()
    for method, risk in {
        "GET": "read",
        "HEAD": "read",
        "get": "read",
        "POST": "write",
        "PUT": "write",
    }.items():
        assert tool.risk_of({"url": "u", "method": method}) == risk
    assert tool.risk_of({"url": "u"}) == "read"
    assert tool.risk_of({"method": ["GET"]}) == "write"
    assert tool.compactable


async def test_redirects_are_followed_up_to_five_times() -> None:
    def respond(path: str) -> bytes:
        left = int(path[1:])
        return answer("there") if left == 0 else answer(status="302 Found", location=str(left - 1))

    async with site(respond) as here:
        result = await fetch(here, "/5")
        assert "there" in result.content
        assert result.data["url"] == f"http://127.0.0.1:{here.port}/0"
        assert "redirects more than 5 times" in (await fetch(here, "/6")).content


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        ("301 Moved", "POST", "GET"),
        ("302 Found", "POST", "GET"),
        ("303 See Other", "PUT", "GET"),
        ("303 See Other", "HEAD", "HEAD"),
        ("307 Temporary", "POST", "POST"),
        ("308 Permanent", "PUT", "PUT"),
    ],
)
async def test_a_redirect_changes_the_method_as_browsers_do(status: str, method: str, then: str) -> None:
    body = None if method == "HEAD" else "data"
    async with site(
        lambda path: answer("end") if path == "/end" else answer(status=status, location="/end")
    ) as here:
        assert (await fetch(here, method=method, body=body)).ok
        last = here.requests[-1].decode()
        assert last.startswith(f"{then} /end ")
        assert last.endswith("data") == (then in ("POST", "PUT"))
        assert ("content-type" in last) == (then in ("POST", "PUT"))


async def test_secrets_do_not_follow_to_another_site_and_neither_does_a_write() -> None:
    async with site(lambda path: answer("end")) as second:
        url = f"http://127.0.0.1:{second.port}/"
        async with site(
            lambda path: answer(status=f"{path[1:]} Go", location=url, set_cookie="id=1")
        ) as first:
            tool = {"allow": frozenset(f"127.0.0.1:{port}" for port in (first.port, second.port))}
            start = f"http://127.0.0.1:{first.port}"
            headers = {"Authorization": "Bearer t", "X-Key": "k", "Accept": "text/css"}
            assert (await call(f"{start}/302", tool=tool, headers=headers)).ok
            assert "accept: text/css" in second.head
            assert "bearer" not in second.head
            assert "x-key" not in second.head
            result = await call(f"{start}/307", tool=tool, method="POST", body="x")
            assert f"sends POST on to {url}" in result.content
            assert second.connections == 1


async def test_an_error_status_is_a_failed_result_with_the_body() -> None:
    async with site(lambda path: answer("no such page", status="404 Not Found")) as here:
        result = await fetch(here)
    assert (result.ok, result.error) == (False, "The server answered HTTP 404 Not Found.")
    assert "no such page" in result.content


async def test_a_page_is_read_as_text_with_absolute_links() -> None:
    page = "<title>T</title><p>Hello <a href='/x'>there</a><script>no()</script>"
    async with site(lambda path: answer(page, type="text/html; charset=utf-8")) as here:
        result = await fetch(here)
    assert result.content.endswith(f"T\n\nHello [there](http://127.0.0.1:{here.port}/x)")


@pytest.mark.parametrize(
    ("body", "type"),
    [
        ("中文".encode("gbk"), "text/plain; charset=gb2312"),
        ('<meta charset="gbk">中文'.encode("gbk"), "text/html"),
        (b"<meta http-equiv=x content='text/html; charset=big5'>" + "中文".encode("big5"), "text/html"),
        ("中文".encode("utf-8-sig"), "text/plain"),
        ("中文".encode(), "text/plain; charset=punycode"),
        ("中文".encode(), "text/plain; charset=nonsense"),
        ("中文".encode(), "application/vnd.api+json"),
        ("中文".encode(), None),
    ],
)
async def test_text_is_read_in_its_character_set(body: bytes, type: str | None) -> None:
    async with site(lambda path: answer(body, type=type)) as here:
        result = await fetch(here)
    assert result.content.endswith("\n\n中文")


@pytest.mark.parametrize(
    ("body", "type"), [(b"\x89PNG", "image/png"), (b"%PDF", "application/pdf"), (b"a\x00b", None)]
)
async def test_what_is_no_text_is_refused_with_a_sentence(body: bytes, type: str | None) -> None:
    async with site(lambda path: answer(body, type=type)) as here:
        result = await fetch(here, method="POST")
    assert not result.ok
    assert "which is no text" in result.content
    assert "was carried out" in result.content


async def test_an_empty_answer_is_fine_whatever_its_type() -> None:
    async with site(lambda path: answer(type="image/png")) as here:
        assert (await fetch(here, method="HEAD")).ok


async def test_a_huge_answer_is_read_up_to_the_limit_only() -> None:
    size = 40_000_000
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {size}\r\n\r\n".encode()
    async with site(lambda path: head + b"x" * 3_000_000) as here:  # and no more comes
        tool = http_request_tool(allow=frozenset({f"127.0.0.1:{here.port}"}))
        result = await tool.execute(url=f"http://127.0.0.1:{here.port}/")
    assert "only the first 2,000,000 bytes were read" in result.content
    assert result.content.partition("\n\n")[2] == "x" * 2_000_000


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_a_packed_answer_is_unpacked_up_to_the_limit_only(pack: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if pack is gzip.compress else "deflate"
    bodies = {"/small": pack("文".encode()), "/bomb": pack(b"x" * 60_000_000)}
    async with site(lambda path: answer(bodies[path], content_encoding=encoding)) as here:
        tool = http_request_tool(allow=frozenset({f"127.0.0.1:{here.port}"}))
        small = await tool.execute(url=f"http://127.0.0.1:{here.port}/small")
        tracemalloc.start()
        try:
            bomb = await tool.execute(url=f"http://127.0.0.1:{here.port}/bomb")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert small.content.endswith("\n\n文")
    assert "only the first 2,000,000 bytes were read" in bomb.content
    assert len(bomb.content) < 2_000_200
    assert peak < 30_000_000


@pytest.mark.parametrize(
    ("encoding", "reason"), [("br", "packed as `br`"), ("gzip", "packed in a broken way")]
)
async def test_an_answer_that_cannot_be_unpacked_is_refused(encoding: str, reason: str) -> None:
    async with site(lambda path: answer("not packed", content_encoding=encoding)) as here:
        assert reason in (await fetch(here)).content


@pytest.mark.parametrize("junk", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ncut"])
async def test_an_answer_that_is_no_http_is_a_failed_result(junk: bytes) -> None:
    async with site(lambda path: junk) as here:
        result = await fetch(here)
    assert "GET 127.0.0.1 failed: " in result.content


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with site() as here:
        tool = {"allow": frozenset({f"127.0.0.1:{here.port}"}), "total_seconds": 0.5}
        result = await call(f"http://127.0.0.1:{here.port}/", tool=tool)
        assert here.connections == 2, "a read is tried a second time"
        posted = await call(f"http://127.0.0.1:{here.port}/", tool=tool, method="POST")
        assert here.connections == 3
    assert "`http_request` did not finish within 0.5 s" in result.content
    assert "is unknown: check before you repeat it" in posted.content


async def test_a_connection_that_takes_too_long_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("miniclaw.tools.builtins.http_request_tool")
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.05)
    async with site() as here:
        tool = {"allow": frozenset({f"127.0.0.1:{here.port}"})}
        got = await call(f"https://127.0.0.1:{here.port}/", tool=tool)
        assert here.connections == 2, "a read is tried a second time"
        posted = await call(f"https://127.0.0.1:{here.port}/", tool=tool, method="POST")
        assert here.connections == 3
    assert got.error == "127.0.0.1 did not answer in time."
    assert posted.error == f"{got.error} Whether it acted is unknown: check before you repeat it."


@pytest.mark.parametrize("location", ["javascript:1", "data:x", "mailto:a@example.com", "http://xn--a/"])
async def test_a_redirect_to_no_web_address_is_a_failed_result(location: str) -> None:
    async with site(lambda path: answer(status="302 Found", location=location)) as here:
        result = await fetch(here)
        assert here.connections == 1
    assert not result.ok and "failed inside" not in result.content
    assert "not valid" in result.content or "only complete" in result.content or "location" in result.content


def certificate(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for `name`, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    try:
        names: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        names = x509.DNSName(name)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = folder / "chain.pem"
    chain.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return server, ssl.create_default_context(cafile=str(chain))


@pytest.mark.parametrize(
    ("certified", "asked", "ok"),
    [
        ("name.test", "name.test", True),
        ("name.test", "name.test.", True),
        ("other.test", "name.test", False),
        ("127.0.0.1", "name.test", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
async def test_tls_checks_the_name_of_the_url_not_the_address(
    certified: str, asked: str, ok: bool, tmp_path: Path
) -> None:
    server, client = certificate(certified, tmp_path)
    seen: list[str | None] = []
    server.sni_callback = lambda connection, name, context: seen.append(name)
    async with site(lambda path: answer("private talk"), tls=server) as here:
        tool = {
            "resolver": resolver(["127.0.0.1"]),
            "is_allowed": lambda address: True,
            "ssl_context": client,
        }
        result = await call(f"https://{asked}:{here.port}/", tool=tool)
        assert ("private talk" in result.content) == ok
        assert len(here.requests) == (1 if ok else 0)
    assert seen == [asked.rstrip(".") if asked != "127.0.0.1" else None]
    assert ok or "CERTIFICATE_VERIFY_FAILED" in result.content


async def test_a_self_made_certificate_is_not_trusted_by_default(tmp_path: Path) -> None:
    server, _ = certificate("name.test", tmp_path)
    async with site(lambda path: answer("x"), tls=server) as here:
        tool = {"resolver": resolver(["127.0.0.1"]), "is_allowed": lambda address: True}
        result = await call(f"https://name.test:{here.port}/", tool=tool)
        assert here.requests == []
    assert "CERTIFICATE_VERIFY_FAILED" in result.content


def test_the_built_in_tools_are_listed_together() -> None:
    names = ToolRegistry(builtin_tools()).names()
    assert (
        names
        == (
            "datetime calculator http_request web_search read_file write_file edit_file list_files search_files todo"
            " get_order_status"
        ).split()
    )
