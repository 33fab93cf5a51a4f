"""One file a platform. Which of them run is what the settings have secrets for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from miniclaw.config import Clock

if TYPE_CHECKING:
    from miniclaw.channel.base import HeldHandles
    from miniclaw.channel.webhook import Platform
    from miniclaw.channel_settings import ChannelSettings

__all__ = ["configured"]


def configured(settings: ChannelSettings, *, clock: Clock, held: HeldHandles) -> Iterator[Platform]:
    """The platforms and accounts that have their secret; each is imported only then."""
    for name, slack in {"": settings.slack, **settings.slack.accounts}.items():
        if slack.signing_secret:
            from miniclaw.channel.platforms.slack import SlackPlatform

            yield SlackPlatform(slack, held=held, account=name)
    for name, feishu in {"": settings.feishu, **settings.feishu.accounts}.items():
        if feishu.encrypt_key or feishu.verification_token:
            from miniclaw.channel.platforms.feishu import FeishuPlatform

            yield FeishuPlatform(feishu, clock=clock, account=name)
    for name, wecom in {"": settings.wecom, **settings.wecom.accounts}.items():
        if wecom.token and wecom.encoding_aes_key and wecom.corp_id:
            from miniclaw.channel.platforms.wecom import WeComPlatform

            yield WeComPlatform(wecom, clock=clock, account=name)
        if (wecom.bot_token or wecom.token) and (wecom.bot_encoding_aes_key or wecom.encoding_aes_key):
            from miniclaw.channel.platforms.wecom_bot import WeComBotPlatform

            yield WeComBotPlatform(wecom, clock=clock, account=name)
    for name, dingtalk in {"": settings.dingtalk, **settings.dingtalk.accounts}.items():
        if dingtalk.app_secret:
            from miniclaw.channel.platforms.dingtalk import DingTalkPlatform

            yield DingTalkPlatform(dingtalk, clock=clock, account=name)
    if settings.generic.secret or settings.generic.bearer or settings.generic.hub_secret:
        from miniclaw.channel.platforms.generic import GenericPlatform

        yield GenericPlatform(settings.generic, clock=clock)
