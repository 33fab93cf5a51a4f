"""Channels: the ways in and out."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.channel.base import Channel, Delivers
    from miniclaw.channel.cli import TerminalChannel
    from miniclaw.channel.webchat import WebChatChannel
    from miniclaw.channel.webhook import WebhookChannel

__all__ = [
    "Channel",
    "Delivers",
    "TerminalChannel",
    "WebChatChannel",
    "WebhookChannel",
]

__getattr__ = exports(
    __name__,
    {
        "Channel": "base",
        "Delivers": "base",
        "TerminalChannel": "cli",
        "WebChatChannel": "webchat",
        "WebhookChannel": "webhook",
    },
)
