"""Slack: what is signed and said comes in once, and one answer goes out in its thread, whatever Slack does."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import LLMResponse, Message, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.platforms.client import MARK
from miniclaw.channel.platforms.slack import SlackPlatform, sign
from miniclaw.channel.platforms.slack_api import SlackApi
from miniclaw.channel.platforms.slack_markup import decode, mentions, without_pings
from miniclaw.channel.standins.base import Event, Fault, Shown
from miniclaw.channel.standins.slack import SlackStandin
from miniclaw.channel.webhook import Answer, WebhookChannel, WebhookRequest
from miniclaw.channel_settings import SlackAccount
from miniclaw.cli import main
from miniclaw.errors import DeliveryError, ProtocolError, StorageError
from miniclaw.gateway.protocol import CommandPayload, Inbound, MessageType, ReplyTarget
from miniclaw.session.outbox import Outbox
from tests.support.agent import DictatedProvider, eventually
from tests.support.claw import running_claw
from tests.support.core import text_message
from tests.support.inside import database_of
from tests.support.model import last_user
from tests.support.webhooks import Site, Typing, call, echo, platform_claw

SECRET = "5f0c1d2e3b4a59687786a5b4c3d2e1f0"
BOT = "U0MINICLAW1"


class Workspace(Site[SlackStandin]):
    """Whoever writes in Slack."""

    @property
    def slack(self) -> SlackStandin:
        return self.standin

    async def post(self, kind: str, body: bytes, content_type: str = "application/json") -> tuple[int, str]:
        moment = str(int(time.time()))
        headers = {
            "X-Slack-Request-Timestamp": moment,
            "X-Slack-Signature": sign(SECRET, moment, body),
            "Content-Type": content_type,
        }
        return await self.deliver(Event(path="", headers=headers, body=body), f"{self.path}/{kind}")

    async def say(self, text: str, *, channel: str = "C1", user: str = "U1", **event: Any) -> str:
        """Somebody writes; the `ts` of the message."""
        self._number += 1
        ts = event.pop("ts", f"1767225600.{self._number:06}")
        kind = "im" if channel.startswith("D") else "channel"
        body = {
            "type": "event_callback",
            "team_id": "T1",
            "event_id": event.pop("event_id", f"Ev{self._number}"),
            "event": {
                "type": "message",
                "user": user,
                "text": text,
                "channel": channel,
                "channel_type": kind,
                "ts": ts,
                **event,
            },
        }
        status, answer = await self.post("events", json.dumps(body).encode())
        assert (status, answer) == (200, "")
        return str(ts)


@asynccontextmanager
async def workspace(
    tmp_path: Path,
    script: list[Any],
    *,
    slack: SlackStandin | None = None,
    account: str = "",
    typing: int = 0,
    begins: str = "",
    **more: Any,
) -> AsyncIterator[Workspace]:
    """`begins`: the first piece of the answer, shown by itself."""
    async with slack or SlackStandin(bot_user_id=BOT) as standin:
        one = {"signing_secret": SECRET, "bot_token": "xoxb-test", "api_base": standin.url, **more}
        one["file_hosts"] = [standin.url.removeprefix("http://")]
        provider = Typing(script, standin, waits=typing) if typing else ScriptedProvider(script)
        if begins:
            provider = Typing(script, standin, waits=1, methods=["chat.startStream"], piece=len(begins))
        async with platform_claw(tmp_path, "slack", one, provider, name=account) as (claw, http):
            yield Workspace(claw, standin, http, f"slack/{account}" if account else "slack")


# --- the way of an answer ---------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of a stream without a pause between them."""
    monkeypatch.setattr(SlackPlatform, "stream_seconds", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_mention_is_answered_in_its_thread_by_a_stream_of_real_markdown(tmp_path: Path) -> None:
    text = "**bold** and `code`, " * 5
    async with workspace(tmp_path, [LLMResponse(text=text)], typing=9) as one:
        ts = await one.say(f"<@{BOT}> hi")
        assert await one.answers() == [text]
        [shown] = one.slack.shown
        assert (shown.conversation, shown.thread, shown.is_open) == ("C1", ts, False)
        assert one.slack.statuses[0]["thread_ts"] == ts
        methods = [method for method, _ in one.slack.calls if method.startswith("chat.")]
        assert methods[:2] == ["chat.startStream", "chat.appendStream"] and "chat.stopStream" in methods


async def test_a_direct_message_is_answered_without_a_thread(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo]) as one:
        await one.say("hi", channel="D1")
        assert await one.answers() == ["echo: hi"]
        assert one.slack.shown[0].thread is None


async def test_a_workspace_without_streams_sees_the_same_answer(tmp_path: Path) -> None:
    slack = SlackStandin(bot_user_id=BOT)
    slack.streams = False
    async with workspace(tmp_path, [echo], slack=slack) as one:
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == ["echo: hi"]


async def test_without_streaming_one_message_is_posted_and_never_changed(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo], stream=False) as one:
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == ["echo: hi"]
        assert [method for method, _ in one.slack.calls if method.startswith("chat.")] == ["chat.postMessage"]


async def test_a_long_answer_is_posted_in_parts_in_order(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 200 for number in range(40))
    async with workspace(tmp_path, [LLMResponse(text=text)]) as one:
        await one.say(f"<@{BOT}> hi")
        parts = await one.answers()
        assert len(parts) > 2 and "".join(parts) == text
        assert {shown.thread for shown in one.slack.shown} == {"1767225600.000001"}


@pytest.mark.parametrize("way", ["stream", "post", "command"])
async def test_an_answer_full_of_pings_fits_and_calls_nobody(tmp_path: Path, way: str) -> None:
    script = [LLMResponse(text="<!here>" * 4000)]
    async with workspace(tmp_path, script, typing=int(way == "stream"), stream=way == "stream") as one:
        await (command(one, "hi") if way == "command" else one.say("hi", channel="D1"))
        assert "".join(await one.answers()) == "<\u200b!here>" * 4000


async def test_a_part_of_blanks_alone_is_not_posted(tmp_path: Path) -> None:
    text = "a" * 10_990 + " " * 23_000 + "b"
    async with workspace(tmp_path, [LLMResponse(text=text)]) as one:
        await one.say("hi", channel="D1")
        assert [part.strip()[:1] for part in await one.answers()] == ["a", "b"]
        assert {state for (state,) in database_of(one.claw).read("SELECT state FROM deliveries")} == {"sent"}


@pytest.mark.parametrize("strangers", ["serve", "pair", "refuse"])
async def test_what_people_say_among_themselves_is_none_of_the_bots_business(
    tmp_path: Path, strangers: str
) -> None:
    async with workspace(tmp_path, [], strangers=strangers) as one:
        for text in ("hello folks", "!help", "!remember x", "!approve", "!model"):
            await one.say(text, thread_ts="9.1")
        assert await one.answers(0) == [] and one.turns() == 0
        assert database_of(one.claw).read("SELECT user_id FROM users") == [("owner",)]


async def test_the_thread_goes_on_without_a_mention_and_other_threads_do_not_begin(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo, echo]) as one:
        await one.say("not for the bot", thread_ts="1.1")
        root = await one.say(f"<@{BOT}> first")
        await one.say("second", thread_ts=root)
        await one.say("somebody else's", channel="C2", thread_ts=root)
        assert await one.answers(2) == ["echo: first", "echo: second"]
        assert one.turns() == 2
        sessions = database_of(one.claw).read("SELECT DISTINCT session_id FROM turns")
        assert len(sessions) == 1


@pytest.mark.parametrize("order", [("app_mention", "message"), ("message", "app_mention")])
async def test_a_mention_that_arrives_as_two_events_is_one_turn(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    async with workspace(tmp_path, [echo]) as one:
        for number, kind in enumerate(order):
            await one.say(f"<@{BOT}> hi", type=kind, ts="5.5", event_id=f"EvX{number}")
        assert await one.answers() == ["echo: hi"]
        assert one.turns() == 1


@pytest.mark.parametrize(
    "event",
    [
        {"subtype": "message_changed", "message": {"text": "x"}},
        {"subtype": "message_deleted"},
        {"subtype": "channel_join"},
        {"subtype": "bot_message", "bot_id": "B9"},
        {"bot_id": "B9"},
        {"user": BOT},
        {"hidden": True},
        {"edited": {"user": "U1", "ts": "1.2"}},
        {"type": "reaction_added"},
    ],
)
async def test_what_nobody_said_starts_nothing(tmp_path: Path, event: dict[str, Any]) -> None:
    async with workspace(tmp_path, [], bot_user_id=BOT) as one:
        await one.say(f"<@{BOT}> hi", **{"user": "U1", **event})
        assert one.turns() == 0


async def test_people_are_users_of_their_own_and_a_group_has_its_own_memory(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo] * 3) as one:
        await one.say("a", channel="D1", user="U1")
        await one.say("b", channel="D2", user="U2")
        await one.say(f"<@{BOT}> c", channel="C1", user="U1")
        await one.answers(3)
        rows = database_of(one.claw).read(
            "SELECT t.user_id, s.user_id FROM turns t JOIN sessions s USING (session_id) ORDER BY n"
        )
        (ann, ann_scope), (bob, bob_scope), (sender, group) = [tuple(row) for row in rows]
        assert ann == ann_scope == sender and bob == bob_scope != ann
        assert group.startswith("grp_")


async def test_a_reminder_is_answered_in_the_thread_where_it_was_made_and_belongs_to_the_group(
    tmp_path: Path,
) -> None:
    made = call("schedule", text="stand up", every="1h")
    allowed: dict[str, Any] = {"approval.allow": ("schedule",)}
    async with workspace(tmp_path, [made, echo, echo, echo], **allowed) as one:
        await one.say(f"<@{BOT}> remind us", channel="C1", ts="1767225600.000100")
        await one.answers(1)
        await database_of(one.claw).write(lambda c: c.execute("UPDATE timers SET next_at = 1").rowcount)
        one.claw.timers.wake()
        assert "stand up" in (await one.answers(2))[1]
        assert {(m.conversation, m.thread) for m in one.slack.shown} == {("C1", "1767225600.000100")}
        ((group,),) = database_of(one.claw).read("SELECT scope FROM timers")
        assert [s.user_id for s in await one.claw.sessions.list()] == [group, group]
        await one.say(f"<@{BOT}> /timers cancel nonsense", channel="C1", user="U2")
        assert "no such timer" in (await one.answers(2))[-1]
        timer_id = one.claw.timers.list(group)[0].timer_id
        await one.say(f"<@{BOT}> /timers cancel {timer_id}", channel="C1", user="U2")
        await eventually(lambda: len(one.slack.shown) == 4)
        assert one.claw.timers.list(group) != []
        await one.say(f"<@{BOT}> /timers cancel {timer_id}", channel="C1")
        await eventually(lambda: one.claw.timers.list(group) == [])


async def test_an_answer_tells_what_it_remembered_in_private_and_recalls_nothing_in_a_group(
    tmp_path: Path,
) -> None:
    saves = LLMResponse(
        tool_calls=(ToolCall.of("c1", "memory_save", {"content": "Lives in Hangzhou", "context": ""}),)
    )
    async with workspace(tmp_path, [saves, LLMResponse(text="ok"), echo, echo]) as one:
        await one.say("remember that I live in Hangzhou", channel="D1")
        assert await one.answers(1) == ["ok\n\n(1 memory saved)"]
        await one.say("who lives in Hangzhou", channel="D1")
        assert (await one.answers(2))[1] == "echo: who lives in Hangzhou\n\n(1 memory used)"
        await one.say(f"<@{BOT}> who lives in Hangzhou", channel="C1")
        assert (await one.answers(3))[2] == "echo: who lives in Hangzhou"


# --- when Slack does not do what it should ----------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("chat.postMessage", "status", 429, retry_after=0)],
        [Fault("chat.postMessage", "error", "ratelimited")],
        [Fault("chat.postMessage", "status", 500)],
        [Fault("chat.postMessage", "status", 500, stored=True)],
        [Fault("chat.postMessage", "cut", stored=True)],
        [Fault("chat.postMessage", "error", "internal_error", stored=True)],
        [Fault("chat.postMessage", "cut"), Fault("chat.postMessage", "status", 503, stored=True)],
    ],
)
async def test_one_answer_is_seen_whatever_becomes_of_the_call(
    tmp_path: Path, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.channel.platforms.slack_api.RATE_LIMIT_SECONDS", 0.01)
    async with workspace(tmp_path, [echo, echo], stream=False) as one:
        one.slack.faults.extend(faults)
        await one.say(f"<@{BOT}> one")
        await one.say(f"<@{BOT}> two")
        shown = await one.answers(2)
        assert [text.removeprefix("（可能重复 / possibly a repeat）\n") for text in shown] == [
            "echo: one",
            "echo: two",
        ]
        if all(fault.stored for fault in faults):
            assert shown == ["echo: one", "echo: two"]  # found again by its key: not even marked


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "method", ["chat.startStream", "chat.appendStream", "chat.stopStream", "chat.update"]
)
@pytest.mark.usefixtures("at_once")
async def test_a_stream_that_is_disturbed_anywhere_ends_as_one_whole_answer(
    tmp_path: Path, method: str, stored: bool
) -> None:
    typing = {"chat.startStream": 1, "chat.appendStream": 2}.get(method, 9)
    script = [LLMResponse(text="a long answer in words " * 5)]
    async with workspace(tmp_path, script, typing=typing) as one:
        one.slack.faults.append(Fault(method, "status", 500, stored=stored))
        await one.say(f"<@{BOT}> hi")
        shown = await one.answers()
        whole = "a long answer in words " * 5
        assert shown[-1].endswith(whole)
        unmarked = [text for text in shown if text == whole]
        assert len(unmarked) <= 1 and not any(
            message.is_open and message.text == whole for message in one.slack.shown
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thread_that_is_gone_gives_way_to_the_channel(tmp_path: Path, stream: bool) -> None:
    async with workspace(tmp_path, [echo], stream=stream, typing=int(stream)) as one:
        one.slack.faults += [
            Fault(method, "error", "thread_not_found") for method in ("chat.startStream", "chat.postMessage")
        ]
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == ["echo: hi"]
        assert [(shown.conversation, shown.thread) for shown in one.slack.shown] == [("C1", None)]


@pytest.mark.parametrize(
    "code", ["channel_not_found", "not_in_channel", "is_archived", "invalid_auth", "msg_too_long"]
)
async def test_an_error_for_good_is_a_dead_letter_at_once(tmp_path: Path, code: str) -> None:
    async with workspace(tmp_path, [echo], stream=False) as one:
        one.slack.faults.append(Fault("chat.postMessage", "error", code))
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == []
        [[state, error]] = database_of(one.claw).read("SELECT state, error FROM deliveries")
        assert state == "dead" and code in error


@pytest.mark.parametrize(
    "fault",
    [
        Fault("chat.startStream", "cut", stored=True),
        Fault("chat.startStream", "status", 502, stored=True),
        Fault("chat.startStream", "status", 502),
        Fault("chat.startStream", "hang", stored=True),
    ],
)
@pytest.mark.usefixtures("at_once")
async def test_a_stream_of_which_slack_did_not_tell_is_the_only_answer_and_ends(
    tmp_path: Path, fault: Fault
) -> None:
    text = "a **long** answer, in words " * 9
    quick: dict[str, Any] = {"delivery.timeout": 0.3} if fault.kind == "hang" else {}
    script = [LLMResponse(text="a **long** answer"), LLMResponse(text=text)]  # one like the other
    async with workspace(tmp_path, script, typing=4, **quick) as one:
        await one.say(f"<@{BOT}> hi", ts="5.5")
        await one.answers(1)
        one.slack.faults.append(fault)
        await one.say("go on", thread_ts="5.5")
        assert await one.answers(2) == ["a **long** answer", text]
        assert "chat.startStream" in [name for name, _ in one.slack.calls]
        assert not any(shown.is_open for shown in one.slack.shown)


@pytest.mark.parametrize("begins", ["# ", "**", "👋 "])
@pytest.mark.usefixtures("at_once")
async def test_a_stream_that_begins_without_letters_is_the_only_answer_too(
    tmp_path: Path, begins: str
) -> None:
    text = f"{begins}Words** and words"
    async with workspace(tmp_path, [LLMResponse(text=text)], begins=begins) as one:
        one.slack.faults.append(Fault("chat.startStream", "cut", stored=True))
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == [text]
        assert not any(shown.is_open for shown in one.slack.shown)


@pytest.mark.parametrize(
    "looked",
    [
        None,
        Fault("conversations.replies", "error", "missing_scope"),
        Fault("conversations.replies", "error", "ratelimited"),
        Fault("conversations.replies", "status", 403),
        Fault("conversations.replies", "status", 429, retry_after=0),
    ],
)
@pytest.mark.usefixtures("at_once")
async def test_an_answer_whose_stream_is_not_known_again_is_marked(
    tmp_path: Path, looked: Fault | None
) -> None:
    class Rewriting(SlackStandin):
        def _as_listed(self, one: Any) -> dict[str, Any]:
            return {**super()._as_listed(one), "text": one.text.replace("👋", ":wave:")}

    async with workspace(
        tmp_path, [LLMResponse(text="👋 Hello")], slack=Rewriting(bot_user_id=BOT), begins="👋 "
    ) as one:
        one.slack.faults += [Fault("chat.startStream", "cut", stored=True), *([looked] * 2 if looked else [])]
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == ["👋 ", f"{MARK}👋 Hello"]


@pytest.mark.parametrize("method", ["chat.appendStream", "chat.stopStream"])
async def test_a_stream_of_another_turn_is_never_taken_for_ones_own(method: str) -> None:
    target = ReplyTarget(conversation="C1", thread="5.5", message_id="5.5", account="T1", sender="U1")
    async with SlackStandin(bot_user_id=BOT) as slack:
        settings = {"signing_secret": SECRET, "bot_token": "xoxb-test", "api_base": slack.url}
        api = SlackApi(SlackAccount.model_validate({**settings, "bot_user_id": BOT}))
        handle = await api.begin_stream(target, "Sure, it", key="one.0")
        assert handle is not None
        slack.faults += [Fault(method, "status", 500), Fault("chat.startStream", "status", 500)]
        with pytest.raises(DeliveryError):
            await (
                api.update_stream(target, handle, "Sure, it is")
                if method == "chat.appendStream"
                else api.deliver(target, "Sure, it is", key="one.0", repeat=False, handle=handle)
            )
        with pytest.raises(DeliveryError, match="no stream is there") as failed:
            await api.begin_stream(target, "Sure, it is", key="two.0")
        assert not failed.value.unknown
        await api.deliver(target, "Sure, it was", key="one.0", repeat=True, handle=handle)
        await api.close()
        assert [(shown.text, shown.is_open) for shown in slack.shown] == [("Sure, it was", False)]


async def test_after_a_restart_the_stream_of_another_answer_is_known_by_its_row(tmp_path: Path) -> None:
    target = ReplyTarget(conversation="C1", thread="5.5", message_id="5.5", account="T1", sender="U1")
    model = DictatedProvider()
    model.say("Sure, ")
    async with SlackStandin(bot_user_id=BOT) as slack:
        settings = {"signing_secret": SECRET, "bot_token": "xoxb-test", "api_base": slack.url}
        async with platform_claw(tmp_path, "slack", settings, model) as (claw, http):
            await Workspace(claw, slack, http, "slack").say(f"<@{BOT}> hi", ts="5.5")
            await eventually(lambda: database_of(claw).read("SELECT 1 FROM deliveries WHERE handle != ''"))
            account = SlackAccount.model_validate({**settings, "bot_user_id": BOT})
            restarted = SlackApi(account, held=claw.dispatcher.held)
            slack.faults.append(Fault("chat.startStream", "status", 500))
            with pytest.raises(DeliveryError, match="no stream is there"):
                await restarted.begin_stream(target, "Sure, two", key="two.0")
            await restarted.close()
            model.end("it is")
            await eventually(lambda: [one.text for one in slack.shown] == ["Sure, it is"])


@pytest.mark.parametrize("fault", [("status", 429), ("status", 500), ("error", "ratelimited")])
async def test_a_stream_that_was_found_again_stays_this_answers_own(fault: tuple[Any, Any]) -> None:
    target = ReplyTarget(conversation="C1", thread="5.5", message_id="5.5", account="T1", sender="U1")
    async with SlackStandin(bot_user_id=BOT) as slack:
        settings = {"signing_secret": SECRET, "bot_token": "xoxb-test", "api_base": slack.url}
        account = SlackAccount.model_validate({**settings, "bot_user_id": BOT})
        killed, api = SlackApi(account), SlackApi(account)
        await killed.begin_stream(target, "Sure, it", key="one.0")
        await killed.close()
        slack.faults.append(Fault("chat.stopStream", *fault))
        with pytest.raises(DeliveryError):
            await api.deliver(target, "Sure, it is", key="one.0", repeat=True)
        await api.deliver(target, "Sure, it is", key="one.0", repeat=True)
        await api.close()
        assert [(one.text, one.is_open) for one in slack.shown] == [("Sure, it is", False)]


async def test_an_answer_whose_growing_message_was_deleted_is_said_anew(tmp_path: Path) -> None:
    async with workspace(tmp_path, [LLMResponse(text="Sure, it is")], begins="Sure, ") as one:

        async def deleted() -> None:
            await one.slack.until(lambda: one.slack.shown)
            one.slack.shown.clear()

        deleting = asyncio.create_task(deleted())
        await one.say(f"<@{BOT}> hi")
        await deleting
        assert await one.answers() == ["Sure, it is"]


async def test_where_there_is_no_thread_no_message_is_taken_for_a_stream(tmp_path: Path) -> None:
    async with SlackStandin(bot_user_id=BOT) as slack:
        settings = {"signing_secret": SECRET, "bot_token": "xoxb-test", "api_base": slack.url}
        api = SlackApi(SlackAccount.model_validate({**settings, "bot_user_id": BOT}))
        target = ReplyTarget(conversation="C1", account="T1", sender="U1")
        slack.show(Shown("5.9", "C1", None, "Done", False, {}))  # of another program with the same token
        await api.deliver(target, "Done: 3 files moved.", key="one.0", repeat=True)
        await api.close()
        assert [one.text for one in slack.shown] == ["Done", f"{MARK}Done: 3 files moved."]


@pytest.mark.parametrize("kind", ["status", "cut"])
async def test_an_answer_that_went_to_the_channel_for_want_of_its_thread_is_found_there(
    tmp_path: Path, kind: Any
) -> None:
    class Gone(SlackStandin):
        def _answer(self, method: str, body: dict[str, Any]) -> dict[str, Any] | str:
            is_gone = body.get("thread_ts") or method == "conversations.replies"
            return "thread_not_found" if is_gone else super()._answer(method, body)

        def fault_of(self, method: str) -> Fault | None:
            is_second = [name for name, _ in self.calls].count("chat.postMessage") == 2
            return super().fault_of(method) if is_second else None

    async with workspace(tmp_path, [echo], slack=Gone(bot_user_id=BOT), stream=False) as one:
        one.slack.faults.append(Fault("chat.postMessage", kind, 500, stored=True))
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == ["echo: hi"]


# --- slash commands, buttons, files, accounts -------------------------------------------------------------


async def command(one: Workspace, text: str, trigger: str = "t1") -> tuple[int, str]:
    form = {
        "team_id": "T1",
        "channel_id": "C1",
        "user_id": "U1",
        "command": "/claw",
        "text": text,
        "response_url": f"{one.slack.url}/hooks/h1",
        "trigger_id": trigger,
    }
    return await one.post("commands", urlencode(form).encode(), "application/x-www-form-urlencoded")


async def test_a_slash_command_is_answered_at_its_response_url_once(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo]) as one:
        assert await command(one, "sum up café &amp; tea") == (200, "")
        assert await command(one, "sum up café &amp; tea") == (200, "")
        assert await one.answers() == ["echo: sum up café & tea"]
        assert one.slack.shown[0].conversation == "hook:h1" and one.turns() == 1


async def test_a_used_up_response_url_gives_way_to_the_channel(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo]) as one:
        one.slack.faults.append(Fault("hook", "status", 404))
        await command(one, "hi")
        assert await one.answers() == ["echo: hi"]
        assert one.slack.shown[0].conversation == "C1"


async def test_a_typed_command_is_carried_out_and_told(tmp_path: Path) -> None:
    async with workspace(tmp_path, []) as one:
        await command(one, "/tools")
        [text] = await one.answers(0) or [""]
        await one.slack.until(lambda: one.slack.shown)
        text = one.slack.shown[0].text
        assert "calculator" in text and one.turns() == 0


async def test_what_a_command_showed_goes_with_its_session_and_its_user(tmp_path: Path) -> None:
    word = "Zarniwoop"

    async def noted(messages: list[Message]) -> LLMResponse:
        return LLMResponse(text=f"noted {word}")

    async with workspace(tmp_path, [noted] * 2, stream=False) as one:

        def texts() -> list[Any]:
            query = "SELECT state, text, user_id FROM deliveries WHERE n = 0 ORDER BY created_at"
            return database_of(one.claw).read(query)

        async def says(text: str, *, arrives: bool) -> None:
            count = len(texts())
            if not arrives:
                one.slack.faults.append(Fault("chat.postMessage", "error", "channel_not_found"))
            await one.say(f"<@{BOT}> {text}", channel="D1")
            await eventually(lambda: [row[0] for row in texts()[count:]] == ["sent" if arrives else "dead"])

        for number in range(2):
            await one.say(f"<@{BOT}> it is {word}", channel="D1")
            await one.answers()
            (session,) = await one.claw.sessions.list()
            user = session.user_id
            await says("!history", arrives=True)
            assert word in one.slack.shown[-1].text and texts()[-1] == ("sent", "", user)
            for command in ("!history", "!sessions", f"!rename {word}", "!fork"):
                await says(command, arrives=False)
                assert word in texts()[-1][1] and texts()[-1][2] == user
            await says("!memories", arrives=False)
            if number == 0:
                for session in await one.claw.sessions.list():
                    await one.claw.commands.sessions.delete(user, session.session_id)
                assert [row[0] for row in texts()] == ["sent", "dead"]
                await database_of(one.claw).write(lambda c: c.execute("DELETE FROM deliveries").rowcount)
        admin = text_message(user_id="owner", channel="library", msg_id="wipe")
        wipe = CommandPayload(name="users", args={"action": "remove", "user_id": user, "wipe": True})
        receipt = await one.claw.router.route(
            admin.model_copy(update={"msg_type": MessageType.COMMAND, "payload": wipe})
        )
        assert receipt.status == "answered", receipt
        assert texts() == []


async def click(one: Workspace, value: str, *, user: str = "U1", number: int = 1) -> tuple[int, str]:
    payload = {
        "type": "block_actions",
        "team": {"id": "T1"},
        "user": {"id": user},
        "trigger_id": f"t{number}",
        "actions": [{"action_id": "miniclaw_approve", "value": value, "action_ts": f"{number}.1"}],
    }
    body = urlencode({"payload": json.dumps(payload)}).encode()
    return await one.post("interactions", body, "application/x-www-form-urlencoded")


@pytest.mark.parametrize(("decision", "ok"), [("approve", True), ("deny", False)])
async def test_a_button_decides_once_and_gives_way_to_the_decision(
    tmp_path: Path, decision: str, ok: bool
) -> None:
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with workspace(tmp_path, script) as one:
        await one.say(f"<@{BOT}> forget it")
        await one.slack.until(lambda: any(shown.raw.get("blocks") for shown in one.slack.shown))
        question = next(shown for shown in one.slack.shown if shown.raw.get("blocks"))
        buttons = question.raw["blocks"][1]["elements"]
        value = next(button["value"] for button in buttons if button["value"].endswith(decision))
        assert await click(one, value, user="U2") == (200, "")  # somebody else's click does nothing
        assert await click(one, value) == (200, "")
        assert await click(one, value, number=2) == (200, "")
        await one.answers()
        await one.slack.until(lambda: len(question.raw["blocks"]) == 1)
        [[state]] = database_of(one.claw).read("SELECT state FROM approvals")
        assert state == ("approved" if ok else "denied")


async def test_a_slash_commands_question_is_seen_where_the_bot_may_not_post(tmp_path: Path) -> None:
    class Outside(SlackStandin):
        def _answer(self, method: str, body: dict[str, Any]) -> dict[str, Any] | str:
            return "not_in_channel" if method == "chat.postMessage" else super()._answer(method, body)

    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with workspace(tmp_path, script, slack=Outside(bot_user_id=BOT)) as one:
        await command(one, "forget it")
        await one.slack.until(lambda: one.slack.shown)
        [question] = one.slack.shown
        [asked] = [line for line in question.text.splitlines() if line.startswith("!approve ")]
        await command(one, asked.partition("  ")[0], "t2")
        assert "done" in await one.answers()
        assert sum("please confirm" in shown.text for shown in one.slack.shown) == 1


async def test_a_question_that_a_restart_leaves_open_is_shown_once_and_answered_by_text(
    tmp_path: Path,
) -> None:
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with SlackStandin(bot_user_id=BOT) as standin:
        account = {"signing_secret": SECRET, "bot_token": "xoxb-test", "api_base": standin.url}
        async with platform_claw(tmp_path, "slack", account, ScriptedProvider(script)) as (claw, http):
            one = Workspace(claw, standin, http, "slack")
            await one.say("forget it", channel="D1")
            await standin.until(lambda: standin.shown)
        [question] = standin.shown
        short = question.raw["blocks"][1]["elements"][0]["value"].partition(":")[0][-6:]
        assert f"!approve {short}" in question.raw["blocks"][0]["text"]
        async with platform_claw(tmp_path, "slack", account, ScriptedProvider(script[1:])) as (claw, http):
            one = Workspace(claw, standin, http, "slack")
            await standin.until(lambda: standin.calls[-1][0] == "conversations.history")
            await one.say("!approve", channel="D1", ts="1767225600.9", event_id="Ev9")
            assert "done" in await one.answers()
            await standin.until(lambda: len(question.raw["blocks"]) == 1)
        assert sum("please confirm" in shown.text for shown in standin.shown) == 1


@pytest.mark.parametrize("stored", [False, True])
async def test_a_question_whose_arrival_is_not_known_is_looked_for_before_it_is_asked_again(
    tmp_path: Path, stored: bool
) -> None:
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with workspace(tmp_path, script) as one:
        one.slack.faults.append(Fault("chat.postMessage", "status", 500, stored=stored))
        await one.say("forget it", channel="D1")
        await one.slack.until(lambda: any(name == "conversations.history" for name, _ in one.slack.calls))
        await one.slack.until(lambda: one.slack.shown)
        question = one.slack.shown[0]
        assert question.text.startswith(MARK) is not stored
        await click(one, question.raw["blocks"][1]["elements"][0]["value"])
        assert (await one.answers())[1:] == ["done"]


@pytest.mark.usefixtures("at_once")
async def test_an_answer_that_may_have_arrived_is_not_looked_for_above_the_question(tmp_path: Path) -> None:
    ask = replace(call("memory_delete", memory_id="mem_x"), text="Let me see.")
    async with workspace(tmp_path, [ask, LLMResponse(text="done")], typing=1) as one:
        await one.say("forget it", channel="D1")
        await one.slack.until(lambda: any(shown.raw.get("blocks") for shown in one.slack.shown))
        one.slack.faults.append(Fault("chat.postMessage", "status", 500))
        await click(one, one.slack.shown[1].raw["blocks"][1]["elements"][0]["value"])
        first, question, last = await one.answers()
        assert (first, last) == ("Let me see.", f"{MARK}done") and "memory_delete" in question


async def test_a_file_is_in_the_workspace_before_the_model_reads_of_it(tmp_path: Path) -> None:
    slack = SlackStandin(bot_user_id=BOT)
    slack.files["chart.png"] = b"PNG..."
    seen: list[str] = []

    async def look(messages: list[Message]) -> LLMResponse:
        seen.append(last_user(messages))
        return LLMResponse(text="seen")

    async with workspace(tmp_path, [look], slack=slack) as one:
        file = {
            "id": "F1",
            "name": "../chart.png",
            "mimetype": "image/png",
            "url_private_download": f"{one.slack.url}/files/chart.png",
        }
        await one.say("look", channel="D1", subtype="file_share", files=[file])
        await one.answers()
        assert "look" in seen[0] and "chart.png" in seen[0]
        [path] = tmp_path.rglob("*chart.png")
        assert path.read_bytes() == b"PNG..." and "workspace" in path.parts


async def test_files_of_one_name_are_kept_apart_and_those_beyond_the_limit_are_told_of(
    tmp_path: Path,
) -> None:
    slack = SlackStandin(bot_user_id=BOT)
    slack.files.update({"a.png": b"first", "b.png": b"second"})
    seen: list[str] = []

    async def look(messages: list[Message]) -> LLMResponse:
        seen.append(last_user(messages))
        return LLMResponse(text="seen")

    async with workspace(tmp_path, [look], slack=slack) as one:
        url = f"{one.slack.url}/files"
        files = [
            {"id": f"F{number}", "name": "image.png", "mimetype": "image/png", "url_private_download": link}
            for number, link in enumerate([f"{url}/a.png", f"{url}/b.png", *[f"{url}/none.png"] * 11])
        ]
        await one.say("compare", channel="D1", subtype="file_share", files=files)
        await one.answers()
    found = {path.name: path.read_bytes() for path in tmp_path.rglob("*image.png")}
    assert sorted(found.values()) == [b"first", b"second"]
    assert all(name in seen[0] for name in found) and "3 more files were not fetched" in seen[0]


async def test_a_second_workspace_has_its_own_path_and_secret(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo], account="acme") as one:
        await one.say(f"<@{BOT}> hi")
        assert await one.answers() == ["echo: hi"]
        assert database_of(one.claw).read("SELECT channel FROM turns") == [("slack/acme",)]
        one.path = "slack"
        status, _ = await one.post("events", b"{}")
        assert status == 404


async def test_strangers_get_a_pairing_code_once_where_they_are_not_served(tmp_path: Path) -> None:
    async with workspace(tmp_path, [echo], strangers="pair") as one:
        await one.say("hi", channel="D1", ts="1.1", event_id="Ev1")
        await one.say("hi", channel="D1", ts="1.1", event_id="Ev1")
        await one.pair()
        await one.say("hello", channel="D1")
        assert (await one.answers())[1:] == ["echo: hello"]
        assert database_of(one.claw).read("SELECT user_id FROM turns") == [("owner",)]


async def test_strangers_that_are_refused_get_silence(tmp_path: Path) -> None:
    async with workspace(tmp_path, [], strangers="refuse") as one:
        await one.say("hi", channel="D1")
        assert await one.answers(0) == [] and one.turns() == 0


# --- signatures and markup --------------------------------------------------------------------------------

PLATFORM = SlackPlatform(SlackAccount.model_validate({"signing_secret": SECRET, "bot_user_id": BOT}))


def request(
    body: bytes, *, kind: str = "events", moment: str = "1767225600", signature: str | None = None
) -> WebhookRequest:
    headers = {
        "X-Slack-Request-Timestamp": moment,
        "X-Slack-Signature": sign(SECRET, moment, body) if signature is None else signature,
    }
    return WebhookRequest(
        method="POST", path=f"/webhooks/slack/{kind}", headers=headers, query={}, body=body, now=1767225600.0
    )


@given(body=st.binary(max_size=200), place=st.integers(0), change=st.integers(1, 255))
def test_any_change_of_a_signed_body_is_refused(body: bytes, place: int, change: int) -> None:
    PLATFORM.verify(request(body))
    signature = sign(SECRET, "1767225600", body)
    changed = bytearray(body or b"x")
    changed[place % len(changed)] ^= change if body else 0
    if bytes(changed) != body:
        with pytest.raises(ProtocolError):
            PLATFORM.verify(request(bytes(changed), signature=signature))


@pytest.mark.parametrize(
    "moment", ["", "abc", "-5", "١٢٣", "9" * 30, "1767225299", "1767225901", "1767225600.0"]
)
def test_a_time_that_is_wrong_or_none_is_refused(moment: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        PLATFORM.verify(request(b"{}", moment=moment))
    assert refused.value.code == "unauthorized"


@pytest.mark.parametrize("moment", ["1767225300", "1767225900"])
def test_the_window_is_five_minutes_in_both_directions(moment: str) -> None:
    asked = request(b"{}", moment=moment)
    PLATFORM.verify(asked)
    assert PLATFORM.parse(asked) == Answer()


@given(body=st.binary(max_size=300), kind=st.sampled_from(["events", "commands", "interactions"]))
def test_no_signed_bytes_break_the_parser(body: bytes, kind: str) -> None:
    try:
        assert isinstance(PLATFORM.parse(request(body, kind=kind)), Inbound | Answer)
    except ProtocolError as error:
        assert error.code == "bad_message"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "event", "event_id", "team_id", "channel", "ts", "user", "text", "files", "actions"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(event=JSON)
def test_no_signed_object_breaks_the_parser(event: Any) -> None:
    body = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}
    try:
        assert isinstance(PLATFORM.parse(request(json.dumps(body).encode())), Inbound | Answer)
    except ProtocolError as error:
        assert error.code == "bad_message"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("<@U0MINICLAW1> hi", "hi"),
        ("<@U0MINICLAW1|claw> hi", "hi"),
        ("ask <@U2|bob> or <@U3>", "ask @bob or @U3"),
        ("in <#C1|general> and <#C2>", "in #general and #C2"),
        ("<!here> <!channel>", "@here @channel"),
        ("<!subteam^S1|@team>", "@team"),
        ("<!date^1392734382^{date}|Feb 18>", "Feb 18"),
        ("<mailto:a@b.c|a@b.c>", "a@b.c"),
        ("<http://b.c|b.c>", "b.c"),
        ("&lt;@U1&gt; &amp;amp; 1 &lt; 2", "<@U1> &amp; 1 < 2"),
        ("<https://a.b/?x=1&amp;y=2|the docs>", "[the docs](https://a.b/?x=1&y=2)"),
        ("a < b > c", "a < b > c"),
    ],
)
def test_markup_is_decoded_as_it_was_typed(raw: str, text: str) -> None:
    assert decode(raw, BOT) == text


@pytest.mark.parametrize("ping", ["<!channel>", "<!here|here>", "<@U123>", "<#C1>", "<!subteam^S1>"])
def test_no_text_of_a_model_calls_people(ping: str) -> None:
    assert ping not in without_pings(f"see {ping} now") and not mentions(without_pings("<@U1>"), "U1")
    assert without_pings("1 < 2, <https://a.b>") == "1 < 2, <https://a.b>"


# --- the command ------------------------------------------------------------------------------------------


async def test_simulate_posts_to_the_running_gateway_and_prints_what_slack_would_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("SLACK_SIGNING_SECRET", SECRET)
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-simulated")
    monkeypatch.setenv("SLACK_API_BASE", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("miniclaw.cli.webhook_command.QUIET_SECONDS", 0.2)
    arguments = {
        "channels.slack.signing_secret": SECRET,
        "channels.slack.bot_token": "xoxb-simulated",
        "channels.slack.bot_user_id": BOT,
        "channels.slack.api_base": f"http://127.0.0.1:{port}",
    }
    async with running_claw(tmp_path, ScriptedProvider([echo]), web=True, arguments=arguments):
        words = ["webhook", "simulate", "slack", "--text", "1 < 2 & 3", "--with-fake-api"]
        code = await asyncio.to_thread(main, [*words, "--data-dir", str(tmp_path)])
    assert (code, capsys.readouterr().out) == (0, "slack: 200\n→ D0SIMULATED: echo: 1 < 2 & 3\n")


def test_simulate_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["webhook", "simulate", "slack", "--text", "hi", "--data-dir", str(tmp_path)]
    assert main(words) == 1
    assert "start it with `miniclaw serve`" in capsys.readouterr().err


async def test_a_queued_command_and_a_cancel_are_told_in_the_chat(tmp_path: Path) -> None:
    async def never(messages: list[Message]) -> LLMResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async with workspace(tmp_path, [never], stream=False) as one:
        await one.say("!clear", channel="D1")  # nothing to clear: there is no session yet
        await one.slack.until(lambda: one.slack.shown)
        await one.say("question", channel="D1")
        await eventually(lambda: one.claw.mailbox.load["running"] == 1)
        await one.say("!cancel", channel="D1")
        await one.answers(1)
        await one.say("!clear", channel="D1")
        shown = await one.answers(2)
    assert any("Stopped" in text for text in shown)
    assert any("(The user stopped this answer here.)" in text for text in shown)
    assert "no longer sees" in shown[-1]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ["status", "cut"])
@pytest.mark.parametrize("channel", ["D1", "C1"])
async def test_a_beginning_that_was_shown_with_an_unknown_outcome_becomes_the_whole_answer(
    tmp_path: Path, kind: Any, channel: str
) -> None:
    text = "word " * 60
    slack = SlackStandin(bot_user_id=BOT)
    slack.streams = False
    typing = 1 if channel == "D1" else 2  # the status of a thread is the first call there
    async with workspace(tmp_path, [LLMResponse(text=text)], slack=slack, typing=typing) as one:
        slack.faults.append(Fault("chat.postMessage", kind, 500, stored=True))
        await one.say(f"<@{BOT}> hi", channel=channel)
        assert await one.answers() == [text]


@pytest.mark.parametrize("kind", ["status", "cut"])
async def test_a_slash_commands_answer_that_may_have_arrived_is_marked(tmp_path: Path, kind: Any) -> None:
    async with workspace(tmp_path, [echo]) as one:
        one.slack.faults.append(Fault("hook", kind, 500, stored=True))
        await command(one, "hello")
        first, second = await one.answers()
        assert first == "echo: hello" and second == f"{MARK}echo: hello"


async def test_a_message_that_was_not_taken_is_not_run_when_its_twin_comes(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def held(messages: list[Message]) -> LLMResponse:
        await go_on.wait()
        return await echo(messages)

    few: dict[str, Any] = {"stream": False, "limits.waiting_per_session": 1}
    async with workspace(tmp_path, [held] * 3, **few) as one:
        await one.say("runs", channel="D1")
        await eventually(lambda: one.claw.mailbox.load["running"] == 1)
        await one.say("waits", channel="D1")
        ts = await one.say("too many", channel="D1")
        await one.slack.until(lambda: one.slack.shown)
        go_on.set()
        await one.answers(2)
        await one.say("too many", channel="D1", ts=ts, event_id="EvTwin")
        busy, *answers = await one.answers(2)
        assert "not taken" in busy and answers == ["echo: runs", "echo: waits"] and one.turns() == 2


async def test_a_message_whose_twin_is_taken_while_it_is_being_refused_is_not_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, told, tell_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def held(messages: list[Message]) -> LLMResponse:
        await go_on.wait()
        return await echo(messages)

    async def later(outbox: Outbox, *rows: Any, **more: Any) -> Any:
        told.set()
        await tell_on.wait()
        return await notice(outbox, *rows, **more)

    notice = Outbox.notice
    monkeypatch.setattr(Outbox, "notice", later)
    few: dict[str, Any] = {"stream": False, "limits.waiting_per_session": 1}
    async with workspace(tmp_path, [held] * 3, **few) as one:
        await one.say("runs", channel="D1")
        await eventually(lambda: one.claw.mailbox.load["running"] == 1)
        await one.say("waits", channel="D1")
        refused = asyncio.create_task(one.say("twice", channel="D1", ts="7.7"))
        await told.wait()
        go_on.set()
        await one.answers(2)
        await one.say("twice", channel="D1", ts="7.7", event_id="EvTwin")
        tell_on.set()
        await refused
        assert await one.answers(3) == ["echo: runs", "echo: waits", "echo: twice"]


async def test_a_command_that_lacks_something_says_so_in_words_for_people(tmp_path: Path) -> None:
    async with workspace(tmp_path, []) as one:
        for number, (text, told) in enumerate(
            (("!delete", "/delete SESSION_ID"), ("!clear", "said here yet"))
        ):
            await one.say(text, channel="D1")
            await one.slack.until(lambda: len(one.slack.shown) > number)  # noqa: B023
            assert told in one.slack.shown[-1].text


@pytest.mark.parametrize("place", [{"channel": "D1"}, {"channel": "C1", "thread_ts": "5.5"}])
async def test_new_fork_and_resume_lead_the_conversation_to_another_session(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    async def all_said(messages: list[Message]) -> LLMResponse:
        return LLMResponse(text=" ".join(str(m["content"]) for m in messages if m["role"] == "user"))

    async with workspace(tmp_path, [all_said] * 5, stream=False) as one:

        async def say(text: str) -> str:
            shown = len(one.slack.shown)
            await one.say(f"<@{BOT}> {text}", **place)
            await one.slack.until(lambda: len(one.slack.shown) > shown)
            return one.slack.shown[-1].text

        assert await say("a") == "a"
        [old] = await one.claw.sessions.list()
        await say("!new")
        assert await say("b") == "b" and await say("c") == "b c"
        await say("!fork")
        assert await say("d") == "b c d"
        assert old.session_id in await say("!sessions")
        await say(f"!resume {old.session_id}")
        assert await say("e") == "a e"
        assert {session.user_id for session in await one.claw.sessions.list()} == {old.user_id}


async def test_a_command_that_arrives_as_two_events_is_told_once(tmp_path: Path) -> None:
    async with workspace(tmp_path, []) as one:
        for number, kind in enumerate(("app_mention", "message")):
            await one.say(f"<@{BOT}> !help", type=kind, ts="5.5", event_id=f"EvX{number}")
        await one.slack.until(lambda: one.slack.shown)
        assert len(await one.answers(0)) == 1


@pytest.mark.parametrize("code", ["<!DOCTYPE html>", "<!-- x -->", "List<#T>", "a<@b"])
def test_code_that_only_looks_like_a_ping_stays_as_it_is(code: str) -> None:
    assert without_pings(code) == code


@pytest.mark.parametrize("encodings", [["gzip"], ["br"], ["identity", "gzip"], ["gzip", "identity"]])
async def test_a_compressed_body_is_refused_and_breaks_nothing(tmp_path: Path, encodings: list[str]) -> None:
    async with workspace(tmp_path, []) as one:
        assert (
            await begin_post(one, gzip.compress(b"{}"), [("Content-Encoding", each) for each in encodings])
            == 400
        )


async def test_a_body_that_is_said_to_be_as_it_is_is_read(tmp_path: Path) -> None:
    async with workspace(tmp_path, []) as one:
        assert await begin_post(one, b"{}", [("Content-Encoding", "Identity")]) == 401  # nobody signed it


async def test_a_store_that_does_not_answer_lets_slack_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workspace(tmp_path, [echo]) as one:

        def broken(*_: Any) -> Any:
            raise StorageError("disk I/O error")

        event = {"type": "message", "user": "U1", "text": "hi", "channel": "D1", "ts": "1.1"}
        about = {"type": "event_callback", "team_id": "T1", "event_id": "E1", "event": event}
        body = json.dumps(about).encode()
        with monkeypatch.context() as patch:
            patch.setattr(database_of(one.claw), "read", broken)
            assert (await one.post("events", body))[0] == 503
        assert (await one.post("events", body))[0] == 200
        assert await one.answers() == ["echo: hi"]


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_body_that_never_ends_is_not_waited_for(
    tmp_path: Path, leaves: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WebhookChannel, "body_seconds", 60.0 if leaves else 0.05)
    caplog.set_level("DEBUG", "miniclaw.channel.webhook")
    async with workspace(tmp_path, []) as one:
        assert await begin_post(one, b"{", [("Content-Length", "9")], leaves=leaves) == (
            None if leaves else 408
        )
        await eventually(lambda: "body" in caplog.text)
    assert not any(record.exc_info or record.name.startswith("aiohttp") for record in caplog.records)


async def test_of_too_many_bodies_at_once_the_slowest_give_way_to_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.channel.webhook.READERS", 2)
    async with workspace(tmp_path, [echo] * 3) as one:
        slow = [asyncio.create_task(begin_post(one, b"{", [("Content-Length", "9")])) for _ in range(3)]
        done, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [408]
        await one.say("hi", channel="D1")
        assert await one.answers() == ["echo: hi"]
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def begin_post(
    one: Workspace, body: bytes, headers: list[tuple[str, str]] | None = None, *, leaves: bool = False
) -> int | None:
    """Post something that nobody has signed; the status of the answer, `None` without one."""
    assert one.claw.web is not None
    given = headers or []
    if not any(name == "Content-Length" for name, _ in given):
        given = [*given, ("Content-Length", str(len(body)))]
    lines = [
        "POST /webhooks/slack/events HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{n}: {value}" for n, value in given),
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", one.claw.web.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    if leaves:
        writer.transport.abort()
        return None
    try:
        async with asyncio.timeout(10):
            line = await reader.readline()
            rest = (await reader.readuntil(b"\r\n\r\n")).lower() if line else b""
            assert not line or b"content-length: 0\r\n" in rest  # nobody is told why
    except ConnectionResetError:
        line = b""
    finally:
        writer.close()
    return int(line.split()[1]) if line else None


async def test_a_lone_surrogate_in_an_id_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with workspace(tmp_path, []) as one:
        hello = {"type": "url_verification", "challenge": "\ud83d"}
        assert (await one.post("events", json.dumps(hello).encode()))[0] == 400
        assert (await click(one, "\ud83d:approve"))[0] == 400
        event = {
            "type": "message",
            "user": "U\ud83d",
            "text": "x",
            "channel": "D1",
            "channel_type": "im",
            "ts": "1.1",
        }
        body = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}
        status, _ = await one.post("events", json.dumps(body).encode())
        assert status == 400 and one.turns() == 0
        assert "Traceback" not in caplog.text
