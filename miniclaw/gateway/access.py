"""Who may connect: host names, origins and tokens, the same on both sockets. Pure functions of headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

from miniclaw.errors import ConfigError

__all__ = ["HostRules", "presented_token"]

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class HostRules:
    """Names under which this server may be spoken to, which is also where our own pages come from.

    A `Host` we do not know is DNS rebinding or a misdirected request; an `Origin` we do not know is some
    other page in the user's browser. Localhost is no authentication: a name only lets the request go on.

    Raises:
        ConfigError: the public address is no web address.
    """

    def __init__(self, allowed: tuple[str, ...] = (), *, public_url: str = "") -> None:
        self._names = LOOPBACK | {name.lower() for name in allowed}
        self._public = _netloc(public_url).rpartition("@")[2]
        if public_url and not self._public:
            raise ConfigError(f"`web.public_url` must be like https://claw.example.org, not `{public_url}`.")

    def allows_host(self, host: str | None) -> bool:
        """Whether a `Host` header names us, with any port for a name without one."""
        if not host:
            return False
        host = host.lower()
        return host == self._public or host in self._names or _without_port(host) in self._names

    def allows_origin(self, origin: str, host: str | None) -> bool:
        """Whether an `Origin` is the very host that was asked, or our public address."""
        netloc = _netloc(origin)
        return bool(netloc) and netloc in ((host or "").lower(), self._public)


def presented_token(headers: Mapping[str, str], query: str = "") -> str | None:
    """The bearer token of a request: the header's, else `token` in the query string."""
    scheme, _, value = (headers.get("Authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    found = parse_qs(query).get("token")
    return found[0] if found else None


def _netloc(url: str) -> str:
    """Host and port of a web address in lower case; nothing for anything else."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
