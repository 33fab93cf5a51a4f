"""改：回声寄错了地方（答案）。

`echo` 把话原样送回，可是寄给了 `agent`，发信的人永远收不到。改一处，让回复回到发信人那里。
"""

from __future__ import annotations

from day1_gateway import GatewayMessage, TextPayload, event_message


async def echo(inbound: GatewayMessage) -> GatewayMessage:
    assert isinstance(inbound.payload, TextPayload)
    return event_message("turn.finished", {"text": inbound.payload.text}, target=inbound.source)
