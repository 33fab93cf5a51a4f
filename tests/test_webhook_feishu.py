"""Feishu: what is signed and said comes in once, and one answer goes out, whatever Feishu does."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.base import knows_again
from miniclaw.channel.platforms.client import MARK
from miniclaw.channel.platforms.feishu import FeishuPlatform
from miniclaw.channel.platforms.feishu_api import PART_BYTES, FeishuApi
from miniclaw.channel.platforms.feishu_client import FeishuClient
from miniclaw.channel.platforms.feishu_content import read_content, size, to_card, without_pings
from miniclaw.channel.platforms.feishu_crypto import decrypt, encrypt, sign
from miniclaw.channel.standins.base import Event, Fault, Shown
from miniclaw.channel.standins.feishu import FeishuStandin, posted
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import FeishuAccount
from miniclaw.cli import main
from miniclaw.errors import DeliveryError, ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, Receipt, ReplyTarget
from tests.support.agent import eventually
from tests.support.claw import running_claw
from tests.support.core import FakeClock
from tests.support.inside import database_of
from tests.support.webhooks import DATA, Site, Typing, call, echo, platform_claw, vectors_of

KEY = "encrypt-key"
TOKEN = "verification-token"
APP = {"app_id": "cli_1", "app_secret": "app-secret"}
SETTINGS = {"encrypt_key": KEY, "verification_token": TOKEN, "bot_open_id": "ou_bot", **APP}
BOT = {"key": "@_user_1", "id": {"open_id": "ou_bot"}, "name": "miniClaw", "mentioned_type": "bot"}


class Slow(FeishuStandin):
    """Makes a card only when it may."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.may_go_on = asyncio.Event()

    async def _method(self, request: web.Request, name: str, ids: list[str]) -> web.StreamResponse:
        if name == "card":
            self.calls.append((name, {}))
            self.news()
            await self.may_go_on.wait()
        return await super()._method(request, name, ids)


class Tenant(Site[FeishuStandin]):
    """Whoever writes in Feishu."""

    app: FeishuAccount

    @property
    def feishu(self) -> FeishuStandin:
        return self.standin

    async def post(self, event: dict[str, Any] | Event) -> tuple[int, Any]:
        sent = event if isinstance(event, Event) else posted(self.app, event, now=time.time())
        status, text = await self.deliver(sent)
        return status, json.loads(text) if text.startswith("{") else text

    async def say(self, text: str, *, expect: int = 200, **more: Any) -> str:
        """Somebody writes; the id of the message."""
        self._number += 1
        event = message(text, number=self._number, **more)
        status, answer = await self.post(event)
        assert (status, answer) == (expect, {} if expect in (200, 503) else "")
        return str(event["event"]["message"]["message_id"])

    def called(self, name: str) -> list[dict[str, Any]]:
        return [body for called, body in self.feishu.calls if called == name]


def message(
    text: str,
    *,
    number: int = 1,
    user: str = "ou_1",
    group: bool = False,
    mentions: list[dict[str, Any]] | None = None,
    content: dict[str, Any] | None = None,
    age: float = 0.0,
    sender_type: str = "user",
    **more: Any,
) -> dict[str, Any]:
    moment = f"{(time.time() - age) * 1000:.0f}"
    said = {
        "message_id": f"om_in{number}",
        "create_time": moment,
        "chat_id": "oc_g" if group else f"oc_{user}",
        "chat_type": "group" if group else "p2p",
        "message_type": "text",
        "content": json.dumps({"text": text} if content is None else content),
        "mentions": mentions or [],
        **more,
    }
    return {
        "schema": "2.0",
        "header": header("im.message.receive_v1", f"ev{number}"),
        "event": {
            "sender": {"sender_id": {"open_id": user}, "sender_type": sender_type},
            "message": said,
        },
    }


def header(kind: str, event_id: str) -> dict[str, Any]:
    names = {"event_type": kind, "event_id": event_id, "token": TOKEN}
    return {**names, "app_id": "cli_1", "tenant_key": "t1", "create_time": "1"}


@asynccontextmanager
async def tenant(
    tmp_path: Path,
    script: list[Any],
    *,
    feishu: FeishuStandin | None = None,
    account: str = "",
    typing: int = 0,
    **more: Any,
) -> AsyncIterator[Tenant]:
    async with feishu or FeishuStandin(secret="app-secret") as standin:
        one = {**SETTINGS, "api_base": standin.url, **more}
        told = ("card", "content")
        provider = Typing(script, standin, waits=typing, methods=told) if typing else ScriptedProvider(script)
        async with platform_claw(tmp_path, "feishu", one, provider, name=account) as (claw, http):
            site = Tenant(claw, standin, http, f"feishu/{account}" if account else "feishu")
            own = {name: value for name, value in one.items() if "." not in name}
            site.app = FeishuAccount.model_validate(own)
            yield site


# --- the way of an answer ---------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of a stream without a pause between them."""
    monkeypatch.setattr(FeishuPlatform, "stream_seconds", 0.0)


WHOLE = "**bold** and `code`, " * 5


@pytest.mark.usefixtures("at_once")
async def test_an_answer_streams_into_one_card_that_is_closed_at_the_end(tmp_path: Path) -> None:
    async with tenant(tmp_path, [LLMResponse(text=WHOLE)], typing=9) as one:
        asked = await one.say("hi")
        assert await one.answers() == [WHOLE]
        [shown] = one.feishu.shown
        assert (shown.conversation, shown.is_open) == (f"reply:{asked}", False)
        sequences = [body["sequence"] for name, body in one.feishu.calls if name in ("content", "settings")]
        assert len(sequences) >= 4 and sequences == sorted(set(sequences))
        assert len(one.called("reply")) == len(one.called("settings")) == 1


async def test_somebody_at_work_is_a_reaction_that_goes_with_the_answer(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo]) as one:
        asked = await one.say("hi")
        await one.answers()
        await one.feishu.until(lambda: one.called("unreact") and not one.feishu.reactions)
        assert one.called("react")[0]["ids"] == [asked]
        assert one.called("react")[0]["reaction_type"] == {"emoji_type": "Typing"}


@pytest.mark.parametrize("fault", [Fault("unreact", "status", 500), Fault("react", "error", 99991672)])
async def test_a_reaction_that_fails_costs_no_answer(tmp_path: Path, fault: Fault) -> None:
    async with tenant(tmp_path, [echo, echo]) as one:
        one.feishu.faults.append(fault)
        await one.say("one")
        await one.answers(1)
        await one.say("two")
        assert await one.answers(2) == ["echo: one", "echo: two"]
        assert len(one.called("react")) == (1 if fault.kind == "error" else 2)  # without permission once


async def test_without_streaming_one_card_is_sent_and_never_changed(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo], stream=False) as one:
        await one.say("hi")
        assert await one.answers() == ["echo: hi"]
        assert [name for name, _ in one.feishu.calls] == ["token", "reply"]


async def test_an_app_without_the_permission_for_cards_that_stream_answers_by_a_card(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo]) as one:
        one.feishu.faults.append(Fault("card", "error", 99991672))
        await one.say("hi")
        assert await one.answers() == ["echo: hi"]


async def test_a_long_answer_is_sent_in_parts_in_order_and_each_fits(tmp_path: Path) -> None:
    text = "\n\n".join(f'第 {number} 段 "引用" <b>。' + "长长的话 " * 300 for number in range(20))
    async with tenant(tmp_path, [LLMResponse(text=text)]) as one:
        await one.say("hi")
        parts = await one.answers()
        assert len(parts) > 2 and "".join(parts) == to_card(text)
        assert not any(shown.is_open for shown in one.feishu.shown)


async def test_a_topic_is_a_session_of_its_own_and_is_answered_in_itself(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo] * 4) as one:
        await one.say("@_user_1 a", group=True, mentions=[BOT])
        await one.say("@_user_1 b", group=True, mentions=[BOT], thread_id="omt_1")
        await one.say("@_user_1 c", group=True, mentions=[BOT], root_id="om_in1")  # a quotation is no topic
        await one.say("d", group=True, thread_id="omt_1")  # goes on without a mention
        await one.say("e", group=True, thread_id="omt_2")  # does not begin without one
        assert sorted(await one.answers(4)) == ["echo: a", "echo: b", "echo: c", "echo: d"]
        threads = {shown.text: shown.thread for shown in one.feishu.shown}
        assert threads == {"echo: a": None, "echo: b": "thread", "echo: c": None, "echo: d": "thread"}
        rows = database_of(one.claw).read("SELECT session_id FROM turns ORDER BY n")
        a, b, c, d = [row[0] for row in rows]
        assert a == c and b == d and a != b


@pytest.mark.parametrize(
    "more",
    [
        {"sender_type": "app"},
        {"user": "ou_bot"},
        {"group": True},
        {"group": True, "mentions": [{**BOT, "id": {"open_id": "ou_other"}}]},
        {"age": 7 * 3600.0},
    ],
)
async def test_what_is_not_for_the_bot_or_too_late_is_taken_and_not_run(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    async with tenant(tmp_path, []) as one:
        await one.say("@_user_1 hi", **more)
        assert one.turns() == 0 and not one.feishu.shown


async def test_without_need_of_a_mention_a_group_is_answered(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo], require_mention=False) as one:
        await one.say("hi", group=True)
        assert await one.answers() == ["echo: hi"]


async def test_both_forms_of_an_event_are_one_turn(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo]) as one:
        await one.say("hi")
        old = {
            "type": "message",
            "app_id": "cli_1",
            "tenant_key": "t1",
            "open_chat_id": "oc_ou_1",
            "chat_type": "private",
            "msg_type": "text",
            "open_id": "ou_1",
            "open_message_id": "om_in1",
            "text": "hi",
            "text_without_at_bot": "hi",
        }
        event = {"token": TOKEN, "uuid": "u1", "ts": f"{time.time()}", "type": "event_callback", "event": old}
        assert await one.post(event) == (200, {})
        assert await one.answers() == ["echo: hi"] and one.turns() == 1


async def test_people_are_users_of_their_own_and_a_group_has_its_own_memory(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo] * 3) as one:
        await one.say("a", user="ou_1")
        await one.say("b", user="ou_2")
        await one.say("@_user_1 c", user="ou_1", group=True, mentions=[BOT])
        await one.answers(3)
        rows = database_of(one.claw).read(
            "SELECT t.user_id, s.user_id FROM turns t JOIN sessions s USING (session_id) ORDER BY n"
        )
        (ann, ann_scope), (bob, bob_scope), (sender, group) = [tuple(row) for row in rows]
        assert ann == ann_scope == sender and bob == bob_scope != ann
        assert group.startswith("grp_")


async def test_the_bot_is_asked_for_until_it_is_known_and_groups_wait_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.channel.platforms.feishu_api.LEARN_SECONDS", 0.05)
    feishu = FeishuStandin(secret="app-secret")
    feishu.faults.extend([Fault("bot", "status", 500), Fault("bot", "hang")])
    monkeypatch.setattr("miniclaw.channel.platforms.feishu_api.START_SECONDS", 0.3)
    async with tenant(tmp_path, [echo] * 2, feishu=feishu, bot_open_id="") as one:
        await one.say("@_user_1 hi", expect=503, group=True, mentions=[BOT], message_id="om_g")
        person = {**BOT, "id": {"open_id": "ou_2"}, "mentioned_type": "user"}
        await one.say("@_user_1 hi", group=True, mentions=[person])  # surely not the bot
        await one.say("direct")
        platform = one.claw.channels["feishu"].platform  # type: ignore[attr-defined]
        await eventually(lambda: platform.bot_open_id == "ou_bot")
        await one.say("@_user_1 hi", group=True, mentions=[BOT], message_id="om_g")
        assert sorted(await one.answers(2)) == ["echo: direct", "echo: hi"]


# --- when Feishu does not do what it should ---------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("reply", "status", 429, retry_after=0)],
        [Fault("reply", "error", 99991400, retry_after=0)],
        [Fault("reply", "error", 230020)],
        [Fault("reply", "status", 500)],
        [Fault("reply", "status", 502, stored=True)],
        [Fault("reply", "cut", stored=True)],
        [Fault("reply", "error", 2200, stored=True)],
        [Fault("reply", "error", 99991663)],
        [Fault("token", "status", 500)],
        [Fault("token", "cut")],
        [Fault("reply", "cut"), Fault("reply", "status", 503, stored=True)],
    ],
)
async def test_one_answer_is_seen_whatever_becomes_of_the_call(tmp_path: Path, faults: list[Fault]) -> None:
    async with tenant(tmp_path, [echo, echo], stream=False) as one:
        one.feishu.faults.extend(faults)
        await one.say("one")
        await one.say("two")
        assert await one.answers(2) == ["echo: one", "echo: two"]  # known by its uuid: not even marked


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (("status", 500), True),
        (("status", 500), False),
        (("cut", None), True),
        (("cut", None), False),
        (("error", 99991663), False),
        (("error", 99991400), False),
    ],
)
@pytest.mark.parametrize("method", ["card", "reply", "content", "settings"])
@pytest.mark.usefixtures("at_once")
async def test_a_stream_that_is_disturbed_anywhere_ends_as_one_whole_answer(
    tmp_path: Path, method: str, kind: tuple[Any, Any], stored: bool
) -> None:
    async with tenant(tmp_path, [LLMResponse(text=WHOLE)], typing=1 if method != "content" else 2) as one:
        one.feishu.faults.append(Fault(method, *kind, stored=stored))
        await one.say("hi")
        assert await one.answers() == [WHOLE]
        assert not one.feishu.shown[0].is_open


async def test_an_answer_that_ends_while_its_card_is_being_made_is_seen_once(tmp_path: Path) -> None:
    feishu = Slow(secret="app-secret")
    async with tenant(tmp_path, [LLMResponse(text=WHOLE)], feishu=feishu, typing=1) as one:
        await one.say("hi")
        await eventually(lambda: one.claw.dispatcher._draining)  # whoever delivers has looked at the answer
        feishu.may_go_on.set()
        assert await one.answers() == [WHOLE]


@pytest.mark.usefixtures("at_once")
async def test_a_stream_that_feishu_closed_is_opened_again(tmp_path: Path) -> None:
    async with tenant(tmp_path, [LLMResponse(text=WHOLE)], typing=9) as one:

        def on_show(shown: Shown) -> None:
            if len(shown.text) > 50:
                one.feishu.on_show = None
                one.feishu.expire_streams()

        one.feishu.on_show = on_show
        await one.say("hi")
        assert await one.answers() == [WHOLE]
        settings = [json.loads(body["settings"])["config"] for body in one.called("settings")]
        assert {"streaming_mode": True} in settings and settings[-1] == {"streaming_mode": False}


@pytest.mark.usefixtures("at_once")
async def test_an_answer_whose_card_is_lost_is_sent_anew(tmp_path: Path) -> None:
    async with tenant(tmp_path, [LLMResponse(text=WHOLE)], typing=2) as one:
        one.feishu.on_show = lambda shown: one.feishu.lose_cards()
        await one.say("hi")
        assert (await one.answers())[-1] == WHOLE
        assert database_of(one.claw).read("SELECT state FROM deliveries") == [("sent",)]


@pytest.mark.usefixtures("at_once")
async def test_a_card_that_is_too_old_to_be_changed_is_not_tried_again(tmp_path: Path) -> None:
    """deepcoldy/botmux#1440: Feishu refuses to change a card of more than 14 days, and that was tried for ever."""
    async with tenant(tmp_path, [LLMResponse(text=WHOLE)], typing=1) as one:
        one.feishu.faults += [Fault("content", "error", 230031)] * 99
        await one.say("hi")
        assert (await one.answers())[-1] == WHOLE
        assert database_of(one.claw).read("SELECT state FROM deliveries") == [("sent",)]
        assert len(one.called("content")) <= 2


async def test_a_question_whose_card_cannot_be_changed_is_decided_all_the_same(tmp_path: Path) -> None:
    """deepcoldy/botmux#1440, for a card with buttons."""
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with tenant(tmp_path, script, stream=False) as one:
        one.feishu.faults += [Fault("patch", "error", 230031)] * 99
        await one.say("forget it")
        await one.feishu.until(lambda: any(shown.raw for shown in one.feishu.shown))
        [question] = one.feishu.shown
        value = question.raw["body"]["elements"][1]["behaviors"][0]["value"]
        await one.post(click(value))
        assert (await one.answers())[-1] == "done"
        assert len(one.called("patch")) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_the_answer_to_a_withdrawn_message_goes_into_the_chat(tmp_path: Path, stream: bool) -> None:
    async with tenant(tmp_path, [echo], stream=stream) as one:
        one.feishu.withdrawn.add("om_in1")
        await one.say("hi")
        assert await one.answers() == ["echo: hi"]
        assert one.feishu.shown[0].conversation == "oc_ou_1"


@pytest.mark.parametrize("code", [230002, 230013, 230022, 230035, 232009])
async def test_an_error_for_good_is_a_dead_letter_at_once(tmp_path: Path, code: int) -> None:
    async with tenant(tmp_path, [echo], stream=False) as one:
        one.feishu.faults.append(Fault("reply", "error", code))
        await one.say("hi")
        assert await one.answers() == []
        [[state, error]] = database_of(one.claw).read("SELECT state, error FROM deliveries")
        assert state == "dead" and str(code) in error


async def test_what_is_refused_as_a_card_is_sent_as_a_text_that_calls_nobody(tmp_path: Path) -> None:
    text = 'see <at user_id="all"></at>'
    async with tenant(tmp_path, [LLMResponse(text=text)], stream=False) as one:
        one.feishu.faults.append(Fault("reply", "error", 230099))
        await one.say("hi")
        [shown] = await one.answers()
        assert shown == without_pings(text) and "<at" not in shown


async def test_a_wrong_app_secret_is_a_dead_letter_that_says_so(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo], app_secret="wrong", stream=False) as one:
        await one.say("hi")
        assert await one.answers() == []
        [[state, error]] = database_of(one.claw).read("SELECT state, error FROM deliveries")
        assert state == "dead" and "10014" in error


# --- tokens, keys and sequences, call by call -------------------------------------------------------------

CLOCK = 1_767_225_600.0
TARGET = ReplyTarget(conversation="oc_1", message_id="om_in1", account="t1", sender="ou_1")


@asynccontextmanager
async def api(
    standin: FeishuStandin, clock: FakeClock | None = None, **more: Any
) -> AsyncIterator[FeishuPlatform]:
    async with standin:
        settings = FeishuAccount.model_validate({**SETTINGS, "api_base": standin.url, **more})
        platform = FeishuPlatform(settings, clock=clock or FakeClock(CLOCK))
        try:
            yield platform
        finally:
            await platform.close()


async def test_many_calls_at_once_ask_for_one_token_and_an_expired_one_is_renewed_early() -> None:
    standin, clock = FeishuStandin(), FakeClock(CLOCK)
    async with api(standin, clock) as platform:

        async def send(number: int) -> None:
            await platform.deliver(TARGET, "x", key=f"k{number}", repeat=False)

        await asyncio.gather(*(send(number) for number in range(10)))
        assert sum(name == "token" for name, _ in standin.calls) == 1
        clock.now += 7200 - 20 * 60 + 1
        await asyncio.gather(*(send(number) for number in range(10, 15)))
        assert sum(name == "token" for name, _ in standin.calls) == 2
        standin.tokens.clear()  # taken back before its time
        await asyncio.gather(*(send(number) for number in range(15, 20)))
        assert sum(name == "token" for name, _ in standin.calls) == 3
        assert len(standin.shown) == 20


async def test_a_token_that_cannot_be_renewed_yet_is_used_to_its_end() -> None:
    standin, clock = FeishuStandin(), FakeClock(CLOCK)
    async with api(standin, clock) as platform:
        await platform.deliver(TARGET, "x", key="k1", repeat=False)
        clock.now += 7200 - 60
        standin.faults.append(Fault("token", "status", 500))
        await platform.deliver(TARGET, "x", key="k2", repeat=False)
        clock.now += 61
        standin.faults.append(Fault("token", "status", 500))
        with pytest.raises(DeliveryError) as failed:
            await platform.deliver(TARGET, "x", key="k3", repeat=False)
        assert not failed.value.unknown and not failed.value.permanent  # surely not sent


async def test_feishu_says_how_long_to_wait() -> None:
    standin = FeishuStandin()
    async with api(standin) as platform:
        standin.faults.append(Fault("reply", "error", 99991400, retry_after=52))
        with pytest.raises(DeliveryError) as failed:
            await platform.deliver(TARGET, "x", key="k1", repeat=False)
        assert failed.value.retry_after == 52.0 and not failed.value.unknown


@pytest.mark.parametrize(("later", "marked"), [(60.0, False), (3600.0, True)])
async def test_a_repeat_is_marked_when_feishu_does_not_know_its_key_any_more(
    later: float, marked: bool
) -> None:
    standin, clock = FeishuStandin(), FakeClock(CLOCK)
    async with api(standin, clock) as platform:
        standin.faults.append(Fault("reply", "cut"))
        with pytest.raises(DeliveryError) as failed:
            await platform.deliver(TARGET, "x", key="k1", repeat=False)
        assert failed.value.unknown
        since, clock.now = clock.now, clock.now + later
        repeat = not knows_again(platform, since, clock.now)
        await platform.deliver(TARGET, "x", key="k1", repeat=repeat)
        assert standin.shown[0].text == (MARK + "x" if marked else "x")


async def test_after_a_restart_a_repeat_is_marked_and_a_key_that_is_known_shows_nothing_twice() -> None:
    standin = FeishuStandin()
    async with api(standin) as platform:
        await platform.deliver(TARGET, "x", key="k1", repeat=False)
        settings = FeishuAccount.model_validate({**SETTINGS, "api_base": standin.url})
        restarted = FeishuPlatform(settings, clock=FakeClock(CLOCK))
        await restarted.deliver(TARGET, "x", key="k1", repeat=True)
        await restarted.deliver(TARGET, "y", key="k" * 60, repeat=True)
        assert [shown.text for shown in standin.shown] == ["x", MARK + "y"]
        await restarted.close()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_an_answer_whose_card_may_be_shown_is_finished_in_it_and_not_said_twice(is_taken: bool) -> None:
    """The process died while Feishu took the reply that shows the card; Feishu knows its key."""
    standin, clock, stored = FeishuStandin(), FakeClock(CLOCK), []

    async def known(handle: str) -> None:
        stored.append(handle)

    async with api(standin, clock) as platform:
        standin.faults += [
            Fault("reply", "hang", stored=is_taken),
            Fault("reply", "hang", stored=False),
        ]
        with pytest.raises((DeliveryError, TimeoutError)):
            async with asyncio.timeout(0.5):
                await platform.begin_stream(TARGET, "a", key="k1", known=known)
        settings = FeishuAccount.model_validate({**SETTINGS, "api_base": standin.url})
        restarted = FeishuPlatform(settings, clock=clock)
        standin.faults.clear()
        clock.now += 5
        await restarted.deliver(TARGET, "whole", key="k1", repeat=True, handle=stored[0])
        assert [(shown.text, shown.is_open) for shown in standin.shown] == [("whole", False)]
        clock.now += 2 * 3600
        await restarted.deliver(TARGET, "late", key="k2", repeat=True, handle=stored[0])
        assert [shown.text for shown in standin.shown] == ["whole", MARK + "late"]
        await restarted.close()


async def test_sequences_rise_after_a_restart_and_within_one_moment() -> None:
    standin, clock = FeishuStandin(), FakeClock(CLOCK)
    async with api(standin, clock) as platform:
        handle = await platform.begin_stream(TARGET, "a", key="k1")
        assert handle is not None
        for text in "bcdefghij":
            await platform.update_stream(TARGET, handle, text)  # the clock stands still
        settings = FeishuAccount.model_validate({**SETTINGS, "api_base": standin.url})
        clock.now += 13 * 24 * 3600
        restarted = FeishuPlatform(settings, clock=clock)
        standin.expire_streams()
        assert await restarted.deliver(TARGET, "whole", key="k1", repeat=True, handle=handle) == handle
        [shown] = standin.shown
        assert (shown.text, shown.is_open) == ("whole", False)
        await restarted.close()


async def test_a_card_whose_stream_cannot_be_ended_is_delivered_all_the_same() -> None:
    standin = FeishuStandin()
    async with api(standin) as platform:
        handle = await platform.begin_stream(TARGET, "a", key="k1")
        standin.faults.append(Fault("settings", "error", 300122))
        assert await platform.deliver(TARGET, "whole", key="k1", repeat=False, handle=handle) == handle
        assert [shown.text for shown in standin.shown] == ["whole"]


async def test_what_cannot_be_read_or_holds_no_id_is_not_known_to_be_sent() -> None:
    standin = FeishuStandin()
    async with api(standin) as platform:
        for fault in (Fault("reply", "status", 200), Fault("reply", "error", 0)):
            standin.faults.append(fault)
            with pytest.raises(DeliveryError) as failed:
                await platform.deliver(TARGET, "x", key="k1", repeat=False)
            assert failed.value.unknown
        standin.faults.append(Fault("token", "error", 0))
        standin.tokens.clear()
        with pytest.raises(DeliveryError, match="no token"):
            client = FeishuClient(platform._settings, clock=FakeClock(CLOCK))
            try:
                await client.call("GET", "bot/v3/info")
            finally:
                await client.close()


async def test_without_its_secret_an_app_answers_nobody_and_says_so() -> None:
    async with api(FeishuStandin(), app_secret=None, bot_open_id="") as platform:
        await platform.start()
        with pytest.raises(DeliveryError, match="FEISHU_APP_SECRET") as failed:
            await platform.deliver(TARGET, "x", key="k1", repeat=False)
        assert failed.value.permanent


# --- buttons, files, accounts, strangers, commands --------------------------------------------------------


def click(value: object, *, user: str = "ou_1", number: int = 1) -> dict[str, Any]:
    event = {
        "operator": {"open_id": user, "tenant_key": "t1"},
        "action": {"value": value, "tag": "button"},
        "context": {"open_message_id": "om_9", "open_chat_id": "oc_g"},
    }
    return {"schema": "2.0", "header": header("card.action.trigger", f"click{number}"), "event": event}


@pytest.mark.parametrize(
    ("decision", "state", "kind"),
    [("approve", "approved", "success"), ("session", "approved", "success"), ("deny", "denied", "info")],
)
async def test_a_button_decides_once_and_gives_way_to_the_decision(
    tmp_path: Path, decision: str, state: str, kind: str
) -> None:
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with tenant(tmp_path, script) as one:
        await one.say("@_user_1 forget it", group=True, mentions=[BOT])
        await one.feishu.until(lambda: any(shown.raw for shown in one.feishu.shown))
        question = next(shown for shown in one.feishu.shown if shown.raw)
        values = [
            element["behaviors"][0]["value"]
            for element in question.raw["body"]["elements"]
            if element["tag"] == "button"
        ]
        value = next(value for value in values if value["decision"] == decision)
        _, answer = await one.post(click(value, user="ou_2"))  # somebody else's click does nothing
        assert answer["toast"]["type"] == "warning"
        _, answer = await one.post(click(value, number=2))
        assert answer["toast"]["type"] == kind
        _, answer = await one.post(click(value, number=3))
        assert answer["toast"]["type"] == "warning"
        await one.answers()
        await one.feishu.until(lambda: len(question.raw["body"]["elements"]) == 1)
        assert database_of(one.claw).read("SELECT state FROM approvals") == [(state,)]


@pytest.mark.parametrize(
    "value", [None, "approve", {}, {"approval_id": "a"}, {"approval_id": "a", "decision": "maybe"}]
)
async def test_a_click_on_something_else_is_taken_and_decides_nothing(tmp_path: Path, value: object) -> None:
    async with tenant(tmp_path, []) as one:
        assert await one.post(click(value)) == (200, {})


def test_a_click_that_cannot_be_stored_is_told_so_and_a_message_comes_again() -> None:
    receipt = Receipt(status="unavailable", code="storage_unavailable")
    clicked = PLATFORM.parse(request(click({"approval_id": "a", "decision": "deny"})))
    said = PLATFORM.parse(request(message("hi", create_time="1767225600000")))
    assert isinstance(clicked, Inbound) and isinstance(said, Inbound)
    assert PLATFORM.answer(receipt, said).status == 503
    toast: Any = PLATFORM.answer(receipt, clicked)
    assert toast.status == 200 and toast.body["toast"]["type"] == "error"


@pytest.mark.parametrize(
    ("kind", "content", "asked"),
    [
        ("image", {"image_key": "img_1"}, "image"),
        ("file", {"file_key": "img_1", "file_name": "../chart.png"}, "file"),
        ("audio", {"file_key": "img_1", "duration": 1000}, "file"),
        ("media", {"file_key": "img_1", "file_name": "a.mp4", "image_key": "img_0"}, "file"),
    ],
)
async def test_a_file_is_in_the_workspace_before_the_model_reads_of_it(
    tmp_path: Path, kind: str, content: dict[str, Any], asked: str
) -> None:
    feishu = FeishuStandin(secret="app-secret")
    feishu.files["img_1"] = b"DATA..."
    async with tenant(tmp_path, [echo], feishu=feishu) as one:
        await one.say("", message_type=kind, content=content)
        await one.answers()
        [resource] = one.called("resource")
        assert (resource["ids"], resource["type"]) == (["om_in1", "img_1"], asked)
        found = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"DATA..."]
        assert len(found) == 1 and "workspace" in found[0].parts


@pytest.mark.parametrize(
    ("kind", "asked"), [("image", "image"), ("file", "file"), ("audio", "file"), ("video", "file")]
)
async def test_a_file_is_asked_for_by_its_message_with_the_token(kind: Any, asked: str) -> None:
    standin = FeishuStandin()
    standin.files["a?b"] = b"DATA..."
    async with api(standin) as platform:
        assert await platform.fetch_file(TARGET, FileRef(kind=kind, id="a?b"), max_bytes=100) == b"DATA..."
        name, body = standin.calls[-1]
        assert (name, body["ids"], body["type"]) == ("resource", ["om_in1", "a?b"], asked)


async def test_a_file_is_asked_for_again_where_the_token_was_taken_back() -> None:
    standin = FeishuStandin()
    standin.files["f1"] = b'{"code":99991663}'
    async with api(standin) as platform:
        for _ in range(2):
            assert await platform.fetch_file(TARGET, FileRef(id="f1"), max_bytes=100) == standin.files["f1"]
            standin.tokens.clear()
        assert [name for name, _ in standin.calls] == ["token", "resource", "resource", "token", "resource"]


async def test_a_file_that_is_too_large_is_not_read_to_its_end() -> None:
    standin = FeishuStandin()
    standin.files["f1"] = b"x" * 1000
    async with api(standin, file_bytes=500) as platform:
        with pytest.raises(DeliveryError, match="larger than 500"):
            await platform.fetch_file(TARGET, FileRef(id="f1"), max_bytes=10_000)


async def test_a_second_app_has_its_own_path_and_secrets(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo], account="acme", encrypt_key="another-key") as one:
        await one.say("hi")
        assert await one.answers() == ["echo: hi"]
        assert database_of(one.claw).read("SELECT channel FROM turns") == [("feishu/acme",)]
        event = posted(FeishuAccount.model_validate(SETTINGS), message("hi"), now=time.time())
        assert (await one.post(event))[0] == 401  # the other app's key
        one.path = "feishu"
        assert (await one.post(message("hi")))[0] == 404


async def test_strangers_get_a_pairing_code_once_where_they_are_not_served(tmp_path: Path) -> None:
    async with tenant(tmp_path, [echo], strangers="pair") as one:
        await one.say("hi", message_id="om_same")
        await one.say("hi", message_id="om_same")
        await one.pair()
        await one.say("hello")
        assert (await one.answers())[1:] == ["echo: hello"]
        assert database_of(one.claw).read("SELECT user_id FROM turns") == [("owner",)]


async def test_strangers_that_are_refused_get_silence(tmp_path: Path) -> None:
    async with tenant(tmp_path, [], strangers="refuse") as one:
        await one.say("hi")
        assert await one.answers(0) == [] and one.turns() == 0


async def test_a_typed_command_is_carried_out_and_told(tmp_path: Path) -> None:
    async with tenant(tmp_path, []) as one:
        await one.say("@_user_1 /tools", group=True, mentions=[BOT])
        await one.feishu.until(lambda: one.feishu.shown)
        assert "calculator" in one.feishu.shown[0].text and one.turns() == 0


# --- signatures, tokens, encryption -----------------------------------------------------------------------


def platform_of(**more: Any) -> FeishuPlatform:
    return FeishuPlatform(FeishuAccount.model_validate({**SETTINGS, **more}), clock=lambda: CLOCK)


PLATFORM = platform_of()
OPEN = platform_of(encrypt_key=None)


def request(
    event: object,
    *,
    app: FeishuPlatform = PLATFORM,
    now: float = CLOCK,
    headers: dict[str, str] | None = None,
) -> WebhookRequest:
    sent = posted(app._settings, event, now=now)  # type: ignore[arg-type]
    return raw_request(sent.body, sent.headers if headers is None else headers)


def raw_request(body: bytes, headers: dict[str, str]) -> WebhookRequest:
    return WebhookRequest(
        method="POST", path="/webhooks/feishu", headers=headers, query={}, body=body, now=CLOCK
    )


def signed(
    body: bytes, *, moment: str = "1767225600", nonce: str = "n", signature: str = ""
) -> dict[str, str]:
    return {
        "X-Lark-Request-Timestamp": moment,
        "X-Lark-Request-Nonce": nonce,
        "X-Lark-Signature": signature or sign(KEY, moment, nonce, body),
    }


def refusal(request: WebhookRequest, app: FeishuPlatform = PLATFORM) -> str:
    with pytest.raises(ProtocolError) as refused:
        app.verify(request)
    return refused.value.code


@pytest.mark.parametrize("vector", vectors_of("feishu"), ids=lambda vector: vector["name"])
def test_known_vectors_hold(vector: dict[str, Any]) -> None:
    if "ciphertext" not in vector:
        return  # of the other kind of bot, which only sends
    key, iv = vector["encrypt_key"], bytes.fromhex(vector.get("iv_hex", ""))
    assert decrypt(key, vector["ciphertext"]) == vector["plaintext"]
    if iv:
        assert encrypt(key, vector["plaintext"], iv=iv) == vector["ciphertext"]
        body = (DATA / vector["body_file"]).read_bytes()
        assert sign(key, vector["timestamp"], vector["nonce"], body) == vector["signature"]


@given(text=st.text(max_size=80), key=st.text(min_size=1, max_size=20).filter(str.isascii))
def test_what_is_encrypted_is_decrypted(text: str, key: str) -> None:
    assert decrypt(key, encrypt(key, text)) == text


@pytest.mark.parametrize("length", range(0, 34))
def test_every_padding_is_taken_away(length: int) -> None:
    assert decrypt(KEY, encrypt(KEY, "x" * length)) == "x" * length


@given(place=st.integers(0), change=st.integers(1, 255), part=st.sampled_from(["body", "headers"]))
def test_any_change_of_a_signed_request_is_refused(place: int, change: int, part: str) -> None:
    sound = request(message("hi"))
    PLATFORM.verify(sound)
    body, headers = bytearray(sound.body), dict(sound.headers)
    if part == "body":
        body[place % len(body)] ^= change
    else:
        name = sorted(name for name in headers if name.startswith("X-"))[place % 3]
        value = bytearray(headers[name].encode())
        value[place % len(value)] ^= change
        headers[name] = value.decode("latin-1")
    assert refusal(raw_request(bytes(body), headers)) == "unauthorized"


@pytest.mark.parametrize(
    "moment", ["", "abc", "-5", "١٢٣", "9" * 30, "1767225299", "1767225901", "1767225600.0"]
)
def test_a_time_that_is_wrong_or_none_is_refused(moment: str) -> None:
    body = request(message("hi")).body
    assert refusal(raw_request(body, signed(body, moment=moment))) == "unauthorized"


def test_the_window_can_be_switched_off() -> None:
    late = request(message("hi"), now=CLOCK - 5000)
    assert refusal(late) == "unauthorized"
    platform_of(window_seconds=0).verify(late)


def test_nothing_but_the_check_of_the_address_comes_unsigned() -> None:
    check = {"type": "url_verification", "token": TOKEN, "challenge": "c1"}
    unsigned = request(check, headers={})
    PLATFORM.verify(unsigned)
    assert PLATFORM.parse(unsigned) == Answer(body={"challenge": "c1"})
    assert refusal(request(message("hi"), headers={})) == "unauthorized"
    assert refusal(request(check | {"more": "x" * 20_000}, headers={})) == "unauthorized"
    assert refusal(request(check | {"token": "no"}, headers={})) == "unauthorized"
    assert refusal(raw_request(json.dumps(check).encode(), {})) == "unauthorized"  # not encrypted
    assert refusal(raw_request(b"{}", {})) == refusal(raw_request(b"\xff", {})) == "unauthorized"


def test_without_an_encrypt_key_the_token_is_the_check() -> None:
    OPEN.verify(request(message("hi"), app=OPEN))
    event = message("hi")
    event["header"]["token"] = "no"
    assert refusal(request(event, app=OPEN), OPEN) == "unauthorized"
    assert refusal(request({"encrypt": "x"}, app=OPEN), OPEN) == "unauthorized"
    assert refusal(raw_request(b"[" * 100_000, {}), OPEN) == "unauthorized"
    assert refusal(raw_request(b"{}", signed(b"{}")), OPEN) == "unauthorized"


def test_with_an_encrypt_key_alone_the_signature_is_the_check() -> None:
    app = platform_of(verification_token=None)
    event = message("hi")
    event["header"]["token"] = "any"
    sound = request(event, app=app)
    app.verify(sound)
    assert isinstance(app.parse(sound), Inbound)
    assert refusal(raw_request(sound.body, signed(sound.body, signature="0" * 64)), app) == "unauthorized"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b"\xff", b'{"encrypt": 5}', b'{"encrypt": "no base64"}', b'{"encrypt": "AAAA"}']
    + [json.dumps({"encrypt": encrypt(KEY, text)}).encode() for text in ("[]", "no json", "[" * 100_000)]
    + [json.dumps({"encrypt": encrypt("another key", "{}")}).encode()],
    ids=count(),
)
def test_what_is_signed_and_cannot_be_read_is_a_bad_message(body: bytes) -> None:
    assert refusal(raw_request(body, signed(body))) == "bad_message"


@given(body=st.binary(max_size=300))
def test_no_bytes_break_the_parser(body: bytes) -> None:
    for app in (PLATFORM, OPEN):
        try:
            app.verify(raw_request(body, signed(body)))
        except ProtocolError as error:
            assert error.code in ("unauthorized", "bad_message")
        try:
            assert isinstance(app.parse(raw_request(body, {})), Inbound | Answer)
        except ProtocolError as error:
            assert error.code == "bad_message"


NAMES = (
    "type schema header event sender sender_id open_id sender_type message message_id chat_id chat_type "
    "message_type content mentions key id name create_time thread_id action value operator approval_id decision "
    "open_message_id open_chat_id msg_type text image_keys ts tag title style challenge"
).split()
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["user", "p2p", "post"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=8),
    max_leaves=20,
)


@given(
    event=JSON, kind=st.sampled_from(["im.message.receive_v1", "card.action.trigger", "message"]), inner=JSON
)
def test_no_object_breaks_the_parser(event: Any, kind: str, inner: Any) -> None:
    said = message("hi")
    said["event"]["message"] |= {"message_type": "post", "content": json.dumps(inner)}
    new = {"schema": "2.0", "header": header(kind, "e1"), "event": event}
    old = {"type": "event_callback", "token": TOKEN, "ts": "1.5", "event": event}
    for body in (new, old, said):
        try:
            assert isinstance(OPEN.parse(request(body, app=OPEN)), Inbound | Answer)
        except ProtocolError as error:
            assert error.code == "bad_message"


# --- content ----------------------------------------------------------------------------------------------


def test_placeholders_of_one_and_two_digits_are_told_apart_and_only_the_bots_is_left_out() -> None:
    names = {"@_user_1": "", "@_user_10": "@张三", "@_user_2": "@李四"}
    content = json.dumps({"text": "@_user_1 问 @_user_10 和 @_user_2, @_all, @_user_7"})
    assert read_content("text", content, names) == ("问 @张三 和 @李四, @all, @_user_7", ())


@pytest.mark.parametrize(
    ("line", "markdown"),
    [
        (
            [{"tag": "text", "text": " a ", "style": ["bold", "italic"]}, {"tag": "text", "text": "b"}],
            "***a*** b",
        ),
        ([{"tag": "text", "text": "x", "style": ["lineThrough", "underline"]}], "~~x~~"),
        ([{"tag": "text", "text": "x "}, {"tag": "text", "text": " ", "style": ["bold"]}], "x"),
        ([{"tag": "at", "user_id": "@_user_2", "user_name": "Bob"}], "@Robert"),
        ([{"tag": "at", "user_id": "@_user_9", "user_name": "Eve"}], "@Eve"),
        ([{"tag": "at", "user_id": "@_all"}], "@all"),
        ([{"tag": "hr"}], "---"),
        ([{"tag": "code_block", "language": "GO", "text": "a\n```\n"}], "````go\na\n```\n````"),
        ([{"tag": "unknown", "text": "kept"}], "kept"),
        ([], ""),
    ],
)
def test_rich_text_becomes_markdown(line: list[dict[str, Any]], markdown: str) -> None:
    content = json.dumps({"content": [line]})
    assert read_content("post", content, {"@_user_2": "@Robert"}) == (markdown, ())


def test_rich_text_by_language_is_read_and_its_media_are_files() -> None:
    content = {"zh_cn": {"title": "T", "content": [[{"tag": "media", "file_key": "f1"}]]}}
    text, files = read_content("post", json.dumps(content), {})
    assert (text, [(file.kind, file.id) for file in files]) == ("# T", [("video", "f1")])


@pytest.mark.parametrize("kind", ["sticker", "share_chat", "merge_forward", "interactive"])
def test_what_cannot_be_read_is_named(kind: str) -> None:
    assert read_content(kind, "{}", {}) == (f"[{kind}]", ())


def test_the_old_form_of_rich_text_and_mentions_is_read() -> None:
    old = {
        "type": "message",
        "app_id": "cli_1",
        "tenant_key": "t1",
        "open_chat_id": "oc_1",
        "chat_type": "private",
        "msg_type": "post",
        "open_id": "ou_1",
        "open_message_id": "om_1",
        "title": "T",
        "text": '<at open_id="ou_2">@Bob</at> look',
        "image_keys": ["img_1"],
    }
    body = {"type": "event_callback", "token": TOKEN, "ts": "1767225600.5", "event": old}
    found: Any = OPEN.parse(request(body, app=OPEN))
    assert found.payload.text == "# T\n\n@Bob look\n\n![image](img_1)"
    assert [file.id for file in found.files] == ["img_1"]
    assert OPEN.parse(request({**body, "event": {"type": "p2p_chat_create"}}, app=OPEN)) == Answer(body={})


@pytest.mark.parametrize("kind", ["im.message.message_read_v1", "im.message.recalled_v1"])
def test_other_events_are_taken(kind: str) -> None:
    event = {"header": header(kind, "e1"), "event": {}}
    assert OPEN.parse(request(event, app=OPEN)) == Answer(body={})


@pytest.mark.parametrize(
    ("markdown", "card"),
    [
        ("# H\n\n**b** `x < y` 1 < 2", "# H\n\n**b** `x < y` 1 < 2"),
        ("a List<String> <div>", "a List&#60;String> &#60;div>"),
        ("<https://a.b/c>", "<https://a.b/c>"),
        ("![alt](http://a.b/c.png)", "[alt](http://a.b/c.png)"),
        ("`![x](y)` and `` a`b<i> ``", "`![x](y)` and `` a`b<i> ``"),
        ("```html\n<div>![a](b)\n```\n<div>", "```html\n<div>![a](b)\n```\n&#60;div>"),
        ("text\r\n\r\n    <b>\r\n", "text\n\n    <b>\n"),
        ("stray ` here\n\n<b> ` there", "stray ` here\n\n&#60;b> ` there"),
    ],
)
def test_markdown_is_shown_by_a_card_as_it_was_meant(markdown: str, card: str) -> None:
    assert to_card(markdown) == card


def test_tables_beyond_what_a_card_takes_are_code() -> None:
    table = "|a|b|\n|-|-|\n|1|2|"
    shown = to_card("\n\ntext\n\n".join([table] * 5))
    assert shown.count(f"```\n{table}\n```") == 2 and shown.count(table) == 5


PINGS = [
    "<at id=all></at>",
    "<AT user_id='ou_1'>x</AT>",
    "< at id=all>",
    "<at\nid=all>",
    "<person id='ou_1'>",
]


@pytest.mark.parametrize("ping", PINGS)
@pytest.mark.parametrize("around", ["{}", "`{}`", "```\n{}\n```", "    {}", "|a|\n|-|\n|{}|", "``{}", "<{}>"])
def test_no_text_of_a_model_calls_people(ping: str, around: str) -> None:
    shown = to_card(around.format(ping)).casefold()
    assert not any(f"<{gap}{tag}" in shown for gap in ("", " ") for tag in ("at", "person"))


@given(text=st.text(alphabet=' "\\\n<>`|-a长👋🏽', max_size=400))
def test_a_card_is_never_larger_than_its_text_was_measured(text: str) -> None:
    encoded = json.dumps(json.dumps(to_card(text), ensure_ascii=False), ensure_ascii=False).encode()
    tables = text.count("|") * 30
    assert len(encoded) <= size(text) + 3 * text.count("<") + tables


@pytest.mark.parametrize(
    "text", ["`" * 30_000, "<at" * 20_000, "![[" * 20_000, "|a|\n|-|\n" * 5_000, '"' * 60_000]
)
def test_hostile_text_is_split_and_shown_in_bounded_pieces(text: str) -> None:
    parts = PLATFORM.split(text)
    assert "".join(parts) == text and all(size(part) <= PART_BYTES for part in parts)
    assert all(to_card(part) for part in parts)


# --- the command ------------------------------------------------------------------------------------------


async def test_simulate_posts_to_the_running_gateway_and_prints_what_feishu_would_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        base = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("FEISHU_APP_ID", "cli_1")
    monkeypatch.setenv("FEISHU_APP_SECRET", "app-secret")
    monkeypatch.setenv("FEISHU_VERIFICATION_TOKEN", TOKEN)
    monkeypatch.setenv("FEISHU_ENCRYPT_KEY", KEY)
    monkeypatch.setenv("FEISHU_API_BASE", base)
    monkeypatch.setattr("miniclaw.cli.webhook_command.QUIET_SECONDS", 0.2)
    monkeypatch.setattr(FeishuApi, "start", lambda self: asyncio.sleep(0))  # nobody is there yet
    arguments = {f"channels.feishu.{name}": value for name, value in {**SETTINGS, "api_base": base}.items()}
    async with running_claw(tmp_path, ScriptedProvider([echo]), web=True, arguments=arguments):
        words = ["webhook", "simulate", "feishu", "--text", "你好", "--with-fake-api"]
        code = await asyncio.to_thread(main, [*words, "--data-dir", str(tmp_path)])
    assert code == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "feishu: 200 {}" and second.startswith("→ reply:om_") and second.endswith(": echo: 你好")
