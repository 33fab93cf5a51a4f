"""What broke other gateways on chat platforms must hold here; each test names the public report that is its reason."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.platforms.client import MARK
from miniclaw.channel.platforms.slack import sign
from miniclaw.channel.standins import dingtalk, feishu, wecom
from miniclaw.channel.standins.base import Event, Fault, Standin
from miniclaw.channel.standins.dingtalk import DingTalkStandin
from miniclaw.channel.standins.feishu import FeishuStandin
from miniclaw.channel.standins.slack import SlackStandin
from miniclaw.channel.standins.wecom import WeComStandin
from miniclaw.channel_settings import FeishuAccount
from miniclaw.config import Clock
from miniclaw.gateway import live_replies
from tests import test_webhook_dingtalk, test_webhook_feishu, test_webhook_slack, test_webhook_wecom
from tests.support.agent import Zap, eventually, zap
from tests.support.claw import running_claw
from tests.support.core import FakeClock
from tests.support.inside import database_of
from tests.support.model import last_user
from tests.test_field_reports import answer

Post = Callable[[Event], Awaitable[int]]
HOURS = 3600.0


@dataclass(frozen=True)
class Place:
    """A platform: its stand-in, our settings for it, and a direct message as it posts it."""

    standin: Callable[[], Standin]
    settings: Callable[[str], dict[str, Any]]
    event: Callable[[str, str, str, float, float], Event]
    """Of the stand-in's URL, the sender, the text, when it was written and when it is posted."""
    send: str
    """The method that shows an answer."""
    repeats: tuple[str, ...] = ()
    """What is seen beside an answer whose sending timed out, where the platform knows no keys."""


def slack_event(url: str, sender: str, text: str, written: float, now: float) -> Event:
    said = {"type": "message", "user": sender, "text": text, "channel": f"D{sender}", "ts": f"{written:.6f}"}
    event = {"type": "event_callback", "team_id": "T1", "event_id": f"Ev{sender}{written}", "event": said}
    body, moment = json.dumps(event).encode(), str(int(now))
    signed = sign(test_webhook_slack.SECRET, moment, body)
    headers = {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": signed}
    return Event(path="slack/events", headers=headers, body=body)


def feishu_event(url: str, sender: str, text: str, written: float, now: float) -> Event:
    ids: dict[str, Any] = {"message_id": f"om_{sender}_{written}", "create_time": f"{written * 1000:.0f}"}
    event = test_webhook_feishu.message(text, user=sender, **ids)
    event["header"]["event_id"] = f"ev_{sender}_{written}"
    app = FeishuAccount.model_validate(test_webhook_feishu.SETTINGS)
    return feishu.posted(app, event, now=now)


def wecom_event(url: str, sender: str, text: str, written: float, now: float) -> Event:
    fields = {"ToUserName": test_webhook_wecom.CORP, "FromUserName": sender, "AgentID": "1000002"}
    said = {
        "CreateTime": f"{written:.0f}",
        "MsgType": "text",
        "Content": text,
        "MsgId": f"{written * 1e6:.0f}",
    }
    return wecom.posted(test_webhook_wecom.SETTINGS, {**fields, **said}, now=now)


def dingtalk_event(url: str, sender: str, text: str, written: float, now: float) -> Event:
    message = test_webhook_dingtalk.message(
        text,
        msgId=f"{sender}{written}",
        senderId=sender,
        senderStaffId=sender,
        conversationId=f"cid{sender}",
        sessionWebhook=f"{url}/robot/sendBySession?session={sender}",
        sessionWebhookExpiredTime=int((written + 24 * HOURS) * 1000),
    )
    return dingtalk.posted(test_webhook_dingtalk.SETTINGS, message, now=now)


PLACES = {
    "slack": Place(
        SlackStandin,
        lambda url: {"signing_secret": test_webhook_slack.SECRET, "bot_token": "xoxb-test", "api_base": url},
        slack_event,
        "chat.postMessage",
    ),
    "feishu": Place(
        FeishuStandin,
        lambda url: {**test_webhook_feishu.SETTINGS, "api_base": url},
        feishu_event,
        "reply",
    ),
    "wecom": Place(
        WeComStandin,
        lambda url: {**test_webhook_wecom.APP, "api_base": url},
        wecom_event,
        "message",
    ),
    "dingtalk": Place(
        lambda: DingTalkStandin(secret=test_webhook_dingtalk.SECRET),
        lambda url: {
            "app_secret": test_webhook_dingtalk.SECRET,
            "reply_hosts": [url.removeprefix("http://")],
        },
        dingtalk_event,
        "send",
        (f"{MARK}echo: hi",),
    ),
}


@dataclass
class Served:
    """A gateway that is a bot of a platform, and the platform."""

    claw: MiniClaw
    http: aiohttp.ClientSession
    platform: Standin
    place: Place
    clock: Clock

    async def say(self, text: str, *, sender: str = "ann", written: float) -> None:
        """The platform posts what somebody wrote then."""
        event = self.place.event(self.platform.url, sender, text, written, self.clock())
        assert self.claw.web is not None
        url = f"http://127.0.0.1:{self.claw.web.port}/webhooks/{event.path}"
        async with self.http.post(
            url, data=event.body, headers=event.headers, params=event.query
        ) as response:
            assert response.status == 200

    def shown(self, sender: str = "ann") -> list[str]:
        """What a person sees."""
        return [one.text for one in self.platform.shown if sender in one.conversation]

    async def all_is_sent(self, turns: int) -> None:
        """Wait until so many turns have ended and their answers were delivered."""
        query = "SELECT COUNT(*) FROM turns WHERE outcome IS NOT NULL"
        left = "SELECT 1 FROM deliveries WHERE state NOT IN ('sent', 'dead')"
        await eventually(
            lambda: (
                database_of(self.claw).read(query)[0][0] >= turns and not database_of(self.claw).read(left)
            )
        )


@asynccontextmanager
async def serving(
    tmp_path: Path, name: str, platform: Standin, script: list[Any], clock: Clock = time.time, **more: Any
) -> AsyncIterator[Served]:
    place = PLACES[name]
    arguments = {
        **{f"channels.{name}.{key}": value for key, value in place.settings(platform.url).items()},
        f"channels.{name}.stream": False,
        "delivery.retry_base": 0.01,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    provider = ScriptedProvider(script)
    async with (
        aiohttp.ClientSession() as http,
        running_claw(tmp_path, provider, web=True, arguments=arguments, clock=clock) as claw,
    ):
        yield Served(claw, http, platform, place, clock)


@pytest.mark.parametrize("name", PLACES)
async def test_an_event_that_a_platform_posts_again_later_or_after_a_restart_is_answered_once(
    tmp_path: Path, name: str
) -> None:
    """whatwewant/chatgpt-for-chatbot-feishu#27, HengWoo/tele-claude-bot#24, openclaw/openclaw#83521."""
    clock = FakeClock()
    written = clock.now
    async with PLACES[name].standin() as platform:
        for later in (0, 61, 300, 6 * HOURS):
            clock.advance(later)
            async with serving(tmp_path, name, platform, [answer], clock) as served:
                await served.claw.turns.forget_old()
                await asyncio.gather(*(served.say("hi", written=written) for _ in range(3)))
                await served.all_is_sent(1)
                assert database_of(served.claw).read("SELECT COUNT(*) FROM turns")[0][0] == 1
        assert served.shown() == ["echo: hi"]


@pytest.mark.parametrize("name", PLACES)
async def test_what_was_written_while_the_gateway_was_down_for_hours_is_answered_when_it_is_posted(
    tmp_path: Path, name: str
) -> None:
    """NousResearch/hermes-agent#87040: a cold start dropped what had waited on the platform meanwhile."""
    clock = FakeClock()
    times = [clock.now + minutes * 60 for minutes in range(6)]
    clock.advance(6 * HOURS)
    async with (
        PLACES[name].standin() as platform,
        serving(tmp_path, name, platform, [answer] * 6, clock) as served,
    ):
        for number, written in enumerate(times):
            await served.say(str(number), written=written)
        await served.all_is_sent(6)
        assert served.shown() == [f"echo: {number}" for number in range(6)]


@pytest.mark.parametrize("name", PLACES)
async def test_of_an_answer_that_was_stored_and_never_confirmed_no_unmarked_repeat_is_seen(
    tmp_path: Path, name: str
) -> None:
    """openclaw/openclaw#22780, agentscope-ai/QwenPaw#2421, NousResearch/hermes-agent#14061."""
    async with (
        PLACES[name].standin() as platform,
        serving(tmp_path, name, platform, [answer], delivery__timeout=0.5) as served,
    ):
        platform.faults.append(Fault(PLACES[name].send, "hang", stored=True))
        await served.say("hi", written=time.time())
        await served.all_is_sent(1)
        first, *repeats = served.shown()
        assert not platform.faults and first == "echo: hi" and set(repeats) == set(PLACES[name].repeats)


async def introduce(messages: list[Message]) -> LLMResponse:
    """Keep a name in the memory and in a file; asked for it, tell all that can be known."""
    text = last_user(messages)
    if messages[-1]["role"] == "tool":
        memories = str(messages[0]["content"]).partition("<memories>")[2]
        results = [str(one["content"]) for one in messages if one["role"] == "tool"]
        return LLMResponse(text="noted" if text.startswith("my") else f"{memories} {results[-2:]}")
    if text.startswith("my"):
        calls = (
            ("memory_save", {"content": f"the user says: {text}"}),
            ("write_file", {"path": "USER.md", "content": text}),
        )
    else:
        calls = (("list_files", {}), ("read_file", {"path": "USER.md"}))
    return LLMResponse(
        tool_calls=tuple(ToolCall.of(f"{name}_1", name, given) for name, given in calls), finish="tool_calls"
    )


@pytest.mark.parametrize("name", PLACES)
async def test_people_who_write_to_one_bot_share_neither_memories_nor_files(
    tmp_path: Path, name: str
) -> None:
    """HKUDS/nanobot#3100, HKUDS/nanobot#2836: one workspace and one USER.md for all chats told private facts."""
    names = {"ann": "Annabel", "bob": "Robert"}
    script = [introduce] * 8
    async with (
        PLACES[name].standin() as platform,
        serving(tmp_path, name, platform, script, approval__allow=("write_file", "memory_save")) as served,
    ):
        now = time.time()
        for number, text in enumerate(("my name is {}", "what is my name?")):
            said = (
                served.say(text.format(given), sender=person, written=now + number + (person == "bob") / 2)
                for person, given in names.items()
            )
            await asyncio.gather(*said)
            await served.all_is_sent(2 * number + 2)
        for person, other in (("ann", "bob"), ("bob", "ann")):
            noted, told = served.shown(person)
            assert noted.startswith("noted") and told.count(names[person]) == 2 and names[other] not in told


@pytest.mark.parametrize("name", ["slack", "feishu"])
async def test_a_streamed_answer_whose_first_text_is_confirmed_slowly_is_seen_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NousResearch/hermes-agent#81052, NousResearch/hermes-agent#103068.

    Updates are given up at once here; the first text has as long as a whole answer, so it is waited for.
    """
    monkeypatch.setattr(live_replies, "CALL_SECONDS", 0.0)
    text = "word " * 30
    script = [LLMResponse(text=text)]
    if name == "slack":
        async with test_webhook_slack.workspace(tmp_path, script, typing=1) as slack:
            await slack.say(f"<@{test_webhook_slack.BOT}> hi")
            assert await slack.answers() == [text]
            assert "chat.startStream" in [method for method, _ in slack.slack.calls]
    else:
        async with test_webhook_feishu.tenant(tmp_path, script, typing=1) as feishu_app:
            await feishu_app.say("hi")
            assert await feishu_app.answers() == [text]
            assert feishu_app.called("card")


async def test_a_reply_in_a_thread_belongs_to_its_thread_alone_however_slack_tells_of_it(
    tmp_path: Path,
) -> None:
    """openclaw/openclaw#24417: the session of the channel and that of the thread both answered."""
    events = (
        {"type": "app_mention"},
        {"type": "message"},
        {"type": "message", "subtype": "thread_broadcast"},
    )
    async with test_webhook_slack.workspace(tmp_path, [answer] * 3, stream=False) as one:
        root = await one.say(f"<@{test_webhook_slack.BOT}> root")
        for ts, text, kinds in (
            ("8.1", f"<@{test_webhook_slack.BOT}> named", events),
            ("8.2", "unnamed", events[1:]),
        ):
            more = {"ts": ts, "thread_ts": root}
            told = (one.say(text, event_id=f"Ev{ts}{n}", **more, **kind) for n, kind in enumerate(kinds))
            await asyncio.gather(*told)
        assert await one.answers(3) == ["echo: root", "echo: named", "echo: unnamed"]
        assert one.turns() == 3 and {shown.thread for shown in one.slack.shown} == {root}
        assert database_of(one.claw).read("SELECT COUNT(*) FROM sessions")[0][0] == 1


async def test_a_turn_that_came_to_its_limit_says_on_a_platform_that_it_is_not_done(tmp_path: Path) -> None:
    """HKUDS/nanobot#2487: a turn at its limit was reported as done, and its last words were dropped."""
    async with (
        SlackStandin() as platform,
        serving(tmp_path, "slack", platform, [zap("a"), answer], agent__max_iterations=1) as served,
    ):
        served.claw.registry.register(Zap("read"))
        await served.say("do it", written=time.time())
        await served.all_is_sent(1)
        [shown] = served.shown()
        assert shown.startswith("This turn is not finished") and "zapped a" in shown
