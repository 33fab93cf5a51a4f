"""Which addresses tools may connect to."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import ToolError
from miniclaw.tools.builtins import addresses
from miniclaw.tools.builtins.addresses import AddressGuard, Resolver, is_public


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::1"])
def test_plain_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "192.88.99.1",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:1.1.1.1",
        "64:ff9b::7f00:1",
        "64:ff9b::101:101",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2001::1",
        "2001:db8::1",
        "3fff::1",
        "fe80::1",
        "fe80::1%eth0",
        "2606:4700::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "not an address",
        "",
        "127.1",
    ],
)
def test_anything_else_is_not(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_no_way_of_carrying_an_ipv4_address_in_ipv6_is_public(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for carrier in (
        ipaddress.IPv6Address(number),
        ipaddress.IPv6Address(0xFFFF << 32 | number),
        ipaddress.IPv6Address(0x0064FF9B << 96 | number),
        ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1),
        ipaddress.IPv6Address(0x20010000 << 96 | number ^ 0xFFFFFFFF),
    ):
        assert not is_public(str(carrier))


@given(st.ip_addresses())
def test_what_is_public_is_neither_private_nor_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(str(address)):
        assert address.is_global
        assert not (address.is_private or address.is_multicast or address.is_reserved)
        assert not (address.is_loopback or address.is_link_local or address.is_unspecified)


def answering(*found: str) -> Resolver:
    async def resolve(host: str, port: int) -> list[str]:
        return list(found)

    return resolve


async def test_a_host_gives_its_addresses_in_order() -> None:
    guard = AddressGuard(resolver=answering("1.1.1.1", "2606:4700:4700::1111"))
    assert await guard.addresses("example.com", 80) == ["1.1.1.1", "2606:4700:4700::1111"]


async def test_a_name_with_one_private_address_is_refused_whole() -> None:
    guard = AddressGuard(resolver=answering("1.1.1.1", "10.0.0.1"))
    with pytest.raises(ToolError, match="`example.com` leads to a private or reserved address"):
        await guard.addresses("example.com", 80)


async def test_what_the_operator_allowed_opens_nothing_else() -> None:
    guard = AddressGuard(resolver=answering("127.0.0.1"), allow=frozenset({"search.lan:8888"}))
    assert await guard.addresses("search.lan", 8888) == ["127.0.0.1"]
    for host, port in (("search.lan", 80), ("other.lan", 8888), ("127.0.0.1", 8888)):
        with pytest.raises(ToolError):
            await guard.addresses(host, port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".com", "a..b", ""])
async def test_a_host_that_cannot_be_found_is_refused(host: str) -> None:
    with pytest.raises(ToolError, match="was not found|leads to a private"):
        await AddressGuard().addresses(host, 80)


async def test_a_host_without_addresses_is_refused() -> None:
    with pytest.raises(ToolError, match="has no address"):
        await AddressGuard(resolver=answering()).addresses("example.com", 80)


async def test_a_look_up_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 0.01)
    with pytest.raises(ToolError, match="was not found"):
        await AddressGuard(resolver=hang).addresses("example.com", 80)
