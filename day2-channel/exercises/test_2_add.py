"""运行：pytest exercises/test_2_add.py"""

import hmac
import json

import pytest

from day1_gateway import ProtocolError
from day2_channel import WebhookRequest
from ex_2_add import CourierPlatform

NOW = 1_700_000_000
BODY = json.dumps({"id": "e1", "order": "4471", "state": "已签收"}).encode()


def request(
    *, secret: str = "s", moment: str = str(NOW), body: bytes = BODY, sent: bytes = BODY
) -> WebhookRequest:
    signed = hmac.digest(secret.encode(), f"{moment}.".encode() + body, "sha256").hex()
    headers = {"X-Courier-Time": moment, "X-Courier-Signature": signed}
    return WebhookRequest(method="POST", path="/", headers=headers, query={}, body=sent, now=NOW)


def test_a_signed_request_is_taken() -> None:
    platform = CourierPlatform("s")
    platform.verify(request())
    assert platform.parse(request()).source == "courier:hq"


@pytest.mark.parametrize(
    ("bad", "hint"),
    [
        (request(secret="other"), "提示：用 hmac.digest 算出应有的签名，再用 hmac.compare_digest 比较。"),
        (request(sent=b"{}"), "提示：签的是 `<时间>.<正文>`，正文要用 request.body 的原始字节。"),
        (request(moment=str(NOW - 301)), "提示：旧请求可能是被截获后重放的，先看时间。"),
        (request(moment=str(NOW + 301)), "提示：来自未来的请求也不收，用 abs。"),
        (request(moment="soon"), "提示：头里的时间是别人写的，先确认它是数字。"),
    ],
    ids=["secret", "body", "old", "future", "no-number"],
)
def test_anything_else_is_refused(bad: WebhookRequest, hint: str) -> None:
    try:
        CourierPlatform("s").verify(bad)
    except ProtocolError as error:
        assert error.code == "unauthorized"
    else:
        pytest.fail(hint)
