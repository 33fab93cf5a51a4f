"""The gateway: one protocol, one way in, and the servers that speak it."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.gateway.dispatcher import Dispatcher
    from miniclaw.gateway.events import EventBus
    from miniclaw.gateway.ingress import Ingress
    from miniclaw.gateway.protocol import GatewayMessage, Inbound, MessageType, Receipt
    from miniclaw.gateway.router import MessageRouter
    from miniclaw.gateway.server import GatewayServer

__all__ = [
    "Dispatcher",
    "EventBus",
    "GatewayMessage",
    "GatewayServer",
    "Inbound",
    "Ingress",
    "MessageRouter",
    "MessageType",
    "Receipt",
]

__getattr__ = exports(
    __name__,
    {
        "Dispatcher": "dispatcher",
        "EventBus": "events",
        "GatewayMessage": "protocol",
        "GatewayServer": "server",
        "Inbound": "protocol",
        "Ingress": "ingress",
        "MessageRouter": "router",
        "MessageType": "protocol",
        "Receipt": "protocol",
    },
)
