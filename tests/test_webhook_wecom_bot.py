"""WeCom's AI bot: WeCom asks for the answer until it has ended, and gets all of it, once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.padding import PKCS7
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.platforms.wecom import ENVELOPE_BYTES
from miniclaw.channel.platforms.wecom_bot import CLOSE_SECONDS, CUT, LATER, LOST, NOTHING, WeComBotPlatform
from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel.standins.base import Event, Fault
from miniclaw.channel.standins.wecom import WeComStandin, bot_event, read_stream
from miniclaw.channel.webhook import Answer, Poll, WebhookRequest
from miniclaw.channel_settings import WeComAccount
from miniclaw.errors import DeliveryError, ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, ReplyTarget
from miniclaw.gateway.standings import Standing
from tests.support.agent import DictatedProvider, eventually
from tests.support.inside import database_of
from tests.support.webhooks import Site, call, echo, for_ever, platform_claw

KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
BOT = {"token": "tok", "encoding_aes_key": KEY, "bot_name": "miniClaw"}
SETTINGS = WeComAccount.model_validate(BOT)
CRYPTO = WeComCrypto("tok", KEY, "")


class Clock:
    """The time, moved by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def message(text: str, *, number: int = 1, group: bool = False, **more: Any) -> dict[str, Any]:
    place = {"chatid": "wr1", "chattype": "group"} if group else {"chattype": "single"}
    return {
        "msgid": f"CAIQ/{number}=",
        "aibotid": "aib1",
        "from": {"userid": "ZhangSan"},
        "msgtype": "text",
        "text": {"content": text},
        **place,
        **more,
    }


class Chat(Site[WeComStandin]):
    """Whoever talks to the bot, and WeCom, which asks for the answers."""

    @property
    def wecom(self) -> WeComStandin:
        return self.standin

    async def _stream(self, body: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self.deliver(bot_event(SETTINGS, body, now=time.time()))
        assert status == 200
        return read_stream(SETTINGS, json.loads(answer)) if answer else {}

    async def say(self, text: str, **more: Any) -> dict[str, Any]:
        """Somebody writes; the stream that it is answered with at once."""
        self._number += 1
        url = f"{self.wecom.url}/cgi-bin/aibot/response?response_code=RC{self._number}"
        return await self._stream(message(text, **{"number": self._number, "response_url": url, **more}))

    async def poll(self, stream_id: str) -> dict[str, Any]:
        """WeCom asks for what there is now."""
        body = {**message("", number=9999), "msgtype": "stream", "stream": {"id": stream_id}}
        return await self._stream(body)

    async def until(self, stream_id: str, text: str) -> dict[str, Any]:
        """Ask until the answer holds a text."""
        async with asyncio.timeout(20):
            while text not in (shown := await self.poll(stream_id))["content"]:
                await asyncio.sleep(0.01)
        return shown

    async def finish(self, stream: dict[str, Any]) -> str:
        """Ask until the answer has ended; what it says then."""
        async with asyncio.timeout(20):
            while not stream["finish"]:
                await asyncio.sleep(0.01)
                stream = await self.poll(stream["id"])
        return str(stream["content"])

    def deliveries(self) -> list[Any]:
        return database_of(self.claw).read("SELECT part, state FROM deliveries")


@asynccontextmanager
async def chat(
    tmp_path: Path,
    script: list[Any] | DictatedProvider,
    *,
    wecom: WeComStandin | None = None,
    clock: Clock | None = None,
    account: str = "",
    **more: Any,
) -> AsyncIterator[Chat]:
    async with wecom or WeComStandin() as standin:
        one = {**BOT, "api_base": standin.url, **more}
        provider = script if isinstance(script, DictatedProvider) else ScriptedProvider(script)
        async with platform_claw(
            tmp_path, "wecom", one, provider, name=account, clock=clock or time.time
        ) as (claw, http):
            yield Chat(claw, standin, http, f"wecom-bot/{account}" if account else "wecom-bot")


# --- the answer -------------------------------------------------------------------------------------------


async def test_an_answer_is_begun_at_once_and_grows_until_it_has_ended(tmp_path: Path) -> None:
    talk = DictatedProvider()
    async with chat(tmp_path, talk) as one:
        begun = await one.say("hi")
        assert (begun["finish"], begun["content"]) == (False, "")
        talk.say("Hello")
        assert not (await one.until(begun["id"], "Hello"))["finish"]
        talk.say(", world")
        assert not (await one.until(begun["id"], "Hello, world"))["finish"]
        talk.end("!")
        assert await one.finish(begun) == "Hello, world!"
        assert await one.poll(begun["id"]) == await one.poll(begun["id"])
        assert one.deliveries() == []


async def test_text_behind_a_tool_is_shown_below_the_text_before_it(tmp_path: Path) -> None:
    talk = DictatedProvider()
    async with chat(tmp_path, talk) as one:
        begun = await one.say("hi")
        talk.say("Let me see.")
        talk.call("calculator", expression="1+1")
        talk.say("It is 2.")
        assert not (await one.until(begun["id"], "Let me see.\n\nIt is 2."))["finish"]
        talk.end()
        assert await one.finish(begun) == "It is 2."


async def test_a_message_that_comes_again_has_the_same_stream_also_after_a_restart(tmp_path: Path) -> None:
    async with chat(tmp_path, [for_ever]) as one:
        streams = await asyncio.gather(*(one.say("hi", number=1) for _ in range(5)))
        assert len({stream["id"] for stream in streams}) == 1
    async with chat(tmp_path, [echo]) as one:
        again = await one.say("hi", number=1)
        assert again["id"] == streams[0]["id"]
        assert await one.finish(again) == "echo: hi"
        assert len(database_of(one.claw).read("SELECT 1 FROM turns")) == 1
    async with chat(tmp_path, []) as one:
        assert await one.poll(again["id"]) == {"id": again["id"], "finish": True, "content": "echo: hi"}


async def test_two_messages_at_once_are_answered_each_in_its_own_stream(tmp_path: Path) -> None:
    """openclaw/openclaw#94678: of two messages within seconds both streams stayed open for ever."""
    talk = DictatedProvider()
    async with chat(tmp_path, talk) as one:
        first = await one.say("a")
        talk.say("to a")
        await one.until(first["id"], "to a")
        second = await one.say("b")
        for stream, text in ((first, "to a"), (second, "")):
            assert await one.poll(stream["id"]) == {"id": stream["id"], "finish": False, "content": text}
        talk.end(", done")
        assert await one.finish(first) == "to a, done"
        assert not (await one.poll(second["id"]))["finish"]
        talk.end("to b")
        assert [await one.finish(second), await one.finish(first)] == ["to b", "to a, done"]


async def test_an_answer_that_takes_longer_than_wecom_asks_is_sent_afterwards_once(tmp_path: Path) -> None:
    talk, clock = DictatedProvider(), Clock()
    async with chat(tmp_path, talk, clock=clock) as one:
        begun = await one.say("hi")
        talk.say("Begun")
        await one.until(begun["id"], "Begun")
        clock.ahead = CLOSE_SECONDS + 1
        assert await one.finish(begun) == f"Begun\n\n{LATER}"
        one.wecom.faults.extend([Fault("aibot", "status", 503), Fault("aibot", "cut", stored=True)])
        talk.end(" and ended")
        await eventually(lambda: one.deliveries() == [(0, "sent")])
        assert [(shown.conversation, shown.text) for shown in one.wecom.shown] == [
            ("response:RC1", "Begun and ended")
        ]
        assert await one.finish(begun) == LATER  # and not shown a second time


async def test_a_question_stays_in_sight_at_the_close_and_none_is_asked_after_it(tmp_path: Path) -> None:
    clock, go, told = Clock(), asyncio.Event(), list[str]()

    async def later(messages: list[Message]) -> LLMResponse:
        await go.wait()
        return call("memory_delete", memory_id="m2")

    async def tell(messages: list[Message]) -> LLMResponse:
        told.append(str(messages[-1]["content"]))
        return LLMResponse(text="done")

    async with chat(tmp_path, [call("memory_delete", memory_id="m1"), later, tell], clock=clock) as one:
        begun = await one.say("forget")
        asked = (await one.until(begun["id"], "/approve"))["content"]
        clock.ahead = CLOSE_SECONDS + 1
        assert await one.finish(begun) == f"{asked}\n\n{LATER}"
        short = asked.split("/approve ")[1].split()[0]
        await one.say(f"/approve {short}")
        go.set()
        await eventually(lambda: told)
        assert "nobody is there to approve" in told[0]
        assert len(database_of(one.claw).read("SELECT * FROM approvals")) == 1


async def test_an_answer_without_a_url_is_shown_for_as_long_as_wecom_asks(tmp_path: Path) -> None:
    talk, clock = DictatedProvider(), Clock()
    async with chat(tmp_path, talk, clock=clock) as one:
        begun = await one.say("hi", response_url=None)
        clock.ahead = CLOSE_SECONDS + 1
        assert not (await one.poll(begun["id"]))["finish"]
        talk.end("late")
        assert await one.finish(begun) == "late" and one.deliveries() == []


async def test_what_is_too_long_to_be_shown_is_sent_as_a_second_message(tmp_path: Path) -> None:
    text = "".join(f"第{number}行，```不是代码。\n" for number in range(900))
    async with chat(tmp_path, [LLMResponse(text=text)]) as one:
        first = await one.finish(await one.say("hi"))
        await one.wecom.until(lambda: one.wecom.shown)
        assert first + one.wecom.shown[0].text == text
        await eventually(lambda: one.deliveries() == [(1, "sent")])


async def test_of_what_is_longer_still_the_end_is_said_to_be_missing(tmp_path: Path) -> None:
    async with chat(tmp_path, [LLMResponse(text="很长的文字。" * 4000)]) as one:
        await one.finish(await one.say("hi"))
        await one.wecom.until(lambda: one.wecom.shown)
        assert one.wecom.shown[0].text.endswith(CUT)


async def test_what_is_too_long_and_cannot_be_sent_is_said_to_be_missing(tmp_path: Path) -> None:
    async with chat(tmp_path, [LLMResponse(text="很长的文字。" * 2000)]) as one:
        told = await one.finish(await one.say("hi", response_url=None))
        assert told.startswith("很长的文字。") and told.endswith(CUT) and one.deliveries() == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (LLMResponse(text="<@li> <@all>"), "<\u200b@li> <\u200b@all>"),
        (LLMResponse(text="![me](http://a/?x=secret)"), "[me](http://a/?x=secret)"),
        (call("memory_delete", memory_id="<@all>"), "<\u200b@all>"),
        (call("memory_delete", memory_id="![me](u)"), "[me](u)"),
        (None, "script has ended"),
    ],
)
async def test_nobody_is_called_nothing_is_loaded_and_a_failure_is_told(
    tmp_path: Path, line: LLMResponse | None, shown: str
) -> None:
    async with chat(tmp_path, [line] if line else []) as one:
        begun = await one.say("hi")
        if line and line.tool_calls:
            told = (await one.until(begun["id"], "/approve"))["content"]
        else:
            told = await one.finish(begun)
        assert shown in told and "![" not in told


async def test_a_turn_that_was_stopped_and_one_that_is_not_there_have_ended(tmp_path: Path) -> None:
    async with chat(tmp_path, [for_ever]) as one:
        begun = await one.say("hi")
        await eventually(lambda: database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'"))
        assert "Stopped" in (await one.say("/cancel"))["content"]
        assert await one.finish(begun) == NOTHING
        assert (await one.poll("turn_none"))["content"] == LOST


@pytest.mark.parametrize("is_quoted", [False, True])
async def test_a_question_is_shown_in_the_stream_and_answered_by_a_command(
    tmp_path: Path, is_quoted: bool
) -> None:
    asks = ToolCall.of("call_1", "memory_delete", {"memory_id": "mem_x" * 2000})
    script = [
        LLMResponse(text="Well:", tool_calls=(asks,), finish="tool_calls"),
        LLMResponse(text="done"),
    ]
    async with chat(tmp_path, script) as one:
        begun = await one.say("forget it", group=True)
        asked = await one.until(begun["id"], "/approve")
        assert not asked["finish"] and asked["content"].startswith("Well:")
        short = asked["content"].split("/approve ")[1].split()[0]
        quote = {"msgtype": "text", "text": {"content": asked["content"]}} if is_quoted else None
        answer = await one.say(f"@miniClaw /approve {short}", group=True, quote=quote)
        assert "Approved" in answer["content"]
        assert await one.finish(begun) == "done"
        assert one.wecom.calls == [], "the message's URL takes one message, which is kept for an answer"


@pytest.mark.parametrize(
    "about",
    ["😀" * 600, "`" * 600, "<@a![](" * 99, "![a](b)\n\n" + "|a" * 60 + "\n" + "|-" * 60 + "\nx" * 118],
)
@pytest.mark.parametrize("text", ["", "line\n" * 3600])
def test_a_question_fits_below_any_text_and_names_its_commands(text: str, about: str) -> None:
    question = {"approval_id": "apr_1", "short_id": "K7", "tool": "t" * 64, "arguments": {}, "summary": about}
    for target, end in ((None, ""), (ReplyTarget(url="https://x", expires_at=1.0), f"\n\n{LATER}")):
        asked = Standing(text=text, is_ended=False, question=question, target=target)
        answer = WeComBotPlatform(SETTINGS, clock=time.time).show("s1", asked)
        assert isinstance(answer.body, dict)
        shown = read_stream(SETTINGS, answer.body)["content"]
        assert len(shown.encode()) <= 20_480 and shown.endswith(f"/approve K7  ·  /deny K7{end}")


# --- what comes in ----------------------------------------------------------------------------------------


async def test_a_command_is_answered_in_the_answer_itself_the_same_each_time(tmp_path: Path) -> None:
    async with chat(tmp_path, [echo]) as one:
        first = await one.say("@miniClaw /new", number=5, group=True)
        assert first["finish"] and "new session" in first["content"]
        assert await one.say("@miniClaw /new", number=5, group=True) == first
        await one.finish(await one.say("hi"))
        assert "no longer sees" in await one.finish(await one.say("/clear"))
        assert one.deliveries() == []


async def test_strangers_get_a_pairing_code_where_they_are_not_served(tmp_path: Path) -> None:
    async with chat(tmp_path, [echo], strangers="pair") as one:
        told = await one.say("hi", number=1)
        assert told["finish"] and await one.say("hi", number=1) == told
        await one.claw.identities.pair("owner", told["content"].split()[-1])
        assert await one.finish(await one.say("hello")) == "echo: hello"


async def test_strangers_that_are_refused_get_silence(tmp_path: Path) -> None:
    async with chat(tmp_path, [], strangers="refuse") as one:
        assert await one.say("hi") == {}


async def test_a_full_mailbox_is_told_and_an_overloaded_gateway_hangs_up(tmp_path: Path) -> None:
    few: dict[str, Any] = {"limits.waiting_per_session": 1, "limits.waiting": 2}
    async with chat(tmp_path, [for_ever] * 3, **few) as one:
        await one.say("runs")
        await eventually(lambda: database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'"))
        await one.say("waits")
        busy = await one.say("one too many")
        assert busy["finish"] and "not taken" in busy["content"]
        await one.say("runs too", group=True)
        await eventually(
            lambda: len(database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'")) == 2
        )
        await one.say("waits too", group=True)
        with pytest.raises(aiohttp.ClientError):
            await one.say("no room at all", group=True, chatid="wr2")


async def test_a_message_whose_sender_was_told_to_write_again_is_not_run_as_well(tmp_path: Path) -> None:
    talk = DictatedProvider()
    few: dict[str, Any] = {"limits.waiting_per_session": 1}
    async with chat(tmp_path, talk, **few) as one:
        begun = [await one.say("runs")]
        await eventually(lambda: database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'"))
        begun.append(await one.say("waits"))
        busy = await one.say("one too many", number=77)
        for stream in begun:
            talk.end("done")
            await one.finish(stream)
        assert await one.say("one too many", number=77) == busy and one.turns() == 2


async def test_a_group_has_its_own_session_and_memory(tmp_path: Path) -> None:
    async with chat(tmp_path, [echo] * 2) as one:
        await one.finish(await one.say("hi"))
        await one.finish(await one.say("@miniClaw hi", group=True))
        rows = database_of(one.claw).read(
            "SELECT t.user_id, s.user_id FROM turns t JOIN sessions s USING (session_id)"
        )
        (person, own), (sender, group) = sorted(tuple(row) for row in rows)[::-1]
        assert person == own == sender and group.startswith("grp_")


async def test_a_second_bot_has_its_own_path_and_secrets(tmp_path: Path) -> None:
    other: dict[str, Any] = {
        "token": "no",
        "encoding_aes_key": KEY[::-1],
        "bot_token": "tok",
        "bot_encoding_aes_key": KEY,
    }
    async with chat(tmp_path, [echo], account="acme", **other) as one:
        assert await one.finish(await one.say("hi")) == "echo: hi"
        assert database_of(one.claw).read("SELECT channel FROM turns") == [("wecom-bot/acme",)]


@pytest.mark.parametrize("kind", ["enter_chat", "template_card_event", "feedback_event"])
async def test_an_event_starts_nothing(tmp_path: Path, kind: str) -> None:
    async with chat(tmp_path, []) as one:
        sent = bot_event(SETTINGS, {**message(""), "msgtype": "event", "event": {"eventtype": kind}}, now=0)
        assert await one.deliver(sent) == (200, "")


PLATFORM = WeComBotPlatform(SETTINGS, clock=time.time)


def parsed(body: dict[str, Any], platform: WeComBotPlatform = PLATFORM) -> Inbound | Answer | Poll:
    asked = request(bot_event(SETTINGS, body, now=0))
    platform.verify(asked)
    return platform.parse(asked)


def request(
    sent: Event, query: Mapping[str, str] | None = None, *, body: bytes | None = None
) -> WebhookRequest:
    return WebhookRequest(
        method="POST",
        path="/webhooks/wecom-bot",
        headers={},
        query={**sent.query, **(query or {})},
        body=sent.body if body is None else body,
        now=0.0,
    )


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("@miniClaw 你好 @李四", "你好 @李四"),
        ("@miniClaw\u2005hi @miniClaw", "hi @miniClaw"),
        ("@miniClaw", "(empty message)"),
        ("@miniClaw，你好", "，你好"),
        ("@miniClaw2 hi", "@miniClaw2 hi"),
        ("ask @miniClaw", "ask @miniClaw"),
    ],
)
def test_the_bots_name_is_taken_away_at_the_beginning_only(said: str, read: str) -> None:
    found = parsed(message(said, group=True))
    assert isinstance(found, Inbound) and getattr(found.payload, "text", None) == read


def test_without_a_name_nothing_is_taken_away() -> None:
    nameless = WeComBotPlatform(SETTINGS.model_copy(update={"bot_name": ""}), clock=time.time)
    found = parsed(message("@miniClaw hi", group=True), nameless)
    assert getattr(getattr(found, "payload", None), "text", None) == "@miniClaw hi"


IMAGE = {"msgtype": "image", "image": {"url": "https://cos.example/a/77?sign=q "}}


@pytest.mark.parametrize(
    ("more", "text", "files"),
    [
        (IMAGE, "", ["77"]),
        ({"msgtype": "file", "file": {"url": "https://cos.example/a/78"}}, "", ["78"]),
        ({"msgtype": "voice", "voice": {"content": "说的话"}}, "说的话", []),
        (
            {
                "msgtype": "mixed",
                "mixed": {"msg_item": [{"msgtype": "text", "text": {"content": "@miniClaw 看"}}, IMAGE]},
            },
            "看",
            ["77"],
        ),
        (
            {
                "text": {"content": "@miniClaw why?"},
                "quote": {"msgtype": "text", "text": {"content": "a\nb"}},
            },
            "> a\n> b\n\nwhy?",
            [],
        ),
        ({"text": {"content": "what?"}, "quote": IMAGE}, "what?", ["77"]),
        ({"msgtype": "sticker"}, "[sticker]", []),
    ],
)
def test_each_kind_of_message_is_read(more: dict[str, Any], text: str, files: list[str]) -> None:
    found = parsed({**message(""), **more})
    assert isinstance(found, Inbound) and getattr(found.payload, "text", None) == text
    assert [file.id for file in found.files] == files
    assert all(" " not in str(file.url) for file in found.files)


async def test_a_file_is_fetched_from_wecoms_hosts_only_and_decrypted() -> None:
    async with WeComStandin() as wecom:
        host = wecom.url.removeprefix("http://")
        platform = WeComBotPlatform(SETTINGS.model_copy(update={"file_hosts": (host,)}), clock=time.time)
        padder, encryptor = PKCS7(256).padder(), CRYPTO._cipher.encryptor()
        padded = padder.update(b"PNG...") + padder.finalize()
        wecom.files.update(good=encryptor.update(padded) + encryptor.finalize(), bad=b"x" * 32)
        target = ReplyTarget()
        file = FileRef(id="1", url=f"{wecom.url}/files/good")
        assert await platform.fetch_file(target, file, max_bytes=100) == b"PNG..."
        for url in (f"{wecom.url}/files/bad", "https://evil.example/x", None):
            with pytest.raises(DeliveryError):
                await platform.fetch_file(target, FileRef(id="1", url=url), max_bytes=100)
        with pytest.raises(DeliveryError, match="larger than 3"):
            await platform.fetch_file(target, file, max_bytes=3)
        await platform.close()


async def test_the_url_of_a_message_is_used_on_wecoms_host_within_its_hour_and_once() -> None:
    async with WeComStandin() as wecom:
        platform = WeComBotPlatform(SETTINGS.model_copy(update={"api_base": wecom.url}), clock=lambda: 1000.0)

        async def send(url: str, *, until: float = 2000.0, repeat: bool = False) -> None:
            target = ReplyTarget(url=url, expires_at=until)
            await platform.deliver(target, "x", key="turn_1.0", repeat=repeat)

        good = f"{wecom.url}/cgi-bin/aibot/response?response_code=R"
        for url, until in (("https://evil.example/cgi-bin", 2000.0), (good, 999.0)):
            with pytest.raises(DeliveryError) as failed:
                await send(url, until=until)
            assert failed.value.permanent
        await send(good)
        await send(good, repeat=True)  # an earlier try got through: nothing more is to be done
        with pytest.raises(DeliveryError, match="40058"):
            await send(good)
        wecom.faults.append(Fault("aibot", "error", -1))
        with pytest.raises(DeliveryError) as failed:
            await send(good, repeat=True)
        assert failed.value.unknown and len(wecom.shown) == 1
        await platform.close()


# --- signatures -------------------------------------------------------------------------------------------


def refusal(asked: WebhookRequest) -> str:
    with pytest.raises(ProtocolError) as refused:
        PLATFORM.verify(asked)
        PLATFORM.parse(asked)
    return refused.value.code


SOUND = bot_event(SETTINGS, message("hi"), now=0)


def signed(encrypted: Any) -> WebhookRequest:
    query = {"timestamp": "1", "nonce": "2", "msg_signature": CRYPTO.sign("1", "2", str(encrypted))}
    body = json.dumps({"encrypt": encrypted}).encode()
    return request(Event(path="", headers={}, body=body), query)


@given(place=st.integers(0), change=st.integers(1, 127), part=st.sampled_from(["body", *SOUND.query]))
def test_any_change_of_what_is_signed_is_refused(place: int, change: int, part: str) -> None:
    if part == "body":
        start = SOUND.body.index(b": ") + 3
        body = bytearray(SOUND.body)
        body[start + place % (len(body) - start - 2)] ^= change
        assert refusal(request(SOUND, body=bytes(body))) == "unauthorized"
    else:
        value = bytearray(SOUND.query[part].encode())
        value[place % len(value)] ^= change
        assert refusal(request(SOUND, {part: value.decode("latin-1")})) == "unauthorized"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b"<xml/>"])
def test_an_envelope_without_anything_signed_is_unauthorized(body: bytes) -> None:
    assert refusal(request(SOUND, body=body)) == "unauthorized"


def test_of_what_nobody_is_known_to_have_signed_little_is_read() -> None:
    assert refusal(request(SOUND, body=SOUND.body + b" " * ENVELOPE_BYTES)) == "unauthorized"


def test_what_is_for_an_app_is_unauthorized() -> None:
    assert refusal(signed(WeComCrypto("tok", KEY, "ww1").encrypt("{}"))) == "unauthorized"


@pytest.mark.parametrize(
    "encrypted",
    [5, "no base64", "AAAA"]
    + [CRYPTO.encrypt(text) for text in ("", "[]", "{}", '{"msgtype":"text"}', "[" * 90_000)]
    + [CRYPTO.encrypt(json.dumps({"msgtype": "stream", "stream": {"id": "\ud83d"}}))]
    + [CRYPTO.encrypt(json.dumps({**message("hi"), "from": {}}))]
    + [CRYPTO.encrypt(json.dumps(message("hi", chattype="group")))],
    ids=count(),
)
def test_what_is_signed_and_cannot_be_read_is_a_bad_message(encrypted: Any) -> None:
    assert refusal(signed(encrypted)) == "bad_message"


NAMES = (
    "msgid aibotid chatid chattype from userid msgtype text content image url mixed msg_item voice file quote "
    "stream id event response_url"
).split()
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(["group", "mixed", "text", "stream"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=8),
    max_leaves=20,
)


@given(more=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5), body=st.binary(max_size=100))
def test_nothing_breaks_the_parser(more: dict[str, Any], body: bytes) -> None:
    for asked in (signed(CRYPTO.encrypt(json.dumps({**message("hi"), **more}))), request(SOUND, body=body)):
        try:
            PLATFORM.verify(asked)
            assert isinstance(PLATFORM.parse(asked), Inbound | Answer | Poll)
        except ProtocolError as error:
            assert error.code in ("unauthorized", "bad_message")
