"""第 2 天：渠道。终端、网页和三个平台的 Webhook，进来都是同一种消息。"""

from day2_channel.base import Channel, ConnectionChannel, pump
from day2_channel.cli import CLIChannel
from day2_channel.platforms import FeishuPlatform, SlackPlatform, WeComPlatform
from day2_channel.webchat import WebChatChannel
from day2_channel.webhook import Answer, Platform, WebhookChannel, WebhookRequest

__all__ = ["Answer", "CLIChannel", "Channel", "ConnectionChannel", "FeishuPlatform", "Platform"]
__all__ += ["SlackPlatform", "WeComPlatform", "WebChatChannel", "WebhookChannel", "WebhookRequest", "pump"]
