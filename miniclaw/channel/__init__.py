"""Channels: the ways in and out."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.channel.base import Channel, Delivers
    from miniclaw.channel.cli import CLIChannel
    from miniclaw.channel.webchat import WebChatChannel
    from miniclaw.channel.webhook import WebhookChannel

__all__ = [
    "Channel",
    "Delivers",
    "CLIChannel",
    "WebChatChannel",
    "WebhookChannel",
]

__getattr__ = exports(
    __name__,
    {
        "Channel": "base",
        "Delivers": "base",
        "CLIChannel": "cli",
        "WebChatChannel": "webchat",
        "WebhookChannel": "webhook",
    },
)
