"""加：接入第四个平台，快递公司（答案）。"""

from __future__ import annotations

import hmac
import json

from day1_gateway import GatewayMessage, MessageType, ProtocolError, TextPayload
from day2_channel import WebhookRequest


class CourierPlatform:
    name = "courier"
    paths = {"courier": ("POST",)}

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def verify(self, request: WebhookRequest) -> None:
        moment = request.headers.get("X-Courier-Time", "")
        if not (moment.isascii() and moment.isdigit() and abs(int(moment[:12]) - request.now) <= 300):
            raise ProtocolError("unauthorized", "the time is missing or too far away")
        expected = hmac.digest(self._secret, f"{moment}.".encode() + request.body, "sha256").hex()
        given = request.headers.get("X-Courier-Signature", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
            raise ProtocolError("unauthorized", "the signature does not match")

    def parse(self, request: WebhookRequest) -> GatewayMessage:
        body = json.loads(request.body)
        payload = TextPayload(text=f"订单 {body['order']}：{body['state']}")
        return GatewayMessage(
            msg_id=f"courier-{body['id']}", msg_type=MessageType.TEXT, source="courier:hq", payload=payload
        )
