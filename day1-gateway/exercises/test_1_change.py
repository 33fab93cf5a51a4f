"""运行：pytest exercises/test_1_change.py"""

from day1_gateway import GatewayMessage, MessageType, TextPayload
from ex_1_change import echo

HINT = "提示：`source` 是谁发的，`target` 是发给谁；回复的 target 应该是哪一个？"


async def test_the_echo_goes_back_to_whoever_sent_the_message() -> None:
    payload = TextPayload(text="4471")
    message = GatewayMessage(msg_id="m1", msg_type=MessageType.TEXT, source="ws:con_1", payload=payload)
    reply = await echo(message)
    assert reply.target == "ws:con_1", HINT
