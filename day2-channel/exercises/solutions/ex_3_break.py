"""弄坏它：重放一条截获的消息（答案）。"""

from __future__ import annotations

from dataclasses import replace

from day2_channel import WebhookRequest


def forge(captured: WebhookRequest, now: float) -> WebhookRequest:
    headers = {**captured.headers, "X-Slack-Request-Timestamp": str(int(now))}
    return replace(captured, headers=headers, now=now)
