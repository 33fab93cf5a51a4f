"""The one aiohttp application: its routes, its auth, its errors. Channels contribute routes to it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from miniclaw.agent.patience import refuse_at_once
from miniclaw.config import WebSettings
from miniclaw.errors import NOT_NOW, ConfigError, MemoryStoreError, ProtocolError, StorageError
from miniclaw.gateway.access import HostRules, presented_token
from miniclaw.gateway.protocol import encode_json, has_unreadable, new_id
from miniclaw.identity import Identities
from miniclaw.logs import log_ids

__all__ = [
    "PROTECTED_RESOURCE",
    "UPLOADS",
    "HttpServer",
    "Route",
    "error_response",
    "json_response",
    "read_json",
    "user_of",
]

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUS: Final = {
    "bad_json": 400,
    "bad_message": 400,
    "bad_arguments": 400,
    "unsupported": 400,
    "unknown_command": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "session_not_found": 404,
    "turn_not_found": 404,
    "approval_not_found": 404,
    "too_large": 413,
    "misdirected": 421,
    "other_user": 409,
    "session_busy": 429,
    "rate_limited": 429,
    "overloaded": 503,
    "draining": 503,
    "storage_unavailable": 503,
}
RETRY_SECONDS: Final = 5
"""What `Retry-After` says with 429 and 503."""
SHUTDOWN_SECONDS: Final = 2.0
PROTECTED_RESOURCE: Final = "/.well-known/oauth-protected-resource"
"""Where clients look for how to log in (RFC 9728)."""
UPLOADS: Final = "/api/uploads"
"""The one path that takes a form instead of JSON."""
USER_HEADER: Final = "X-Miniclaw-User"
"""Whom a page takes itself to be signed in as; links and the socket say it as `?user=`."""
_USER: Final = web.RequestKey("user", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route that a channel contributes."""

    method: str
    path: str
    handler: Handler
    is_open: bool = False
    """Reachable without a token: static files and webhooks, which verify signatures themselves."""


def user_of(request: web.Request) -> str:
    """The authenticated user of a request on a route that is not open."""
    return request[_USER]


def json_response(value: object, *, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(
        body=encode_json(value), status=status, content_type="application/json", charset="utf-8"
    )


async def read_json(request: web.Request, model: type[BaseModel]) -> Any:
    """The body as `model`.

    Raises:
        ProtocolError: `bad_json` or `bad_message`; the message names the field.
    """
    raw = await request.read()
    try:
        value = from_json(raw)
        if has_unreadable(value):
            raise ProtocolError("bad_message", "The body holds a lone surrogate or a NUL character.")
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ProtocolError("bad_message", f"`{where}`: {first['msg']}.") from error
    except ValueError as error:
        raise ProtocolError("bad_json", "The body is not JSON.") from error


def error_response(error: ProtocolError) -> web.Response:
    """An error as the HTTP API tells it: `{"error": {"code", "message"}}` with the fitting status."""
    status = STATUS.get(error.code, 500)
    response = json_response({"error": {"code": error.code, "message": str(error)}}, status=status)
    if status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


class HttpServer:
    """Listens, checks who asks, and turns our errors into answers.

    Open are only routes marked so. Everything else needs a bearer token or the browser's cookie; a cookie
    alone does nothing from another page: requests that change something need our own `Origin` and JSON, an
    upgrade needs our own `Origin`.

    Args:
        shared: the name of the gateway that this server is one of many of, else empty.
    """

    def __init__(
        self,
        settings: WebSettings,
        identities: Identities,
        rules: HostRules,
        *,
        message_bytes: int,
        shared: str = "",
    ) -> None:
        self._settings = settings
        self._shared = shared
        self._identities = identities
        self._rules = rules
        self._open: set[str] = set()
        self._app = web.Application(middlewares=[self._guard], client_max_size=message_bytes)
        self._runner: web.AppRunner | None = None
        self.port: int | None = None

    @property
    def cookie(self) -> str:
        """The name of the login cookie; each gateway has its own, since cookies do not know ports."""
        return f"miniclaw_{self._shared or self.port}"

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        host = self._settings.host if self._settings.host not in ("0.0.0.0", "::", "") else "127.0.0.1"
        return self._settings.public_url.rstrip("/") or f"http://{host}:{self.port}"

    def add(self, routes: Iterable[Route]) -> None:
        """Add routes, before the start."""
        for route in routes:
            if route.is_open:
                self._open.add(route.path)
            self._app.router.add_route(route.method, route.path, route.handler)

    async def start(self, *, may_move: bool) -> None:
        """Listen; with `may_move` on the next free port when the configured one is taken.

        Raises:
            ConfigError: the port is taken or the address is not ours.
        """
        self._runner = web.AppRunner(
            self._app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, auto_decompress=False
        )
        await self._runner.setup()
        wanted = self._settings.port or 0
        for port in range(wanted, wanted + 20) if may_move and wanted else (wanted,):
            site = web.TCPSite(self._runner, self._settings.host, port, backlog=1024)
            try:
                await site.start()
            except OSError as error:
                failure = error
                continue
            self.port = int(self._runner.addresses[0][1])
            return
        await self._runner.cleanup()
        raise ConfigError(
            f"The web chat cannot listen on {self._settings.host}:{wanted}: "
            f"{failure.strerror or failure}; choose another --port."
        ) from failure

    async def stop(self) -> None:
        """Stop listening and end open requests; may be called again."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refuse_at_once()
        with log_ids(request_id=new_id("req")):
            return await self._answer(request, handler)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            await self._check(request)
            return await handler(request)
        except ProtocolError as error:
            logger.info("%s %s refused: %s", request.method, request.path, error)
            response = error_response(error)
            if response.status == 401:
                where = f'Bearer resource_metadata="{self.url}{PROTECTED_RESOURCE}"'
                response.headers["WWW-Authenticate"] = where
            return response
        except MemoryStoreError as error:
            return error_response(ProtocolError("bad_arguments", f"{error}."))
        except StorageError as error:
            logger.error("%s %s: %s", request.method, request.path, error)
            return error_response(ProtocolError("storage_unavailable", NOT_NOW))
        except web.HTTPRequestEntityTooLarge:
            return error_response(ProtocolError("too_large", "The body is too large."))
        except web.HTTPException as error:
            code = {404: "not_found", 405: "unsupported"}.get(error.status, "bad_message")
            body = {"error": {"code": code, "message": error.reason}}
            return json_response(body, status=error.status) if error.status >= 400 else error
        except Exception:  # boundary: a handler that breaks answers 500 and no more
            logger.exception("%s %s broke", request.method, request.path)
            return error_response(ProtocolError("internal", "Something broke inside miniclaw."))

    async def _check(self, request: web.Request) -> None:
        """Refuse what is not for us or not from somebody we know."""
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if not self._rules.allows_host(host):
            raise ProtocolError(
                "misdirected", "This server does not answer to that name; see web.allowed_hosts."
            )
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical in self._open:
            return
        if resource is None and request.path.startswith("/webhooks/"):
            return  # there is no such route, which a platform is to see; no token would help it
        own = origin is not None and self._rules.allows_origin(origin, host)
        if origin is not None and not own:
            raise ProtocolError("forbidden", "Requests from other pages are refused.")
        upgrade = request.headers.get("Upgrade", "").lower() == "websocket"
        token = presented_token(request.headers, request.query_string if upgrade else "")
        user_id = self._identities.user_of_token(token or "")
        if user_id is None and token is None:
            user_id = await self._identities.user_of_login(request.cookies.get(self.cookie, ""))
            if user_id is not None:
                self._check_cookie_request(request, own=own, upgrade=upgrade)
                # All tabs of a browser share the cookie: one of the former user must not act as the new one.
                if request.headers.get(USER_HEADER, request.query.get("user", user_id)) != user_id:
                    raise ProtocolError("other_user", "Somebody else is signed in now; load the page again.")
        if user_id is None or self._identities.is_gone(user_id):
            raise ProtocolError("unauthorized", "A valid token is needed; open the URL that `serve` printed.")
        request[_USER] = user_id

    @staticmethod
    def _check_cookie_request(request: web.Request, *, own: bool, upgrade: bool) -> None:
        changes = request.method not in ("GET", "HEAD")
        if (changes or upgrade) and not own:
            raise ProtocolError("forbidden", "A browser's cookie works only for our own page.")
        wanted = "multipart/form-data" if request.path == UPLOADS else "application/json"
        if changes and request.content_type != wanted:
            raise ProtocolError("forbidden", f"A browser's cookie needs `Content-Type: {wanted}`.")
