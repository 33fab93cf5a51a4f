"""The generic webhook: signed as Standard Webhooks, stored once, answered at once, replied to in order."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import LLMResponse, Message
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.platforms.generic import GenericPlatform
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import GenericWebhookSettings
from miniclaw.cli import main
from miniclaw.errors import ConfigError, ProtocolError
from tests.support.claw import running_claw
from tests.support.inside import database_of
from tests.support.receiver import SECRET, Receiver, receiving, signed_headers
from tests.support.webhooks import echo

OTHER = "whsec_" + base64.b64encode(b"another-secret-of-the-operator").decode()


@asynccontextmanager
async def hooked(
    tmp_path: Path, script: list[Any], **arguments: Any
) -> AsyncIterator[tuple[MiniClaw, aiohttp.ClientSession, str]]:
    """A gateway with the generic webhook, a client, and the webhook's URL."""
    given_arguments = {
        "channels.generic.secret": f"{OTHER} {SECRET}",
        "channels.generic.user": "monitor",
        **{f"channels.generic.{name}": value for name, value in arguments.items() if "." not in name},
        **{name: value for name, value in arguments.items() if "." in name},
    }
    provider = ScriptedProvider(script)
    async with running_claw(tmp_path, provider, web=True, arguments=given_arguments) as claw:
        assert claw.web is not None
        async with aiohttp.ClientSession() as http:
            yield claw, http, f"http://127.0.0.1:{claw.web.port}/webhooks/in"


async def post(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], **signing: Any
) -> tuple[int, Any]:
    """POST a signed body; its status and JSON."""
    raw = json.dumps(body).encode()
    async with http.post(url, data=raw, headers=signed_headers(raw, **signing)) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def test_a_signed_message_is_202_and_one_turn_and_its_retry_starts_none(tmp_path: Path) -> None:
    async with hooked(tmp_path, [echo]) as (claw, http, url):
        body = {"text": "disk is 93% full", "session": "ops", "sender": "monitor"}
        status, first = await post(http, url, body)
        assert (status, first["status"]) == (202, "accepted")
        assert await post(http, url, body) == (202, first)
        again = await asyncio.gather(*(post(http, url, body) for _ in range(10)))
        assert again == [(202, first)] * 10
        sessions = await claw.sessions.list("monitor")
        assert [s.session_id for s in sessions] == [first["session_id"]]


async def test_a_retry_after_a_restart_starts_no_second_turn(tmp_path: Path) -> None:
    body = {"text": "hello", "session": "ops"}
    async with hooked(tmp_path, [echo]) as (_, http, url):
        first = await post(http, url, body)
    async with hooked(tmp_path, []) as (_, http, url):
        assert await post(http, url, body) == first


async def test_messages_of_one_thread_share_a_session_and_others_do_not(tmp_path: Path) -> None:
    async with hooked(tmp_path, [echo] * 4) as (_, http, url):
        sessions = []
        for number, thread in enumerate(["ops", "ops", "dev", None]):
            body = {"text": "x", **({"session": thread} if thread else {})}
            sessions.append((await post(http, url, body, message_id=f"m{number}"))[1]["session_id"])
    assert sessions[0] == sessions[1]
    assert len(set(sessions)) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda h: {k: v for k, v in h.items() if k != "webhook-signature"},
        lambda h: {k: v for k, v in h.items() if k != "webhook-id"},
        lambda h: {**h, "webhook-id": "msg_2"},
        lambda h: {**h, "webhook-signature": "v1,AAAA"},
        lambda h: {**h, "webhook-signature": h["webhook-signature"].replace("v1,", "v2,")},
        lambda h: {**h, "webhook-timestamp": str(int(h["webhook-timestamp"]) + 1)},
        lambda h: {**h, "webhook-timestamp": "soon"},
    ],
)
async def test_a_spoilt_signature_is_401_without_a_reason_and_starts_nothing(
    tmp_path: Path, spoil: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    async with hooked(tmp_path, []) as (claw, http, url):
        raw = b'{"text":"x"}'
        async with http.post(url, data=raw, headers=spoil(signed_headers(raw))) as response:
            assert (response.status, await response.text()) == (401, "")
        assert await claw.sessions.list() == []


@pytest.mark.parametrize("offset", [-301, 301])
async def test_a_time_outside_the_window_is_401_in_both_directions(tmp_path: Path, offset: float) -> None:
    async with hooked(tmp_path, []) as (_, http, url):
        assert (await post(http, url, {"text": "x"}, at=time.time() + offset))[0] == 401


@pytest.mark.parametrize(
    "body",
    [b"[]", b"nonsense", b'{"text":5}', b'{"text":" "}', b"{}", b'{"text":"x","session":7}', b"[" * 100_000],
)
async def test_what_is_signed_and_unreadable_is_400(tmp_path: Path, body: bytes) -> None:
    async with hooked(tmp_path, []) as (claw, http, url):
        async with http.post(url, data=body, headers=signed_headers(body)) as response:
            assert response.status == 400
        assert await claw.sessions.list() == []


@pytest.mark.parametrize("path", ["webhooks/in", "webhooks/slack/events", "webhooks/"])
async def test_without_its_secret_the_route_does_not_exist(tmp_path: Path, path: str) -> None:
    async with running_claw(tmp_path, ScriptedProvider([]), web=True) as claw:
        assert claw.web is not None
        url = f"http://127.0.0.1:{claw.web.port}/{path}"
        async with aiohttp.ClientSession() as http, http.post(url, data=b"{}") as response:
            assert response.status == 404


@pytest.mark.parametrize(
    "settings",
    [
        {"secret": SECRET, "user": ""},
        {"secret": SECRET, "user": "Bad User"},
        {"secret": "whsec_!!", "user": "ok"},
        {"secret": "whsec_QUFB", "user": "ok"},
    ],
)
def test_a_useless_configuration_is_refused_at_start(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        GenericPlatform(GenericWebhookSettings.model_validate(settings), clock=time.time)


QUICK = {"delivery.retry_base": 0.01, "delivery.retry_max": 0.02}


async def test_the_reply_is_posted_signed_to_an_allowed_host_and_retried_under_one_key(
    tmp_path: Path,
) -> None:
    receiver = Receiver([500, 503])
    async with receiving(receiver) as port:
        hosts = (f"127.0.0.1:{port}",)
        async with hooked(tmp_path, [echo], reply_hosts=hosts, **QUICK) as (claw, http, url):
            body = {"text": "hi", "session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
            ids = (await post(http, url, body))[1]
            await receiver.wait(3)
    assert receiver.tried == [f"{ids['turn_id']}.0"] * 3
    assert [(t["text"], t.get("possibly_repeated")) for t in receiver.taken] == [("echo: hi", True)]
    assert receiver.taken[0]["session"] == "ops"


async def test_replies_of_one_conversation_keep_their_order_though_the_first_must_be_retried(
    tmp_path: Path,
) -> None:
    receiver = Receiver([429, 500])
    async with receiving(receiver) as port:
        async with hooked(tmp_path, [echo] * 3, reply_hosts=("127.0.0.1",), **QUICK) as (_, http, url):
            for number in range(3):
                body = {"text": str(number), "session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
                await post(http, url, body, message_id=f"m{number}")
            await receiver.wait(5)
    assert [t["text"] for t in receiver.taken] == ["echo: 0", "echo: 1", "echo: 2"]


async def test_a_permanent_refusal_ends_in_the_dead_letter_list_and_does_not_block_the_next(
    tmp_path: Path,
) -> None:
    receiver = Receiver([410])
    async with receiving(receiver) as port:
        async with hooked(tmp_path, [echo] * 2, reply_hosts=("127.0.0.1",), **QUICK) as (claw, http, url):
            for number in range(2):
                body = {"text": str(number), "session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
                await post(http, url, body, message_id=f"m{number}")
            await receiver.wait(2)
            async with asyncio.timeout(20):
                while [d.state for d in await claw.outbox.of_user("monitor")] != ["dead"]:
                    await asyncio.sleep(0.01)
            assert [t["text"] for t in receiver.taken] == ["echo: 1"]
            (dead,) = await claw.outbox.of_user("monitor")
            api = url.replace("/webhooks/in", f"/api/deliveries/{dead.key}/retry")
            other = {"Authorization": f"Bearer {await claw.identities.add('bob')}"}
            owner = {"Authorization": "Bearer test-token"}
            listing = url.replace("/webhooks/in", "/api/deliveries")
            async with http.get(listing, headers=other) as response:
                assert (await response.json())["deliveries"] == []
            async with http.post(api, headers=other) as response:
                assert response.status == 404, "it is monitor's, not bob's"
            async with http.get(listing, headers=owner) as response:
                (shown,) = (await response.json())["deliveries"]
                assert shown["key"] == dead.key and "echo" not in str(shown), "an admin reads no texts"
            async with http.post(api, headers=owner) as response:
                assert response.status == 200
            await receiver.wait(1)
    assert [t["text"] for t in receiver.taken] == ["echo: 1", "echo: 0"]


async def test_a_reply_that_could_not_be_sent_before_a_restart_is_sent_after_it(tmp_path: Path) -> None:
    receiver = Receiver()
    async with receiving(receiver) as port:
        pass  # the port is free now and nobody listens
    slow = {"delivery.retry_base": 0.01, "delivery.retry_max": 0.02}
    async with hooked(tmp_path, [echo], reply_hosts=("127.0.0.1",), **slow) as (claw, http, url):
        body = {"text": "hi", "session": "ops", "reply_url": f"http://127.0.0.1:{port}/reply"}
        await post(http, url, body)
        async with asyncio.timeout(20):
            while not [d for d in await claw.outbox.of_user("monitor") if d.error]:
                await asyncio.sleep(0.01)
    async with receiving(receiver, port), hooked(tmp_path, [], reply_hosts=("127.0.0.1",), **slow):
        await receiver.wait(1)
    assert [t["text"] for t in receiver.taken] == ["echo: hi"]


@pytest.mark.parametrize(
    "reply_url",
    [
        "http://evil.example/reply",
        "http://127.0.0.1@evil.example/",
        "http://evil.example#127.0.0.1",
        "file:///etc/passwd",
        "http://127.0.0.1.evil.example/",
        "http://[::1/",
        7,
    ],
)
async def test_a_reply_url_to_any_other_host_is_400(tmp_path: Path, reply_url: object) -> None:
    async with hooked(tmp_path, [], reply_hosts=("127.0.0.1",)) as (_, http, url):
        assert (await post(http, url, {"text": "x", "reply_url": reply_url}))[0] == 400


async def test_nobody_can_be_asked_so_a_write_tool_is_denied_at_once_with_the_way_to_allow_it(
    tmp_path: Path,
) -> None:
    from miniclaw.agent.providers import ToolCall

    told: list[str] = []

    async def last(messages: list[Message]) -> LLMResponse:
        told.append(str(messages[-1]["content"]))
        return LLMResponse(text="ok")

    call = LLMResponse(tool_calls=(ToolCall.of("c", "memory_delete", {"memory_id": "mem_a"}),))
    receiver = Receiver()
    async with receiving(receiver) as port:
        async with hooked(tmp_path, [call, last], reply_hosts=("127.0.0.1",)) as (_, http, url):
            body = {"text": "x", "session": "s", "reply_url": f"http://127.0.0.1:{port}/reply"}
            await post(http, url, body)
            await receiver.wait(1)
    assert "--allow memory_delete" in told[0]


# --- several keys, other proofs ---------------------------------------------------------------------------

HUB = "hub-secret"
TOKEN = "static-token"
RAW = b'{"text":"x"}'


def hub_headers(body: bytes, secret: str = HUB) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Delivery": "d1"}


async def status_of(http: aiohttp.ClientSession, url: str, headers: dict[str, str], body: bytes = RAW) -> int:
    async with http.post(url, data=body, headers=headers) as response:
        return response.status


@pytest.mark.parametrize("key", [OTHER, SECRET])
async def test_each_of_several_keys_signs_so_that_they_can_be_changed_one_after_the_other(
    tmp_path: Path, key: str
) -> None:
    async with hooked(tmp_path, [echo]) as (_, http, url):
        headers = signed_headers(RAW, key=base64.b64decode(key.removeprefix("whsec_")))
        assert await status_of(http, url, headers) == 202
        headers["webhook-signature"] = f"v1,AAAA v1a,BBBB {headers['webhook-signature']}"
        assert await status_of(http, url, headers) == 202


async def test_a_github_style_signature_is_taken_and_its_delivery_is_known_again(tmp_path: Path) -> None:
    async with hooked(tmp_path, [echo], hub_secret=HUB) as (claw, http, url):
        assert await status_of(http, url, hub_headers(RAW)) == 202
        assert await status_of(http, url, hub_headers(RAW)) == 202
        assert len(await claw.sessions.list("monitor")) == 1
        assert await status_of(http, url, signed_headers(RAW)) == 202


async def test_a_static_token_is_taken_and_messages_without_an_id_are_each_their_own(tmp_path: Path) -> None:
    async with hooked(tmp_path, [echo] * 2, secret="", bearer=TOKEN) as (claw, http, url):
        for _ in range(2):
            assert await status_of(http, url, {"Authorization": f"Bearer {TOKEN}"}) == 202
        assert len(database_of(claw).read("SELECT 1 FROM turns")) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}é"},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature-256": hub_headers(RAW)["X-Hub-Signature-256"].removeprefix("sha256=")},
        hub_headers(RAW + b" "),
        hub_headers(RAW, "another"),
        {**hub_headers(RAW, "another"), "Authorization": f"Bearer {TOKEN}"},
        {**signed_headers(RAW, key=b"x" * 24), **hub_headers(RAW)},
    ],
)
async def test_no_other_proof_is_taken_and_a_good_one_does_not_help_a_bad_one(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with hooked(tmp_path, [], hub_secret=HUB, bearer=TOKEN) as (claw, http, url):
        assert await status_of(http, url, headers) == 401
        assert await claw.sessions.list() == []


@pytest.mark.parametrize("blank", ["", " ", "\t \n"])
async def test_a_blank_secret_is_none_and_opens_nothing(tmp_path: Path, blank: str) -> None:
    forged = [
        {"Authorization": f"Bearer {blank}"},
        {"Authorization": "Bearer"},
        hub_headers(RAW, blank),
        signed_headers(RAW, key=b""),
    ]
    async with hooked(tmp_path, [], secret=blank, hub_secret=blank, bearer=blank) as (claw, http, url):
        for headers in forged:
            shown = {name: value.replace("\n", "").replace("\t", "") for name, value in headers.items()}
            assert await status_of(http, url, shown) == 404
        assert "generic" not in claw.channels
    settings = GenericWebhookSettings.model_validate(
        {"secret": SECRET, "hub_secret": blank, "bearer": blank, "user": "monitor"}
    )
    checked = GenericPlatform(settings, clock=time.time)
    for headers in forged:
        lower = {name.lower(): value for name, value in headers.items()}
        with pytest.raises(ProtocolError):
            checked.verify(
                WebhookRequest(
                    method="POST", path="/webhooks/in", headers=lower, query={}, body=RAW, now=time.time()
                )
            )


async def test_fields_have_the_names_that_are_set(tmp_path: Path) -> None:
    names = {"text_field": "message", "thread_field": "topic", "sender_field": "from"}
    async with hooked(tmp_path, [echo], **names) as (claw, http, url):
        status, _ = await post(http, url, {"message": "disk", "topic": "ops", "from": "db-1", "text": "no"})
        assert status == 202
        [[message]] = database_of(claw).read("SELECT message FROM turns")
        stored = json.loads(message)
        assert (stored["payload"]["text"], stored["sender"]) == ("disk", "db-1")


@pytest.mark.parametrize("reply_hosts", [("127.0.0.1",), ()])
async def test_simulate_posts_a_signed_message_and_prints_the_reply_or_what_to_set_for_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    reply_hosts: tuple[str, ...],
) -> None:
    monkeypatch.setenv("GENERIC_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("MINICLAW_CHANNELS__GENERIC__USER", "monitor")
    monkeypatch.setattr("miniclaw.cli.webhook_command.QUIET_SECONDS", 0.2)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command adds one of its own
    async with hooked(tmp_path, [echo], reply_hosts=reply_hosts):
        words = ["webhook", "simulate", "generic", "--text", "disk", "--with-fake-api"]
        code = await asyncio.to_thread(main, [*words, "--data-dir", str(tmp_path)])
    first, second = capsys.readouterr().out.splitlines()
    if reply_hosts:
        assert code == 0 and first.startswith("generic: 202") and second == "→ reply: echo: disk"
    else:
        assert code == 1 and first == "generic: 400" and "channels.generic.reply_hosts" in second


# --- properties -------------------------------------------------------------------------------------------


def platform() -> GenericPlatform:
    settings = GenericWebhookSettings.model_validate({"secret": SECRET, "user": "monitor"})
    return GenericPlatform(settings, clock=time.time)


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_any_change_of_a_signed_body_is_refused(body: bytes, place: int, change: int) -> None:
    headers = signed_headers(body, at=1000)
    platform().verify(
        WebhookRequest(method="POST", path="/webhooks/in", headers=headers, query={}, body=body, now=1000)
    )
    changed = bytearray(body or b"\0")
    changed[place % len(changed)] ^= change
    spoilt = WebhookRequest(
        method="POST", path="/webhooks/in", headers=headers, query={}, body=bytes(changed) or b"x", now=1000
    )
    with pytest.raises(ProtocolError):
        platform().verify(spoilt)


@given(
    st.one_of(
        st.binary(max_size=300), st.recursive(st.none() | st.text(), lambda c: st.dictionaries(st.text(), c))
    )
)
def test_the_parser_never_raises_anything_but_a_refusal(value: Any) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    request = WebhookRequest(
        method="POST", path="/webhooks/in", headers={"webhook-id": "m"}, query={}, body=body, now=0
    )
    try:
        parsed = platform().parse(request)
    except ProtocolError as error:
        assert error.code == "bad_message"
    else:
        assert not isinstance(parsed, Answer) and parsed.dedupe == ("m",)
