"""Who may connect: names of this server, origins of pages, tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import ConfigError
from miniclaw.gateway.access import HostRules, presented_token

ANY = st.text(st.characters() | st.sampled_from("[]:/@.%"), max_size=40)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost:8080",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8080",
        "box.lan:99",
    ]
    + ["claw.example.org:8443", "Claw.Example.org:8443", "fixed.lan:7"],
)
def test_loopback_allowed_names_and_the_public_address_are_ours(host: str) -> None:
    rules = HostRules(("Box.lan", "fixed.lan:7"), public_url="https://u:p@claw.example.org:8443/chat")
    assert rules.allows_host(host)


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
    + [
        "127.0.0.2",
        "[::2]",
        "::1",
        "localhost:",
        "localhost:80:80",
        "localhost:x",
        "user@localhost",
        "localhost/",
    ]
    + ["claw.example.org", "claw.example.org:1", "fixed.lan", "fixed.lan:8"],
)
def test_any_other_name_is_not_ours(host: str | None) -> None:
    rules = HostRules(("fixed.lan:7",), public_url="https://claw.example.org:8443/")
    assert not rules.allows_host(host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://LOCALHOST:8080", "localhost:8080"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("https://claw.example.org", "127.0.0.1:8080"),
        ("https://claw.example.org", None),
    ],
)
def test_our_own_pages_are_the_host_that_was_asked_and_the_public_address(
    origin: str, host: str | None
) -> None:
    assert HostRules(public_url="https://claw.example.org").allows_origin(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "localhost:8080"),
        ("http://localhost:9999", "localhost:8080"),
        ("http://localhost", "localhost:8080"),
        ("http://127.0.0.1:8080", "localhost:8080"),
        ("null", "localhost:8080"),
        ("", ""),
        ("http://", ""),
        ("file://localhost", "localhost"),
        ("javascript://localhost", "localhost"),
        ("http://[", "localhost"),
        ("http://a\u2100b", "localhost"),
        ("http://claw.example.org.evil.example", None),
    ],
)
def test_other_pages_are_strangers(origin: str, host: str | None) -> None:
    assert not HostRules(public_url="https://claw.example.org").allows_origin(origin, host)


@given(ANY, ANY | st.none())
def test_hostile_headers_are_refused_and_raise_nothing(text: str, host: str | None) -> None:
    rules = HostRules(("box.lan",), public_url="https://claw.example.org")
    rules.allows_host(text)
    for origin in (text, f"http://{text}"):
        if rules.allows_origin(origin, host):
            assert origin.lower().split("://")[1].split("/")[0] in ((host or "").lower(), "claw.example.org")


@pytest.mark.parametrize("url", ["claw.example.org", "https://", "ftp://a.example", "https://[", "/chat"])
def test_a_public_address_that_is_no_web_address_is_refused_at_start(url: str) -> None:
    with pytest.raises(ConfigError, match=r"web\.public_url"):
        HostRules(public_url=url)


@pytest.mark.parametrize(
    ("headers", "query", "token"),
    [
        ({"Authorization": "Bearer abc"}, "", "abc"),
        ({"Authorization": "bearer   abc "}, "", "abc"),
        ({"Authorization": "Bearer abc"}, "token=other", "abc"),
        ({}, "token=abc", "abc"),
        ({}, "html=1&token=a%2Bb", "a+b"),
        ({}, "token=first&token=second", "first"),
        ({"Authorization": "Basic abc"}, "token=abc", "abc"),
        ({"Authorization": "Bearer "}, "token=abc", "abc"),
        ({"Authorization": "Bearer"}, "", None),
        ({"Authorization": "Basic abc"}, "", None),
        ({"Authorization": "abc"}, "", None),
        ({}, "", None),
        ({}, "token=", None),
        ({}, "Token=abc", None),
    ],
)
def test_the_token_is_the_headers_else_the_querys(
    headers: dict[str, str], query: str, token: str | None
) -> None:
    assert presented_token(headers, query) == token


@given(ANY, ANY)
def test_a_hostile_header_or_query_raises_nothing(header: str, query: str) -> None:
    token = presented_token({"Authorization": header}, query)
    assert token is None or token
