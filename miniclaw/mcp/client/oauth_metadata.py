"""Finds out where and how to log in at an MCP server.

Rules are those of https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization, RFC 9728
(protected resources), RFC 8414 and OpenID Connect Discovery (authorization servers).
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qs, urljoin, urlsplit

from miniclaw.errors import MCPUnavailable

__all__ = [
    "Challenge",
    "LoginServer",
    "Resource",
    "fetch_json",
    "find_login_server",
    "find_resource",
    "reason_in",
]

MOST_BYTES: Final = 1024 * 1024
SECONDS: Final = 20.0
MAX_MOVES: Final = 3
"""How often a question is sent on; each place is checked like the first."""
_MOVED: Final = (301, 302, 303, 307, 308)
_PARAMETER: Final = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """What `WWW-Authenticate: Bearer …` says."""

    metadata: str = ""
    scope: str = ""
    error: str = ""

    @classmethod
    def read(cls, headers: list[str]) -> Challenge:
        """The first `Bearer` challenge; an empty one where there is none."""
        for header in headers:
            if header[:6].lower() == "bearer":
                found = {
                    m[1]: re.sub(r"\\(.)", r"\1", m[2] or m[3] or "") for m in _PARAMETER.finditer(header)
                }
                return cls(found.get("resource_metadata", ""), found.get("scope", ""), found.get("error", ""))
        return cls()


@dataclass(frozen=True, slots=True)
class Resource:
    """What the server says of itself, or what is taken for granted where it says nothing."""

    id: str
    issuer: str
    scopes: tuple[str, ...] | None = None
    is_stated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginServer:
    """An authorization server."""

    issuer: str
    authorize: str
    token: str
    register: str = ""
    auth_methods: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    takes_documents: bool = False
    """Whether a client's id may be the URL of a document about it."""
    names_itself: bool = False
    """Whether it says in its answer who it is (RFC 9207)."""

    def method(self, *, has_secret: bool) -> str:
        """How we say who we are at the token endpoint: the safest way that both sides can."""
        ways = ("client_secret_basic", "client_secret_post", "none") if has_secret else ("none",)
        return next((way for way in ways if way in self.auth_methods), ways[0])

    def code_in(self, answer: str, state: str) -> str:
        """The code in the address that the browser was sent to.

        Raises:
            MCPUnavailable: it is not the answer to our question, or a refusal.
        """
        found = {name: values[0] for name, values in parse_qs(urlsplit(answer).query).items()}
        if not secrets.compare_digest(found.get("state", "").encode(), state.encode()):
            raise MCPUnavailable("The answer to the login is not to ours; log in again.")
        issuer = found.get("iss")
        if issuer != self.issuer and (issuer is not None or self.names_itself):
            raise MCPUnavailable(f"The answer to the login is not of {self.issuer}; nothing was sent to it.")
        if "code" not in found:
            raise MCPUnavailable(f"The login was refused: {reason_in(found)}.")
        return found["code"]


def reason_in(found: Mapping[str, Any]) -> str:
    """Why an authorization server refused."""
    return str(found.get("error_description") or found.get("error") or "no reason was given")[:300]


async def find_resource(url: str, challenge: Challenge) -> Resource:
    """What a server needs of a token.

    Raises:
        MCPUnavailable: it says that it is another one.
    """
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    well_known = f"{origin}/.well-known/oauth-protected-resource"
    path = parts.path.rstrip("/")
    places = [challenge.metadata] if challenge.metadata else [well_known + path, well_known]
    for place in dict.fromkeys(places):
        found = await fetch_json(place, asker=url)
        servers = found.get("authorization_servers") if found else None
        if not found or not isinstance(servers, list) or not servers:
            continue
        said = str(found.get("resource", ""))
        if not _covers(said, url):
            raise MCPUnavailable(
                f"The server at {url} says that it is {said[:200]}; nothing is sent to such a login."
            )
        scopes = found.get("scopes_supported")
        return Resource(said, str(servers[0]), tuple(map(str, scopes)) if isinstance(scopes, list) else None)
    return Resource(origin + path, origin, None, is_stated=False)


def _covers(resource: str, url: str) -> bool:
    """Whether a resource is the URL, or a part of its path that the URL lies in."""
    try:
        mine, its = urlsplit(url), urlsplit(resource)
    except ValueError:
        return False
    if (mine.scheme, mine.netloc.lower()) != (its.scheme.lower(), its.netloc.lower()):
        return False
    return (mine.path.rstrip("/") + "/").startswith(its.path.rstrip("/") + "/")


async def find_login_server(resource: Resource) -> LoginServer:
    """The authorization server of a resource.

    Raises:
        MCPUnavailable: there is none that can be used.
    """
    issuer = resource.issuer
    _check_url(issuer)
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [f"{origin}/.well-known/oauth-authorization-server{path}"]
    places.append(f"{origin}/.well-known/openid-configuration{path}")
    if path:
        places.append(f"{origin}{path}/.well-known/openid-configuration")
    for place in places:
        found = await fetch_json(place, asker=resource.id)
        if found is not None:
            return _login_server(issuer, found)
    if resource.is_stated:
        raise MCPUnavailable(f"{issuer} says nothing of how to log in.")
    return LoginServer(  # revision 2025-03-26: fixed places where nothing is said
        issuer=issuer,
        authorize=f"{origin}/authorize",
        token=f"{origin}/token",
        register=f"{origin}/register",
    )


def _login_server(issuer: str, found: Mapping[str, Any]) -> LoginServer:
    said = str(found.get("issuer", ""))
    if said.removesuffix("/") != issuer.removesuffix("/"):
        raise MCPUnavailable(f"{issuer} says that it is {said[:200]}; nothing is sent to such a login.")
    ways = found.get("code_challenge_methods_supported")
    if not isinstance(ways, list) or "S256" not in ways:
        raise MCPUnavailable(f"{issuer} does not protect its codes (PKCE with S256), so it is not used.")
    urls = {
        name: str(found.get(f"{name}_endpoint") or "") for name in ("authorization", "token", "registration")
    }
    for url in filter(None, urls.values()):
        _check_url(url)
    if not urls["authorization"] or not urls["token"]:
        raise MCPUnavailable(f"{issuer} names no place to log in.")
    methods, scopes = found.get("token_endpoint_auth_methods_supported"), found.get("scopes_supported")
    return LoginServer(
        issuer=said,
        authorize=urls["authorization"],
        token=urls["token"],
        register=urls["registration"],
        auth_methods=tuple(map(str, methods)) if isinstance(methods, list) else ("client_secret_basic",),
        scopes=tuple(map(str, scopes)) if isinstance(scopes, list) else (),
        takes_documents=found.get("client_id_metadata_document_supported") is True,
        names_itself=found.get("authorization_response_iss_parameter_supported") is True,
    )


def _check_url(url: str) -> None:
    """Secrets go over TLS, or stay on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise MCPUnavailable(f"{url[:200]} is no address, so no login is sent there.") from error
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise MCPUnavailable(f"{url[:200]} is not https, so no login is sent there.")


async def _check_place(url: str, asker: str) -> None:
    """A server out there may not have us ask what only we can reach."""
    _check_url(url)
    if await _is_inside(url) and not await _is_inside(asker):
        raise MCPUnavailable(f"{url[:200]} lies in a private network, where {asker[:200]} may not send us.")


async def _is_inside(url: str) -> bool:
    """Whether a host has an address that is not public; one not known here is left to a proxy."""
    from miniclaw.tools.builtins.addresses import is_public, system_resolver

    parts = urlsplit(url)
    try:
        found = await asyncio.wait_for(system_resolver(parts.hostname or "", parts.port or 443), SECONDS)
    except (OSError, ValueError):
        return False
    return not all(map(is_public, found))


async def fetch_json(
    url: str,
    *,
    asker: str = "",
    form: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """The JSON object at a URL, or that a form or a body sent there gives; `None` when it is not there.

    An error of OAuth is an object too, with `error` in it. `asker` is the server that named the place.

    Raises:
        MCPUnavailable: the place cannot be reached, is out of order (429, 5xx), or is not safe.
    """
    import aiohttp  # 12 MB, which a server on stdio without remote servers does without

    verb = "GET" if form is None and body is None else "POST"
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    sent = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
    given: Any = {"data": form, "json": body, "headers": sent, "allow_redirects": False}
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as http:
            status, raw = await _ask(partial(http.request, verb, **given), url, asker or url)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise MCPUnavailable(f"{url[:200]} cannot be reached: {error or type(error).__name__}.") from error
    if status == 429 or status >= 500:
        raise MCPUnavailable(f"{url[:200]} is out of order: status {status}.")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or (status >= 300 and verb == "GET"):
        return None
    return value if status < 400 else {"error": "failed", **value}


async def _ask(request: Callable[..., Any], url: str, asker: str) -> tuple[int, bytes]:
    """The status and the body, from where a question is sent on to; what is posted is sent nowhere else."""
    from miniclaw.mcp.client.answers import check_plain

    for _ in range(MAX_MOVES + 1):
        await _check_place(url, asker)
        async with request(url=url) as response:
            target = response.headers.get("Location")
            if response.status in _MOVED and target and response.method == "GET":
                url = urljoin(url, target)
                continue
            check_plain(response)
            raw = b""
            while len(raw) <= MOST_BYTES and (chunk := await response.content.read(MOST_BYTES)):
                raw += chunk
            return response.status, raw
    return 404, b""
