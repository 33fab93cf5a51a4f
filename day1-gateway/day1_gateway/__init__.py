"""第 1 天：网关。一种消息、一张路由表、一条总线、一个 WebSocket 服务器。"""

from day1_gateway.errors import MiniClawError, ProtocolError
from day1_gateway.events import EventBus, Subscription
from day1_gateway.protocol import (
    CommandPayload,
    ErrorPayload,
    EventPayload,
    GatewayMessage,
    MessageType,
    TextPayload,
    command_result,
    error_message,
    event_message,
    new_id,
    now,
    parse_frame,
)
from day1_gateway.router import MessageRouter
from day1_gateway.server import GatewayServer

__all__ = ["CommandPayload", "ErrorPayload", "EventBus", "EventPayload", "GatewayMessage", "GatewayServer"]
__all__ += ["MessageRouter", "MessageType", "MiniClawError", "ProtocolError", "Subscription", "TextPayload"]
__all__ += ["command_result", "error_message", "event_message", "new_id", "now", "parse_frame"]
