import json
import time
from contextlib import asynccontextmanager

import pytest
from slack_bolt import App
from slack_bolt.request import BoltRequest
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web.async_client import AsyncWebClient

from miniclaw.channel.platforms.slack import SlackPlatform
from miniclaw.channel.standins.slack import SlackStandin, event_of
from miniclaw.channel.webhook import WebhookRequest
from miniclaw.channel_settings import SlackAccount
from miniclaw.errors import ProtocolError

SECRET = "5f0c1d2e3b4a59687786a5b4c3d2e1f0"
ACCOUNT = SlackAccount.model_validate({"signing_secret": SECRET, "bot_token": "xoxb-test"})


def test_slack_sdk_accepts_what_we_sign_and_refuses_it_changed():
    event = event_of(ACCOUNT, "hi <there> & café", now=time.time())
    verifier = SignatureVerifier(SECRET)
    assert verifier.is_valid_request(event.body, event.headers)
    assert not verifier.is_valid_request(event.body + b" ", event.headers)


def test_we_accept_what_slack_sdk_signs_and_refuse_it_changed():
    moment, body = str(int(time.time())), b'{"type":"event_callback","x":"caf\\u00e9 \\/"}'
    signature = SignatureVerifier(SECRET).generate_signature(timestamp=moment, body=body)
    headers = {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": signature}

    def request(content):
        return WebhookRequest(
            method="POST",
            path="/webhooks/slack/events",
            headers=headers,
            query={},
            body=content,
            now=time.time(),
        )

    SlackPlatform(ACCOUNT).verify(request(body))
    with pytest.raises(ProtocolError):
        SlackPlatform(ACCOUNT).verify(request(body.replace(b"\\/", b"/")))


def test_bolt_hands_our_event_to_its_listener():
    heard = []
    app = App(
        signing_secret=SECRET,
        token="xoxb-test",
        token_verification_enabled=False,
        process_before_response=True,
    )

    @app.event("message")
    def listen(event):
        heard.append(event["text"])

    event = event_of(ACCOUNT, "1 < 2", now=time.time())
    request = BoltRequest(body=event.body.decode(), headers=event.headers)
    app.middleware_list = app._middleware_list = [
        one
        for one in app._middleware_list
        if "Authorization" not in type(one).__name__ and "SelfEvents" not in type(one).__name__
    ]
    assert app.dispatch(request).status == 200
    assert heard == ["1 &lt; 2"]


@asynccontextmanager
async def workspace():
    async with SlackStandin() as standin:
        yield standin, AsyncWebClient(token="xoxb-test", base_url=f"{standin.url}/")


async def test_slack_sdks_client_accepts_our_stand_in():
    async with workspace() as (standin, client):
        assert (await client.auth_test())["user_id"] == "U0MINICLAW1"
        posted = await client.chat_postMessage(channel="C1", markdown_text="**hi**", thread_ts="1.1")
        await client.chat_update(channel="C1", ts=posted["ts"], markdown_text="**ho**")
        stream = await client.chat_startStream(
            channel="C1", thread_ts="1.1", recipient_team_id="T1", recipient_user_id="U1", markdown_text="a"
        )
        await client.chat_appendStream(channel="C1", ts=stream["ts"], markdown_text="b")
        await client.chat_stopStream(channel="C1", ts=stream["ts"])
        assert [message.text for message in standin.shown] == ["**ho**", "ab"]
        with pytest.raises(SlackApiError, match="message_not_in_streaming_state"):
            await client.chat_appendStream(channel="C1", ts=stream["ts"], markdown_text="c")
        with pytest.raises(SlackApiError, match="invalid_auth"):
            await AsyncWebClient(token="xoxb-other", base_url=f"{standin.url}/").auth_test()
        found = await client.conversations_replies(channel="C1", ts="1.1", include_all_metadata=True)
        assert len(found["messages"]) == 2 and json.dumps(found.data)
