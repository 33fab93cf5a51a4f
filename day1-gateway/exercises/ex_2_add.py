"""加：给网关加一个命令 `order`。

`{"name": "order", "args": {"id": "4471"}}` 回答 `command.result`，`result` 是 `{"state": "已发货"}`；
没有这个订单时拒绝，错误码 `not_found`；没有给 `id` 时拒绝，错误码 `bad_arguments`。
"""

from __future__ import annotations

from day1_gateway import CommandPayload, GatewayMessage, ProtocolError

ORDERS = {"4471": "已发货", "4472": "处理中"}


async def command(inbound: GatewayMessage) -> GatewayMessage:
    assert isinstance(inbound.payload, CommandPayload)
    # 在这里加上 order。
    raise ProtocolError("unknown_command", f"There is no command `{inbound.payload.name}`.")
