"""小店会的事：话里有哪个订单号，就答哪个。"""

from day1_gateway import GatewayMessage, MessageRouter, MessageType, ProtocolError, TextPayload, event_message

ORDERS = {"4471": "已发货，顺丰速运，2 天后送达", "4472": "处理中"}


async def answer(inbound: GatewayMessage) -> GatewayMessage:
    """不管话从哪个渠道来，都是同一个函数。"""
    assert isinstance(inbound.payload, TextPayload)
    for number, state in ORDERS.items():
        if number in inbound.payload.text:
            return event_message("turn.finished", {"text": f"订单 {number}：{state}"}, target=inbound.source)
    raise ProtocolError("not_found", "No order number that we know is in the text.")


def router() -> MessageRouter:
    """小店的路由表。"""
    table = MessageRouter()
    table.register(MessageType.TEXT, answer)
    return table
