"""弄坏它：重放一条截获的消息。

`WeakPlatform` 忘了把时间签进去：签名只对正文。你在一小时前截获了一个请求 `captured`，
写 `forge`，把它变成现在（`now`）会被收下的请求。签名的密钥你没有，也不需要。
"""

from __future__ import annotations

from day2_channel import WebhookRequest


def forge(captured: WebhookRequest, now: float) -> WebhookRequest:
    return captured
