"""Channels: the ways in and out."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.channel.base import Channel, Delivers
    from miniclaw.channel.cli import CLIChannel
    from miniclaw.channel.webchat import WebChatChannel
    from miniclaw.channel.webhook import WebhookChannel

__all__ = [
    "CLIChannel",
    "Channel",
    "Delivers",
    "WebChatChannel",
    "WebhookChannel",
]

__getattr__ = exports(
    __name__,
    {
        "CLIChannel": "cli",
        "Channel": "base",
        "Delivers": "base",
        "WebChatChannel": "webchat",
        "WebhookChannel": "webhook",
    },
)
