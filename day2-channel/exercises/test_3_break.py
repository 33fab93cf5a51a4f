"""运行：pytest exercises/test_3_break.py"""

import hashlib
import hmac

import pytest

from day1_gateway import ProtocolError
from day2_channel import SlackPlatform, WebhookRequest
from ex_3_break import forge

SECRET, THEN, NOW = "s", 1_700_000_000, 1_700_003_600
BODY = b'{"type": "event_callback"}'
HINT = "提示：时间只写在头 X-Slack-Request-Timestamp 里，而签名没有管它；用 dataclasses.replace。"


class WeakPlatform:
    def verify(self, request: WebhookRequest) -> None:
        if abs(int(request.headers["X-Slack-Request-Timestamp"]) - request.now) > 300:
            raise ProtocolError("unauthorized", "too old")
        signed = hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signed, request.headers["X-Slack-Signature"]):
            raise ProtocolError("unauthorized", "the signature does not match")


def captured(signed: bytes, prefix: str = "") -> WebhookRequest:
    signature = prefix + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": str(THEN), "X-Slack-Signature": signature}
    return WebhookRequest(method="POST", path="/", headers=headers, query={}, body=BODY, now=THEN)


def test_the_weak_platform_takes_it_again() -> None:
    forged = forge(captured(BODY), NOW)
    assert (forged.now, forged.body) == (NOW, BODY), HINT
    try:
        WeakPlatform().verify(forged)
    except ProtocolError:
        pytest.fail(HINT)


def test_the_true_one_does_not() -> None:
    genuine = captured(f"v0:{THEN}:".encode() + BODY, "v0=")
    SlackPlatform(SECRET).verify(genuine)
    with pytest.raises(ProtocolError):
        SlackPlatform(SECRET).verify(forge(genuine, NOW))
