"""加：给网关加一个命令 `order`（答案）。"""

from __future__ import annotations

from day1_gateway import CommandPayload, GatewayMessage, ProtocolError, command_result

ORDERS = {"4471": "已发货", "4472": "处理中"}


async def command(inbound: GatewayMessage) -> GatewayMessage:
    assert isinstance(inbound.payload, CommandPayload)
    name, args = inbound.payload.name, inbound.payload.args
    if name != "order":
        raise ProtocolError("unknown_command", f"There is no command `{name}`.")
    number = args.get("id")
    if not isinstance(number, str):
        raise ProtocolError("bad_arguments", "`order` needs `id`, the number of the order.")
    if number not in ORDERS:
        raise ProtocolError("not_found", f"There is no order {number}.")
    return command_result(inbound.msg_id, name, {"state": ORDERS[number]}, target=inbound.source)
