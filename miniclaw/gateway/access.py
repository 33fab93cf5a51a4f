"""Who may connect: host names, origins and tokens, the same on both sockets. Pure functions of headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

__all__ = ["HostRules", "presented_token"]

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class HostRules:
    """Names under which this server may be spoken to, which is also where our own pages come from.

    A `Host` we do not know is DNS rebinding or a misdirected request; an `Origin` we do not know is some
    other page in the user's browser. Localhost is no authentication: a name only lets the request go on.
    """

    def __init__(self, allowed: tuple[str, ...] = (), *, public_url: str = "") -> None:
        public = urlsplit(public_url).netloc.rpartition("@")[2].lower() if public_url else ""
        self._names = LOOPBACK | {name.lower() for name in allowed}
        self._public = public

    def allows_host(self, host: str | None) -> bool:
        """Whether a `Host` header names us, with any port for a name without one."""
        if not host:
            return False
        host = host.lower()
        return host == self._public or host in self._names or _without_port(host) in self._names

    def allows_origin(self, origin: str, host: str | None) -> bool:
        """Whether an `Origin` is the very host that was asked, or our public address."""
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return False
        netloc = parts.netloc.lower()
        return netloc == (host or "").lower() or (bool(self._public) and netloc == self._public)


def presented_token(headers: Mapping[str, str], query: str = "") -> str | None:
    """The bearer token of a request: the header's, else `token` in the query string."""
    scheme, _, value = (headers.get("Authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    found = parse_qs(query).get("token")
    return found[0] if found else None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
