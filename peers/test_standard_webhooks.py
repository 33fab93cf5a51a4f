import json
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from miniclaw.channel.platforms.generic import GenericPlatform
from miniclaw.channel.standins.generic import event_of
from miniclaw.channel.webhook import WebhookRequest
from miniclaw.channel_settings import GenericWebhookSettings
from miniclaw.errors import ProtocolError

SECRET = "whsec_bWluaWNsYXctZ2VuZXJpYy13ZWJob29rLXNlY3JldCE="
SETTINGS = GenericWebhookSettings.model_validate({"secret": SECRET, "user": "monitor"})


def test_the_reference_library_accepts_what_we_sign_and_refuses_it_changed():
    event = event_of(SETTINGS, "disk is 93% full", now=time.time())
    assert Webhook(SECRET).verify(event.body, event.headers)["text"] == "disk is 93% full"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(event.body.replace(b"93", b"39"), event.headers)


def test_we_accept_what_the_reference_library_signs():
    body, now = json.dumps({"text": "hi"}), datetime.now(UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("msg_1", now, body),
    }
    request = WebhookRequest(
        method="POST", path="/webhooks/in", headers=headers, query={}, body=body.encode(), now=time.time()
    )
    platform = GenericPlatform(SETTINGS, clock=time.time)
    platform.verify(request)
    assert platform.parse(request).payload.text == "hi"
    with pytest.raises(ProtocolError):
        platform.verify(replace(request, body=b"{}"))
