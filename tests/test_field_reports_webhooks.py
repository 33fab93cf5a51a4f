"""What broke on platforms that post to other gateways must hold here; each test names the public report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.channel.base import Delivers
from miniclaw.channel.platforms.client import MARK
from miniclaw.channel.platforms.dingtalk import DingTalkPlatform
from miniclaw.channel.platforms.feishu import FeishuPlatform
from miniclaw.channel.platforms.slack import SlackPlatform
from miniclaw.channel.platforms.wecom import WeComPlatform
from miniclaw.channel.platforms.wecom_bot import WeComBotPlatform
from miniclaw.channel.standins.base import Fault
from miniclaw.channel.standins.wecom import posted
from miniclaw.channel_settings import DingTalkAccount, FeishuAccount, SlackAccount, WeComAccount
from tests import test_webhook_feishu as feishu
from tests import test_webhook_slack as slack
from tests import test_webhook_wecom as wecom
from tests.support.model import FakeModel, Message, Reply
from tests.support.webhooks import call, echo
from tests.test_webhook_dingtalk import company
from tests.test_webhook_feishu import tenant
from tests.test_webhook_slack import workspace
from tests.test_webhook_wecom import corp

Open = Callable[..., AbstractAsyncContextManager[Any]]

HANGING: list[tuple[Open, str, str]] = [
    (workspace, "chat.postMessage", ""),
    (tenant, "reply", ""),
    (corp, "message", ""),
    (company, "send", MARK),
]
"""A platform, the method that sends an answer, and what begins a second one where no key can prevent it."""


@pytest.mark.parametrize(("site", "method", "mark"), HANGING, ids=["slack", "feishu", "wecom", "dingtalk"])
async def test_an_answer_whose_sending_timed_out_after_it_was_stored_is_seen_once(
    tmp_path: Path, site: Open, method: str, mark: str
) -> None:
    """agentscope-ai/QwenPaw#2421, NousResearch/hermes-agent#14061, openclaw/openclaw#22780."""
    more = {} if site is company else {"stream": False}
    async with site(tmp_path, [echo], **{"delivery.timeout": 1.0}, **more) as one:
        one.standin.faults.append(Fault(method, "hang", stored=True))
        await one.say("hi", **({"channel": "D1"} if site is workspace else {}))
        assert await one.answers() == (["echo: hi", f"{mark}echo: hi"] if mark else ["echo: hi"])


async def test_a_beginning_that_a_platform_is_slow_to_show_is_waited_for_and_becomes_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NousResearch/hermes-agent#81052: a stream that was not confirmed in time was answered a second time."""
    monkeypatch.setattr("miniclaw.gateway.live_replies.CALL_SECONDS", 0)
    slow = feishu.Slow(secret="app-secret")
    async with tenant(tmp_path, [LLMResponse(text=feishu.WHOLE)], feishu=slow, typing=1) as one:
        await one.say("hi")
        await slow.until(lambda: one.called("card"))
        slow.may_go_on.set()
        assert await one.answers() == [feishu.WHOLE]


@pytest.mark.parametrize("name", ["feishu", "slack"])
async def test_nothing_empty_is_shown_and_what_follows_a_question_stands_below_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AstrBotDevs/AstrBot#6743: an empty card came first, and the text after a tool went into the old one."""
    monkeypatch.setattr(FeishuPlatform if name == "feishu" else SlackPlatform, "stream_seconds", 0.0)
    asks = ToolCall.of("c1", "memory_delete", {"memory_id": "mem_x"})
    script = [
        LLMResponse(text="Let me see.", tool_calls=(asks,), finish="tool_calls"),
        LLMResponse(text="Done."),
    ]
    seen: list[str] = []
    site: Open = tenant if name == "feishu" else workspace
    async with site(tmp_path, script, typing=1 if name == "feishu" else 2) as one:
        one.standin.on_show = lambda shown: seen.append(shown.text)
        await one.say("hi" if name == "feishu" else f"<@{slack.BOT}> hi")
        await one.standin.until(lambda: any("memory_delete" in shown.text for shown in one.standin.shown))
        question = one.standin.shown[-1]
        if name == "feishu":
            button = question.raw["body"]["elements"][-1]
            await one.post(feishu.click(button["behaviors"][0]["value"]))
        else:
            await slack.click(one, question.raw["blocks"][1]["elements"][-1]["value"])
        first, asked, answer = await one.answers()
        assert (first, answer) == ("Let me see.", "Done.") and "denied" in asked
        assert all(text.strip() for text in seen)
        assert not any(shown.is_open for shown in one.standin.shown)


async def test_a_question_that_can_be_changed_no_more_is_left_as_it_is(tmp_path: Path) -> None:
    """deepcoldy/botmux#1440: a card that is too old was patched again and again."""
    async with tenant(tmp_path, [call("memory_delete", memory_id="mem_x"), LLMResponse(text="done")]) as one:
        one.feishu.faults.extend([Fault("patch", "error", 230031)] * 9)
        await one.say("forget it")
        await one.feishu.until(lambda: any(shown.raw for shown in one.feishu.shown))
        value = one.feishu.shown[0].raw["body"]["elements"][1]["behaviors"][0]["value"]
        await one.post(feishu.click(value))
        assert (await one.answers())[-1] == "done"
        assert len(one.called("patch")) == 1


async def test_a_stream_that_slack_ended_by_itself_becomes_the_whole_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The like of the same report: Slack ends a stream after some minutes, and takes only updates then."""
    monkeypatch.setattr(SlackPlatform, "stream_seconds", 0.0)
    text = "a long answer in words " * 5
    async with workspace(tmp_path, [LLMResponse(text=text)], typing=2) as one:
        one.slack.on_show = lambda shown: setattr(shown, "is_open", False)
        await one.say(f"<@{slack.BOT}> hi")
        assert await one.answers() == [text]


# --- what a model does, as people on a platform see it ----------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param({"text": "Done.", "finish": "tool_calls"}, "Done.", id="openclaw/openclaw#21985"),
        pytest.param({"calls": [("calculator", "[1,2]")]}, "not a JSON object", id="HKUDS/nanobot#2858 list"),
        pytest.param({"calls": [("calculator", '"str"')]}, "not a JSON object", id="HKUDS/nanobot#2858 text"),
    ],
)
async def test_a_call_that_is_none_is_no_crash_and_leaves_a_legal_history(
    tmp_path: Path, reply: Reply, told: str
) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        return reply if number == 1 else {"text": str(messages[-1]["content"])}

    async with FakeModel(script) as model:
        more: dict[str, Any] = {"model.base_url": model.url, "model.api_key": "x", "model.name": "fake-chat"}
        async with corp(tmp_path, None, **more) as one:
            await one.say("hi")
            assert told in (await one.answers())[0]
            await one.say("and now?")
            assert (await one.answers(2))[-1] == "and now?"
        assert model.refused == []


async def test_an_answer_that_was_stopped_at_a_limit_says_so_and_is_delivered(tmp_path: Path) -> None:
    """HKUDS/nanobot#2487: at its limit a turn said that it was done, and the answer was dropped."""
    calls = [call("calculator", expression=f"1+{number}") for number in range(3)]
    two: dict[str, Any] = {"agent.max_iterations": 2}
    async with corp(tmp_path, calls, **two) as one:
        await one.say("hi")
        [told] = await one.answers()
        assert "not finished" in told and "the limit of model calls" in told


# --- what is split ----------------------------------------------------------------------------------------

PLATFORMS: list[tuple[Delivers, Callable[[str], int], int]] = [
    (SlackPlatform(SlackAccount()), len, 12_000),
    (FeishuPlatform(FeishuAccount(), clock=time.time), lambda text: len(text.encode()), 30_000),
    (WeComPlatform(wecom.SETTINGS, clock=time.time), lambda text: len(text.encode()), 2048),
    (WeComBotPlatform(wecom.SETTINGS, clock=time.time), lambda text: len(text.encode()), 20_480),
    (DingTalkPlatform(DingTalkAccount(), clock=time.time), lambda text: len(text.encode()), 20_000),
]


@pytest.mark.parametrize(
    ("platform", "measure", "limit"), PLATFORMS, ids=["slack", "feishu", "wecom", "bot", "dingtalk"]
)
def test_each_part_of_a_long_answer_has_whole_code_blocks_within_the_platforms_limit(
    platform: Delivers, measure: Callable[[str], int], limit: int
) -> None:
    """HKUDS/nanobot#4250: a long answer was cut inside a code block."""
    code = "".join(f"    print('第 {number} 行')\n" for number in range(1200))
    text = "\n".join(
        f"{n}. Look:\n\n   ```python\n{code}   ```\n\n> ```sh\n> ls {n}\n> ```\n" for n in range(3)
    )
    parts = platform.split(text)
    assert len(parts) > 2
    for part in parts:
        assert measure(part) <= limit
        for fence in MarkdownIt("commonmark").parse(part):
            if fence.type == "fence":
                assert fence.map is not None
                assert part.splitlines()[fence.map[1] - 1].strip(" >") == fence.markup
    assert "".join(parts).count("第 1199 行") == 3


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"token": "another"}, "WECOM_TOKEN"),
        ({"encoding_aes_key": wecom.KEY[::-1]}, "WECOM_ENCODING_AES_KEY"),
        ({"corp_id": "ww_another"}, "WECOM_CORP_ID"),
    ],
)
async def test_the_log_says_which_of_wecoms_settings_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, theirs: dict[str, str], reason: str
) -> None:
    """langbot-app/LangBot#1976: a bare error code for each of them, and WeCom's console says no more."""
    account = WeComAccount.model_validate({**wecom.APP, **theirs})
    sent = posted(account, {"MsgType": "text", "Content": "hi", "MsgId": "1"}, now=1.0)
    async with corp(tmp_path, []) as one:
        with caplog.at_level(logging.WARNING):
            status, body = await one.deliver(sent)
        assert status in (400, 401) and body == ""
        [line] = [record.message for record in caplog.records if "webhook refused" in record.message]
        assert reason in line and one.turns() == 0
