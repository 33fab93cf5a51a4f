"""Which addresses a tool may connect to. Knows names and addresses, not HTTP.

A name is looked up once, every address it has is judged, and the caller connects to one of the addresses
it gets back: a second look-up could answer differently.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from miniclaw.errors import ToolError

__all__ = ["AddressGuard", "Resolver", "is_public", "system_resolver"]

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host name, best first; raises `OSError` when there are none."""

LOOKUP_SECONDS: Final = 10.0
"""How long one look-up of a name may take."""

_REFUSED_V4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata service is in it
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # Azure's host, a public address that only its guests reach
    )
)
_UNICAST_V6: Final = ipaddress.IPv6Network("2000::/3")
"""All of today's public IPv6; mapped, NAT64, local, link-local and multicast addresses are outside."""

_REFUSED_V6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments; Teredo, which carries an IPv4 address, is in it
        "2002::/16",  # 6to4, which carries an IPv4 address
        "3fff::/20",  # documentation
    )
)


def is_public(address: str) -> bool:
    """Whether `address` is a plain public unicast address; anything else in doubt is not."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if not ip.is_global or ip.is_multicast:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _REFUSED_V4)
    if ip.scope_id is not None or ip not in _UNICAST_V6:
        return False
    return not any(ip in network for network in _REFUSED_V6)


async def system_resolver(host: str, port: int) -> list[str]:
    """Ask the operating system, which also reads the decimal, octal and hexadecimal forms of IPv4."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class AddressGuard:
    """Turns a host into addresses that may be connected to.

    A name with even one refused address is refused whole, since nobody has both for a good reason.
    """

    def __init__(
        self,
        *,
        allow: frozenset[str] = frozenset(),
        resolver: Resolver = system_resolver,
        is_allowed: Callable[[str], bool] = is_public,
    ) -> None:
        """Set the rules.

        Args:
            allow: `host:port` as the operator wrote it, whose addresses are not judged (an IPv6 host
                without brackets); it opens neither another port nor another name of the same address.
            resolver: looks names up.
            is_allowed: judges an address.
        """
        self._allow = allow
        self._resolver = resolver
        self._is_allowed = is_allowed

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of `host`, from one look-up, at least one.

        Raises:
            ToolError: the name is not known, or leads to an address that is not public.
        """
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host name at all
            raise ToolError(f"The host `{host}` was not found. Check the address.") from error
        if not found:
            raise ToolError(f"The host `{host}` has no address.")
        if f"{host}:{port}" not in self._allow and not all(map(self._is_allowed, found)):
            raise ToolError(
                f"`{host}` leads to a private or reserved address, which tools may not reach."
                " Use a public address."
            )
        return found
