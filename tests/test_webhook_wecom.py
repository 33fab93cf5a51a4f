"""WeCom apps: what is signed and said comes in once, and one answer goes out, whatever WeCom does."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.base import knows_again
from miniclaw.channel.platforms.client import MARK, AccessToken
from miniclaw.channel.platforms.wecom import ENVELOPE_BYTES, WeComPlatform, read_xml
from miniclaw.channel.platforms.wecom_api import KNOWN_SECONDS, SPREAD, WeComApi
from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel.standins.base import Event, Fault
from miniclaw.channel.standins.wecom import WeComStandin, posted
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import WeComAccount
from miniclaw.cli import main
from miniclaw.errors import ConfigError, DeliveryError, ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, ReplyTarget
from tests.support.agent import Zap, eventually
from tests.support.claw import running_claw
from tests.support.inside import database_of
from tests.support.webhooks import Site, call, echo, for_ever, platform_claw, vectors_of

CORP = "ww0123456789abcdef"
KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
APP = {"corp_id": CORP, "agent_id": 1000002, "secret": "s3cret", "token": "tok", "encoding_aes_key": KEY}
SETTINGS = WeComAccount.model_validate(APP)


class Corp(Site[WeComStandin]):
    """Whoever writes to the app."""

    @property
    def wecom(self) -> WeComStandin:
        return self.standin

    async def say(self, text: str = "", *, sender: str = "ZhangSan", **more: str) -> None:
        """Somebody writes, clicks or sends a file."""
        self._number += 1
        fields = {"MsgType": "text", "Content": text, "MsgId": f"74590350{self._number}", **more}
        assert await self.deliver(event(fields, sender=sender)) == (200, "")


def event(fields: dict[str, str], *, sender: str = "ZhangSan") -> Event:
    given = {"ToUserName": CORP, "FromUserName": sender, "CreateTime": "1767225598", "AgentID": "1000002"}
    return posted(SETTINGS, {**given, **fields}, now=time.time())


@asynccontextmanager
async def corp(
    tmp_path: Path,
    script: list[Any] | None,
    *,
    wecom: WeComStandin | None = None,
    account: str = "",
    **more: Any,
) -> AsyncIterator[Corp]:
    async with wecom or WeComStandin(secret="s3cret") as standin:
        one = {**APP, "api_base": standin.url, **more}
        provider = None if script is None else ScriptedProvider(script)
        async with platform_claw(tmp_path, "wecom", one, provider, name=account) as (claw, http):
            yield Corp(claw, standin, http, f"wecom/{account}" if account else "wecom")


# --- the way of an answer ---------------------------------------------------------------------------------


async def test_a_message_is_answered_to_its_sender(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo]) as one:
        await one.say("你好 <b>&amp; ]]> 👋")
        assert await one.answers() == ["echo: 你好 <b>&amp; ]]> 👋"]
        [shown] = one.wecom.shown
        assert (shown.conversation, shown.raw["agentid"], shown.raw["msgtype"]) == (
            "ZhangSan",
            1000002,
            "markdown",
        )


@pytest.mark.parametrize(
    ("markdown", "kind", "shown"),
    [(True, "markdown", "a **b**\n\n1 | 2"), (False, "text", "*a* **b**\n\n|1|2|\n|-|-|")],
)
async def test_an_answer_is_wecoms_markdown_or_where_that_is_set_a_text(
    tmp_path: Path, markdown: bool, kind: str, shown: str
) -> None:
    async with corp(tmp_path, [LLMResponse(text="*a* **b**\n\n|1|2|\n|-|-|")], markdown=markdown) as one:
        await one.say("hi")
        assert await one.answers() == [shown]
        assert one.wecom.shown[0].raw[kind] == {"content": shown}


async def test_a_long_answer_is_sent_in_parts_of_which_wecom_cuts_nothing_off(tmp_path: Path) -> None:
    text = "".join(f"第{number}段，有表情👩‍👩‍👧和文字。" * 12 + "\n\n" for number in range(12))
    async with corp(tmp_path, [LLMResponse(text=text)]) as one:
        await one.say("hi")
        parts = await one.answers()
        assert len(parts) > 3 and "".join(parts) == text.rstrip()


async def test_the_same_words_in_two_answers_are_two_messages(tmp_path: Path) -> None:
    """WeCom drops a request that it has had within hours; an answer must not be taken for a repeat."""
    async with corp(tmp_path, [LLMResponse(text="好的")] * 2) as one:
        await one.say("1")
        await one.answers(1)
        await one.say("2")
        assert await one.answers(2) == ["好的", "好的"]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("message", "status", 429, retry_after=0)],
        [Fault("message", "error", 45009)],
        [Fault("message", "error", 45033)],
        [Fault("message", "status", 500)],
        [Fault("message", "status", 502, stored=True)],
        [Fault("message", "cut", stored=True)],
        [Fault("message", "error", -1, stored=True)],
        [Fault("message", "cut"), Fault("message", "status", 503, stored=True)],
        [Fault("gettoken", "status", 500), Fault("gettoken", "error", 45009)],
        [Fault("gettoken", "error", -1)],
    ],
)
async def test_one_answer_is_seen_in_order_whatever_becomes_of_the_call(
    tmp_path: Path, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.channel.platforms.wecom_api.RATE_LIMIT_SECONDS", 0.01)
    async with corp(tmp_path, [echo, echo]) as one:
        one.wecom.faults.extend(faults)
        await one.say("one")
        await one.say("two")
        assert await one.answers(2) == ["echo: one", "echo: two"]  # known again: not even marked


async def test_a_send_of_unknown_outcome_is_marked_when_wecom_has_forgotten_the_first_try() -> None:
    moment = [1000.0]
    async with WeComStandin() as wecom:
        api = WeComApi(SETTINGS.model_copy(update={"api_base": wecom.url}), clock=lambda: moment[0])
        target = ReplyTarget(conversation="u", account=f"{CORP}:1", sender="u")
        wecom.faults.append(Fault("message", "status", 500, stored=True))
        with pytest.raises(DeliveryError) as failed:
            await api.deliver(target, "x", key="turn_1.0", repeat=False)
        assert failed.value.unknown
        assert knows_again(api, 1000.0, moment[0])
        await api.deliver(target, "x", key="turn_1.0", repeat=False)
        assert [one.text for one in wecom.shown] == ["x"]
        moment[0] += KNOWN_SECONDS + 1
        assert not knows_again(api, 1000.0, moment[0])
        await api.deliver(target, "y", key="turn_2.0", repeat=True)
        assert [one.text for one in wecom.shown] == ["x", f"{MARK}y"]
        await api.close()


async def test_the_same_words_in_two_answers_are_both_seen_whatever_their_keys() -> None:
    same = ["turn_00000000000000000000000b.0", "turn_000000000000000000000015.0"]
    assert len({crc32(key.encode()) % SPREAD for key in same}) == 1
    async with WeComStandin() as wecom:
        api = WeComApi(SETTINGS.model_copy(update={"api_base": wecom.url}), clock=lambda: 1000.0)
        target = ReplyTarget(conversation="u", account=f"{CORP}:1", sender="u")
        for key in (*same, *same):  # the second time they are known again
            await api.deliver(target, "好的", key=key, repeat=False)
        for number in range(SPREAD + 1):
            api._interval(1, str(number))
        await api.close()
        assert [one.text for one in wecom.shown] == ["好的", "好的"]


async def test_a_token_that_is_refused_is_asked_for_again_once_by_all(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo] * 9) as one:
        await one.say("first")
        await one.answers()
        one.wecom.tokens.clear()
        for number in range(8):
            await one.say(str(number), sender=f"u{number}")
        assert len(await one.answers(9)) == 9
        assert [name for name, _ in one.wecom.calls].count("gettoken") == 2


@pytest.mark.parametrize("code", [81013, 60011, 48002, 40056, 60020])
async def test_an_error_for_good_is_a_dead_letter_at_once(tmp_path: Path, code: int) -> None:
    async with corp(tmp_path, [echo]) as one:
        one.wecom.faults.append(Fault("message", "error", code))
        await one.say("hi")
        assert await one.answers() == []
        [[state, error]] = database_of(one.claw).read("SELECT state, error FROM deliveries")
        assert state == "dead" and str(code) in error


async def test_a_wrong_secret_is_a_dead_letter_that_says_so(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo], secret="wrong") as one:
        await one.say("hi")
        assert await one.answers() == []
        assert "40001" in database_of(one.claw).read("SELECT error FROM deliveries")[0][0]


async def test_somebody_whom_the_app_does_not_reach_is_a_dead_letter() -> None:
    class Unreached(WeComStandin):
        def _message(self, body: dict[str, Any], request: Any) -> Any:
            from aiohttp import web

            return web.json_response({"errcode": 0, "invaliduser": body["touser"]})

    async with Unreached() as wecom:
        api = WeComApi(SETTINGS.model_copy(update={"api_base": wecom.url}), clock=time.time)
        with pytest.raises(DeliveryError, match="cannot be reached") as failed:
            await api.deliver(ReplyTarget(account=f"{CORP}:1", sender="u"), "x", key="t.0", repeat=False)
        assert failed.value.permanent
        await api.close()


async def test_a_token_is_renewed_early_and_kept_while_that_fails() -> None:
    moment, given_tokens = [0.0], [("a", 7200.0), ("b", 7200.0)]

    async def ask() -> tuple[str, float]:
        if not given_tokens:
            raise DeliveryError("down", unknown=True)
        return given_tokens.pop(0)

    token = AccessToken(ask, clock=lambda: moment[0], early=300)
    assert await token.get() == "a"
    moment[0] = 6899.0
    assert await token.get() == "a"
    moment[0] = 6900.0
    assert await token.get() == "b"
    moment[0] = 6900.0 + 7000
    assert await token.get() == "b"  # it cannot be renewed, and is still good
    moment[0] = 6900.0 + 7200
    with pytest.raises(DeliveryError, match="no token: down") as failed:
        await token.get()
    assert not failed.value.unknown


# --- what comes in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["enter_agent", "subscribe", "view", "LOCATION", "click"])
async def test_an_event_starts_nothing_and_is_taken(tmp_path: Path, kind: str) -> None:
    async with corp(tmp_path, []) as one:
        await one.say(MsgType="event", Event=kind, EventKey="menu1")
        assert one.turns() == 0 and one.wecom.shown == []


async def test_a_click_on_a_menu_entry_that_is_a_command_is_that_command_once(tmp_path: Path) -> None:
    async with corp(tmp_path, []) as one:
        for moment in ("1", "1", "2"):
            await one.say(MsgType="event", Event="click", EventKey="/new", CreateTime=moment)
        await one.wecom.until(lambda: len(one.wecom.shown) == 2)
        texts = await one.answers(0)
        assert len(texts) == 2 and all("new session" in text for text in texts)
        assert len(database_of(one.claw).read("SELECT 1 FROM dedupe")) == 2


async def test_a_typed_command_is_carried_out_and_told(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo]) as one:
        await one.say("/tools")
        await one.wecom.until(lambda: one.wecom.shown)
        assert "calculator" in (await one.answers(0))[0] and one.turns() == 0
        await one.say("hi")
        await one.answers()
        await one.say("/clear")  # has nothing to say, which is no failure
        await one.answers(2)
        assert database_of(one.claw).read("SELECT 1 FROM deliveries WHERE state = 'dead'") == []


async def test_of_a_commands_long_answer_nothing_is_cut_off(tmp_path: Path) -> None:
    class Wordy(Zap):
        description = "字" * 190

    async with corp(tmp_path, []) as one:
        one.claw.registry.register(Wordy())
        await one.say("/tools")
        await one.wecom.until(lambda: len(one.wecom.shown) > 1)
        told = "".join(await one.answers(0)).splitlines()
        assert [line.partition(":")[0] for line in told] == one.claw.registry.names()


@pytest.mark.parametrize(("word", "state"), [("/approve", "approved"), ("/deny", "denied")])
async def test_a_question_names_the_commands_that_answer_it(tmp_path: Path, word: str, state: str) -> None:
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with corp(tmp_path, script) as one:
        await one.say("forget it")
        await one.wecom.until(lambda: one.wecom.shown)
        short = one.wecom.shown[0].text.split(f"{word} ")[1].split()[0]
        await one.say(f"{word} {short}")
        await one.wecom.until(lambda: one.wecom.shown[-1].text == "done")
        await one.answers()
        assert database_of(one.claw).read("SELECT state FROM approvals") == [(state,)]


async def test_strangers_get_a_pairing_code_once_where_they_are_not_served(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo], strangers="pair") as one:
        for _ in range(2):
            await one.say("hi", MsgId="1")
        await one.pair()
        await one.say("hello")
        assert (await one.answers())[1:] == ["echo: hello"]
        assert database_of(one.claw).read("SELECT user_id FROM turns") == [("owner",)]


async def test_strangers_that_are_refused_get_silence(tmp_path: Path) -> None:
    async with corp(tmp_path, [], strangers="refuse") as one:
        await one.say("hi")
        assert await one.answers(0) == [] and one.turns() == 0


async def test_a_second_app_has_its_own_path(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo], account="acme") as one:
        await one.say("hi")
        assert await one.answers() == ["echo: hi"]
        assert database_of(one.claw).read("SELECT channel FROM turns") == [("wecom/acme",)]


async def test_people_are_users_of_their_own(tmp_path: Path) -> None:
    async with corp(tmp_path, [echo] * 3) as one:
        for sender in ("a", "b", "a"):
            await one.say("hi", sender=sender)
        await one.answers(3)
        assert len(database_of(one.claw).read("SELECT DISTINCT user_id, session_id FROM turns")) == 2


async def test_a_full_mailbox_is_told_and_an_overloaded_gateway_hangs_up(tmp_path: Path) -> None:
    few: dict[str, Any] = {"limits.waiting_per_session": 1, "limits.waiting": 2}
    async with corp(tmp_path, [for_ever] * 3, **few) as one:
        await one.say("runs")
        await eventually(lambda: database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'"))
        await one.say("waits")
        await one.say("one too many", MsgId="9")
        await one.say("one too many", MsgId="9")
        await one.wecom.until(lambda: one.wecom.shown)
        assert "not taken" in one.wecom.shown[0].text and len(one.wecom.shown) == 1
        await one.say("runs too", sender="b")
        await eventually(
            lambda: len(database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'")) == 2
        )
        await one.say("waits too", sender="b")
        with pytest.raises(aiohttp.ClientError):
            await one.say("no room at all", sender="c")
        assert one.turns() == 4 and len(one.wecom.shown) == 1


async def test_a_file_is_in_the_workspace_before_the_model_reads_of_it(tmp_path: Path) -> None:
    wecom = WeComStandin()
    wecom.files["m1"] = b"PDF..."
    async with corp(tmp_path, [echo], wecom=wecom) as one:
        await one.say(MsgType="file", MediaId="m1", FileName="../a.pdf")
        [text] = await one.answers()
        [path] = tmp_path.rglob("*a.pdf")
        assert path.read_bytes() == b"PDF..." and "workspace" in path.parts and path.name in text


async def test_a_file_is_fetched_with_the_token_and_not_if_it_is_too_large() -> None:
    async with WeComStandin() as wecom:
        wecom.files["m1"] = b"PNG..."
        api = WeComApi(SETTINGS.model_copy(update={"api_base": wecom.url}), clock=time.time)
        target, file = ReplyTarget(), FileRef(kind="image", id="m1")
        assert await api.fetch_file(target, file, max_bytes=100) == b"PNG..."
        wecom.tokens.clear()
        assert await api.fetch_file(target, file, max_bytes=100) == b"PNG..."
        with pytest.raises(DeliveryError, match="larger than 3"):
            await api.fetch_file(target, file, max_bytes=3)
        with pytest.raises(DeliveryError, match="40007"):
            await api.fetch_file(target, FileRef(id="gone"), max_bytes=100)
        await api.close()


@pytest.mark.parametrize(
    "data",
    [
        b'{"errcode" oops',
        b'{"errcode":"x","errmsg":"y"}',
        b'{"errcode":0,"errmsg":"ok"}',
        b'{"errcode":40001,"msg":"saved"}',
        b'{"errcode":' + b"[" * 5000,
    ],
)
async def test_a_file_that_looks_like_an_error_is_a_file(data: bytes) -> None:
    async with WeComStandin() as wecom:
        wecom.files["m1"] = data
        api = WeComApi(SETTINGS.model_copy(update={"api_base": wecom.url}), clock=time.time)
        assert await api.fetch_file(ReplyTarget(), FileRef(id="m1"), max_bytes=9999) == data
        assert [name for name, _ in wecom.calls] == ["gettoken", "media"]
        await api.close()


@pytest.mark.parametrize(
    ("fields", "text", "files"),
    [
        ({"MsgType": "image", "MediaId": "m"}, "", [("image", "m")]),
        ({"MsgType": "voice", "MediaId": "m", "Format": "amr"}, "", [("audio", "m")]),
        ({"MsgType": "voice", "MediaId": "m", "Recognition": "说的话"}, "说的话", [("audio", "m")]),
        ({"MsgType": "video", "MediaId": "m"}, "", [("video", "m")]),
        ({"MsgType": "file", "MediaId": "m", "FileName": "a.pdf"}, "", [("file", "m")]),
        (
            {"MsgType": "location", "Location_X": "1", "Location_Y": "2", "Label": "广州"},
            "[location] 广州 (1, 2)",
            [],
        ),
        ({"MsgType": "link", "Title": "T", "Url": "https://a.b"}, "T\nhttps://a.b", []),
        ({"MsgType": "sticker"}, "[sticker]", []),
        ({"MsgType": "text", "Content": " "}, "(empty message)", []),
        ({"MsgType": "text", "Content": "a\x08b"}, "a\ufffdb", []),
    ],
)
def test_each_kind_of_message_is_read(
    fields: dict[str, str], text: str, files: list[tuple[str, str]]
) -> None:
    said = PLATFORM.parse(request(event({"MsgId": "7", **fields})))
    assert isinstance(said, Inbound) and getattr(said.payload, "text", None) == text
    assert [(file.kind, file.id) for file in said.files] == files


# --- signatures, encryption, XML --------------------------------------------------------------------------

PLATFORM = WeComPlatform(SETTINGS, clock=time.time)
CRYPTO = WeComCrypto("tok", KEY, CORP)


def request(
    sent: Event, query: Mapping[str, str] | None = None, *, body: bytes | None = None
) -> WebhookRequest:
    return WebhookRequest(
        method="POST",
        path="/webhooks/wecom",
        headers={},
        query={**sent.query, **(query or {})},
        body=sent.body if body is None else body,
        now=0.0,
    )


def refusal(asked: WebhookRequest) -> str:
    """Why a request is refused, by `verify` or, if that takes it, by `parse`."""
    with pytest.raises(ProtocolError) as refused:
        PLATFORM.verify(asked)
        PLATFORM.parse(asked)
    return refused.value.code


SOUND = event({"MsgType": "text", "Content": "hi", "MsgId": "1"})


@pytest.mark.parametrize("case", vectors_of("wecom"), ids=lambda case: str(case["name"]))
def test_the_sdks_vectors_hold(case: dict[str, Any]) -> None:
    crypto = WeComCrypto(case["token"], case["encoding_aes_key"], case["receive_id"])
    encrypted = crypto.encrypt(case["plaintext"], random=case["random16"].encode())
    signature = crypto.sign(case["timestamp"], case["nonce"], encrypted)
    if case["name"] == "passive_reply_xml":
        outer = read_xml(case["encrypted_xml"])
        assert (outer["Encrypt"], outer["MsgSignature"]) == (encrypted, signature)
    elif "reply" in case:
        assert (case["reply"]["encrypt"], case["reply"]["msgsignature"]) == (encrypted, signature)
    else:
        assert case.get("ciphertext", case.get("echostr")) == encrypted
        assert case["msg_signature"] == signature
    assert crypto.decrypt(encrypted) == case["plaintext"]


@given(text=st.text(st.characters(codec="utf-8"), max_size=70))
def test_what_is_encrypted_is_decrypted_for_every_padding(text: str) -> None:
    assert CRYPTO.decrypt(CRYPTO.encrypt(text)) == text


@pytest.mark.parametrize("length", range(33))
def test_each_length_of_padding_is_read(length: int) -> None:
    assert CRYPTO.decrypt(CRYPTO.encrypt("x" * length)) == "x" * length


@pytest.mark.parametrize("key", ["", "short", KEY + "=", KEY[:-1] + "!", "é" * 43])
def test_a_key_that_is_none_is_a_mistake_of_the_settings(key: str) -> None:
    with pytest.raises(ConfigError, match="43 characters"):
        WeComCrypto("tok", key, CORP)


@given(place=st.integers(0), change=st.integers(1, 127), part=st.sampled_from(["body", *SOUND.query]))
def test_any_change_of_what_is_signed_is_refused(place: int, change: int, part: str) -> None:
    PLATFORM.verify(request(SOUND))
    if part == "body":
        start = SOUND.body.index(b"<Encrypt><![CDATA[") + 18
        body = bytearray(SOUND.body)
        body[start + place % (body.index(b"]]></Encrypt>") - start)] ^= change
        assert refusal(request(SOUND, body=bytes(body))) in ("unauthorized", "bad_message")
    else:
        value = bytearray(SOUND.query[part].encode())
        value[place % len(value)] ^= change
        assert refusal(request(SOUND, {part: value.decode("latin-1")})) == "unauthorized"


@pytest.mark.parametrize(
    "envelope",
    [
        b'<!DOCTYPE xml [<!ENTITY a "b">]><xml><Encrypt>&a;</Encrypt></xml>',
        b'<?xml version="1.0"?><!doctype x SYSTEM "file:///etc/passwd"><xml/>',
        b"<xml><Encrypt>&xxe;</Encrypt></xml>",
        SOUND.body.replace(b"<xml>", b"<!DOCTYPE xml><xml>", 1),
        SOUND.body + b"<!-- -->",
    ],
)
def test_xml_that_declares_anything_is_bad_before_its_signature_is_looked_at(envelope: bytes) -> None:
    assert refusal(request(SOUND, body=envelope)) == "bad_message"
    assert refusal(request(SOUND, {"msg_signature": "0" * 40}, body=envelope)) == "bad_message"


@pytest.mark.parametrize("body", [b"", b"<xml>", b"{}", b"\xff\xfe<", b"<xml></xml>", b"no xml" * 9])
def test_an_envelope_without_anything_signed_is_unauthorized(body: bytes) -> None:
    assert refusal(request(SOUND, body=body)) == "unauthorized"


@pytest.mark.parametrize("more", [b"<a/>" * 60, b"<a>" * 60 + b"</a>" * 60, b" " * ENVELOPE_BYTES])
def test_of_what_nobody_is_known_to_have_signed_little_is_read(more: bytes) -> None:
    assert refusal(request(SOUND, body=SOUND.body.replace(b"<xml>", b"<xml>" + more, 1))) == "unauthorized"


def encrypted_by(crypto: WeComCrypto, inner: str) -> WebhookRequest:
    """A request with a good signature over what this crypto made."""
    encrypted = crypto.encrypt(inner)
    query = {"timestamp": "1", "nonce": "2", "msg_signature": CRYPTO.sign("1", "2", encrypted)}
    return request(
        Event(path="", headers={}, body=f"<xml><Encrypt>{encrypted}</Encrypt></xml>".encode()), query
    )


@pytest.mark.parametrize("receive_id", ["", "ww_other", CORP + "x"])
def test_another_receive_id_counts_as_a_wrong_token(receive_id: str) -> None:
    other = WeComCrypto("tok", KEY, receive_id)
    assert refusal(encrypted_by(other, "<xml></xml>")) == "unauthorized"


def test_a_message_for_another_corp_counts_as_a_wrong_token() -> None:
    assert refusal(encrypted_by(CRYPTO, "<xml><ToUserName>ww_b</ToUserName></xml>")) == "unauthorized"
    body = SOUND.body.replace(CORP.encode(), b"ww_b")
    assert refusal(request(SOUND, body=body)) == "unauthorized"


@pytest.mark.parametrize(
    "inner",
    [
        "",
        "no xml",
        "<xml></xml>",
        "<xml><MsgType>text</MsgType></xml>",
        "<xml><MsgType>event</MsgType></xml>",
        "<xml><MsgType>image</MsgType><FromUserName>u</FromUserName><MsgId>1</MsgId></xml>",
        "<xml><MsgType>text</MsgType><Content>x</Content><FromUserName/><MsgId>1</MsgId></xml>",
        "<xml><MsgType>text</MsgType><Content>x</Content><FromUserName>u</FromUserName>"
        "<MsgId>1</MsgId><AgentID>one</AgentID></xml>",
        '<!DOCTYPE x [<!ENTITY a "b">]><xml><MsgType>&a;</MsgType></xml>',
    ],
)
def test_what_is_signed_and_cannot_be_read_is_a_bad_message(inner: str) -> None:
    assert refusal(encrypted_by(CRYPTO, inner)) == "bad_message"


@pytest.mark.parametrize("encrypted", ["!", "AAAA", "A" * 64, "é"])
def test_what_is_signed_and_cannot_be_decrypted_is_a_bad_message(encrypted: str) -> None:
    query = {"timestamp": "1", "nonce": "2", "msg_signature": CRYPTO.sign("1", "2", encrypted)}
    sent = Event(path="", headers={}, body=f"<xml><Encrypt>{encrypted}</Encrypt></xml>".encode())
    assert refusal(request(sent, query)) == "bad_message"


@given(body=st.binary(max_size=200), inner=st.text(st.characters(codec="utf-8"), max_size=80))
def test_no_bytes_break_the_parser(body: bytes, inner: str) -> None:
    fields = f"<xml><MsgType>{inner}</MsgType><FromUserName>{inner}</FromUserName><MsgId>1</MsgId></xml>"
    for asked in (request(SOUND, body=body), encrypted_by(CRYPTO, inner), encrypted_by(CRYPTO, fields)):
        try:
            PLATFORM.verify(asked)
            assert isinstance(PLATFORM.parse(asked), Inbound | Answer)
        except ProtocolError as error:
            assert error.code in ("unauthorized", "bad_message")


def test_a_plus_that_a_proxy_made_a_blank_of_is_one_again() -> None:
    encrypted = next(text for text in (CRYPTO.encrypt("echo") for _ in range(1000)) if "+" in text)
    query = {"timestamp": "1", "nonce": "2", "msg_signature": CRYPTO.sign("1", "2", encrypted)}
    asked = WebhookRequest(
        method="GET",
        path="/webhooks/wecom",
        headers={},
        query={**query, "echostr": encrypted.replace("+", " ")},
        body=b"",
        now=0.0,
    )
    PLATFORM.verify(asked)
    assert PLATFORM.parse(asked) == Answer(text="echo")


# --- the command ------------------------------------------------------------------------------------------


async def test_simulate_posts_to_the_running_gateway_and_prints_what_wecom_would_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given_settings = {**APP, "api_base": f"http://127.0.0.1:{port}"}
    for name, value in given_settings.items():
        monkeypatch.setenv(f"WECOM_{name.upper()}", str(value))
    monkeypatch.setattr("miniclaw.cli.webhook_command.QUIET_SECONDS", 0.2)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command adds one of its own
    arguments = {f"channels.wecom.{name}": value for name, value in given_settings.items()}
    async with running_claw(tmp_path, ScriptedProvider([echo]), web=True, arguments=arguments):
        words = ["webhook", "simulate", "wecom", "--text", "1 < 2 & 3", "--with-fake-api"]
        code = await asyncio.to_thread(main, [*words, "--data-dir", str(tmp_path)])
    assert (code, capsys.readouterr().out) == (0, "wecom: 200\n→ Simulated: echo: 1 < 2 & 3\n")
