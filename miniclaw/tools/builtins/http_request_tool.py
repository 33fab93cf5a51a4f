"""The `http_request` tool: one request to a public web address, its answer as text.

Which addresses may be reached is the business of `addresses` and `guarded_http`; here are the limits of the
exchange, the redirects, and what becomes of the body.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from miniclaw.errors import ToolError, ToolTimeout
from miniclaw.tools.base import Risk, Tool, ToolResult
from miniclaw.tools.builtins.addresses import AddressGuard, Resolver, is_public, system_resolver
from miniclaw.tools.builtins.http_body import MAX_BYTES, body_text, read_body
from miniclaw.tools.function import tool

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["http_request_tool"]

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
Body = Annotated[
    str | dict[str, Any] | list[Any] | None,
    Field(description="text, or an object or array that is sent as JSON; not with GET or HEAD"),
]

MAX_REDIRECTS: Final = 5
TOTAL_SECONDS: Final = 20.0

CONNECT_SECONDS: Final = 5.0
"""For one address, so that another address of the host still gets its turn."""

_HARMLESS: Final = frozenset({"get", "head"})
_SET_BY_US: Final = frozenset(
    "host connection content-length transfer-encoding accept-encoding upgrade te trailer expect".split()
)
_FOLLOWS_ANYWHERE: Final = frozenset({"accept", "accept-language", "user-agent"})
"""Headers that go along to another site; any other may hold a secret meant for the first."""

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What is needed of a response after its connection is closed."""

    url: str
    status: int
    reason: str
    media_type: str
    charset: str | None
    location: str | None
    body: bytes
    cut: bool

    @property
    def title(self) -> str:
        return f"HTTP {self.status} {self.reason}".rstrip()


def http_request_tool(
    *,
    allow: frozenset[str] = frozenset(),
    resolver: Resolver = system_resolver,
    is_allowed: Callable[[str], bool] = is_public,
    ssl_context: ssl.SSLContext | None = None,
    total_seconds: float = TOTAL_SECONDS,
) -> Tool:
    """The tool; environment proxies are never used.

    Args:
        allow: `host:port` that may be reached although they are private.
        resolver: looks host names up.
        is_allowed: judges the addresses of every other host.
        ssl_context: which certificates are trusted; `None` = the usual public ones.
        total_seconds: how long one call may take, with all its redirects.
    """
    guard = AddressGuard(allow=allow, resolver=resolver, is_allowed=is_allowed)

    @tool(risk=_risk, timeout=total_seconds, compactable=True)
    async def http_request(
        url: Annotated[str, Field(description="an `http` or `https` URL on the public internet")],
        method: Method = "GET",
        headers: dict[str, str] | None = None,
        body: Body = None,
    ) -> ToolResult:
        """Make an HTTP request and read the answer; a web page comes as readable text with its links."""
        content, type_header = _content(method, body)
        request_headers = {"accept": "*/*", "user-agent": "miniclaw"} | type_header | _checked(headers or {})
        answer = await _exchange(guard, ssl_context, method, url, request_headers, content)
        return await asyncio.to_thread(_result, answer)

    return http_request


def _risk(arguments: Mapping[str, Any]) -> Risk:
    return "read" if str(arguments.get("method", "GET")).lower() in _HARMLESS else "write"


def _content(method: Method, body: Body) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, {}
    if method.lower() in _HARMLESS:
        raise ToolError(f"{method} takes no body. Put parameters into the URL, or use POST.")
    if isinstance(body, str):
        return body.encode(), {"content-type": "text/plain; charset=utf-8"}
    return json.dumps(body).encode(), {"content-type": "application/json"}


def _checked(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ToolError(f"The header {name[:64]!r} is not valid: names and values are plain ASCII.")
        if name.lower() in _SET_BY_US or name.lower().startswith("proxy-"):
            raise ToolError(f"The header `{name}` cannot be set; leave it out.")
    return {name.lower(): value.strip() for name, value in headers.items()}


async def _exchange(
    guard: AddressGuard,
    ssl_context: ssl.SSLContext | None,
    method: str,
    url: str,
    headers: dict[str, str],
    content: bytes | None,
) -> _Answer:
    """Send the request and follow redirects by hand: each hop is checked like the first."""
    import httpx

    from miniclaw.tools.builtins.guarded_http import GuardedTransport

    timeout = httpx.Timeout(TOTAL_SECONDS, connect=CONNECT_SECONDS)
    transport = GuardedTransport(guard, ssl_context=ssl_context)
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client:
        target = _parsed(url)
        for _ in range(MAX_REDIRECTS + 1):
            answer = await _send(client, method, target, headers, content)
            if answer.location is None:
                return answer
            following = _parsed(answer.location, target)
            if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                method, content = ("HEAD" if method == "HEAD" else "GET"), None
                headers = {name: value for name, value in headers.items() if name != "content-type"}
            if (following.scheme, following.host, following.port) != (
                target.scheme,
                target.host,
                target.port,
            ):
                if method.lower() not in _HARMLESS:
                    raise ToolError(
                        f"The server answered {answer.title} and sends {method} on to {following}. Another site"
                        " needs a call of its own, if that is what is wanted."
                    )
                headers = {name: value for name, value in headers.items() if name in _FOLLOWS_ANYWHERE}
            target = following
    raise ToolError(f"{url[:200]} redirects more than {MAX_REDIRECTS} times; gave up.")


def _parsed(url: str, base: httpx.URL | None = None) -> httpx.URL:
    import httpx

    try:
        parsed = httpx.URL(url) if base is None else base.join(url)
        host = parsed.host  # which is decoded only here
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(f"{url[:200]!r} is not a valid URL.") from error
    if parsed.scheme not in ("http", "https") or not host:
        raise ToolError(f"{url[:200]!r}: only complete `http` and `https` URLs can be reached.")
    if parsed.userinfo:
        raise ToolError("A URL with a user name or password is refused. Use an `Authorization` header.")
    return parsed


async def _send(
    client: httpx.AsyncClient, method: str, url: httpx.URL, headers: dict[str, str], content: bytes | None
) -> _Answer:
    import httpx

    request = client.build_request(
        method, url, headers={**headers, "accept-encoding": "gzip"}, content=content
    )
    try:
        response = await client.send(request, stream=True)
        try:
            redirects = response.has_redirect_location
            body, cut = (b"", False) if redirects else await read_body(response)
        finally:
            await response.aclose()
    except httpx.TimeoutException as error:
        unsure = (
            "" if method.lower() in _HARMLESS else " Whether it acted is unknown: check before you repeat it."
        )
        raise ToolTimeout(f"{url.host} did not answer in time.{unsure}") from error
    except (httpx.InvalidURL, ValueError) as error:  # httpx reads `Location` before it is asked to
        raise ToolError(
            f"{method} {url.host} was answered with a redirect to an address that is not valid."
        ) from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        reason = str(error) or type(error).__name__
        raise ToolError(
            f"{method} {url.host} failed: {reason[:300]}. Whether it acted is unknown."
        ) from error
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()[:100]
    return _Answer(
        url=str(url),
        status=response.status_code,
        reason=response.reason_phrase,
        media_type=media_type,
        charset=response.charset_encoding,
        location=response.headers["location"] if redirects else None,
        body=body,
        cut=cut,
    )


def _result(answer: _Answer) -> ToolResult:
    text = body_text(answer.body, answer.media_type, answer.charset, answer.url)
    failed = answer.status >= 400
    notes = [answer.title, answer.url, answer.media_type or "no content type"]
    if answer.cut:
        notes.append(f"only the first {MAX_BYTES:,} bytes were read")
    if text is None:
        refusal = f"{answer.title}: the body is {answer.media_type or 'binary data'}, which is no text."
        return ToolResult.failure(
            f"{refusal} The request itself was carried out; do not repeat it to read it."
        )
    return ToolResult(
        ok=not failed,
        content=f"{' · '.join(notes)}\n\n{text}".rstrip(),
        data={"status": answer.status, "url": answer.url, "content_type": answer.media_type},
        error=f"The server answered {answer.title}." if failed else None,
    )
