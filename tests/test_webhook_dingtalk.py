"""DingTalk: what is signed and said comes in once, and one answer goes to the message's own URL."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.channel.platforms.client import MARK
from miniclaw.channel.platforms.dingtalk import DingTalkPlatform, sign
from miniclaw.channel.standins.base import Fault
from miniclaw.channel.standins.dingtalk import DingTalkStandin, posted
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import DingTalkAccount
from miniclaw.errors import DeliveryError, ProtocolError
from miniclaw.gateway.protocol import FileRef, Inbound, ReplyTarget
from tests.support.agent import eventually
from tests.support.inside import database_of
from tests.support.webhooks import Site, call, echo, for_ever, platform_claw, vectors_of

SECRET = "robot-secret"
SETTINGS = DingTalkAccount.model_validate({"app_secret": SECRET})
HOOK = "https://oapi.dingtalk.com/robot/sendBySession?session=s1"
[VECTOR] = vectors_of("dingtalk")


def message(text: str = "hi", *, number: int = 1, group: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "msgtype": "text",
        "text": {"content": f" {text} "},
        "msgId": f"msg{number}==",
        "conversationId": "cidGroup==" if group else "cidDirect==",
        "conversationType": "2" if group else "1",
        "isInAtList": True,
        "senderId": "$:LWCP_v1:$u1",
        "senderStaffId": "user1",
        "chatbotUserId": "$:LWCP_v1:$bot",
        "robotCode": "dingrobot1",
        "sessionWebhook": HOOK,
        "sessionWebhookExpiredTime": int((time.time() + 5400) * 1000),
        **more,
    }


class Company(Site[DingTalkStandin]):
    """Whoever writes to the robot."""

    @property
    def ding(self) -> DingTalkStandin:
        return self.standin

    async def post(self, body: dict[str, Any]) -> tuple[int, str]:
        return await self.deliver(posted(SETTINGS, body, now=time.time()))

    async def say(self, text: str, **more: Any) -> None:
        self._number += 1
        hook = f"{self.ding.url}/robot/sendBySession?session=s1"
        body = message(text, **{"number": self._number, "sessionWebhook": hook, **more})
        assert await self.post(body) == (200, "{}")


@asynccontextmanager
async def company(
    tmp_path: Path, script: list[Any], *, account: str = "", **more: Any
) -> AsyncIterator[Company]:
    async with DingTalkStandin(secret=SECRET) as ding:
        one = {"app_secret": SECRET, "reply_hosts": [ding.url.removeprefix("http://")], **more}
        provider = ScriptedProvider(script)
        async with platform_claw(tmp_path, "dingtalk", one, provider, name=account) as (claw, http):
            yield Company(claw, ding, http, f"dingtalk/{account}" if account else "dingtalk")


async def test_a_message_is_answered_at_its_own_url_as_markdown(tmp_path: Path) -> None:
    async with company(tmp_path, [LLMResponse(text="# **Yes**\n\ntext\n<b>")]) as one:
        await one.say("hi", group=True)
        assert await one.answers() == ["# **Yes**\n\ntext  \n&lt;b>"]
        assert one.ding.shown[0].raw["markdown"]["title"] == "Yes"


async def test_a_message_that_comes_again_is_answered_once(tmp_path: Path) -> None:
    async with company(tmp_path, [echo]) as one:
        await asyncio.gather(*(one.say("hi", number=7) for _ in range(5)))
        assert await one.answers() == ["echo: hi"] and one.turns() == 1


async def test_a_long_answer_is_sent_in_parts_by_bytes(tmp_path: Path) -> None:
    text = "".join(f"第{number}行，文字。\n" for number in range(2500))
    async with company(tmp_path, [LLMResponse(text=text)]) as one:
        await one.say("hi")
        parts = await one.answers()
        assert len(parts) > 2 and "".join(parts).replace("  \n", "\n") == text.rstrip()


@pytest.mark.parametrize(
    ("faults", "mark"),
    [
        ([Fault("send", "status", 429, retry_after=0)], ""),
        ([Fault("send", "error", 130101)], ""),
        ([Fault("send", "status", 500)], MARK),
        ([Fault("send", "error", -1)], MARK),
        ([Fault("send", "cut")], MARK),
    ],
)
async def test_one_answer_is_seen_in_order_and_a_repeat_is_marked(
    tmp_path: Path, faults: list[Fault], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.channel.platforms.dingtalk.RATE_LIMIT_SECONDS", 0.01)
    async with company(tmp_path, [echo, echo]) as one:
        one.ding.faults.extend(faults)
        await one.say("one")
        await one.say("two")
        assert await one.answers(2) == [f"{mark}echo: one", "echo: two"]


async def test_of_an_answer_that_may_have_come_twice_the_second_is_marked(tmp_path: Path) -> None:
    async with company(tmp_path, [echo]) as one:
        one.ding.faults.append(Fault("send", "status", 502, stored=True))
        await one.say("one")
        assert await one.answers() == ["echo: one", f"{MARK}echo: one"]


async def test_an_error_for_good_and_a_url_that_has_expired_are_dead_letters(tmp_path: Path) -> None:
    async with company(tmp_path, [echo, echo]) as one:
        one.ding.faults.append(Fault("send", "error", 310000))
        await one.say("hi")
        await one.answers()
        await one.say("hi", sessionWebhookExpiredTime=int(time.time() * 1000))
        assert await one.answers(2) == []
        errors = [
            row[0]
            for row in database_of(one.claw).read(
                "SELECT error FROM deliveries WHERE state = 'dead' ORDER BY n"
            )
        ]
        assert "310000" in errors[0] and "expired" in errors[1]


async def test_a_typed_command_is_carried_out_and_told(tmp_path: Path) -> None:
    async with company(tmp_path, []) as one:
        await one.say("/tools", group=True)
        await one.ding.until(lambda: one.ding.shown)
        assert "calculator" in (await one.answers(0))[0] and one.turns() == 0


async def test_a_question_names_the_commands_that_answer_it(tmp_path: Path) -> None:
    script = [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]
    async with company(tmp_path, script) as one:
        await one.say("forget it")
        await one.ding.until(lambda: one.ding.shown)
        await one.say(f"/deny {one.ding.shown[0].text.split('/deny ')[1].split()[0]}")
        await one.ding.until(lambda: one.ding.shown[-1].text == "done")
        assert database_of(one.claw).read("SELECT state FROM approvals") == [("denied",)]


async def test_a_group_and_each_person_have_their_own_session(tmp_path: Path) -> None:
    async with company(tmp_path, [echo] * 3) as one:
        await one.say("a")
        await one.say("b", group=True)
        await one.say("c", group=True, senderStaffId="user2")
        await one.answers(3)
        rows = database_of(one.claw).read(
            "SELECT t.user_id, s.user_id FROM turns t JOIN sessions s USING (session_id)"
        )
        scopes = {scope for _, scope in rows}
        assert len({user for user, _ in rows}) == 2 and len(scopes) == 2
        assert sum(scope.startswith("grp_") for scope in scopes) == 1


async def test_strangers_get_a_pairing_code_or_silence(tmp_path: Path) -> None:
    async with company(tmp_path, [echo], strangers="pair") as one:
        await one.say("hi")
        await one.pair()
        await one.say("hello")
        assert (await one.answers())[1:] == ["echo: hello"]
    async with company(tmp_path / "other", [], strangers="refuse") as one:
        await one.say("hi")
        assert await one.answers(0) == [] and one.turns() == 0


async def test_a_second_robot_has_its_own_path(tmp_path: Path) -> None:
    async with company(tmp_path, [echo], account="acme") as one:
        await one.say("hi")
        assert await one.answers() == ["echo: hi"]
        assert database_of(one.claw).read("SELECT channel FROM turns") == [("dingtalk/acme",)]


async def test_a_full_mailbox_is_told_and_an_overloaded_gateway_hangs_up(tmp_path: Path) -> None:
    few: dict[str, Any] = {"limits.waiting_per_session": 1, "limits.waiting": 1}
    async with company(tmp_path, [for_ever] * 2, **few) as one:
        await one.say("runs")
        await eventually(lambda: database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'"))
        await one.say("waits")
        with pytest.raises(aiohttp.ClientError):
            await one.say("no room at all", group=True)
    del few["limits.waiting"]
    async with company(tmp_path / "other", [for_ever] * 2, **few) as one:
        await one.say("runs")
        await eventually(lambda: database_of(one.claw).read("SELECT 1 FROM turns WHERE state = 'running'"))
        await one.say("waits")
        await one.say("one too many")
        await one.ding.until(lambda: one.ding.shown)
        assert "not taken" in one.ding.shown[0].text


async def test_a_file_is_fetched_from_dingtalks_hosts_only() -> None:
    async with DingTalkStandin(secret=SECRET) as ding:
        ding.files["code1"] = b"PNG..."
        host = ding.url.removeprefix("http://")
        here = {"api_base": ding.url, "file_hosts": (host,)}
        target, file = ReplyTarget(account="dingrobot1"), FileRef(kind="image", id="code1")
        platform = DingTalkPlatform(SETTINGS.model_copy(update=here), clock=time.time)
        assert await platform.fetch_file(target, file, max_bytes=100) == b"PNG..."
        assert await platform.fetch_file(target, file, max_bytes=100) == b"PNG..."
        assert [body["appKey"] for name, body in ding.calls if name == "token"] == ["dingrobot1"]
        with pytest.raises(DeliveryError, match="larger than 3"):
            await platform.fetch_file(target, file, max_bytes=3)
        await platform.close()
        elsewhere = SETTINGS.model_copy(update={**here, "file_hosts": ()})
        wrong = DingTalkAccount.model_validate({"app_secret": "wrong", **here})
        for settings, why in ((elsewhere, "hosts"), (wrong, "no token")):
            other = DingTalkPlatform(settings, clock=time.time)
            with pytest.raises(DeliveryError, match=why) as failed:
                await other.fetch_file(target, file, max_bytes=100)
            assert failed.value.permanent
            await other.close()


# --- what comes in ----------------------------------------------------------------------------------------

PLATFORM = DingTalkPlatform(SETTINGS, clock=time.time)


def request(
    body: dict[str, Any] | bytes, headers: Mapping[str, str] | None = None, *, now: float = 1000.0
) -> WebhookRequest:
    sent = posted(SETTINGS, body if isinstance(body, dict) else {}, now=1000.0)
    return WebhookRequest(
        method="POST",
        path="/webhooks/dingtalk",
        headers={**sent.headers, **(headers or {})},
        query={},
        body=sent.body if isinstance(body, dict) else body,
        now=now,
    )


def refusal(asked: WebhookRequest) -> str:
    with pytest.raises(ProtocolError) as refused:
        PLATFORM.verify(asked)
        PLATFORM.parse(asked)
    return refused.value.code


def test_the_formulas_vector_holds() -> None:
    assert sign(VECTOR["app_secret"], VECTOR["timestamp_ms"]) == VECTOR["sign"]


@pytest.mark.parametrize(
    ("more", "text", "files"),
    [
        (
            {"msgtype": "picture", "content": {"downloadCode": "c", "pictureDownloadCode": "d"}},
            "",
            [("image", "c")],
        ),
        (
            {"msgtype": "file", "content": {"downloadCode": "c", "fileName": "a.pdf"}},
            "",
            [("file", "c")],
        ),
        (
            {"msgtype": "audio", "content": {"downloadCode": "c", "recognition": "说的话"}},
            "说的话",
            [],
        ),
        ({"msgtype": "audio", "content": {"downloadCode": "c"}}, "", [("audio", "c")]),
        ({"msgtype": "video", "content": {"downloadCode": "c"}}, "", [("video", "c")]),
        (
            {
                "msgtype": "richText",
                "content": {
                    "richText": [{"text": "看 "}, {"type": "picture", "downloadCode": "c"}, {"text": "图"}]
                },
            },
            "看 图",
            [("image", "c")],
        ),
        ({"msgtype": "chatRecord"}, "[chatRecord]", []),
        ({"senderStaffId": ""}, "hi", []),
        ({"text": {"content": ""}}, "(empty message)", []),
    ],
)
def test_each_kind_of_message_is_read(more: dict[str, Any], text: str, files: list[tuple[str, str]]) -> None:
    said = PLATFORM.parse(request({**message(), **more}))
    assert isinstance(said, Inbound) and getattr(said.payload, "text", None) == text
    assert [(file.kind, file.id) for file in said.files] == files
    assert said.sender == ("user1" if more.get("senderStaffId", "x") else "$:LWCP_v1:$u1")


@pytest.mark.parametrize("more", [{"senderId": "$:LWCP_v1:$bot"}, {"isInAtList": False}])
def test_its_own_message_and_one_that_does_not_name_it_start_nothing(more: dict[str, Any]) -> None:
    assert PLATFORM.parse(request(message(group=True, **more))) == Answer(body={})


def test_a_group_can_be_heard_without_being_named() -> None:
    platform = DingTalkPlatform(SETTINGS.model_copy(update={"require_mention": False}), clock=time.time)
    assert isinstance(platform.parse(request(message(group=True, isInAtList=False))), Inbound)


@pytest.mark.parametrize(
    "hook",
    ["https://evil.example/", "http://oapi.dingtalk.com/", "https://oapi.dingtalk.com@evil.example/", "", 5],
)
def test_a_url_to_answer_at_elsewhere_is_refused(hook: object) -> None:
    assert refusal(request(message(sessionWebhook=hook))) == "bad_message"


@pytest.mark.parametrize("moment", [10**400, float("inf"), float("nan"), "1e999", "soon", None])
def test_a_time_of_expiry_that_is_no_number_is_refused(moment: object) -> None:
    assert refusal(request(message(sessionWebhookExpiredTime=moment))) == "bad_message"


async def test_a_url_that_is_not_allowed_any_more_is_not_used() -> None:
    with pytest.raises(DeliveryError, match="hosts") as failed:
        await PLATFORM.deliver(ReplyTarget(url="https://evil.example/"), "x", key="t.0", repeat=False)
    assert failed.value.permanent


@pytest.mark.parametrize("moment", ["", "abc", "-5", "١٢٣", "9" * 30, "1000000.0"])
def test_a_time_that_is_none_is_refused(moment: str) -> None:
    headers = {"timestamp": moment, "sign": sign(SECRET, moment)}
    assert refusal(request(message(), headers)) == "unauthorized"


@pytest.mark.parametrize(("now", "ok"), [(4600.0, True), (4601.0, False), (-2600.0, True), (-2601.0, False)])
def test_the_window_is_an_hour_in_both_directions(now: float, ok: bool) -> None:
    if ok:
        PLATFORM.verify(request(message(), now=now))
    else:
        assert refusal(request(message(), now=now)) == "unauthorized"


@given(place=st.integers(0), change=st.integers(1, 127), part=st.sampled_from(["timestamp", "sign"]))
def test_any_change_of_time_or_signature_is_refused(place: int, change: int, part: str) -> None:
    sound = request(message())
    value = bytearray(sound.headers[part].encode())
    value[place % len(value)] ^= change
    assert refusal(request(message(), {part: value.decode("latin-1")})) == "unauthorized"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"5", b"null", json.dumps(message(msgId="")).encode()]
)
def test_what_is_signed_and_cannot_be_read_is_a_bad_message(body: bytes) -> None:
    assert refusal(request(body)) == "bad_message"


JSON = st.recursive(
    st.none() | st.floats() | st.text(max_size=8) | st.sampled_from(["richText", "picture", HOOK]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "richText", "downloadCode", "text"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    more=st.dictionaries(st.sampled_from([*message(), "content"]), JSON, max_size=5),
    body=st.binary(max_size=99),
)
def test_nothing_breaks_the_parser(more: dict[str, Any], body: bytes) -> None:
    for asked in (request({**message(), **more}), request(body)):
        try:
            assert isinstance(PLATFORM.parse(asked), Inbound | Answer)
        except ProtocolError as error:
            assert error.code == "bad_message"
