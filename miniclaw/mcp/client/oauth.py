"""Logs in at a server: OAuth 2.1 with PKCE, and keeps what it got.

Rules are those of https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode, urlsplit

from miniclaw.errors import MCPUnavailable
from miniclaw.mcp.client.oauth_metadata import (
    Challenge,
    LoginServer,
    Resource,
    fetch_json,
    find_login_server,
    find_resource,
    reason_in,
)

__all__ = ["Consent", "OAuth", "OAuthClient"]

EARLY_SECONDS: Final = 30.0
"""How long before its end a token is no more used; half of its life where that is shorter."""
REFUSED: Final = ("invalid_grant", "invalid_client", "unauthorized_client")
"""What an authorization server says to a refresh token, or to us, that is good no more (RFC 6749, 5.2)."""
_PASSING: Final = ("failed", "temporarily_unavailable", "server_error")
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Consent(Protocol):
    """Shows the user a page to log in at, and catches where the browser is sent then."""

    redirect_uri: str

    async def ask(self, url: str) -> str:
        """The address that the browser was sent to.

        Raises:
            MCPUnavailable: nobody logged in.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """What the operator sets of our side of a login.

    Attributes:
        client_id: where the operator registered us by hand.
        client_secret: the same.
        metadata_url: a document about us that serves as the id where the server takes such.
        scope: asked for instead of what the server names.
    """

    client_id: str = ""
    client_secret: str = ""
    metadata_url: str = ""
    scope: str = ""


class OAuth:
    """The `Authorizer` of one server.

    Args:
        url: the server.
        kept: what is known from former runs, and is kept for later ones: JSON, secret.
        consent: asks the user; `None` = nobody is there, so a login fails with the advice how to do it.
        client: what the operator set.
        advice: how the operator logs in.
        alone: keeps other processes with the same `kept` from renewing meanwhile.
    """

    def __init__(
        self,
        url: str,
        *,
        kept: MutableMapping[str, Any],
        consent: Consent | None = None,
        client: OAuthClient | None = None,
        advice: str = "log in to it first",
        alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._url = url
        self._kept = kept
        self._consent = consent
        self._client = client or OAuthClient()
        self._advice = advice
        self._alone = alone
        self._renewing: asyncio.Future[bool] | None = None
        self._asked: set[str] = set()
        self._lock = asyncio.Lock()

    async def token(self) -> str | None:
        """The token to send; one that is about to end is renewed first."""
        tokens = self._kept.get("tokens") or {}
        if tokens.get("renew_at", float("inf")) > time.time():
            return tokens.get("access_token")
        async with self._lock:
            if self._kept.get("tokens") == tokens:
                await self._renew(tokens.get("access_token"))
        return (self._kept.get("tokens") or {}).get("access_token")

    async def refused(self, status: int, challenges: list[str], token: str | None) -> bool:
        """Get another token: by renewal where one ended, by a login where more is wanted."""
        challenge = Challenge.read(challenges)
        if status == 403 and challenge.error != "insufficient_scope":
            return False
        async with self._lock:
            tokens = self._kept.get("tokens") or {}
            if token is not None and tokens.get("access_token") not in (None, token):
                return True  # another request has got it meanwhile
            resource = await find_resource(self._url, challenge)
            server = await find_login_server(resource)
            if server.issuer != self._kept.get("issuer"):
                self._asked.clear()
            elif status == 401 and token is not None and await self._renew(token, server, resource):
                return True
            scopes = self._scopes(status, challenge, resource, server)
            if status == 403 and scopes <= self._asked:
                return False  # it was asked for and not given
            await self._log_in(server, resource, scopes)
            return True

    def _scopes(self, status: int, challenge: Challenge, resource: Resource, server: LoginServer) -> set[str]:
        wanted = self._client.scope or challenge.scope or " ".join(resource.scopes or ())
        scopes = set(wanted.split())
        if status == 403:
            granted = str((self._kept.get("tokens") or {}).get("scope", ""))
            scopes |= self._asked | set(granted.split())
        if "offline_access" in server.scopes:
            scopes.add("offline_access")
        return scopes

    # --- the steps ----------------------------------------------------------------------------------------

    async def _log_in(self, server: LoginServer, resource: Resource, scopes: set[str]) -> None:
        if self._consent is None:
            raise MCPUnavailable(f"The server wants a login: {self._advice}.", needs_login=True)
        if server.issuer != self._kept.get("issuer"):
            self._kept.clear()  # what one server gave is nothing to another
            self._kept["issuer"] = server.issuer
        client = await self._register(server, self._consent.redirect_uri)
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": client["client_id"],
            "redirect_uri": self._consent.redirect_uri,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "resource": resource.id,
        }
        if scopes:
            query["scope"] = " ".join(sorted(scopes))
        self._asked |= scopes
        joint = "&" if urlsplit(server.authorize).query else "?"
        answer = await self._consent.ask(f"{server.authorize}{joint}{urlencode(query)}")
        form = {
            "grant_type": "authorization_code",
            "code": server.code_in(answer, state),
            "redirect_uri": self._consent.redirect_uri,
            "code_verifier": verifier,
            "resource": resource.id,
        }
        tokens = await self._ask_token(server, client, form)
        if not _has_token(tokens):
            raise MCPUnavailable(f"{server.issuer} gave no token: {reason_in(tokens)}.")
        self._keep(server, tokens, scopes)

    async def _register(self, server: LoginServer, redirect_uri: str) -> Mapping[str, Any]:
        """Our id at the authorization server: the operator's, that of a document, or a new one."""
        if self._client.client_id:
            secret = self._client.client_secret
            return {"client_id": self._client.client_id, **({"client_secret": secret} if secret else {})}
        if server.takes_documents and self._client.metadata_url:
            return {"client_id": self._client.metadata_url, "token_endpoint_auth_method": "none"}
        known = self._kept.get("client")
        if known and known.get("redirect_uri") == redirect_uri:
            return dict(known)
        if not server.register:
            raise MCPUnavailable(
                f"{server.issuer} registers nobody by itself; register there and set `oauth.clientId`.",
                needs_login=True,
            )
        about = {
            "client_name": "miniclaw",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "native",
            "token_endpoint_auth_method": server.method(has_secret=True),
        }
        made = await fetch_json(server.register, asker=self._url, body=about) or {}
        if not isinstance(made.get("client_id"), str):
            raise MCPUnavailable(f"{server.issuer} did not register us: {reason_in(made)}.")
        client = {**made, "redirect_uri": redirect_uri}
        self._kept["client"] = client
        return client

    async def _renew(
        self, used: str | None, server: LoginServer | None = None, resource: Resource | None = None
    ) -> bool:
        """Another token than `used` for the refresh token, if that is still good; it is kept until it was refused.

        Raises:
            MCPUnavailable: the authorization server cannot be reached, or is out of order.
        """
        client = self._known_client()
        if not (self._kept.get("tokens") or {}).get("refresh_token") or client is None:
            return False
        resource = resource or await find_resource(self._url, Challenge())
        server = server or await find_login_server(resource)
        if server.issuer != self._kept.get("issuer"):
            return False
        # A refresh token may be good once: what came of it is kept even if nobody waits for it any more.
        self._renewing = asyncio.ensure_future(self._renew_alone(used, client, server, resource))
        return await asyncio.shield(self._renewing)

    async def _renew_alone(
        self, used: str | None, client: Mapping[str, Any], server: LoginServer, resource: Resource
    ) -> bool:
        async with self._alone():
            tokens = self._kept.get("tokens") or {}
            if tokens.get("access_token") != used or "refresh_token" not in tokens:
                return bool(tokens)  # another process got it meanwhile
            refresh = tokens["refresh_token"]
            form = {"grant_type": "refresh_token", "refresh_token": refresh, "resource": resource.id}
            renewed = await self._ask_token(server, client, form)
            if self._kept.get("tokens") not in (None, tokens):
                return True  # somebody logged in meanwhile
            if _has_token(renewed):
                self._keep(
                    server, {**renewed, "refresh_token": renewed.get("refresh_token") or refresh}, set()
                )
                return True
            return self._drop(server, renewed)

    def _drop(self, server: LoginServer, answer: Mapping[str, Any]) -> bool:
        """Forget what the authorization server itself refused; `False`, or it could not answer."""
        error = answer.get("error")
        if not isinstance(error, str) or error in _PASSING:
            raise MCPUnavailable(f"{server.issuer} gave no token: {reason_in(answer)}.")
        if error in REFUSED:
            self._kept.pop("tokens", None)
            if error != "invalid_grant":  # it knows us no more, so we register anew at the next login
                self._kept.pop("client", None)
        return False

    def _known_client(self) -> Mapping[str, Any] | None:
        if self._client.client_id:
            return {"client_id": self._client.client_id, "client_secret": self._client.client_secret}
        if self._client.metadata_url and "client" not in self._kept:
            return {"client_id": self._client.metadata_url}
        known: Mapping[str, Any] | None = self._kept.get("client")
        return known

    async def _ask_token(
        self, server: LoginServer, client: Mapping[str, Any], form: dict[str, str]
    ) -> dict[str, Any]:
        client_id, secret = str(client["client_id"]), str(client.get("client_secret") or "")
        method = client.get("token_endpoint_auth_method") or server.method(has_secret=bool(secret))
        headers = {}
        if secret and method == "client_secret_basic":
            pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form = {**form, "client_id": client_id}
            if secret and method == "client_secret_post":
                form["client_secret"] = secret
        return await fetch_json(server.token, asker=self._url, form=form, headers=headers) or {}

    def _keep(self, server: LoginServer, tokens: Mapping[str, Any], scopes: set[str]) -> None:
        names = ("access_token", "refresh_token", "scope")
        kept = {name: tokens[name] for name in names if isinstance(tokens.get(name), str)}
        kept.setdefault("scope", " ".join(sorted(scopes)))
        seconds = tokens.get("expires_in")
        if isinstance(seconds, int | float) and seconds > 0:  # else it is used until it is refused
            kept["renew_at"] = time.time() + max(seconds - EARLY_SECONDS, seconds / 2)
        self._kept["issuer"] = server.issuer
        self._kept["tokens"] = kept


def _has_token(found: Mapping[str, Any]) -> bool:
    token = found.get("access_token")
    return isinstance(token, str) and _TOKEN.fullmatch(token) is not None
