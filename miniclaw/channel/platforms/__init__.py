"""One file a platform. Which of them run is what the settings have secrets for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from miniclaw.config import Clock

if TYPE_CHECKING:
    from miniclaw.channel.webhook import Platform
    from miniclaw.channel_settings import ChannelSettings

__all__ = ["configured"]


def configured(settings: ChannelSettings, *, clock: Clock) -> Iterator[Platform]:
    """The platforms and accounts that have their secret; each is imported only then."""
    for name, slack in {"": settings.slack, **settings.slack.accounts}.items():
        if slack.signing_secret:
            from miniclaw.channel.platforms.slack import SlackPlatform

            yield SlackPlatform(slack, account=name)
    for name, feishu in {"": settings.feishu, **settings.feishu.accounts}.items():
        if feishu.encrypt_key or feishu.verification_token:
            from miniclaw.channel.platforms.feishu import FeishuPlatform

            yield FeishuPlatform(feishu, clock=clock, account=name)
    if settings.generic.secret or settings.generic.bearer or settings.generic.hub_secret:
        from miniclaw.channel.platforms.generic import GenericPlatform

        yield GenericPlatform(settings.generic, clock=clock)
